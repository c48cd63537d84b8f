"""Reading modules: bounds, text and bytecode, diagnostics."""
