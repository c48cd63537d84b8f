"""What is measured: programs with inputs and reference answers."""
