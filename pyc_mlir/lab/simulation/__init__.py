"""Estimate what another recipe would give, without code generation: seconds and bytes."""
