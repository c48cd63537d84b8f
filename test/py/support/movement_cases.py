"""Shapes for reshape (with entries, and whether sizes may be dynamic) and slice of op_cases."""

from pyc_mlir.dialects.ops.movement import END, START, copied

Shape = tuple[int, ...]

RESHAPES: tuple[tuple[Shape, tuple[int, ...], bool], ...] = (
    ((2, 6), (3, 4), False),
    ((2, 6), (-1,), True),
    ((2, 3, 4), (copied(0), -1), True),
    ((2, 3, 4), (-1, copied(2)), True),
    ((2, 3, 4), (copied(0), 1, copied(1), copied(2)), True),
    ((2, 1, 4), (copied(0), copied(2)), True),
    ((1,), (), True),
    ((), (1, 1), True),
    ((0, 4), (2, 0), False),
    ((0, 4), (copied(0), 2, 2), False),
)

SLICES: tuple[tuple[Shape, tuple[tuple[int, int, int], ...]], ...] = (
    ((10,), ((2, 7, 1),)),
    ((10,), ((-3, END, 1),)),
    ((10,), ((START, -4, 2),)),
    ((10,), ((END, START, -1),)),
    ((10,), ((8, 1, -3),)),
    ((10,), ((5, 2, 1),)),
    ((10,), ((4, 100, 5),)),
    ((10,), ((-100, 3, 1),)),
    ((7, 9), ((1, END, 3), (-2, 0, -2))),
    ((0, 4), ((START, END, 1), (1, 3, 1))),
)
