"""Sizes of dynamic dimensions that survive an op whose rule asks sizes to agree."""

import numpy as np
import pytest

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.importing.importer import Argument, Importer
from pyc_mlir.frontends.importing.sizes import SymbolicSize

F32 = np.dtype("f4")


def dims_of(shapes, build):
    """The sizes of what `build` makes of arguments with these dims; a text is a dynamic one."""
    found = []

    def body(values):
        out = build(importer.b, *values)
        found.extend(importer.b.dims(out))
        return [("out", out)]

    with new_context(), ir.Location.unknown():
        importer = Importer("test")
        named = [[SymbolicSize(1, (d,)) if isinstance(d, str) else d for d in s] for s in shapes]
        arguments = [Argument(f"x{i}", F32, tuple(d)) for i, d in enumerate(named)]
        importer.function("main", arguments, body)
    return [d.atoms[0] if isinstance(d, SymbolicSize) and d.factor == 1 else d for d in found]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([("b", "k"), (64, "m")], ["b", "m"]),
        ([("b", "k"), (64, 10)], ["b", 10]),
        ([("b", 8, "k"), ("b", "j", "m")], ["b", 8, "m"]),
        ([("b", "k"), ("k", "m")], ["b", "m"]),
    ],
)
def test_a_contraction_keeps_the_other_sizes(shapes, expected):
    """Static with dynamic, and two names, agree when the program runs or it raises."""
    assert dims_of(shapes, lambda b, x, y: b.matmul(x, y)) == expected


def test_what_depends_on_the_agreed_size_is_a_new_one():
    """A sum of [b, k] and [b, 64] is as wide as one of them, by what k is."""
    first, second = dims_of([("b", "k"), ("b", 64)], lambda b, x, y: b.add(x, y))
    assert first == "b"
    assert second == 64 or second not in ("b", "k")
