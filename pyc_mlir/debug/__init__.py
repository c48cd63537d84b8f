"""Debugging of compiles: replay, diff, bisection of decisions, reduction of modules."""
