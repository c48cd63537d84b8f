"""Modules of linalg on tensors, and TOSA by way of it, as pyc programs."""
