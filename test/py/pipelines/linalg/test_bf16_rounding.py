"""Rounding to bf16 happens where the program says so, also where the next op widens again."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

import pyc_mlir
from pyc_mlir.dialects.types import DTYPES

BITS = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 3.4e38, -3.4e38, 1e-45, 1.00390625, 1.01171875],
    np.float32,
)


def there_and_back(dtype: str, way: str, size: int) -> str:
    x = f"tensor<{size}x{dtype}>"
    return f"""func.func @main(%x: {x}) -> {x} {{
      %0 = "pyc.cast"(%x) {{dtype = {way}}} : ({x}) -> tensor<{size}x{way}>
      %1 = "pyc.cast"(%0) {{dtype = {dtype}}} : (tensor<{size}x{way}>) -> {x}
      return %1 : {x}
    }}"""


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("target", ["cpu", "cpu-avx2"])
@pytest.mark.parametrize(
    ("dtype", "way"), [("f32", "bf16"), ("f16", "bf16"), ("bf16", "f16"), ("f32", "f16")]
)
@pytest.mark.full
def test_a_cast_there_and_back_rounds(dtype, way, target):
    x = np.concatenate([SPECIAL, BITS.view(np.float32)]).astype(DTYPES[dtype])
    found = np.asarray(pyc_mlir.compile(there_and_back(dtype, way, len(x)), target=target)(x))
    wanted = x.astype(DTYPES[way]).astype(DTYPES[dtype])
    # As f32, since numpy takes no NaN of bf16 for one.
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


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
