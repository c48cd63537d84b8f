"""The guards of a program as one table: what each checks, its cost, and how often it fired.

    guard      checks                            codes                 when           cost     fired
    arguments  1 array: x: tensor<nx3xf32>       ARGUMENT_COUNT, ...   a new shape    1.1 us       2
    ranges     n 1 to 16                         DIMENSION_OUT_OF_...  a new shape    0.4 us       0

Shapes that a call had before are looked up, and checked no more: `seen` is that lookup.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from time import perf_counter

import numpy as np

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import require_plain
from pyc_mlir.util.html import table
from pyc_mlir.util.units import quantity

EVERY, NEW, GIVEN, COMPARED = (
    "every call",
    "a new shape",
    "with `out` or `donate`",
    "compared calls",
)
_HEAD = ("guard", "checks", "codes", "when", "cost", "fired")
# Costs are the least of so many rounds of so many checks.
_ROUNDS, _CALLS = 5, 50


@dataclass(frozen=True)
class Guard:
    """One guard: what it checks, the reason codes of what it refuses, and when it runs.

    seconds: of one check on this machine; None where that depends on the call. fired: the calls
    that it refused.
    """

    name: str
    checks: str
    codes: tuple[ReasonCode, ...]
    when: str
    seconds: float | None = None
    fired: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        """The guard as cells of a table."""
        codes = ", ".join(c.name for c in self.codes)
        cost = "depends" if self.seconds is None else quantity(self.seconds, "s")
        return self.name, self.checks, codes, self.when, cost, str(self.fired)


class GuardTable(tuple[Guard, ...]):
    """The guards of one program, in the order in which a call meets them."""

    __slots__ = ()

    def __str__(self) -> str:
        rows = [_HEAD, *(g.cells for g in self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
        return "".join(f"{line.rstrip()}\n" for line in lines)

    def _repr_html_(self) -> str:
        return table(_HEAD, [g.cells for g in self])


def guards_of(artifact: Artifact, fired: Mapping[str, int]) -> GuardTable:
    """Return the guards of a program; `fired` counts refused calls by the names of their codes."""
    rows = [*_of_arguments(artifact.signature), *_of_memory()]
    contract = artifact.manifest.contract
    if contract.compares:
        limit = f"the reference's results, max_error={contract.max_error}"
        rows.append(Guard("reference", limit, (ReasonCode.WRONG_RESULT,), COMPARED))
    return GuardTable(
        replace(g, fired=sum(fired.get(code.name, 0) for code in g.codes)) for g in rows
    )


def _of_arguments(signature: Signature) -> Iterator[Guard]:
    given, small = _smallest(signature), np.zeros(1, np.float32)
    known = {tuple(given): None}
    seen = _seconds(lambda: known.get(tuple(given)))
    yield Guard("seen", "shapes that were checked before", (), EVERY, seen)
    codes = ReasonCode.BAD_ARGUMENT, ReasonCode.DONATED_ARRAY, ReasonCode.UNSUPPORTED_DTYPE
    plain = _seconds(lambda: [require_plain(small, "argument") for _ in given])
    yield Guard("arrays", "plain arrays that have their memory", codes, EVERY, plain)
    codes = ReasonCode.ARGUMENT_COUNT, ReasonCode.ARGUMENT_DTYPE, ReasonCode.ARGUMENT_SHAPE
    checks = "; ".join(f"{a.name}: {a}" for a in signature.inputs) or "no arguments"
    seconds = _seconds(lambda: signature.check_arguments(given))
    yield Guard("arguments", checks, codes, NEW, seconds)
    if equal := _equal(signature):
        seconds = _seconds(lambda: signature.check_sizes(given))
        yield Guard("sizes", equal, (ReasonCode.DIMENSION_MISMATCH,), NEW, seconds)
    if signature.ranges:
        ends = ", ".join(f"{n} {low} to {high}" for n, (low, high) in signature.ranges.items())
        seconds = _seconds(lambda: signature.check_ranges(given))
        yield Guard("ranges", ends, (ReasonCode.DIMENSION_OUT_OF_RANGE,), NEW, seconds)
    if signature.indices:
        yield from _of_indices(signature)


def _of_indices(signature: Signature) -> Iterator[Guard]:
    names = [a.name for a in signature.inputs]
    given = [np.zeros(shape, dtype) for shape, dtype in _smallest(signature)]
    ends = (f"{names[r.input]} {r.of(given)[0]} to {r.of(given)[1]}" for r in signature.indices)
    seconds = _seconds(lambda: signature.check_indices(given))
    checks = "; ".join(ends)
    yield Guard("indices", checks, (ReasonCode.INDEX_OUT_OF_RANGE,), EVERY, seconds)


def _of_memory() -> Iterator[Guard]:
    codes = ReasonCode.OUTPUT_OVERLAP, ReasonCode.NO_ARENA_ENTRY, ReasonCode.DONATION_UNSAFE
    yield Guard("results", "memory given for results: fits, and no other's", codes, GIVEN)
    size = bytes(1)
    seconds = _seconds(lambda: len(size) < 1)
    checks = "scratch memory as large as the plan needs"
    yield Guard("arena", checks, (ReasonCode.ARENA_TOO_SMALL,), EVERY, seconds)


def _equal(signature: Signature) -> str:
    places: dict[str, list[str]] = {}
    for a in signature.inputs:
        for axis, dim in enumerate(a.shape):
            if isinstance(dim, str):
                places.setdefault(dim, []).append(f"{a.name}[{axis}]")
    products = {name for name, _, _ in signature.products}
    return "; ".join(
        f"{name}: {' = '.join(found)}"
        for name, found in places.items()
        if len(found) > 1 or name in products
    )


def _smallest(signature: Signature) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Return shape and type of arguments of the smallest sizes."""
    names = {n for a in signature.inputs for n in a.dynamic.values()}
    sizes = {name: max(signature.ranges.get(name, (1, 1))[0], 1) for name in names}
    for name, number, factors in signature.products:
        sizes[name] = number * prod(sizes[f] for f in factors)
    return [
        (
            tuple(d if isinstance(d, int) else sizes[a.dynamic[i]] for i, d in enumerate(a.shape)),
            a.dtype,
        )
        for a in signature.inputs
    ]


def _seconds(check: Callable[[], object]) -> float | None:
    best = float("inf")
    try:
        for _ in range(_ROUNDS):
            began = perf_counter()
            for _ in range(_CALLS):
                check()
            best = min(best, (perf_counter() - began) / _CALLS)
    except PycError:
        return None
    return best


def fired_in(events: Sequence[object]) -> dict[str, int]:
    """Count the refused calls in the events of a log, by the names of their codes."""
    found: dict[str, int] = {}
    for event in events:
        if getattr(event, "name", "") == "guard":
            for reason in getattr(event, "reasons", ()):
                found[reason.code] = found.get(reason.code, 0) + 1
    return found
