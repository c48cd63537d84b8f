"""Remembered code is what IREE generates, and stands in for nothing else."""

from collections.abc import Iterator

import pytest
from remembered import Generated, RememberingSession, remember

from pyc_mlir.iree import compiler
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.pipelines.target.target import Target

CPU = Target.named("cpu")


@pytest.fixture
def made() -> Iterator[dict[bytes, Generated]]:
    """What a test has generated; it begins with nothing in memory."""
    before = RememberingSession.kept, RememberingSession.kept_bytes
    RememberingSession.kept, RememberingSession.kept_bytes = {}, 0
    remember()
    yield RememberingSession.kept
    RememberingSession.kept, RememberingSession.kept_bytes = before


def source(number: float) -> bytes:
    return f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %c = arith.constant dense<{number}> : tensor<4xf32>
      %0 = arith.addf %x, %c : tensor<4xf32>
      return %0 : tensor<4xf32>
    }}""".encode()


@pytest.mark.full
def test_equal_modules_share_what_the_first_one_gave(made):
    first, taken = compile_module(source(1.0), CPU), RememberingSession.taken
    assert compile_module(source(1.0), CPU) == first and RememberingSession.taken == taken + 1
    assert compile_module(source(2.0), CPU) != first and len(made) == 2
    remember(False)
    assert compile_module(source(1.0), CPU) == first, "generated, it is the same"
    assert RememberingSession.taken == taken + 1


def test_who_asks_for_the_text_of_a_later_phase_gets_it(made):
    remember(False)
    want = compile_module(source(1.0), CPU, compile_to="executable-targets")
    remember()
    compile_module(source(1.0), CPU)
    assert compile_module(source(1.0), CPU, compile_to="executable-targets") == want


@pytest.mark.full
def test_what_depends_on_more_than_the_module_is_generated(made, monkeypatch, tmp_path):
    compile_module(source(1.0), CPU)
    taken = RememberingSession.taken
    compile_module(source(1.0), CPU, dump_phases=tmp_path)
    compile_module(source(1.0), CPU, ["--iree-llvmcpu-debug-symbols=true"])
    monkeypatch.setenv("LLVM_OVERRIDE_PRODUCER", "another")
    compile_module(source(1.0), CPU)
    monkeypatch.setattr(compiler, "forbid_contraction", lambda module: None)
    compile_module(source(1.0), CPU)
    assert RememberingSession.taken == taken
