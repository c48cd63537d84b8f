"""Compiles in a process of their own: one that can be ended, and whose crash is told as an error.

A contract with `max_compile_seconds` and programs that are not trusted are compiled here;
docs/architecture.md says how the parts work together.
"""
