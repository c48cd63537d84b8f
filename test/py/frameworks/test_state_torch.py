"""State that a torch module writes: on the device, donated where proven, never shared."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pyc_mlir.torch as pyc_torch  # noqa: E402
from pyc_mlir.pipelines.choices.contract import Contract  # noqa: E402
from pyc_mlir.runtime.array import overlap  # noqa: E402

F = torch.nn.functional

PLACES, WIDTH, HEADS = 128, 64, 4
CACHE = HEADS * PLACES * WIDTH // HEADS * 4


class Decoder(torch.nn.Module):
    """One token a call; keys and values of the earlier ones in buffers."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, 50)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, PLACES, WIDTH // HEADS))

    def forward(self, token, place):
        x = self.words(token)
        q, k, v = self.qkv(x).view(1, 3, HEADS, 1, WIDTH // HEADS).unbind(1)
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        mask = torch.arange(PLACES)[None] <= place
        x = x + F.scaled_dot_product_attention(q, self.keys, self.values, mask).flatten(1)
        return self.out(x)


@pytest.mark.parametrize("mode", ["balanced", "latency_first", "memory_first"])
@torch.no_grad()
def test_a_decode_loop_works_in_the_memory_of_its_cache(mode):
    torch.manual_seed(1)
    eager = Decoder().eval()
    example = (torch.tensor([1]), torch.tensor([0]))
    model = pyc_torch.compile(eager, example, planner_mode=mode, cache=False)
    device, cache = model.program.device, dict(model.state)
    # No copy of the cache is scratch.
    assert (model.program.stats().memory.transients or 0) < CACHE
    places = {name: value.numpy().ctypes.data for name, value in cache.items()}
    held = device.memory().allocated_bytes
    for place in range(6):
        given = torch.tensor([place * 7 % 50]), torch.tensor([place])
        got = model(*given)
        torch.testing.assert_close(got, eager(*given), atol=1e-5, rtol=1e-5)
        del got
    # After six steps the arena came, and the last results and inputs, which are small.
    grown = device.memory().allocated_bytes - held - model.program.stats().arena_bytes
    assert grown < CACHE // 8
    for name, first in cache.items():
        assert not first.is_present
        now = model.state[name]
        assert now.numpy().ctypes.data == places[name]
        np.testing.assert_allclose(now.numpy(), getattr(eager, name), atol=1e-5)


class Shows(torch.nn.Module):
    """Hands its state out, whole and as views."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("other", torch.zeros(1, 3))

    def forward(self, x):
        self.total.add_(x)
        self.other.copy_(self.total.view(1, 3))
        return self.total, self.total[:2], self.total.view(1, 3)


@pytest.mark.parametrize("contract", [None, Contract(max_error="rounding")])
def test_results_do_not_share_the_memory_of_state(contract):
    model = pyc_torch.compile(Shows(), (torch.ones(3),), contract=contract, cache=False)
    earlier = []
    for step in (1.0, 2.0, 3.0):
        got = model(torch.ones(3))
        assert not overlap(model.state["total"], model.state["other"])
        for value in got:
            assert (value == step).all()
        earlier.append((step, got))
    for step, got in earlier:
        assert all((value == step).all() for value in got)
        for value in got:
            value.zero_()
    assert (np.asarray(model.state["total"]) == 3).all()
    assert (model(torch.ones(3))[0] == 4).all()


def at(*indices):
    def function(x, value, *places):
        index = [slice(None) if i is None else places[i] for i in indices]
        return torch.ops.aten.index_put(
            x, [None if isinstance(i, slice) else i for i in index], value
        )

    return function


@pytest.mark.parametrize(
    ("function", "value", "places"),
    [
        (at(0), (5, 6), [2]),
        (at(0), (1, 5, 6), [[-1]]),
        (at(None, 0), (4, 1, 6), [[3]]),
        (at(None, 0, 1), (4,), [-2, 5]),
        (at(None, 0, 1), (4, 1, 1), [[[4]], 0]),
        (at(0, 1, 2), (), [1, -1, 2]),
    ],
)
def test_one_place_is_written_without_a_scatter(function, value, places):
    given = torch.randn(4, 5, 6), torch.randn(value), *map(torch.tensor, places)
    model = pyc_torch.compile(function, given, cache=False)
    assert b"pyc.scatter" not in model.program.artifact.module
    assert torch.equal(model(*given), function(*given))


_KEPT = """
import torch, pyc_mlir.torch
def double(x):
    return x * 2
kept = torch.compile(double, backend="pyc")(torch.ones(2))
storage = kept.untyped_storage()
import atexit
atexit.register(lambda: print(kept.tolist()))
"""


@pytest.mark.full
def test_results_that_a_script_keeps_are_freed_at_its_end() -> None:
    """IREE's bindings would report them, and the compiled graphs, as leaked in dozens of lines."""
    run = subprocess.run([sys.executable, "-c", _KEPT], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[2.0, 2.0]" and "leaked" not in run.stderr
