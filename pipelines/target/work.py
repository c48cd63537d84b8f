"""A group of ops as plain data: `Work`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES, Shape, TensorType
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION

F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Input:
    """A value that the group reads; `array` gives its contents where it is a constant.

    `maker` is the pyc op that makes it, without the dialect; "" for arguments and other ops.
    """

    type: TensorType
    array: Callable[[], np.ndarray] | None = field(default=None, compare=False)
    maker: str = ""

    @cached_property
    def magnitude(self) -> float:
        """The largest size among a constant's numbers; infinity or NaN where one is no number."""
        assert self.array is not None
        return float(np.abs(self.array()).max(initial=0.0))


@dataclass(frozen=True)
class WorkOp:
    """A pyc op: its name without the dialect, the numbers of its operands, its parameters."""

    name: str
    operands: tuple[int, ...]
    params: Mapping[str, Any]
    type: TensorType


@dataclass(frozen=True)
class Work:
    """Ops that are fused: values are numbered, first the inputs, then what each op makes.

    The last op's value is the group's result; values of the others are used inside only. `readers`
    are the pyc ops that read the result.
    """

    inputs: tuple[Input, ...]
    nodes: tuple[WorkOp, ...]
    readers: tuple[str, ...] = ()

    def type(self, value: int) -> TensorType:
        """Return the type of a value."""
        count = len(self.inputs)
        return self.inputs[value].type if value < count else self.nodes[value - count].type

    def is_constant(self, value: int) -> bool:
        """Return whether a value is known at compile time."""
        return value < len(self.inputs) and self.inputs[value].array is not None

    def number_of(self, node: int) -> int:
        """Return the number of the value that an op makes."""
        return len(self.inputs) + node

    def closed(self, covers: int) -> bool:
        """Return whether later ops use, of the first `covers` ops, only the last one's value."""
        inner = range(len(self.inputs), self.number_of(covers - 1))
        return not any(o in inner for node in self.nodes[covers:] for o in node.operands)


def sizes(shape: Shape) -> int | None:
    """Return the product of sizes; None where one is dynamic."""
    return None if None in shape else prod(d for d in shape if d is not None)


def nominal(shape: Shape) -> int:
    """Return the product of sizes, dynamic ones taken for the nominal dimension."""
    return prod(NOMINAL_DIMENSION if d is None else d for d in shape)


def float_type(work: Work, values: Sequence[int]) -> str:
    """Return the element type that all values have, f32, f16 or bf16; "" for any other."""
    found = {work.type(v).dtype for v in values}
    names = [name for name in ("f32", "f16", "bf16") if found == {DTYPES[name]}]
    return names[0] if names else ""


def is_f32(work: Work, values: Sequence[int]) -> bool:
    """Return whether all these values are of f32."""
    return all(work.type(v).dtype == F32 for v in values)
