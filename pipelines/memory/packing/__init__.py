"""Offsets for live intervals: lower bounds, greedy orders, exact search."""
