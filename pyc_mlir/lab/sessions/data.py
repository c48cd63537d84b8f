"""The arrays that programs and works are measured on: seeded, finite, indices in range.

    arguments_of(signature, seed, dims)             of a program
    values_of(work, seed, dims)                     of a work: all its inputs, constants too

They follow from the seed by the raw stream of PCG64, which numpy keeps stable (NEP 19), so that
every process and machine measures on the same data.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import make_inputs
from pyc_mlir.dialects.types import BOOL, TensorType, is_float
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.work import Input, Work

# Of floats: on both sides of zero; positive, for what roots and logarithms are taken of.
SIGNED, POSITIVE = "signed", "positive"
_INTEGERS = 16


def sizes_of(signature: Signature, dims: Mapping[str, int]) -> dict[str, int]:
    """Return each dynamic dimension's size: as given, else the nominal one, within its range."""
    names = {name for a in signature.inputs for name in a.dynamic.values()}
    found = {}
    for name in sorted(names):
        low, high = signature.ranges.get(name, (0, NOMINAL_DIMENSION))
        found[name] = dims.get(name, min(max(NOMINAL_DIMENSION, low), high))
    return found


def arguments_of(
    signature: Signature, seed: int, dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """Return the arguments of a program. dims: sizes of its dynamic dimensions, by name."""
    # Even seeds give values without ties.
    return make_inputs(signature, 2 * seed, sizes_of(signature, dims or {}))


def values_of(
    work: Work, seed: int, floats: str = SIGNED, dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """Return an array for each input of a work.

    floats: `SIGNED` in [-1, 1), `POSITIVE` in [0.25, 1.25). Constants of two and more dimensions
    are scaled as trained weights are, so that products stay in range. dims: ``0[1]`` for the second
    dimension of the first input; dynamic dimensions are nominal where it has none.
    """
    limits = _limits(work)
    return [
        _array(i, np.random.PCG64([seed, n]), floats, limits.get(n), _shape(i.type, n, dims or {}))
        for n, i in enumerate(work.inputs)
    ]


def _shape(type_: TensorType, number: int, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(
        dims.get(f"{number}[{axis}]", NOMINAL_DIMENSION) if d is None else d
        for axis, d in enumerate(type_.shape)
    )


def _limits(work: Work) -> dict[int, int]:
    """Return the number of things that an index counts, by input that is used as an index."""
    found: dict[int, int] = {}
    for node in work.nodes:
        if node.name in ("gather", "scatter"):
            axis = node.params.get("axis", 0) if node.name == "gather" else 0
            counted = work.type(node.operands[0]).shape[axis]
            found[node.operands[1]] = NOMINAL_DIMENSION if counted is None else counted
        elif node.name == "update_slice":
            # Any start is moved to where the update fits.
            found[node.operands[2]] = 1
    return found


def _array(
    value: Input, stream: np.random.PCG64, floats: str, limit: int | None, shape: tuple[int, ...]
) -> np.ndarray:
    dtype = value.type.dtype
    raw = np.asarray(stream.random_raw(prod(shape)), np.uint64).reshape(shape)
    if dtype == BOOL:
        return (raw >> np.uint64(63)).astype(dtype)
    if not is_float(dtype):
        return (
            (raw >> np.uint64(32))
            .astype(np.int64)
            .__mod__(max(1, limit or _INTEGERS))
            .astype(dtype)
        )
    unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    numbers = unit * 2 - 1 if floats == SIGNED else unit + 0.25
    if value.array is not None and len(shape) > 1:
        numbers /= max(1, prod(shape[:-1])) ** 0.5
    return np.asarray(numbers).astype(dtype)
