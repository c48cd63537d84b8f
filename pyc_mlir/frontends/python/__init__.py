"""Tracing: from a Python function in numpy style to a pyc module."""
