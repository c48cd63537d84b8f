"""Targets, and the cost of work on them."""
