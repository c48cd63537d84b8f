"""Passes on pyc ops: canonicalize, infer shapes, decompose, fuse, select kernels."""
