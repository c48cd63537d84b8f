""""""

import re
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import iree.compiler
import numpy as np
import pytest
from faults import CHECKED
from iree.compiler import ir
from modules import add_text
from remembered import Generated, RememberingSession, remember

import pyc_mlir
from pyc_mlir import compile
from pyc_mlir.api import build
from pyc_mlir.artifact.memory import from_bytes
from pyc_mlir.compilation.options import CompileOptions, make_options, resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.iree import compiler, diagnostics
from pyc_mlir.iree.compiler import DEFAULT_FLAGS, IreeSession, compile_module
from pyc_mlir.iree.diagnostics import CompileError, IreeDiagnostic
from pyc_mlir.iree.flags import _WORDS, names_file, reaches_out
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


T = "tensor<4xf32>"


def function(name: str, *called: str, visibility: str = "private", op: str = "func.call") -> str:
    """A function that calls others one after the other."""
    lines = [f"%v{i + 1} = {op} @{c}(%v{i}) : ({T}) -> {T}" for i, c in enumerate(called)]
    body = "\n  ".join([*lines, f"return %v{len(called)} : {T}"])
    return f"func.func {visibility} @{name}(%v0: {T}) -> {T} {{\n  {body}\n}}\n"


def module(*functions: str) -> str:
    return "module {\n" + "".join(functions) + "}\n"


def main(*called: str) -> str:
    return function("main", *called, visibility="public")


def check(text: str) -> None:
    with IreeSession() as session:
        session.parse(text.encode())


COMPOSITE = f"""func.func private @f(%x: {T}) -> {T} {{
  %0 = stablehlo.composite "own.f" %x {{decomposition = @f}} : ({T}) -> {T}
  return %0 : {T}
}}
"""
PYC = f"""func.func public @main(%x: {T}) -> {T} {{
  %0 = "pyc.add"(%x, %x) : ({T}, {T}) -> {T}
  %1 = func.call @main(%0) : ({T}) -> {T}
  return %1 : {T}
}}
"""
BRANCH = f"""func.func private @f(%n: i32, %x: {T}) -> {T} {{
  %c = arith.constant 1 : i32
  %p = arith.cmpi sle, %n, %c : i32
  %r = scf.if %p -> {T} {{ scf.yield %x : {T} }} else {{
    %m = arith.subi %n, %c : i32
    %f = func.call @f(%m, %x) : (i32, {T}) -> {T}
    scf.yield %f : {T}
  }}
  return %r : {T}
}}
func.func public @main(%n: i32, %x: {T}) -> {T} {{
  %0 = func.call @f(%n, %x) : (i32, {T}) -> {T}
  return %0 : {T}
}}
"""


@pytest.mark.parametrize(
    ("text", "cycle"),
    [
        (module(main("main")), "main -> main"),
        (module(main("f"), function("f", "main")), "main -> f -> main"),
        (module(main("f"), function("f", "g"), function("g", "f")), "f -> g -> f"),
        (module(main("f"), COMPOSITE), "f -> f"),
        (module(BRANCH), "f -> f"),
        (module(function("a\x1b", "a\x1b").replace("a\x1b", '"a\\1B"'), main()), ""),
    ],
)
def test_a_function_that_calls_itself_is_refused(text, cycle):
    """A private one that nothing reaches is left out of the program."""
    if not cycle:
        check(text)
        return
    with pytest.raises(PycError, match="expected no function that calls itself") as error:
        check(text)
    assert (
        f"got {cycle};" in error.value.message
        and error.value.code is ReasonCode.UNSUPPORTED_ATTRIBUTE
    )


@pytest.mark.parametrize("text", [module(main("main")), module(PYC)])
def test_every_road_ends_there(text):
    with pytest.raises(PycError, match="expected no function that calls itself"):
        pyc_mlir.compile(text, cache=False)


def doubling(depth: int) -> str:
    called = [function(f"f{i}", *[f"f{i + 1}"] * 2) for i in range(depth)]
    return module(main("f0"), *called, function(f"f{depth}"))


def test_calls_that_stand_for_too_many_operations_are_refused():
    check(doubling(10))
    with pytest.raises(
        PycError, match=f"at most {diagnostics.MAX_WRITTEN_OUT} operations with all calls"
    ):
        check(doubling(40))


def test_a_large_module_may_repeat_its_functions(monkeypatch):
    """The bound is none of programs that are long themselves."""
    monkeypatch.setattr(diagnostics, "MAX_WRITTEN_OUT", 100)
    check(doubling(8))
    with pytest.raises(PycError, match="with all calls written out"):
        check(doubling(16))


def test_a_long_chain_of_calls_is_none_of_these():
    links = [function(f"f{i}", f"f{i + 1}") for i in range(2000)]
    check(module(main("f0"), *links, function("f2000")))


