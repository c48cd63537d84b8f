"""Suites that measure time on programs: latency, gemm, call overhead, start, GPU."""
