"""Kernels of 8-bit integers: exact sums in i32, and what follows in f32."""
