"""Bounds of index values in stream IR, given the declared ranges of dimensions.

Comes in: an index value and the ranges of the arguments' dimensions. Goes out: an interval that
holds the value, or None where none is known. Interval arithmetic (Moore, Interval Analysis, 1966):
each op gives the interval of its results over all values of its operands, as if these were
independent, so that the bounds may be wide but never wrong.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyc_mlir.pipelines.streams.ir import constant_of, ir, maker

# Both ends included.
Interval = tuple[int, int]
# By (argument, axis) of the entry.
Ranges = Mapping[tuple[int, int], Interval]
Rule = Callable[..., Interval | None]

_DIM = "hal.buffer_view.dim"


def interval_of(value: Any, ranges: Ranges) -> Interval | None:
    """Return the interval of an index or integer value; None where it is not known."""
    number = constant_of(value)
    if number is not None:
        return number, number
    op = maker(value)
    if op is None:
        return None
    if op.name == _DIM:
        return _dimension(op, ranges)
    rule = _RULES.get(op.name)
    if rule is None:
        return None
    operands = [interval_of(v, ranges) for v in list(op.operands)[_SKIPPED.get(op.name, 0) :]]
    known = [o for o in operands if o is not None]
    return rule(*known) if len(known) == len(operands) else None


def _dimension(op: Any, ranges: Ranges) -> Interval | None:
    view = op.operands[0]
    if maker(view) is not None:
        return None
    axis = ir.IntegerAttr(op.attributes["index"]).value
    return ranges.get((ir.BlockArgument(view).arg_number, axis))


def _corners(combine: Callable[[int, int], int]) -> Rule:
    """Return the rule of what is monotone in each operand: extremes lie at intervals' ends."""

    def rule(a: Interval, b: Interval) -> Interval:
        ends = [combine(x, y) for x in a for y in b]
        return min(ends), max(ends)

    return rule


def _dividing(quotient: Callable[[int, int], int]) -> Rule:
    """Bound nonnegative over positive numbers, where all roundings are monotone."""

    def rule(a: Interval, b: Interval) -> Interval | None:
        return _corners(quotient)(a, b) if a[0] >= 0 and b[0] > 0 else None

    return rule


def _remainder(a: Interval, b: Interval) -> Interval | None:
    return (0, min(a[1], b[1] - 1)) if a[0] >= 0 and b[0] > 0 else None


def _align(a: Interval, b: Interval) -> Interval | None:
    """Return the range rounded up to a multiple: of a number exactly, else by less than it."""
    if a[0] < 0 or b[0] <= 0:
        return None
    if b[0] == b[1]:
        return _up(a[0], b[0]) * b[0], _up(a[1], b[0]) * b[0]
    return a[0], a[1] + b[1] - 1


def _either(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def _same(a: Interval) -> Interval | None:
    """Return a change of type that holds every number in question."""
    return a if a[0] >= 0 and a[1] < 1 << 31 else None


def _unsigned(rule: Rule) -> Rule:
    return lambda a, b: rule(a, b) if a[0] >= 0 and b[0] >= 0 else None


def _up(a: int, b: int) -> int:
    return -(-a // b)


_RULES: Mapping[str, Rule] = {
    "arith.addi": _corners(lambda x, y: x + y),
    "arith.subi": _corners(lambda x, y: x - y),
    "arith.muli": _corners(lambda x, y: x * y),
    "arith.divui": _dividing(lambda x, y: x // y),
    "arith.divsi": _dividing(lambda x, y: x // y),
    "arith.floordivsi": _dividing(lambda x, y: x // y),
    "arith.ceildivui": _dividing(_up),
    "arith.ceildivsi": _dividing(_up),
    "arith.remui": _remainder,
    "arith.remsi": _remainder,
    "arith.minsi": _corners(min),
    "arith.maxsi": _corners(max),
    "arith.minui": _unsigned(_corners(min)),
    "arith.maxui": _unsigned(_corners(max)),
    "arith.select": _either,
    "arith.index_cast": _same,
    "arith.index_castui": _same,
    "util.align": _align,
}
# Operands that tell nothing of the size: the condition of a select.
_SKIPPED = {"arith.select": 1}
