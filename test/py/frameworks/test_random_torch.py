"""Random modules through `torch.compile(backend="pyc")` equal torch's eager mode."""

import random

import pytest
from conftest import FULL

pytest.importorskip("torch", reason="torch is not installed")

from random_torch import SEEDS, check


@pytest.mark.parametrize("seed", SEEDS if FULL else random.Random(23).sample(SEEDS, 6))
def test_a_random_module_equals_eager(seed):
    """Of every fourth module with a second batch too, which makes it dynamic."""
    check(seed)