SHIFT = np.float32(0.5)


def sources(function, *arrays, **options) -> dict[str, set[str]]:
    """By dispatch the names of its source ops."""
    artifact = compile(function, arrays, **options).artifact
    tasks = [t for r in from_bytes(artifact.memory).regions for t in r.tasks]
    return {t.name: {s.partition(".")[0] for s in t.sources} for t in tasks if t.sources}


def test_all_ops_of_a_fused_dispatch():
    x = np.ones((8, 64), np.float32)

    def centered(x):
        return x - np.mean(x, -1, keepdims=True)

    (found,) = sources(centered, x, kernels="iree").values()
    assert found == {"reduce_mean", "sub"}


def test_shared_constants_and_fills_are_nobodys():
    """Two products of one size share the zeros that they start from."""
    x, w = np.ones((8, 64), np.float32), np.ones((64, 64), np.float32)

    def twice(x, w):
        return np.tanh(np.tanh(x @ w) @ w.T)

    artifact = compile(twice, [x, w], kernels="iree").artifact
    tasks = [t for r in from_bytes(artifact.memory).regions for t in r.tasks]
    products = [s for t in tasks for s in t.sources if s.startswith("matmul.")]
    assert len(products) == len(set(products)), "each product is in one dispatch"
    for task in tasks:
        if task.name.startswith("stream."):
            assert not task.sources


def test_a_program_of_one_dispatch_is_reported_too():
    x = np.ones((8, 64), np.float32)
    (found,) = sources(lambda x: x + SHIFT, x).values()
    assert found == {"add"}


def test_kernels_are_named_by_their_group():
    x, w = np.ones((8, 64), np.float32), np.ones((64, 64), np.float32)
    found = sources(lambda x: np.maximum(x @ w, 0), x)
    assert found == {"pyc_gemm_0": {"group"}}


# Flags whose value names a file are told from those whose text says all.
TOOL = Path(str(iree.compiler.__file__)).parent / "_mlir_libs" / "iree-compile"
# An option in the tool's help: its name, what stands for its value, the first line of its text.
OPTION = re.compile(r"^ +--([\w-]+)(?:=<([^>]*)>)? +- +(.*)$", re.M)


@pytest.mark.parametrize(
    "flag",
    [
        "--iree-codegen-transform-dialect-library=x.mlir",
        "--iree-codegen-transform-dialect-library=1",
        "--iree-hal-substitute-executable-source=a=b.mlir",
        "--iree-hal-substitute-executable-object=a=b.o",
        "--iree-hal-substitute-executable-configurations-from=folder",
        "--iree-hal-dump-executable-files-to=x",
        "--iree-opt-import-parameters=weights",
        "--iree-preprocessing-pass-pipeline=builtin.module(x{patterns-file=p})",
        "--iree-llvmcpu-system-linker-path",
        "--iree-opt-level=../O1",
        "--of-another-release=word",
        "-o=x",
        "@more",
        "x.mlir",
    ],
)
def test_files(flag):
    assert names_file(flag) and reaches_out(flag)


@pytest.mark.parametrize(
    "flag",
    [
        *DEFAULT_FLAGS,
        *(flag for target in TARGETS.values() for flag in target.flags),
        "--iree-global-opt-data-tiling",
        "--iree-opt-const-eval=false",
        "--iree-stream-partitioning-favor=max-concurrency",
        "--x=-1.5e3",
        "--x=",
    ],
)
def test_what_the_text_says_in_full(flag):
    assert not names_file(flag)


def test_flags_that_tell_more_than_the_program():
    assert reaches_out("--mlir-print-ir-after-all") and not names_file("--mlir-print-ir-after-all")


@pytest.fixture(scope="module")
def options() -> dict[str, tuple[str, str]]:
    """Stand-ins for the value of each option of the compiler, and what is said of them."""
    output_text = subprocess.run(
        [str(TOOL), "--help-hidden"], capture_output=True, text=True, check=True
    )
    return {name: (value, text) for name, value, text in OPTION.findall(output_text.stdout)}


def test_every_option_that_speaks_of_files_is_known_by_its_name(options):
    """Even where the file has the name of a number."""
    assert len(options) > 300
    files = re.compile(r"\b(files?|paths?|director(y|ies)|folders?|filename)\b", re.I)
    texts = {n: t for n, (value, t) in options.items() if value in ("string", "filename")}
    speaking = [n for n, text in texts.items() if files.search(text)]
    assert len(speaking) > 10
    assert [n for n in speaking if not reaches_out(f"--{n}=1")] == []


def test_words_are_options_of_this_release(options):
    assert options.keys() >= _WORDS


@pytest.fixture
def made() -> Iterator[dict[bytes, Generated]]:
    """Programs that a test has generated; it begins with nothing in memory."""
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
