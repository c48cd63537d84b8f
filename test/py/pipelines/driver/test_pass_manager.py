"""What the pass manager spares: verifying and running again where nothing has changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.driver.pass_manager import BrokenInvariant, run_pipeline
from pyc_mlir.pipelines.driver.registry import PASSES

RUNS: list[str] = []


@PASSES.register
@dataclass(frozen=True)
class Number:
    """Set the attribute `test.number` of every function."""

    name: ClassVar[str] = "test-number"
    to: int = option(1, "the number")
    spoil: bool = option(False, "leave functions without a type")
    counts: bool = option(True, "count what changes")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        RUNS.append(self.name)
        wanted = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), self.to)
        changed = 0
        for op in module.body.operations:
            attributes = op.operation.attributes
            changed += "test.number" not in attributes or attributes["test.number"] != wanted
            attributes["test.number"] = wanted
            if self.spoil:
                attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([], []))
        return {"changed": changed} if self.counts else {}


@pytest.fixture
def module() -> Iterator[ir.Module]:
    RUNS.clear()
    with new_context():
        yield ir.Module.parse("func.func @f(%x: f32) -> f32 {\n  return %x : f32\n}\n")


def test_a_module_is_verified_after_a_change(module: ir.Module):
    with pytest.raises(BrokenInvariant, match="test-number left an invalid module"):
        run_pipeline(module, "test-number{spoil=true}")


def test_a_module_is_not_verified_after_counts_of_nothing(module: ir.Module):
    run_pipeline(module, "test-number{spoil=true}", verify_each=False)
    run_pipeline(module, "test-number")
    with pytest.raises(BrokenInvariant):
        run_pipeline(module, "test-number{counts=false}")


@pytest.mark.parametrize(
    ("pipeline", "runs"),
    [
        ("test-number,test-number,test-number,test-number", 2),
        ("test-number,test-number,test-number{to=2},test-number", 4),
        ("test-number,test-number,cse,test-number", 3),
        ("test-number{counts=false},test-number{counts=false}", 2),
    ],
    ids=["same", "another changes", "native", "no counts"],
)
def test_a_pass_that_found_nothing_to_do_waits_for_a_change(module: ir.Module, pipeline, runs):
    report = run_pipeline(module, pipeline)
    assert len(RUNS) == runs
    assert len(report.steps) == pipeline.count(",") + 1
