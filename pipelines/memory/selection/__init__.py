"""Choosing one candidate for each part of a program at once, under a limit of memory over time."""
