"""Measuring processes: how many threads libraries start, and which cores they run on."""

import os
from collections.abc import Iterator, Mapping


def environment(threads: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that libraries read when they are loaded: the number of threads, by all
    its names.
    """
    count = str(threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")
    return {**base, **dict.fromkeys(names, count), "JAX_PLATFORMS": "cpu"}


def hold_to(threads: int) -> None:
    """Keep this process on that many cores: XLA takes its number of threads from them."""
    cores: Iterator[int] = iter(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, {core for core, _ in zip(cores, range(threads), strict=False)})
