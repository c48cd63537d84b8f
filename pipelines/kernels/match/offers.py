"""What can a kernel take over? A group of pyc ops as plain data, and what families offer for it.

`Work` is the question: the values that a group reads and its ops in order. `Offer` is an answer:
the knobs of a kernel, how many of the ops it computes, and which values it is fed with. Neither
holds MLIR, so that families are tested without it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import Shape, TensorType
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost

F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Input:
    """A value that the group reads; `array` gives its contents where it is a constant.

    `maker` is the pyc op that makes it, without the dialect; "" for arguments and other ops.
    """

    type: TensorType
    array: Callable[[], np.ndarray] | None = field(default=None, compare=False)
    maker: str = ""


@dataclass(frozen=True)
class Node:
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
    nodes: tuple[Node, ...]
    readers: tuple[str, ...] = ()

    def type(self, value: int) -> TensorType:
        """The type of a value."""
        count = len(self.inputs)
        return self.inputs[value].type if value < count else self.nodes[value - count].type

    def is_constant(self, value: int) -> bool:
        """Is a value known when compiling?"""
        return value < len(self.inputs) and self.inputs[value].array is not None

    def number_of(self, node: int) -> int:
        """The number of the value that an op makes."""
        return len(self.inputs) + node

    def closed(self, covers: int) -> bool:
        """Is of the first `covers` ops only the last one's value used by the others?"""
        inner = range(len(self.inputs), self.number_of(covers - 1))
        return not any(o in inner for node in self.nodes[covers:] for o in node.operands)


@dataclass(frozen=True)
class Feed:
    """A value as an operand of a kernel: its dimensions cut into groups, one for each of the
    operand's, at the positions `cuts`: ``(2,)`` makes a matrix of [a, b, c]: [a b, c].
    """

    value: int
    cuts: tuple[int, ...] = ()

    @staticmethod
    def matrix(work: Work, value: int) -> "Feed":
        """All dimensions but the last one as one."""
        return Feed(value, (work.type(value).rank - 1,))


@dataclass(frozen=True)
class Offer:
    """A kernel for the first `covers` ops; `feeds` are its inputs in order.

    A dynamic dimension of the result has the size that the kernel's has, where their sizes agree;
    else that of the first feed's dimension at its place. `worth` is False where the family expects
    IREE's code to be as good: such a kernel is taken on request only.
    """

    knobs: Any
    covers: int
    feeds: tuple[Feed, ...]
    cost: Cost
    worth: bool = True


def sizes(shape: Shape) -> int | None:
    """The product of sizes; None where one is dynamic."""
    return None if None in shape else prod(d for d in shape if d is not None)


def nominal(shape: Shape) -> int:
    """The product of sizes, dynamic ones taken for the nominal dimension."""
    return prod(NOMINAL_DIMENSION if d is None else d for d in shape)


def is_f32(work: Work, values: Sequence[int]) -> bool:
    """Are all these values of f32?"""
    return all(work.type(v).dtype == F32 for v in values)
