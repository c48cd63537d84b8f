"""Random kernels of a family, run against its reference."""

from random import Random

import numpy as np
from kernel_runs import Kernels, in_place

BATCH = 34


def cases(family, seed, target, count):
    random = Random(seed)
    return [family.sample(random, target) for _ in range(count)]


def batches(made):
    """`made` in parts, each of which is compiled as one module."""
    named = [(f"k{i}", knobs, calls) for i, (knobs, calls) in enumerate(made)]
    return [named[i : i + BATCH] for i in range(0, len(named), BATCH)]


def placed(batch):
    """A batch's kernels; every other one writes to an input's memory, where it declares that."""
    kernels = [knobs.kernel(name) for name, knobs, _ in batch]
    return [(in_place(k) or k) if i % 2 else k for i, k in enumerate(kernels)]


def check(family, target, made):
    """All calls of all kernels are within the family's bound of its reference."""
    known = []
    for batch in batches(made):
        run = Kernels(target, placed(batch))
        for kernel, knobs, calls in batch:
            for arrays in calls:
                exact, bound = family.reference(knobs, arrays)
                got = run.run(kernel, *arrays).astype(np.float64)
                assert got.shape == exact.shape
                with np.errstate(invalid="ignore"):
                    off = np.where(np.isinf(bound), 0.0, np.abs(got - exact))
                assert (off <= bound).all(), (knobs, [a.shape for a in arrays], (off - bound).max())
                known.append(np.isfinite(bound).mean())
    assert not made or np.mean(known) > 0.95, "bounds that hold for anything show nothing"


def hash_of(name):
    """A number of a name that is the same in every process."""
    return sum(ord(c) * 31**i for i, c in enumerate(name)) % 1000
