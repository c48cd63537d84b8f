"""Random modules through `torch.compile(backend="pyc")`, and random functions, equal eager mode."""

from collections import Counter

import pytest
from conftest import sample

pytest.importorskip("torch", reason="torch is not installed")

import random_torch_functions as functions
from random_torch import SEEDS, check
from torch_cases import EQUAL, REFUSED, UNEXPORTED


@pytest.mark.parametrize("seed", sample(SEEDS, 6, seed=23))
def test_a_random_module_equals_eager(seed):
    """Of every fourth module with a second batch too, which makes it dynamic."""
    check(seed)


def test_random_functions_equal_eager(record_property):
    """Through both roads; what torch does not export or PyC refuses is counted."""
    counts = Counter()
    for seed in sample(functions.SEEDS, 8, seed=29):
        found = functions.outcome_of(seed)
        assert found.kind in (EQUAL, REFUSED, UNEXPORTED), (seed, found)
        counts[found.kind] += 1
    record_property("random torch functions, imported and interpreted", dict(counts))
