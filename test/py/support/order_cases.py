"""Cases of orders, bits and random numbers for op_cases.

Operands are (element type, shape, kind of values).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyc_mlir.dialects.types import DTYPES

Shape = tuple[int, ...]
Given = tuple[str, Shape, str]
Row = tuple[str, tuple[Given, ...], bool, dict[str, Any]]

REDUCTIONS = ("add", "mul", "min", "max")
SCATTERS: tuple[tuple[Shape, int], ...] = (
    ((5, 3), 4),
    ((5,), 70),
    ((4, 2, 3), 40),
    ((3, 2), 0),
    ((0, 2), 3),
    ((2, 0), 3),
)


def orderings(numbers: Sequence[str]) -> Iterator[Row]:
    """All cases: op, operands, whether sizes may be dynamic, parameters."""
    yield from _argsorts(numbers)
    yield from _scatters(numbers)


def bits(floats: Sequence[str], integers: Sequence[str]) -> Iterator[Row]:
    """Cases of shifts, random numbers, bit casts, remainders and cumulative sums."""
    for op in ("shift_left", "shift_right"):
        for dtype in integers:
            yield op, ((dtype, (9, 9), "extreme"), (dtype, (9, 9), "bits")), True, {}
    for shapes in (((3, 5), (), (1,)), ((), (4,), (3, 1)), ((2, 9), (2, 9), (9,))):
        words = tuple(("ui64", shape, "words") for shape in shapes)
        yield "threefry", words[:2], True, {}
        yield "philox", words, True, {}
    same = {"f64": "i64", "i64": "f64", "f32": "ui32", "i32": "f32", "f16": "i16", "ui16": "bf16"}
    for source, target in (*same.items(), ("i8", "ui8"), ("ui64", "i64")):
        yield "bitcast", ((source, (3, 5), "plain"),), True, {"dtype": DTYPES[target]}
    for dtype in (*floats, *integers):
        yield "rem", ((dtype, (3, 5), "plain"), (dtype, (3, 5), "nonzero")), True, {}
    for dtype in integers:
        yield "rem", ((dtype, (9, 9), "extreme"), (dtype, (9, 9), "extreme")), True, {}
    for dtype in ("f32", "f64"):
        yield "rem", ((dtype, (9, 9), "special"), (dtype, (9, 9), "special")), True, {}
    for reduction in REDUCTIONS:
        for dtype in (*floats, *integers):
            how: dict[str, Any] = {"axis": 1, "reduction": reduction}
            yield "cumulative", ((dtype, (3, 7), "factor"),), True, how
        for shape, axis in (((0, 3), 0), ((5, 2, 3), 0), ((33,), -1)):
            how = {"axis": axis, "reduction": reduction}
            yield "cumulative", (("f32", shape, "factor"),), True, how
    yield "cumulative", (("f32", (9, 9), "special"),), True, {"axis": 0}


def _argsorts(numbers: Sequence[str]) -> Iterator[Row]:
    for descending in (False, True):
        how: dict[str, Any] = {"descending": descending}
        for dtype in (*numbers, "i1"):
            yield "argsort", ((dtype, (3, 7), "plain"),), True, how
            yield "argsort", ((dtype, (2, 45), "few"),), False, how
        for shape, axis, count in (
            ((3, 7), 1, 2),
            ((7, 3), 0, 0),
            ((100,), 0, 5),
            ((2, 33), 1, 33),
        ):
            params = {**how, "axis": axis, "count": count}
            yield "argsort", (("f32", shape, "plain"),), axis == 0, params
        for shape in ((9, 9), (81,)):
            yield "argsort", (("f32", shape, "special"),), True, how
    for shape, axis in (((4, 5), 0), ((2, 3, 4), 1), ((0, 4), 1), ((4, 0), 1), ((1,), 0)):
        yield "argsort", (("f32", shape, "plain"),), True, {"axis": axis}


def _scatters(numbers: Sequence[str]) -> Iterator[Row]:
    for dtype in (*numbers, "i1"):
        at, x, few = ("i64", (4,), "row"), (dtype, (5, 3), "plain"), (dtype, (4, 3), "plain")
        yield "scatter", (x, at, few), True, {}
        for reduction in REDUCTIONS if dtype != "i1" else ():
            how: dict[str, Any] = {"reduction": reduction}
            yield "scatter", (x, at, few), True, how
            many = ("i32", (40,), "row"), (dtype, (40, 3), "factor")
            yield "scatter", (x, *many), True, how
    for shape, count in SCATTERS:
        for reduction in ("none", "add"):
            at, updates = ("i64", (count,), "row"), ("f32", (count, *shape[1:]), "plain")
            yield "scatter", (("f32", shape, "plain"), at, updates), True, {"reduction": reduction}
    special = ("f32", (9, 9), "special")
    for reduction in ("none", "max"):
        far = ("i64", (9,), "far_index")
        yield "scatter", (special, far, special), True, {"reduction": reduction}
