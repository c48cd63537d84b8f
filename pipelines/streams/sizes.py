"""Computed sizes of buffers: polynomials of unknowns, and their bounds.

A size is read from the arithmetic that computes it: ``64 + 3 * align(4096 * dim(%arg0, 0))``.
What is no sum or product is an unknown, named by the whole expression, so that equal names stand
for equal values in two versions of one function. An expression ends at what is no arithmetic, such
as a size that is read from memory: it goes by its place among its like, which is the same in each
version, whatever memory it is read from (plans change that, and never the value). Unknowns are not
negative, and dimensions at least 1 unless a range says 0 (a call with an empty dimension may need
more). A size of which the other one exceeds every coefficient, and at the least unknowns the
constant too, is never larger: so a plan for dynamic shapes is proven no worse than IREE's.

Where dimensions of arguments have declared ranges, a size also knows its largest value, by interval
arithmetic (Moore, Interval Analysis, 1966): each op gives the interval of its results over all
values of its operands, as if these were independent, so that the bounds may be wide but never
wrong."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import product
from math import prod
from typing import Any, cast

from pyc_mlir.pipelines.streams.ir import constant_of, find, index_constant, ir, maker
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION

# Both ends included.
Interval = tuple[int, int]
# By (argument, axis) of the entry.
Ranges = Mapping[tuple[int, int], Interval]
Rule = Callable[..., Interval | None]

_DIM = "hal.buffer_view.dim"
# Parts of the product of two sizes up to which it is written as a sum.
_MOST_PARTS = 16
# A multiple of an unknown up from which rounding it to a cache line is nothing to speak of.
_COARSE = 1024


def interval_of(value: Any, ranges: Ranges) -> Interval | None:
    """Return the interval of an index or integer value; None where it is not known."""
    number = constant_of(value)
    if number is not None:
        return number, number
    op = maker(value)
    if op is None:
        return None
    if op.name == _DIM:
        view = op.operands[0]
        if maker(view) is not None:
            return None
        axis = ir.IntegerAttr(op.attributes["index"]).value
        return ranges.get((ir.BlockArgument(view).arg_number, axis))
    rule = _RULES.get(op.name)
    if rule is None:
        return None
    operands = [interval_of(v, ranges) for v in list(op.operands)[_SKIPPED.get(op.name, 0) :]]
    known = [o for o in operands if o is not None]
    return rule(*known) if len(known) == len(operands) else None


def _corners(combine: Callable[[int, int], int]) -> Rule:
    """Return the rule of what is monotone in each operand: extremes lie at intervals' ends."""

    def rule(a: Interval, b: Interval) -> Interval:
        ends = [combine(x, y) for x in a for y in b]
        return min(ends), max(ends)

    return rule


def _dividing(quotient: Callable[[int, int], int]) -> Rule:
    """Bound nonnegative over positive numbers, where all roundings are monotone."""
    corners = _corners(quotient)
    return lambda a, b: corners(a, b) if a[0] >= 0 and b[0] > 0 else None


def _remainder(a: Interval, b: Interval) -> Interval | None:
    return (0, min(a[1], b[1] - 1)) if a[0] >= 0 and b[0] > 0 else None


def _align(a: Interval, b: Interval) -> Interval | None:
    """Return the range rounded up to a multiple: of a number exactly, else by less than it."""
    if a[0] < 0 or b[0] <= 0:
        return None
    if b[0] == b[1]:
        return _up(a[0], b[0]) * b[0], _up(a[1], b[0]) * b[0]
    return a[0], a[1] + b[1] - 1


def _same(a: Interval) -> Interval | None:
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
    "arith.select": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "arith.index_cast": _same,
    "arith.index_castui": _same,
    "util.align": _align,
}
# Operands that tell nothing of the size: the condition of a select.
_SKIPPED = {"arith.select": 1}


# Ops whose results follow from their operands and attributes alone.
_PURE_DIALECTS = ("arith", "affine", "index", "math")
_PURE = ("util.align", "hal.buffer_view.dim")
_FUNCTIONS = ("util.func", "util.initializer")


