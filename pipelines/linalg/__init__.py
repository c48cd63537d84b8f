"""Conversion of pyc to linalg."""
