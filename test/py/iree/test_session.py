from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from faults import CHECKED
from iree.compiler import ir
from modules import add_text

from pyc_mlir.api import build
from pyc_mlir.compilation.compile_options import CompileOptions
from pyc_mlir.compilation.options import make_options, resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.iree import compiler
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.iree.session import CompileError, IreeDiagnostic, IreeSession
from pyc_mlir.pipelines.target.target import TARGETS, Target

CPU = Target.named("cpu")
# IREE 3.13 parses this CUDA architecture, then finds no description of it during code generation.
NO_CODEGEN = replace(
    TARGETS["cuda"], flags=("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_90")
)


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.sampled(2)
def test_every_target_compiles_without_its_device(name):
    assert compile_module(add_text(), TARGETS[name]).startswith(b"PK")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i64", "i32", "i8", "i1"])
@pytest.mark.parametrize("name", ["cuda", "vulkan"])
@pytest.mark.sampled(4)
def test_gpu_dtypes(name, dtype):
    assert compile_module(add_text(dtype=dtype), TARGETS[name])


def test_lacking_dtype_is_refused_at_its_source():
    text = add_text(dtype="f64", loc='loc("pyc:add.1"("model.py":12:3))')
    with pytest.raises(PycError, match=r"^model.py:12:3 \(pyc:add.1\): .*got f64 in tensor<4xf64>"):
        compile_module(text, TARGETS["vulkan"])
    with pytest.raises(PycError, match=r"^net\.onnx: Add_0 \(pyc:add\.1\)") as caught:
        compile_module(text, TARGETS["vulkan"], locations={"add.1": "net.onnx: Add_0"})
    assert caught.value.code is ReasonCode.UNSUPPORTED_DTYPE


def test_bf16_is_not_taken_for_f16():
    without = replace(TARGETS["vulkan"], dtypes=TARGETS["vulkan"].dtypes - {"f16"})
    assert compile_module(add_text(dtype="bf16"), without)


def test_doubles_are_not_demoted():
    text = compile_module(add_text(dtype="f64"), CPU, compile_to="stream").decode()
    assert "f64" in text and "f32" not in text


@pytest.mark.parametrize("loc", ['loc("pyc:add.1#2")', 'loc("pyc:add.1#2"("Add_0"))'])
def test_code_generation_errors_name_the_source_op(loc):
    with pytest.raises(CompileError, match=r"^m\.py:7 \(pyc:add\.1#2\): .*GPU target") as caught:
        compile_module(add_text(loc=loc), NO_CODEGEN, locations={"add.1#2": "m.py:7"})
    assert caught.value.code is ReasonCode.TARGET_COMPILE_FAILED
    assert caught.value.diagnostics[0].severity == "error"
    assert "see current operation" not in str(caught.value)


def test_errors_name_an_op_that_has_but_a_name():
    """Also where its function is inlined: IREE alone would name the caller."""
    t = "tensor<4xf32>"
    text = f"""func.func private @f(%x: {t}) -> {t} {{
      %m = memref.alloc() : memref<4xf32> loc("layer7/alloc")
      %y = bufferization.to_tensor %m restrict : memref<4xf32> to {t} loc("layer7/relu")
      return %y : {t}
    }}
    func.func @main(%x: {t}) -> {t} {{
      %y = func.call @f(%x) : ({t}) -> {t} loc("model.py":12:3)
      return %y : {t}
    }}"""
    with pytest.raises(CompileError, match=r'^"layer7/relu": expected a module that IREE compiles'):
        compile_module(text.encode(), CPU)
    named = add_text(dtype="f64", loc='loc("layer7/relu")')
    with pytest.raises(PycError, match=r"^layer7/relu: .*got f64 in tensor<4xf64>"):
        compile_module(named, TARGETS["vulkan"])


@pytest.mark.parametrize(
    "source",
    [
        b"func.func @main(",
        b"\xff\x00",
        b'func.func @main() { "pyc.relu"() : () -> () return }',
        b'func.func @main() { "tensor.nope"() : () -> () return }',
    ],
)
def test_what_iree_cannot_read(source, capfd):
    with pytest.raises(CompileError) as caught:
        compile_module(source, CPU)
    assert caught.value.code is ReasonCode.INVALID_IR
    assert str(caught.value).startswith("source.mlir:1:")
    assert capfd.readouterr().err == ""


def test_equal_modules_give_equal_bytes_without_locations():
    plain = compile_module(add_text(), CPU)
    located = compile_module(add_text(loc='loc("pyc:add.1"("/home/me/m.py":1:2))'), CPU)
    assert plain == located
    assert b"m.py" not in located and b"source.mlir" not in located and b"/tmp" not in located


