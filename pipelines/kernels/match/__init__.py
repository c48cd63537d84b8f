"""From a group of pyc ops to the kernels that can compute it."""
