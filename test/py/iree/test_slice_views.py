"""Parts of a value share executables; slices that are no parts are left alone."""

import pytest
from compiled import add_function
from iree.compiler import ir as iree_ir

from pyc_mlir.compilation.lower import TO_LINALG
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.iree.barriers import share_parts
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline

F32 = DTYPES["f32"]


def cut(b, x, bounds, axis):
    parts = []
    for low, high in bounds:
        starts, stops = [0, 0], [8, 6]
        starts[axis], stops[axis] = low, high
        part = b.slice(x, starts=tuple(starts), stops=tuple(stops), steps=(1, 1))
        parts.append(b.reduce_sum(part, axes=(0, 1)))
    return b.add(*parts)


@pytest.mark.parametrize(
    ("bounds", "axis", "count"),
    [
        (((0, 4), (4, 8)), 0, 2),
        (((0, 3), (3, 6)), 1, 0),
        (((0, 4), (2, 6)), 0, 0),
        (((0, 3), (3, 8)), 0, 0),
    ],
    ids=["parts", "not-contiguous", "not-all", "unequal"],
)
@pytest.mark.sampled(2)
def test_equal_contiguous_parts_of_the_whole(bounds, axis, count):
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        add_function(
            module, "main", [TensorType((8, 6), F32)], lambda b, x: cut(b, x, bounds, axis)
        )
        run_pipeline(module, TO_LINALG, PassContext())
        text = str(module)
    with iree_ir.Context(), iree_ir.Location.unknown():
        parsed = iree_ir.Module.parse(text)
        assert share_parts(parsed.operation) == count
        assert parsed.operation.verify()