def test_compile_to_and_dump_phases(tmp_path):
    flow = compile_module(add_text(), CPU, compile_to="flow", dump_phases=tmp_path / "ir")
    assert b"flow.dispatch" in flow
    names = sorted(p.name for p in (tmp_path / "ir").iterdir())
    assert any("1.input" in n for n in names) and any("flow" in n for n in names)
    with pytest.raises(PycError, match=r"expected one of start, input, .*, got 'nope'"):
        compile_module(add_text(), CPU, compile_to="nope")


@pytest.mark.parametrize(
    ("flag", "message"),
    [("--nope", "option not found"), ("--iree-vulkan-target=foo", "leave the target alone")],
)
def test_bad_flags(flag, message):
    with pytest.raises(PycError, match=message) as caught:
        compile_module(add_text(), CPU, extra_flags=[flag])
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_extra_flags_win():
    text = compile_module(
        add_text(dtype="f64"), CPU, ["--iree-input-demote-f64-to-f32=true"], compile_to="flow"
    )
    assert b"f64" not in text


def test_a_linker_that_fails_is_told_without_its_command_line():
    flags = ["--iree-llvmcpu-embedded-linker-path=/bin/false"]
    with pytest.raises(PycError, match="the linker that IREE starts failed") as caught:
        compile_module(add_text(), CPU, flags)
    assert "above" not in caught.value.message
    assert "-flavor" not in caught.value.message


def test_assertions_of_the_program_are_kept():
    assert b"too long" in compile_module(CHECKED, CPU, compile_to="vm")


def test_passes_between_phases():
    with IreeSession(CPU.flags) as session:
        session.parse(add_text())
        session.run(to="flow")
        session.run_passes(
            "iree-util-verify-initialization-order,iree-stream-tensor-transformation-pipeline,"
            "iree-stream-async-transformation-pipeline"
        )
        assert "stream.async.dispatch" in str(session.module)
        session.run_passes(
            "iree-stream-schedule-allocation,iree-stream-cmd-transformation-pipeline,"
            "iree-stream-optimization-pipeline,iree-stream-cleanup-pipeline,symbol-dce"
        )
        assert session.bytecode().startswith(b"ML")
        session.run(start="stream")
        assert session.vmfb().startswith(b"PK")


def test_ir_is_verified_after_each_pass_unless_that_is_off():
    for verify in (True, False):
        with IreeSession(CPU.flags, verify) as session, session.context:
            session.parse(add_text())
            function = session.module.regions[0].blocks[0].operations[0]
            function.attributes["function_type"] = ir.TypeAttr.parse("() -> tensor<4xf32>")
            said = nullcontext()
            if verify:
                said = pytest.raises(CompileError, match="must have 0 arguments")
            with said:
                session.run_passes("func.func(canonicalize)")


@pytest.mark.parametrize(
    "source, variable, verified",
    [(np.tanh, "", False), (np.tanh, "1", True), (CHECKED.decode(), "", True)],
)
def test_ir_of_others_is_always_verified(source, variable, verified, monkeypatch):
    asked = []

    class Session(IreeSession):
        def __init__(self, flags=(), verify=True):
            asked.append(verify)
            super().__init__(flags, verify)

    monkeypatch.setattr(compiler, "IreeSession", Session)
    given = [TensorSpec("f32", 4)] if source is np.tanh else None
    build(source, given, resolve(CompileOptions(), None, {"PYC_VERIFY_IR": variable}))
    assert asked == [verified]
    assert make_options().verify_ir, "the tests verify"


def test_pass_pipelines_that_would_do_nothing_are_refused():
    with IreeSession(CPU.flags) as session:
        session.parse(add_text())
        with pytest.raises(PycError, match=r"without `builtin\.module") as caught:
            session.run_passes("builtin.module(cse)")
        assert caught.value.code is ReasonCode.INVALID_PIPELINE
        with pytest.raises(CompileError) as caught:
            session.run_passes("nope")
        assert caught.value.code is ReasonCode.PASS_FAILED


def test_diagnostics_are_records():
    text = 'loc("a(b"("f":1:2)): bad thing\n\n loc("x"): called from'
    assert IreeDiagnostic.parse(
        1, "m.mlir:3:4: odd: thing\n\nm.mlir:1:1: called from"
    ) == IreeDiagnostic("warning", "odd: thing", "m.mlir:3:4", ("m.mlir:1:1: called from",))
    assert IreeDiagnostic.parse(2, text.replace("a(b", "ab")).location == 'loc("ab"("f":1:2))'
    assert str(IreeDiagnostic.parse(2, "no place")) == "no place"


def test_empty_module_is_an_error():
    with pytest.raises(CompileError, match="does not contain"):
        compile_module(b"", CPU)


@pytest.mark.full
def test_a_closed_session_frees_its_context():
    before = ir.Context._get_live_count()
    with IreeSession(CPU.flags) as session:
        session.parse(add_text())
        session.use(session.module.clone())
        held = session.module
        session.run()
    assert ir.Context._get_live_count() == before + 1, "a part of it is held"
    assert held.name == "builtin.module"
    del held
    assert ir.Context._get_live_count() == before
