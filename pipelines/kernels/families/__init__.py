"""The kernel families, one module each."""
