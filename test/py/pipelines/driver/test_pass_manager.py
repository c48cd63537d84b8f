"""What the pass manager spares: verifying and running again where nothing has changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import opt_harness
import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.driver import registry
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.driver.pass_manager import BrokenInvariant, resolve, run_pipeline
from pyc_mlir.pipelines.driver.pipeline_text import PipelineError, parse_pipeline
from pyc_mlir.pipelines.driver.registry import PASSES
from pyc_mlir.tools import pyc_opt
from pyc_mlir.tools.cli.opt_flags import parse_flags as parse_command_line

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


@PASSES.register
@dataclass(frozen=True)
class Registered:
    """Change nothing."""

    name: ClassVar[str] = "test-registered"

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        return {}


def test_a_missing_built_in_module_is_an_unknown_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "test-absent", ("pyc_mlir.pipelines.absent", "Absent"))
    assert "test-absent" not in PASSES
    assert "test-absent" not in list(PASSES)
    with pytest.raises(PipelineError, match="unknown pass 'test-absent'"):
        resolve(parse_pipeline("test-absent"), new_context(), False)


class FakeEntryPoint:
    value = "third_party:Pass"

    def __init__(self, name: str, loaded: object) -> None:
        self.name = name
        self.loaded = loaded

    def load(self) -> object:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


def test_third_parties_register_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [FakeEntryPoint("their-rename", Registered), FakeEntryPoint("broken", OSError("gone"))]
    monkeypatch.setattr(PASSES, "_entry_points", {p.name: p for p in points})
    assert PASSES["their-rename"] is Registered
    assert "their-rename" in list(PASSES)
    with pytest.raises(PycError, match=r"third_party:Pass: it does not import \(OSError: gone"):
        PASSES["broken"]


def test_names_are_taken_once() -> None:
    assert PASSES.register(Registered) is Registered
    clash: Any = type("Clash", (Registered,), {})
    with pytest.raises(PycError, match="is taken"):
        PASSES.register(clash)


@dataclass(frozen=True)
class Nameless:
    """A pass without a name."""

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    "given",
    [
        Nameless,
        dataclass(type("Still", (), {"name": "still"})),
        type("Plain", (), {"name": "plain", "run": print}),
        print,
        Registered(),
    ],
)
def test_what_is_no_pass_is_refused(
    given: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PycError) as error:
        PASSES.register(given)
    lacking = "a dataclass with `name` and `run"
    assert lacking in error.value.message and error.value.code is ReasonCode.BAD_ARGUMENT
    monkeypatch.setattr(PASSES, "_entry_points", {"theirs": FakeEntryPoint("theirs", given)})
    told = f"plugin third_party:Pass: expected {lacking}"
    ran = opt_harness.run_opt(["--theirs", "-"], b"module {}")
    assert ran.status == 1 and told in ran.err
    flags = parse_command_line(["--list-passes"])
    assert pyc_opt._work_told(flags, b"", lambda part: None) == 1
    assert told in capsys.readouterr().err
