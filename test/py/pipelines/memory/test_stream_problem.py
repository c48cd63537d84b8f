"""Regions of stream IR as problems, and bounds of computed sizes."""

from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
from stream_programs import at_stream, branches, layered

from pyc_mlir.pipelines.memory.stream_alias import Bodies
from pyc_mlir.pipelines.memory.stream_problem import read_regions
from pyc_mlir.pipelines.streams.ir import CONCURRENT, DISPATCH, EXECUTE, UPDATES, find, ties
from pyc_mlir.pipelines.streams.sizes import _RULES, Interval
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target

CPU = Target.named("cpu")
# Updates in place, and waves in which some, all and no results are tied.
SEEDS = (3, 121)


def by_bytes(symbol: str, traffic: int) -> Cost:
    """A byte a second."""
    return Cost(float(traffic))


@pytest.mark.parametrize(
    "program", [branches(), *map(layered, SEEDS)], ids=["wide", *map(str, SEEDS)]
)
def test_every_op_tells_its_ties(program):
    """A region alone has none; a wave, and a region after another one, have those of their ops."""
    with at_stream(program.code) as session, session.context:
        regions = find(session.module, EXECUTE)
        assert len(regions) > 1 or not any(map(ties, regions))
        for wave in [*regions, *find(session.module, CONCURRENT)]:
            inner = [op for name in (DISPATCH, *UPDATES) for op in find(wave, name)]
            assert len(ties(wave)) <= sum(len(ties(op)) for op in inner)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_update_in_place_moves_its_operand_once(seed):
    with at_stream(layered(seed).code) as session, session.context:
        (region,) = read_regions(session.module, by_bytes, Bodies({}), alignment=1)
        problem = region.problem
    kinds = Counter(bool(task.tied) for task in problem.tasks)
    assert kinds[True] and kinds[False]
    for task in problem.tasks:
        fresh = set(task.writes) - {written for written, _ in task.tied}
        assert task.seconds == sum(problem.buffers[b].size for b in (*task.reads, *fresh))


OPS: dict[str, Callable[[int, int], int]] = {
    "addi": lambda x, y: x + y,
    "subi": lambda x, y: x - y,
    "muli": lambda x, y: x * y,
    "divui": lambda x, y: x // y,
    "divsi": lambda x, y: x // y,
    "floordivsi": lambda x, y: x // y,
    "ceildivui": lambda x, y: (x + y - 1) // y,
    "ceildivsi": lambda x, y: (x + y - 1) // y,
    "remui": lambda x, y: x % y,
    "remsi": lambda x, y: x % y,
    "minsi": min,
    "maxsi": max,
    "minui": min,
    "maxui": max,
}
# Bounds of a remainder and of a rounding up by different numbers hold, and may be wide.
WIDE = ("remui", "remsi")
DIVIDES = ("div", "rem", "align")
INTERVALS = [(a, b) for a in range(-2, 6) for b in range(a, 6)]


def is_bounded(name: str, a: Interval, b: Interval) -> bool:
    """Return if an op has bounds: of divisions and unsigned numbers only where all are positive."""
    if any(part in name for part in DIVIDES):
        return a[0] >= 0 and b[0] >= 1
    return not name.endswith("ui") or (a[0] >= 0 and b[0] >= 0)


@pytest.mark.parametrize("name", OPS)
def test_bounds_hold_and_are_reached(name: str) -> None:
    for a, b in product(INTERVALS, INTERVALS):
        got = _RULES[f"arith.{name}"](a, b)
        assert (got is not None) == is_bounded(name, a, b), (a, b)
        if got is not None:
            values = [OPS[name](x, y) for x in range(a[0], a[1] + 1) for y in range(b[0], b[1] + 1)]
            assert got[0] <= min(values) and max(values) <= got[1], (a, b, got)
            assert name in WIDE or got == (min(values), max(values)), (a, b, got)


def test_a_remainder_is_below_both() -> None:
    assert _RULES["arith.remui"]((0, 9), (4, 4)) == (0, 3)
    assert _RULES["arith.remui"]((0, 2), (1, 8)) == (0, 2)


def test_sizes_are_rounded_up() -> None:
    for a, b in product(INTERVALS, INTERVALS):
        got = _RULES["util.align"](a, b)
        assert (got is not None) == is_bounded("align", a, b), (a, b)
        if got is not None:
            values = [-(-x // y) * y for x in range(a[0], a[1] + 1) for y in range(b[0], b[1] + 1)]
            assert got[0] <= min(values) and max(values) <= got[1]
            assert b[0] != b[1] or got == (min(values), max(values))
    assert _RULES["util.align"]((3, 10), (4, 8)) == (3, 17)


def test_a_choice_and_a_change_of_type() -> None:
    assert _RULES["arith.select"]((1, 4), (0, 2)) == (0, 4)
    assert _RULES["arith.select"]((-1, 1), (3, 7)) == (-1, 7)
    for name in ("arith.index_cast", "arith.index_castui"):
        assert _RULES[name]((0, 2**31 - 1)) == (0, 2**31 - 1)
        assert _RULES[name]((-1, 4)) is None and _RULES[name]((0, 2**31)) is None
