"""The suite `evidence`: what the benchmark database withstands and how fast it answers."""
