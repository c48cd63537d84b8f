"""The kernel language: values, memory, loops, math functions, pointwise programs, the carrier."""
