"""A whole compile in this process: options, lowering, fallbacks, memory plan, contract checks."""