@dataclass(frozen=True)
class ByteSize:
    """``constant`` bytes plus a multiple of each unknown; `nominal` is a guess of the sum.

    An unknown may be a product, ``a * b``. `unit` divides the value, whatever the unknowns are.
    `largest` is what the value is at most, None where nothing bounds it; it is the guess too where
    there is one. `least` is what factors of unknowns are at least, 0 by default.
    """

    constant: int = 0
    terms: Mapping[str, int] = field(default_factory=dict)
    nominal: int = 0
    unit: int = 1
    largest: int | None = 0
    least: Mapping[str, int] = field(default_factory=dict, compare=False)

    @staticmethod
    def of(number: int) -> "ByteSize":
        """Return a size that is known."""
        return ByteSize(number, {}, number, number or 1 << 30, number)

    def bounded(self, largest: int) -> "ByteSize":
        """Return this size, known to be at most `largest`."""
        return replace(self, nominal=largest, largest=largest)

    @property
    def known(self) -> bool:
        """True when no unknown takes part."""
        return not self.terms

    def __add__(self, other: "ByteSize") -> "ByteSize":
        terms = dict(self.terms)
        for name, count in other.terms.items():
            terms[name] = terms.get(name, 0) + count
        ends = (self.largest, other.largest)
        return ByteSize(
            self.constant + other.constant,
            terms,
            self.nominal + other.nominal,
            # The largest power of two that divides both, which is all that alignment asks.
            (self.unit | other.unit) & -(self.unit | other.unit),
            None if None in ends else sum(e for e in ends if e is not None),
            {**self.least, **other.least},
        )

    def product(self, other: "ByteSize") -> "ByteSize | None":
        """Return the product of both as a sum; None for one of many parts."""
        parts = [{**s.terms, **({"": s.constant} if s.constant else {})} for s in (self, other)]
        if len(parts[0]) * len(parts[1]) > _MOST_PARTS:
            return None
        found: dict[str, int] = {}
        for (a, x), (b, y) in product(parts[0].items(), parts[1].items()):
            name = " * ".join(sorted((*factors_of(a), *factors_of(b))))
            found[name] = found.get(name, 0) + x * y
        constant = found.pop("", 0)
        return ByteSize(
            constant, found, self.nominal * other.nominal, self.unit * other.unit or 1 << 30,
            None if found else constant, {**self.least, **other.least},
        )  # fmt: skip

    def times(self, factor: int) -> "ByteSize":
        """Return the product with a number."""
        made = self.product(ByteSize.of(factor))
        assert made is not None, "no more parts than before"
        return made

    def part(self, count: int) -> "ByteSize":
        """Return the size of which this one is `count` times."""
        terms = {name: n // count for name, n in self.terms.items()}
        constant, nominal = self.constant // count, self.nominal // count
        return replace(self, constant=constant, terms=terms, nominal=nominal, unit=1, largest=None)

    def at_most(self, other: "ByteSize") -> bool:
        """Return True if it is proven that this size is never larger than `other`."""
        names = dict.fromkeys((*self.terms, *other.terms))
        more = {n: other.terms.get(n, 0) - self.terms.get(n, 0) for n in names}
        least = {**self.least, **other.least}
        smallest = {n: prod(least.get(f, 0) for f in factors_of(n)) for n in names}
        spare = sum(count * smallest[name] for name, count in more.items())
        return min(more.values(), default=0) >= 0 and self.constant <= other.constant + spare

    def largest_at_most(self, other: "ByteSize") -> bool:
        """Return True if this size's largest value is at most the other's; else as `at_most`."""
        if self.largest is None or other.largest is None:
            return self.at_most(other)
        return self.largest <= other.largest

    def __str__(self) -> str:
        counted = sorted(self.terms.items())
        parts = [name if count == 1 else f"{count} * {name}" for name, count in counted]
        return " + ".join([str(self.constant), *parts] if self.constant or not parts else parts)


def size_of(value: Any, ranges: Ranges | None = None) -> ByteSize:
    """Return the size that an index value of stream IR is, with dimensions of declared ranges."""
    size = _read(value, ranges or {})
    bounds = interval_of(value, ranges) if ranges and not size.known else None
    return size if bounds is None else size.bounded(bounds[1])


def factors_of(name: str) -> list[str]:
    """Return the factors of an unknown, which has brackets around other products within."""
    found, depth = [""] if name else [], 0
    for part in name.split(" * ") if name else ():
        found[-1] += part
        depth += part.count("(") - part.count(")")
        if depth:
            found[-1] += " * "
        else:
            found.append("")
    return found[:-1]


@dataclass(frozen=True)
class _FromOne:
    """Ranges in which a dimension without one is from 1 up to what an index is at most."""

    ranges: Ranges

    def get(self, place: tuple[int, int]) -> Interval:
        """Return the range of a dimension."""
        return self.ranges.get(place, (1, 1 << 31))


def _read(value: Any, ranges: Ranges, atoms: dict[str, Any] | None = None) -> ByteSize:
    """Return the size that a value is; `atoms` gets the values of its unknowns by name."""

    def unknown(size: ByteSize) -> ByteSize:
        (name,) = size.terms
        if atoms is not None:
            atoms.setdefault(name, value)
        low, _ = interval_of(value, cast(Ranges, _FromOne(ranges))) or (0, 0)
        return replace(size, least={name: max(0, low)})

    number = constant_of(value)
    if number is not None:
        return ByteSize.of(number)
    op = maker(value)
    if op is None:
        return unknown(_unknown(_name(value)))
    if op.name == "arith.addi":
        return _read(op.operands[0], ranges, atoms) + _read(op.operands[1], ranges, atoms)
    if op.name == "arith.muli":
        left, right = (_read(v, ranges, atoms) for v in op.operands)
        nominal = left.nominal * right.nominal
        return left.product(right) or unknown(_unknown(_name(value), nominal))
    if op.name == "util.align":
        size, alignment = _read(op.operands[0], ranges, atoms), _read(op.operands[1], ranges)
        made = _aligned(size, alignment, value)
        return made if made is size or made.known else unknown(made)
    return unknown(_unknown(_name(value)))


def aligned_size(value: Any, to: int, atoms: dict[str, Any], ranges: Ranges) -> ByteSize:
    """Return a size of multiples of `to` that is at least the value; `atoms` gets its unknowns.

    Each multiple of an unknown is rounded up by itself, or small ones together, by an op.
    """
    size = _read(value, ranges, atoms)
    if not size.known and size.unit % to and min(size.terms.values()) < _COARSE:
        aligned = ir.Operation.create(
            "util.align", [ir.IndexType.get()], [value, index_constant(to)]
        )
        return _read(aligned.result, ranges, atoms)
    terms = {name: -(-count // to) * to for name, count in size.terms.items()}
    return replace(size, constant=-(-size.constant // to) * to, terms=terms, unit=to)


def rounded_size_of(value: Any, to: int) -> ByteSize:
    """Return the size rounded up to a multiple, as IREE's ``util.align`` computes it."""
    return _aligned(_read(value, {}), ByteSize.of(to), value)


def _aligned(size: ByteSize, alignment: ByteSize, value: Any) -> ByteSize:
    to = alignment.constant
    if not alignment.known or to < 1 or to & (to - 1):
        return _unknown(_name(value), size.nominal)
    if size.known:
        return ByteSize.of(-(-size.constant // to) * to)
    if size.unit % to == 0:
        return size
    rounded = -(-size.nominal // to) * to
    return ByteSize(0, {f"util.align({size}, {to})": 1}, rounded, to, None)


def _unknown(name: str, nominal: int = NOMINAL_DIMENSION) -> ByteSize:
    return ByteSize(0, {name: 1}, nominal, 1, None)


# While a module stays as it is: of values their names, of ops that are no arithmetic their places.
_NAMES: ContextVar[dict[Any, str] | None] = ContextVar("names", default=None)
# Characters up to which a name is the whole expression.
_SPELLED = 2000


@contextmanager
def unchanged() -> Iterator[None]:
    """Name each value once: what sizes are computed from stays as it is within."""
    token = _NAMES.set({})
    try:
        yield
    finally:
        _NAMES.reset(token)


def _name(value: Any) -> str:
    """Return the expression of `value`, down to arguments, constants and what is no arithmetic."""
    names = _NAMES.get()
    if names is None:
        return _expression(value)
    if value not in names:
        names[value] = _expression(value)
    return names[value]


def _expression(value: Any) -> str:
    op = maker(value)
    if op is None:
        return _argument_name(ir.BlockArgument(value))
    number = constant_of(value)
    if number is not None:
        return str(number)
    which = f"#{ir.OpResult(value).result_number}" if len(op.results) > 1 else ""
    if not _is_pure(op):
        return f"{_place(op)}{which}"
    operands = [_name(v) for v in op.operands]
    if op.name == "arith.muli":
        return f"({' * '.join(operands)})"
    attributes = sorted(f"{name}={op.attributes[name]}" for name in op.attributes)
    spelled = ", ".join([*operands, *attributes])
    if len(spelled) > _SPELLED:
        spelled = sha256(spelled.encode()).hexdigest()
    return f"{op.name}{which}({spelled})"


def _is_pure(op: Any) -> bool:
    """Return whether equal operands give equal results, wherever the op stands."""
    known = op.name in _PURE or op.name.partition(".")[0] in _PURE_DIALECTS
    return known and not len(op.regions)


def _place(op: Any) -> str:
    """Return an op's place among those of its name in its function: ``stream.splat 2 of 3``.

    Their number is a part: two versions with other numbers of them have no equal names.
    """
    names = _NAMES.get()
    if names is not None and op in names:
        return names[op]
    root = op
    while root.name not in _FUNCTIONS and root.parent is not None:
        root = root.parent.operation
    peers = find(root, op.name)
    places = {p: f"{op.name} {i} of {len(peers)}" for i, p in enumerate(peers, start=1)}
    if names is not None:
        names.update(places)
    return places[op]


def _argument_name(argument: Any) -> str:
    """Return an argument of a block; of a function's first one without a place."""
    block = argument.owner
    parent = block.owner.operation
    number = [b == block for b in block.region.blocks].index(True)
    if parent.name not in _FUNCTIONS:
        return f"arg{argument.arg_number}@{_place(parent)}.{number}"
    return f"arg{argument.arg_number}{f'@{number}' if number else ''}"
