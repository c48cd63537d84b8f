"""Kernels that move numbers: transposes, concatenations, resizing."""
