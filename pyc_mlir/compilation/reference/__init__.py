"""The expected answers of a program: oracles, the traced function itself, and the self-check."""
