"""What a program should compute: oracles, the traced function itself, and the self-check."""
