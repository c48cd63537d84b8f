"""Every place that data decides is clamped before memory is read or written there.

What is read out of range and thrown away gives no wrong number, so the lowered code itself is
looked at: in each op's cases, an index made of values goes through a minimum or a maximum.
"""

from collections.abc import Iterator

import pytest
from conftest import sample
from op_cases import cases_of
from op_modules import case_module

from pyc_mlir.compilation.lower import TO_LINALG
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline

OPS = ("gather", "scatter", "update_slice")
CLAMPS = ("arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui")


def walk(op: ir.Operation) -> Iterator[ir.Operation]:
    yield op
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from walk(inner.operation)


def places(op: ir.Operation) -> list[ir.Value]:
    """The indices or offsets at which an op reads or writes."""
    if op.name == "tensor.extract":
        return list(op.operands)[1:]
    if op.name in ("tensor.extract_slice", "tensor.insert_slice"):
        counts = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        first = sum(counts[:-3])
        return list(op.operands)[first : first + counts[-3]]
    return []


def is_loose(value: ir.Value) -> bool:
    """Return if an element of an argument, or one that a loop gets, is a place without a clamp."""
    if isinstance(value.owner, ir.Block):
        return value.owner.owner.name == "linalg.generic"
    op = value.owner.operation if hasattr(value.owner, "operation") else value.owner
    if op.name in CLAMPS or op.name == "tensor.dim":
        return False
    if op.name == "tensor.extract":
        return isinstance(op.operands[0].owner, ir.Block)
    return any(map(is_loose, list(op.operands)[op.name == "arith.select" :]))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_a_place_that_data_decides_is_clamped(op: str, dynamic: bool) -> None:
    decided = 0
    # Many updates are sorted first: a permutation holds no place out of range.
    few = [c for c in cases_of(op) if op != "scatter" or c.operands[1].shape[0] < 16]
    for case in sample(few, 6, seed=5):
        with new_context() as context, ir.Location.unknown():
            module = case_module(case, context, dynamic and case.dynamic)
            run_pipeline(module, TO_LINALG, PassContext())
            for inner in walk(module.operation):
                found = places(inner)
                decided += len(found)
                assert not any(map(is_loose, found)), f"{case}: {inner}"
    assert decided
