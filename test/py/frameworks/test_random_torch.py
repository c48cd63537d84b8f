"""Random modules through `torch.compile(backend="pyc")` equal torch's eager mode."""

import os
import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from random_torch import random_module  # noqa: E402

FULL = bool(os.environ.get("PYC_FULL"))
SEEDS = range(200) if FULL else random.Random(23).sample(range(200), 6)
# Of the largest result.
TOLERANCE = 1e-4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_module_equals_eager(seed):
    """Of every fourth module with a second batch too, which makes it dynamic."""
    module, inputs = random_module(seed)
    torch._dynamo.reset()
    model = torch.compile(module, backend="pyc", options={"cache": False})
    for batch in (2, 3) if seed % 4 == 0 else (2,):
        x = inputs(batch)
        with torch.no_grad():
            want, got = module(x), model(x)
        assert torch.isfinite(want).all(), "a module whose results say nothing"
        largest = float(want.abs().max()) or 1.0
        torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE * largest)
