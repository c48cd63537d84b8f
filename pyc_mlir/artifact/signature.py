"""What a program accepts: its signature, and the check that runs before anything else does.

IREE checks element types and static dimensions, but not that dynamic dimensions agree (it would
read out of bounds). A signature names dimensions: equal names must have equal sizes, and sizes of
dimensions with a declared range must lie in it. One without a name goes by its place, ``x[0]``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.types import DTYPES, dtype_name

# A size, the name of a dynamic dimension, or a dynamic dimension without a name.
Dim = int | str | None
# Sizes of dimensions are below it: programs count in 64 bits.
_SIZES = 1 << 63
# The smallest and the largest size of a dimension.
Range = tuple[int, int]
Ranges = Mapping[str, Range]


@dataclass(frozen=True)
class Argument:
    """One input or output: its name, element type and dimensions.

    Names are printable, on one line, whatever a model or a manifest calls them.
    """

    name: str
    dtype: np.dtype
    shape: tuple[Dim, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", one_line(self.name))
        dims = tuple(one_line(d) if isinstance(d, str) else d for d in self.shape)
        object.__setattr__(self, "shape", dims)

    def __str__(self) -> str:
        dims = "".join(f"{'?' if d is None else d}x" for d in self.shape)
        return f"tensor<{dims}{dtype_name(self.dtype)}>"

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape when every dimension is known."""
        known = tuple(d for d in self.shape if isinstance(d, int))
        return known if len(known) == len(self.shape) else None

    @property
    def dynamic(self) -> dict[int, str]:
        """By axis, what each dynamic dimension goes by."""
        named = enumerate(self.shape)
        return {i: d or f"{self.name}[{i}]" for i, d in named if not isinstance(d, int)}

    def largest(self, ranges: Ranges) -> "Argument":
        """This argument with the largest size in place of each dynamic dimension of a range."""
        names = self.dynamic
        shape = [
            ranges[names[i]][1] if names.get(i) in ranges else d for i, d in enumerate(self.shape)
        ]
        return replace(self, shape=tuple(shape))

    def to_json(self) -> dict[str, Any]:
        """The manifest's form of it."""
        return {"name": self.name, "dtype": dtype_name(self.dtype), "shape": list(self.shape)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Argument":
        """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError."""
        dims = tuple(data["shape"])
        if not all(d is None or isinstance(d, str) or (type(d) is int and d >= 0) for d in dims):
            raise ValueError(f"expected sizes, names or null as dimensions, got {data['shape']}")
        return Argument(str(data["name"]), DTYPES[data["dtype"]], dims)


@dataclass(frozen=True)
class Signature:
    """What a program takes and gives, and the `ranges` that sizes are declared to keep."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    ranges: Ranges = field(default_factory=dict)

    @property
    def undeclared(self) -> list[tuple[str, str]]:
        """The dynamic dimensions of inputs without a range: (what it goes by, where it is)."""
        return [
            (name, f"axis {axis} of `{a.name}`")
            for a in self.inputs
            for axis, name in a.dynamic.items()
            if name not in self.ranges
        ]

    @property
    def ranges_of_inputs(self) -> dict[tuple[int, int], Range]:
        """The ranges by (input, axis)."""
        return {
            (number, axis): self.ranges[name]
            for number, a in enumerate(self.inputs)
            for axis, name in a.dynamic.items()
            if name in self.ranges
        }

    def with_ranges(self, given: Mapping[str, Any]) -> "Signature":
        """This signature with more ranges. Raises PycError (BAD_ARGUMENT) for what is none."""
        known = sorted({name for a in self.inputs for name in a.dynamic.values()})
        ranges = dict(self.ranges)
        for name, value in ((one_line(n), v) for n, v in given.items()):
            if name not in known:
                raise PycError(
                    ReasonCode.BAD_ARGUMENT,
                    f"dims: expected dynamic dimensions of the inputs "
                    f"({', '.join(known) or 'there is none'}), got {name!r}",
                )
            ranges[name] = checked_range(name, value)
        return replace(self, ranges=ranges)

    def check(self, given: Sequence[tuple[tuple[int, ...], np.dtype]]) -> dict[str, int]:
        """Raise PycError unless arrays of these (shape, dtype) fit; return the named sizes.

        Codes: ARGUMENT_COUNT, ARGUMENT_DTYPE, ARGUMENT_SHAPE, DIMENSION_MISMATCH,
        DIMENSION_OUT_OF_RANGE; the message names the argument.
        """
        if len(given) != len(self.inputs):
            names = ", ".join(f"`{a.name}`: {a}" for a in self.inputs)
            raise PycError(
                ReasonCode.ARGUMENT_COUNT,
                f"call: expected {len(self.inputs)} arrays ({names}), got {len(given)}",
            )
        bound: dict[str, tuple[int, str]] = {}
        for expected, (shape, dtype) in zip(self.inputs, given, strict=True):
            _check_argument(expected, shape, dtype)
            _bind(expected, shape, bound)
            _check_ranges(expected, shape, self.ranges)
        return {name: size for name, (size, _) in bound.items()}

    def to_json(self) -> dict[str, Any]:
        """The manifest's form of it."""
        ranges = {name: list(ends) for name, ends in self.ranges.items()}
        return {
            "inputs": [a.to_json() for a in self.inputs],
            "outputs": [a.to_json() for a in self.outputs],
            **({"ranges": ranges} if ranges else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Signature":
        """Read what `to_json` wrote. Raises PycError (BAD_ARTIFACT) for anything else."""
        try:
            return Signature(
                tuple(Argument.from_json(a) for a in data["inputs"]),
                tuple(Argument.from_json(a) for a in data["outputs"]),
            ).with_ranges(data.get("ranges", {}))
        except (
            ArithmeticError,
            AttributeError,
            PycError,
            KeyError,
            TypeError,
            ValueError,
        ) as error:
            raise PycError(
                ReasonCode.BAD_ARTIFACT,
                f"manifest: expected inputs and outputs with name, dtype and shape, "
                f"got {data!r:.200} ({type(error).__name__}: {error})",
            ) from None


def checked_range(name: str, value: Any) -> Range:
    """A range from (low, high), both included. Raises PycError (BAD_ARGUMENT)."""
    ends = tuple(value) if isinstance(value, tuple | list) else ()
    whole = all(isinstance(e, int | np.integer) and not isinstance(e, bool) for e in ends)
    if len(ends) != 2 or not whole or not 0 <= ends[0] <= ends[1] < _SIZES:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"dims: expected the smallest and the largest size of `{name}`, such as (1, 64), "
            f"got {value!r}",
        )
    return int(ends[0]), int(ends[1])


def _check_ranges(expected: Argument, shape: tuple[int, ...], ranges: Ranges) -> None:
    for axis, name in expected.dynamic.items() if ranges else ():
        low, high = ranges.get(name, (0, shape[axis]))
        if not low <= shape[axis] <= high:
            raise PycError(
                ReasonCode.DIMENSION_OUT_OF_RANGE,
                f"dimension `{name}`: expected {low} to {high}, got {shape[axis]} on axis {axis} "
                f"of `{expected.name}`; compile with a wider range",
            )


def _check_argument(expected: Argument, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if dtype != expected.dtype:
        raise PycError(
            ReasonCode.ARGUMENT_DTYPE,
            f"argument `{expected.name}`: expected element type {dtype_name(expected.dtype)}, "
            f"got {dtype_name(dtype)}; convert it with `.astype`",
        )
    fits = len(shape) == len(expected.shape) and all(
        size == dim for size, dim in zip(shape, expected.shape, strict=True) if type(dim) is int
    )
    if not fits:
        raise PycError(
            ReasonCode.ARGUMENT_SHAPE,
            f"argument `{expected.name}`: expected {expected} (rank {len(expected.shape)}), "
            f"got shape {shape} (rank {len(shape)}); reshape it, or compile with dynamic "
            "dimensions",
        )


def _bind(expected: Argument, shape: tuple[int, ...], bound: dict[str, tuple[int, str]]) -> None:
    """Record the sizes of the named dimensions; raise when one had another size before."""
    for axis, (dim, size) in enumerate(zip(expected.shape, shape, strict=True)):
        if not isinstance(dim, str):
            continue
        place = f"axis {axis} of `{expected.name}`"
        first, where = bound.setdefault(dim, (size, place))
        if first != size:
            raise PycError(
                ReasonCode.DIMENSION_MISMATCH,
                f"dimension `{dim}`: expected {first} as on {where}, got {size} on {place}",
            )
