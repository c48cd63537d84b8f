"""Compiles in a worker process: it can be ended, and its crash is reported as an error.

A contract with `max_compile_seconds` and programs that are not trusted are compiled here;
docs/architecture.md says how the parts work together.
"""
