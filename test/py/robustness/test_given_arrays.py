"""Arrays as callers have them: shared, overlapping, strided, read-only, misaligned, with NaN.

A call gives what numpy gives, and leaves its inputs as they were. (Memory for results is
test_arena.py's and test_memory_of_callers.py's.)
"""

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import Device, Program
from pyc_mlir.runtime.array import to_device

N = 24
BASE = np.arange(4 * N * N, dtype=np.float32).reshape(2 * N, 2 * N) % 7 - 3
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], np.float32)


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def misaligned(array: np.ndarray) -> np.ndarray:
    """The elements at an address that is a multiple of 1 only."""
    raw = np.empty(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    assert not view.flags.aligned
    return view


def function(a, b):
    return a @ b + a, np.maximum(a, b) - b.T


@pytest.fixture(scope="module", params=["local-sync", "local-task"])
def program(request) -> Program:
    spec = pyc_mlir.spec("f32", (N, N))
    return pyc_mlir.compile(function, [spec, spec], device=Device(request.param))


SQUARE = BASE[:N, :N].copy()
PAIRS = {
    "one array twice": (SQUARE, SQUARE),
    "overlapping views": (BASE[:N, :N], BASE[1 : N + 1, 1 : N + 1]),
    "a view and its transpose": (SQUARE, SQUARE.T),
    "strided": (BASE[::2, ::2], BASE[1::2, ::2]),
    "backwards": (SQUARE[::-1], SQUARE[:, ::-1]),
    "Fortran order": (np.asfortranarray(SQUARE), SQUARE),
    "read-only": (read_only(SQUARE), read_only(SQUARE.T)),
    "misaligned": (misaligned(SQUARE), misaligned(SQUARE.T)),
    "stretched": (np.broadcast_to(SQUARE[0], (N, N)), np.broadcast_to(SQUARE[:, :1], (N, N))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_arrays_of_any_layout(program, name):
    pair = PAIRS[name]
    before = [a.copy() for a in pair]
    for got, want in zip(program(*pair), function(*before), strict=True):
        np.testing.assert_array_equal(got, want)
    for array, old in zip(pair, before, strict=True):
        np.testing.assert_array_equal(array, old)


def test_one_device_array_twice(program):
    x = to_device(SQUARE, program.device)
    for got, want in zip(program(x, x), function(SQUARE, SQUARE), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


def test_special_values_pass_through():
    spec = pyc_mlir.spec("f32", (6,))

    def special(x):
        return x + 1, x * 0, np.maximum(x, 0), np.minimum(x, 0), -x, np.abs(x), x > 0, np.exp(x)

    found = pyc_mlir.compile(special, [spec], device=Device("local-sync"))(SPECIAL)
    with np.errstate(all="ignore"):
        for got, want in zip(found, special(SPECIAL), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
