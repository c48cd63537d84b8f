"""Tensor types as plain data: a shape whose entries may be unknown, and an element type.

Shapes use None for a dynamic dimension. Element types are numpy dtypes (bf16 from `ml_dtypes`)
and print under MLIR's names. Nothing here needs the MLIR bindings.
"""

import math
import re
import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode

Shape = tuple[int | None, ...]

DTYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "ui64": np.dtype(np.uint64),
    "ui32": np.dtype(np.uint32),
    "ui16": np.dtype(np.uint16),
    "ui8": np.dtype(np.uint8),
    "i1": np.dtype(np.bool_),
}
# Bytes of a tensor, dynamic dimensions left out: what the address space of a process holds. Larger
# ones overflow the 64-bit arithmetic of strides and sizes in the passes behind.
MAX_BYTES = 1 << 47
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = frozenset(DTYPES[n] for n in ("f64", "f32", "f16", "bf16"))
SIGNED = frozenset(DTYPES[n] for n in ("i64", "i32", "i16", "i8"))
UNSIGNED = frozenset(DTYPES[n] for n in ("ui64", "ui32", "ui16", "ui8"))
INTEGERS = SIGNED | UNSIGNED
_TEXT = re.compile(r"tensor<((?:(?:\d+|\?)x)*)(\w+)>")
_ACCUMULATORS = {DTYPES["f16"]: DTYPES["f32"], DTYPES["bf16"]: DTYPES["f32"]}
BOOL = DTYPES["i1"]
I64 = DTYPES["i64"]


def dtype_name(dtype: np.dtype) -> str:
    """Return MLIR's name of a numpy dtype, or numpy's own when PyC has no such type."""
    return _NAMES.get(dtype) or str(dtype)


def is_float(dtype: np.dtype) -> bool:
    """Return True for f64, f32, f16 and bf16."""
    return dtype in FLOATS


def is_integer(dtype: np.dtype) -> bool:
    """Return True for integers of 8 to 64 bits with or without a sign (not for i1)."""
    return dtype in INTEGERS


def is_unsigned(dtype: np.dtype) -> bool:
    """Return True for ui8, ui16, ui32 and ui64."""
    return dtype in UNSIGNED


def lowest(dtype: np.dtype) -> Any:
    """Return the identity of max: -inf, or the smallest integer."""
    return -np.inf if is_float(dtype) else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    """Return the identity of min: +inf, or the greatest integer."""
    return np.inf if is_float(dtype) else np.iinfo(dtype).max


def storage(dtype: np.dtype) -> np.dtype:
    """Return what IREE holds `dtype` as: an unsigned integer as the signed one of the same bits."""
    return np.dtype(f"i{dtype.itemsize}") if dtype in UNSIGNED else dtype


def accumulator(dtype: np.dtype) -> np.dtype:
    """Return the type that sums of `dtype` are kept in: f32 for the 16-bit floats, else itself."""
    return _ACCUMULATORS.get(dtype, dtype)


@dataclass(frozen=True)
class TensorType:
    """``tensor<2x?xf32>`` as data: `shape` (None = dynamic) and `dtype`."""

    shape: Shape
    dtype: np.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True when every dimension is known."""
        return None not in self.shape

    @property
    def elements(self) -> int:
        """Number of elements. Raises ValueError for a dynamic shape."""
        if None in self.shape:
            raise ValueError(f"{self}: the number of elements is not known")
        return math.prod(d for d in self.shape if d is not None)

    @property
    def nbytes(self) -> int:
        """Size in bytes as IREE stores it (i1 takes a byte). Raises ValueError if dynamic."""
        return self.elements * self.dtype.itemsize

    @property
    def fits(self) -> bool:
        """False for sizes that no memory holds; dynamic dimensions count as 1."""
        known = math.prod([d for d in self.shape if d])
        return known * self.dtype.itemsize <= MAX_BYTES

    def with_shape(self, shape: Shape) -> "TensorType":
        """Return the same element type under another shape."""
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: np.dtype) -> "TensorType":
        """Return the same shape with another element type."""
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        dims = "".join("?x" if d is None else f"{d}x" for d in self.shape)
        return f"tensor<{dims}{dtype_name(self.dtype)}>"


def parse_type(text: str) -> TensorType:
    """Return the type that a text such as ``tensor<2x?xf32>`` names.

    Raises ValueError for other text, and for element types that PyC has not.
    """
    found = _TEXT.fullmatch(text)
    if found is None or found[2] not in DTYPES:
        raise ValueError(f"a ranked tensor of {', '.join(DTYPES)}, got {text!r:.60}")
    dims = (word for word in found[1].split("x") if word)
    return tensor(found[2], *(None if d == "?" else int(d) for d in dims))


def tensor(dtype: str, *shape: int | None) -> TensorType:
    """Return a type: `tensor("f32", None, 4)` is ``tensor<?x4xf32>``."""
    return TensorType(shape, DTYPES[dtype])


def require_plain(value: Any, where: str) -> None:
    """Raise PycError (BAD_ARGUMENT) for an array whose class gives it another meaning.

    Those are masked arrays, whose mask would be lost, and `np.matrix`, whose `*` is a product of
    matrices.
    """
    if type(value) is np.ndarray or not isinstance(value, np.ndarray):
        return
    masked = sys.modules.get("numpy.ma")  # nobody has a masked array before it is imported
    if masked is not None and isinstance(value, masked.MaskedArray):
        got = "a masked array, whose mask would be lost"
        remedy = "give `x.filled(value)`, and `np.ma.getmaskarray(x)` as an array of its own"
    elif isinstance(value, np.matrix):
        got, remedy = "a `np.matrix`, whose operators differ", "give `np.asarray(x)`"
    else:
        return
    raise PycError(
        ReasonCode.BAD_ARGUMENT, f"{where}: expected a plain numpy array, got {got}; {remedy}"
    )
