"""Find out whether a program computes its results row by row, so that requests may share a call.

Shapes do not tell: a program that subtracts the mean of a batch has the same signature as one that
does not. So the program is called on random rows: the rows together must come to what each part
comes to alone, and a part's results must keep every bit when its neighbours are replaced by others
and by NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ml_dtypes import finfo

from pyc_mlir.artifact.signature import Signature, flat
from pyc_mlir.artifact.test_vectors import ExpectedResult, compare, make_inputs
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import is_float
from pyc_mlir.runtime.array import Array

Call = Callable[..., Any]
# Rows of a probe where the range allows: several tiles of a kernel and a rest.
_ROWS = 18
_FIRST = 5
_OTHER_SIZE = 4
# The greatest difference by other code for other sizes, in units in the last place of the greatest
# element: of f32 and wider, and of half types, whose results are rounded once at the end.
_ULPS, _HALF_ULPS = 1024, 8
Arrays = list[np.ndarray]


def most_rows(call: Call, signature: Signature, exact: bool = False) -> tuple[int, str]:
    """Return the most rows that requests may have together; 0 and why if each is called alone.

    call: the program, a function of numpy arrays. exact: rows together must have the same bits as
    alone; else they may differ by rounding, since programs take other code for other sizes.
    """
    name, why = _dimension(signature)
    if why:
        return 0, why
    low, high = signature.ranges[name]
    if 2 * low > high:
        return 0, f"two requests of {low} rows, the fewest, have more than {high}, the most"
    total = min(high, max(2 * low, _ROWS))
    first = min(max(low, _FIRST), total - low)
    try:
        why = _probed(call, signature, name, total, first, exact)
    except PycError as error:
        why = f"a call on random rows fails: {error.message}"
    return (0, why) if why else (high, "")


def _dimension(signature: Signature) -> tuple[str, str]:
    """Return the dimension of the rows, or why there is none."""
    names = {a.dynamic.get(0) if a.shape else None for a in signature.inputs}
    if len(names) != 1 or None in names:
        return "", "its inputs do not all begin with one dynamic dimension"
    (name,) = names
    assert name is not None
    if name not in signature.ranges:
        return "", f"the dimension `{name}` has no declared range"
    others = [n for a in signature.inputs for axis, n in a.dynamic.items() if axis > 0]
    if any(name in other.split("*") for other in others):
        return "", f"the dimension `{name}` is not the first one alone"
    if missing := [n for n in others if n not in signature.ranges]:
        return "", f"the dimension `{missing[0]}` has no declared range"
    return name, ""


def _probed(
    call: Call, signature: Signature, name: str, total: int, first: int, exact: bool
) -> str:
    """Return why rows depend on one another; "" if nothing contradicts that they do not."""
    within = {n: min(max(_OTHER_SIZE, low), high) for n, (low, high) in signature.ranges.items()}
    rows, others = (make_inputs(signature, seed, {**within, name: total}) for seed in (0, 2))
    mine = slice(0, first), slice(first, total)
    together = _called(call, rows)
    if any(r.ndim == 0 or len(r) != total for r in together):
        shapes = ", ".join(str(list(r.shape)) for r in together)
        return f"{total} rows come to results of {shapes}"
    for part in mine:
        alone = _called(call, [a[part] for a in rows])
        if wrong := _differs([r[part] for r in together], alone, exact):
            return f"{total} rows together differ from {part.stop - part.start} alone: {wrong}"
    for neighbours in (others, [_nan(a) for a in rows]):
        pairs = zip(rows, neighbours, strict=True)
        mixed = [np.concatenate([a[:first], b[first:]]) for a, b in pairs]
        found = _called(call, mixed)
        if wrong := _differs([r[:first] for r in together], [r[:first] for r in found], True):
            return f"{first} rows come to other results beside other rows: {wrong}"
    return ""


def _called(call: Call, inputs: Sequence[np.ndarray]) -> Arrays:
    values = flat(call(*map(np.ascontiguousarray, inputs)))
    return [np.asarray(v.numpy() if isinstance(v, Array) else v) for v in values]


def _differs(got: Arrays, alone: Arrays, exact: bool) -> str:
    """Return how results differ by more than allowed; "" if they do not."""
    if all(a.tobytes() == b.tobytes() for a, b in zip(got, alone, strict=True)):
        return ""
    return "not the same bits" if exact else compare(got, list(map(_rounded, alone))).wrong


def _rounded(value: np.ndarray) -> ExpectedResult:
    """Return what is expected within the rounding of its type."""
    allowed = 0.0
    if is_float(value.dtype):
        sizes = np.abs(value.astype(np.float64))
        largest = sizes.max(where=np.isfinite(sizes), initial=0.0)
        ulps = _ULPS if value.dtype.itemsize >= 4 else _HALF_ULPS
        allowed = ulps * float(finfo(value.dtype).eps) * largest
    return ExpectedResult(value, np.full(value.shape, allowed))


def _nan(array: np.ndarray) -> np.ndarray:
    """Return an array of NaN; of integers and booleans the array reversed."""
    return np.full_like(array, np.nan) if is_float(array.dtype) else array[::-1]
