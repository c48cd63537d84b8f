"""The registry of passes: names, third parties' entry points, and what is no pass."""

from dataclasses import dataclass
from typing import Any, ClassVar

import opt_harness
import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.driver import registry
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import resolve
from pyc_mlir.pipelines.driver.pipeline_text import PipelineError, parse_pipeline
from pyc_mlir.pipelines.driver.registry import PASSES
from pyc_mlir.tools import pyc_opt
from pyc_mlir.tools.cli.opt_flags import parse_flags as parse_command_line


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
