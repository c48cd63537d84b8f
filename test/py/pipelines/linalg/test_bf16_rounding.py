"""Rounding happens where the program says so, also where the next op widens again."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import pyc_mlir
from pyc_mlir.dialects.types import DTYPES, FLOATS

BITS = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 3.4e38, -3.4e38, 1e-45, 1.00390625, 1.01171875],
    np.float32,
)
OTHERS = ("f32", "f16", "bf16")
# Between two numbers of f32, f16 and bf16, and as near to that as f64 has it.
MIDDLES = np.array(
    [1 + u * side + more for u in (2.0**-24, 2.0**-11, 2.0**-8) for side in (1, 3)
     for more in (0, 2.0**-50, -(2.0**-50), 2.0**-30)]
)  # fmt: skip
# Subnormal numbers of f32 may be zero.
TINY = float(np.finfo(np.float32).tiny)


def there_and_back(x: Any) -> list[Any]:
    """x by way of each other type, of each pair of them, and of each one twice."""
    own = x.dtype
    others = [dtype for dtype in FLOATS if dtype != own]
    ways = [(a,) for a in others] + [(a, b) for a, b in product(others, others) if a != b]
    ways += [(a, own, a) for a in others]
    made = []
    for way in ways:
        y = x
        for dtype in (*way, own):
            y = y.astype(dtype)
        made.append(y)
    return made


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("target", ["cpu", pytest.param("cpu-avx2", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "dtype",
    [DTYPES["f64"], *(pytest.param(DTYPES[k], marks=pytest.mark.full) for k in OTHERS)],
    ids=str,
)
def test_casts_there_and_back_round(dtype, target):
    drawn = np.random.default_rng(2).standard_normal(512) * 2.0 ** np.arange(-26, 38).repeat(8)
    x = np.concatenate([SPECIAL, MIDDLES, drawn, BITS.view(np.float32)]).astype(dtype)
    found = pyc_mlir.compile(there_and_back, [x], target=target)(x)
    for got, want in zip(found, there_and_back(x), strict=True):
        # Wider, since numpy takes no NaN of bf16 for one.
        got, want = (np.asarray(a).astype(np.float64) for a in (got, want))
        flushed = (np.abs(want) < TINY) & (np.abs(got) <= TINY)
        np.testing.assert_array_equal(np.where(flushed, 0, got), np.where(flushed, 0, want))


def test_each_op_of_a_chain_rounds():
    text = """func.func @main(%x: tensor<512xbf16>) -> tensor<512xbf16> {
      %0 = "pyc.add"(%x, %x) : (tensor<512xbf16>, tensor<512xbf16>) -> tensor<512xbf16>
      %1 = "pyc.mul"(%0, %x) : (tensor<512xbf16>, tensor<512xbf16>) -> tensor<512xbf16>
      %2 = "pyc.sub"(%1, %x) : (tensor<512xbf16>, tensor<512xbf16>) -> tensor<512xbf16>
      return %2 : tensor<512xbf16>
    }"""
    x = np.random.default_rng(1).standard_normal(512).astype(bfloat16)
    wanted = np.subtract(np.multiply(np.add(x, x), x), x)
    np.testing.assert_array_equal(np.asarray(pyc_mlir.compile(text)(x)), wanted)
