"""Workloads: programs with inputs and reference answers."""
