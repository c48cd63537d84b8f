"""Scalar bodies of elementwise ops, and f64 functions that IREE's CPU code generation lacks."""
