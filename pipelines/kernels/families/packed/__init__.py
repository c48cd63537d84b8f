"""Products with weights of few bits, which stay packed."""
