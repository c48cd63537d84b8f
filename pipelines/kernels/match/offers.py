"""Offers of kernel families for a group of pyc ops, which they see as plain data.

`Work` is the question: the values that a group reads and its ops in order. `KernelOffer` is an
answer: the knobs of a kernel, how many of the ops it computes, and which values it is fed with.
Neither holds MLIR, so that families are tested without it.
"""

from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.work import Work


@dataclass(frozen=True)
class Feed:
    """A value as an operand of a kernel: its dimensions cut into groups, one for each of the
    operand's, at the positions `cuts`: ``(2,)`` makes a matrix of [a, b, c]: [a b, c].
    """

    value: int
    cuts: tuple[int, ...] = ()

    @staticmethod
    def matrix(work: Work, value: int) -> "Feed":
        """Return all dimensions but the last one as one."""
        return Feed(value, (work.type(value).rank - 1,))


@dataclass(frozen=True)
class KernelOffer:
    """A kernel for the first `covers` ops; `feeds` are its inputs in order.

    Dynamic dimensions of the result are, in order, among those that make the named sizes of the
    kernel's result. `worth` is False where the family expects IREE's code to be as good: such a
    kernel is taken on request only. `indirect` is True where the kernel adds other numbers than the
    op's plain form, so that its error, and what it makes of infinities and NaN, differ: a strict
    compile does not take it.
    """

    knobs: Any
    covers: int
    feeds: tuple[Feed, ...]
    cost: Cost
    worth: bool = True
    indirect: bool = False
