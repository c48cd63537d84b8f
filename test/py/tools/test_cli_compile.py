"""pyc-compile in this process; test/lit/pyc-compile runs it as a user does."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from pythons import python

from pyc_mlir import Contract, PycError, ReasonCode
from pyc_mlir.artifact.artifact import read
from pyc_mlir.artifact.compile_log import read_compile_log
from pyc_mlir.artifact.signature import SignatureEntry
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Site
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.pipelines.choices.log import events_of, read_log
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.registry import PASSES
from pyc_mlir.runtime import load as runtime
from pyc_mlir.tools import pyc_compile, pyc_run
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli import compile_driver, contract_flags
from pyc_mlir.tools.cli.model_source import InputShape, assign, refine
from pyc_mlir.tools.demo.digits import MODELS
from pyc_mlir.tools.explain.why import why

F32 = DTYPES["f32"]
PYTHON = """
import numpy as np
from pyc_mlir import Tensor

w = np.full((8, 4), 0.5, np.float32)

def layer(x: Tensor["f32", "batch", 8], y: Tensor["f32", "batch", 4]):
    return np.maximum(x @ w + y, 0)

def plain(x, k=3):
    return x * k

def attribute(x: Tensor["f32", 4]):
    return x.nonsense

def own_fault(x: Tensor["f32", 4]):
    return {}["missing"]

def branches(x: Tensor["f32", 4]):
    return x if x[0] > 0 else -x

def mismatch(x: Tensor["f32", 4]):
    return x @ w
"""
BAD_PYC = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.reluu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
FOREIGN = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = math.exp %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@dataclass(frozen=True)
class Widen:
    """A plugin's pass: relu of x is relu of x twice, which a self-check does not notice."""

    name: ClassVar[str] = "test-widen"

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        body = entry_function(module, "layer").regions[0].blocks[0]
        found = [op for op in body.operations if op.operation.name == "pyc.maximum"]
        for op in found:
            copy = op.operation.clone(ip=ir.InsertionPoint.at_block_terminator(body))
            copy.operands[0] = op.result
            body.operations[len(body.operations) - 1].operands[0] = copy.result
        return {"widened": len(found)}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working directory with small models of each kind."""
    monkeypatch.chdir(tmp_path)
    files = {
        "m.py": PYTHON,
        "syntax.py": "def f(:\n",
        "imports.py": "x = 1\nimport nothing_like_this\n",
        "bad.mlir": BAD_PYC,
        "foreign.mlir": FOREIGN,
        "badforeign.mlir": FOREIGN.replace("math.exp", "math.nothing"),
        "other.toml": 'allowed_targets = ["vulkan"]\n',
        "type.toml": "determinism = 1\n",
        "unknown.toml": "colour = 1\n",
        "broken.toml": "a = \n",
        "binary": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xbc")
    return tmp_path


def compiled(*argv: str) -> None:
    assert pyc_compile.run(argv) == 0


REFUSED = [
    ("", ReasonCode.BAD_ARGUMENT, "expected a MODEL"),
    ("foreign.mlir", ReasonCode.BAD_ARGUMENT, "expected -o FILE"),
    ("--nonsense", ReasonCode.BAD_ARGUMENT, "--nonsense"),
    ("foreign.mlir -o x --policy wise", ReasonCode.BAD_ARGUMENT, "'wise'"),
    ("foreign.mlir -o x --target abacus", ReasonCode.UNKNOWN_TARGET, "vulkan"),
    ("foreign.mlir --emit pyc", ReasonCode.BAD_ARGUMENT, "foreign.mlir: expected a pyc program"),
    (
        "foreign.mlir -o x --input 4",
        ReasonCode.BAD_ARGUMENT,
        "compiled by IREE with the shapes of the file",
    ),
    ("foreign.mlir --emit linalg --dump-phases d", ReasonCode.BAD_ARGUMENT, "--dump-phases"),
    ("foreign.mlir -o x --emit vmfb --compile-to=flow", ReasonCode.BAD_ARGUMENT, "got both"),
    ("foreign.mlir --compile-to=lunch", ReasonCode.BAD_ARGUMENT, "executable-sources"),
    ("foreign.mlir -o x --Xiree=--nonsense", ReasonCode.BAD_ARGUMENT, "nonsense"),
    ("foreign.mlir -o x --Xiree=--iree-cuda-target=x", ReasonCode.BAD_ARGUMENT, "target alone"),
    ("foreign.mlir -o x --recipe binary", ReasonCode.BAD_ARGUMENT, "binary: expected a log"),
    ("badforeign.mlir -o x", ReasonCode.INVALID_IR, "badforeign.mlir:2:8"),
    ("bad.mlir -o x", ReasonCode.INVALID_IR, "bad.mlir:2:8: error: "),
    ("none.onnx -o x", ReasonCode.FILE_ACCESS, "none.onnx: expected an ONNX file"),
    ("m.py -o x", ReasonCode.BAD_MODEL, "layer, plain"),
    ("m.py:nothing -o x", ReasonCode.BAD_MODEL, "layer, plain"),
    ("none.py:f -o x", ReasonCode.FILE_ACCESS, "none.py"),
    ("syntax.py:f -o x", ReasonCode.BAD_MODEL, "syntax.py:1: "),
    ("imports.py:f -o x", ReasonCode.BAD_MODEL, "imports.py:2: "),
    ("m.py:plain -o x", ReasonCode.BAD_ARGUMENT, "annotate it"),
    ("m.py:plain -o x --input 4", ReasonCode.BAD_ARGUMENT, "x=4xf32"),
    ("m.py:attribute -o x", ReasonCode.UNTRACEABLE, "m.py:14: "),
    ("m.py:own_fault -o x", ReasonCode.UNTRACEABLE, "m.py:17: "),
    ("m.py:branches -o x", ReasonCode.UNTRACEABLE, "m.py:20:"),
    ("m.py:mismatch -o x", ReasonCode.INVALID_IR, "m.py:23:"),
    ("m.py:layer -o x --input x=2x8 --input y=3x4", ReasonCode.DIMENSION_MISMATCH, "`batch`"),
    ("foreign.mlir -o x --contract other.toml", ReasonCode.BAD_ARGUMENT, "allowed_targets"),
    ("foreign.mlir -o x --contract type.toml", ReasonCode.BAD_ARGUMENT, "type.toml: determinism"),
    ("foreign.mlir -o x --contract unknown.toml", ReasonCode.UNSUPPORTED_CLAUSE, "colour"),
    ("foreign.mlir -o x --contract broken.toml", ReasonCode.BAD_ARGUMENT, "broken.toml"),
    ("foreign.mlir -o x --max-compile-time=1ms", ReasonCode.COMPILE_TIMEOUT, "within 0.001 s"),
    ("foreign.mlir -o x --fallbacks=iree", ReasonCode.UNCHECKABLE_CLAUSE, "max_error"),
    ("foreign.mlir -o x --latency-goal=soon", ReasonCode.BAD_ARGUMENT, "--latency-goal"),
    ("m.py:layer -o x --dim batch=4", ReasonCode.BAD_ARGUMENT, "--dim batch=4: expected NAME=LOW"),
    ("m.py:layer -o x --dim batch=4:2", ReasonCode.BAD_ARGUMENT, "got (4, 2)"),
    ("m.py:layer -o x --dim n=1:2", ReasonCode.BAD_ARGUMENT, "(batch), got 'n'"),
    ("m.py:layer -o x --memory-budget 1MiB", ReasonCode.BUDGET_NOT_FOUND, "--dim batch=1:64"),
]


@pytest.mark.parametrize(("line", "code", "text"), REFUSED, ids=[r[0] for r in REFUSED])
def test_faults_of_the_user_are_one_message(folder, capsys, line, code, text):
    status, captured = pyc_compile.run(shlex.split(line)), capsys.readouterr()
    assert status == (2 if "command line: " in captured.err else 1)
    assert f"[{code.name}]" in captured.err and text in captured.err
    assert "Traceback" not in captured.err and captured.out == ""
    assert not (folder / "x").exists()


@pytest.mark.parametrize("line", ["foreign.mlir -o no/such/x", "foreign.mlir -o x --recipe none"])
def test_files_that_cannot_be_used(folder, capsys, line):
    assert pyc_compile.run(shlex.split(line)) == 1
    assert "No such file" in capsys.readouterr().err


def test_stdin_that_is_no_text(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert pyc_compile.run(["-", "--emit", "linalg"]) == 1
    assert "[BAD_MODEL]" in capsys.readouterr().err


def test_a_fault_of_ours_shows_the_traceback(capsys, monkeypatch, folder):
    def broken(*_: object) -> None:
        raise RuntimeError("impossible")

    monkeypatch.setattr(compile_driver, "run", broken)
    assert pyc_compile.run(["foreign.mlir", "-o", "x"]) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err and "impossible [INTERNAL_ERROR]" in err and "fault of PyC" in err


@pytest.mark.parametrize("fault, code", [("1 / 0", "INTERNAL_ERROR"), ("abort()", "NATIVE_CRASH")])
@pytest.mark.full
def test_a_compile_that_broke_has_a_log(folder, fault, code):
    code_of_tool = (
        "import sys; from os import abort; from pyc_mlir.tools import pyc_compile; "
        "from pyc_mlir.tools.cli import compile_driver; "
        f"compile_driver._compiled = lambda *_: {fault}; sys.exit(pyc_compile.main())"
    )
    flags = ["foreign.mlir", "-o", "x", "--log", "x.jsonl", "--max-error", "0.1"]
    done = python("-c", code_of_tool, *flags)
    (line,) = events_of(read_log("x.jsonl"))
    assert done.returncode == 70 and f"[{code}]" in done.stderr
    assert line.chosen == "refused" and line.reasons[0].code == str(code)
    assert line.reasons[1:] == (Reason("", f"max_error = 0.1: refused [{code}]"),)


def test_a_crash_in_native_code_is_told():
    code = (
        "import os, sys; from pyc_mlir.tools import pyc_compile as c; "
        "c._run = lambda *given: os.abort(); sys.exit(c.main([]))"
    )
    done = python("-c", code)
    assert done.returncode == 70
    assert "SIGABRT" in done.stderr and "[NATIVE_CRASH]" in done.stderr


def test_onnx_model_end_to_end(folder, capsys):
    """The summary's own commands run: ours here, IREE's in its own process."""
    compiled(str(MODELS["mlp"]), "-o", "mlp.vmfb", "--input", "image=2x1x8x8", "-v")
    summary = capsys.readouterr().out
    lines = {k: v for k, _, v in (x.strip().partition("  ") for x in summary.splitlines())}
    assert lines["inputs"].strip() == "image: tensor<2x1x8x8xf32>"
    assert pyc_run.main(shlex.split(lines["run it"])[1:]) == 0
    assert "scores: 2x10xf32" in capsys.readouterr().out
    command = shlex.split(lines["with IREE"])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": path})
    assert done.returncode == 0 and "2x10xf32=" in done.stdout


def test_quiet_when_nobody_watches(folder, capsys):
    compiled("foreign.mlir", "-o", "x.vmfb")
    assert capsys.readouterr() == ("", "")


def test_traced_function_with_named_dimensions(folder):
    compiled("m.py:layer", "-o", "layer.vmfb")
    program = runtime.load("layer.vmfb", runtime.Device("local-sync"))
    x, y = np.ones((3, 8), np.float32), np.full((3, 4), -1, np.float32)
    np.testing.assert_allclose(program(x, y), np.full((3, 4), 3.0))
    with pytest.raises(PycError, match="batch"):
        program(x, y[:2])
    compiled("m.py:layer", "-o", "layer2.vmfb", "--input", "y=2x4")
    assert [a.shape for a in read("layer2.vmfb").signature.inputs] == [(2, 8), (2, 4)]


def test_unannotated_function_takes_the_types_given(folder):
    compiled("m.py:plain", "-o", "plain.vmfb", "--input", "?x2xf64")
    program = runtime.load("plain.vmfb", runtime.Device("local-sync"))
    np.testing.assert_array_equal(program(np.ones((5, 2))), np.full((5, 2), 3.0))


def test_log_is_a_recipe_that_gives_the_same_program(folder):
    model = str(MODELS["mlp"])
    compiled(model, "-o", "a.vmfb", "--log", "a.jsonl")
    compiled(model, "-o", "b.vmfb", "--recipe", "a.jsonl", "--log", "b.jsonl")
    assert Path("a.jsonl").read_text() == Path("b.jsonl").read_text()
    assert Path("a.vmfb").read_bytes() == Path("b.vmfb").read_bytes()
    kinds = [json.loads(line)["kind"] for line in Path("a.jsonl").read_text().splitlines()]
    assert kinds[0] == "conditions" and kinds[-1] == "event", "the last is the self-check"
    assert kinds.count("decision") == len(read("a.vmfb").decisions) == len(kinds) - 2


def test_a_refused_compile_has_a_log(folder, capsys):
    model, clauses = str(MODELS["mlp"]), ["--max-concurrency", "2", "--memory-budget", "10"]
    flags = [model, "-o", "a.vmfb", "--dim", "batch=1:4", *clauses, "--log", "a.jsonl"]
    assert pyc_compile.run(flags) == 1
    output_text = capsys.readouterr().err
    (line,) = events_of(read_log("a.jsonl"))
    assert (line.site.key, line.chosen) == ("compile:refused", "refused")
    assert line.reasons[0].code == "BUDGET_IMPOSSIBLE"
    assert line.reasons[0].message in output_text
    assert tuple(map(str, line.reasons[1:])) == (
        "memory_budget_bytes = 10: refused [BUDGET_IMPOSSIBLE]",
        "max_concurrency = 2: refused [BUDGET_IMPOSSIBLE]",
    )
    recorded = read_compile_log("a.jsonl")
    assert recorded.events == (line,) and not recorded.conditions and not recorded.decisions
    assert "compile:refused" in why(recorded, ReasonCode.BUDGET_IMPOSSIBLE)


@pytest.mark.parametrize("log", ["-", "a.vmfb", "./a.vmfb", "r.jsonl"])
def test_a_log_has_a_file_of_its_own(folder, capsys, log):
    model = str(MODELS["mlp"])
    flags = [model, "-o", "a.vmfb", "--recipe", "r.jsonl", "--log", log]
    assert pyc_compile.run(flags) == 2
    assert "expected a file of its own for --log" in capsys.readouterr().err


def test_a_recipe_of_another_program_is_refused(folder, capsys):
    compiled(str(MODELS["mlp"]), "-o", "a.vmfb", "--log", "a.jsonl")
    assert pyc_compile.run([str(MODELS["cnn"]), "-o", "c.vmfb", "--recipe", "a.jsonl"]) == 1
    assert "RECIPE_MISMATCH" in capsys.readouterr().err


@pytest.mark.full
def test_text_output_keeps_its_decisions(folder):
    compiled(str(MODELS["mlp"]), "--emit", "linalg", "-o", "x.mlir", "--log", "x.jsonl")
    assert "pyc-fuse" in Path("x.jsonl").read_text()
    compiled("x.mlir", "-o", "x.vmfb")


def test_phases_are_dumped(folder):
    compiled("foreign.mlir", "-o", "x.vmfb", "--dump-phases", "phases")
    assert any("flow" in path.name for path in Path("phases").iterdir())


def test_listing_of_targets(capsys):
    assert pyc_compile.run(["--list-targets"]) == 0
    out = capsys.readouterr().out
    assert "cuda-sm_80" in out and "all but f64" in out


def test_decisions_read_well():
    offered = (Alternative("keep"), Alternative("fuse:add+relu"))
    site = Site("pyc-fuse", "add.01", 'loc("conv1"("m.onnx":1:2))')
    reported = compile_driver.describe(Decision(site, "keep", offered, "heuristic"))
    assert reported == "add.01 (conv1): keep (not fuse:add+relu)"


@pytest.mark.parametrize(
    ("text", "name", "dims", "dtype"),
    [
        ("2x784", None, (2, 784), None),
        ("?x3xf32", None, (None, 3), np.float32),
        ("scalar", None, (), None),
        ("f32", None, (), np.float32),
        ("x=2x3", "x", (2, 3), None),
        ("a=b=scalar", "a=b", (), None),
    ],
)
def test_input_shapes_that_parse(text, name, dims, dtype):
    wanted = None if dtype is None else np.dtype(dtype)
    assert InputShape.parse(text) == InputShape(name, dims, wanted)


@pytest.mark.parametrize("text", ["", "x=", "=2", "2xq", "-1x2", "2x", "x2", "\u0663", "2xi4"])
def test_input_shapes_that_do_not(text):
    with pytest.raises(PycError, match=r"expected .* element type in f64, .* \(bits\)"):
        InputShape.parse(text)


def test_shapes_are_assigned_by_name_then_in_order():
    shapes = [InputShape.parse(t) for t in ("1", "b=2")]
    assert {n: s and s.dims for n, s in assign("abc", shapes).items()} == {
        "a": (1,),
        "b": (2,),
        "c": None,
    }
    for wrong in (["d=1"], ["a=1", "a=1"], ["1"] * 4):
        with pytest.raises(PycError):
            assign("abc", [InputShape.parse(t) for t in wrong])


def test_sizes_of_named_dimensions_hold_everywhere():
    declared = [SignatureEntry("a", F32, ("n", 3)), SignatureEntry("b", F32, ("n", None))]
    output_text = {"a": InputShape.parse("2x?"), "b": InputShape.parse("?x5")}
    assert [a.shape for a in refine(declared, output_text)] == [(2, 3), (2, 5)]


def test_contract_flags_win_over_the_file(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('memory_budget_bytes = "1MiB"\nmax_error = 0.5\nallowed_targets = ["cpu"]\n')
    parser = pyc_compile.make_parser()
    flags = parser.parse_args(
        ["--contract", str(path), "--memory-budget=2MiB", "--determinism=strict"]
    )
    assert contract_flags.read_contract(flags) == Contract(
        memory_budget_bytes=2 << 20, determinism="strict", max_error=0.5, allowed_targets=("cpu",)
    )


def test_ranges_of_dimensions(folder, capsys):
    compiled(*shlex.split("m.py:layer -o p.vmfb --dim batch=2:6 --memory-budget 1MiB -v"))
    assert "--input x=2x8xf32=@seed:0" in capsys.readouterr().out
    artifact = read("p.vmfb")
    assert artifact.signature.ranges == {"batch": (2, 6)}
    assert artifact.account.inputs == 4 * 6 * (8 + 4)
    assert pyc_run.main(["p.vmfb", "--input", "x=6x8xf32=1", "--input", "y=6x4xf32=1"]) == 0
    assert pyc_run.main(["p.vmfb", "--input", "x=7x8xf32=1", "--input", "y=7x4xf32=1"]) == 1
    assert ReasonCode.DIMENSION_OUT_OF_RANGE.name in capsys.readouterr().err


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def ticking(err: io.StringIO, requested: bool) -> str:
    """What a progress shows at 1, 3 and 4 seconds of one stage, then 5 of another."""
    now = [0.0]
    # The watching thread never wakes: ticks come from here.
    with cli.Progress(err, requested, lambda: now[0], interval=1e6) as progress:
        with progress.stage("one"):
            for now[0] in (1.0, 3.0, 4.0):
                progress.tick()
        progress.tick()
        with progress.stage("two"):
            now[0] = 5.0
            progress.tick()
    assert progress.stages == [("one", 4.0), ("two", 1.0)]
    return err.getvalue()


def test_progress_rewrites_a_line_of_the_terminal_after_two_seconds():
    shown = ticking(Terminal(), requested=False)
    assert shown.split("\r\x1b[K") == [
        "",
        "[  3.0 s] one ...",
        "[  4.0 s] one ...",
        "[  5.0 s] two ...",
        "",
    ]


def test_progress_in_a_pipe_is_a_line_a_stage():
    assert ticking(io.StringIO(), requested=True) == "[  3.0 s] one ...\n[  5.0 s] two ...\n"


def test_progress_watches_by_itself():
    err = Terminal()
    with cli.Progress(err, delay=0, interval=0.001) as progress, progress.stage("x"):
        while not err.getvalue():
            pass
    assert "x ..." in err.getvalue()


def test_a_program_is_no_model(folder, capsys):
    compiled("foreign.mlir", "-o", "x.vmfb")
    assert pyc_compile.run(["x.vmfb", "-o", "y.vmfb"]) == 1
    err = capsys.readouterr().err
    assert "got a compiled program; run it with `pyc-run`" in err and "[BAD_MODEL]" in err


@pytest.mark.parametrize("flags", ["-o no/such/x", "-o .", "-o x --log no/such/log"])
@pytest.mark.full
def test_places_that_cannot_be_written_are_told_before_the_compile(
    folder, capsys, monkeypatch, flags
):
    monkeypatch.setattr(compile_driver, "run", None)
    assert pyc_compile.run(["foreign.mlir", *flags.split()]) == 1
    assert "[FILE_ACCESS]" in capsys.readouterr().err


def emitted(capsys, *flags: str) -> list[str]:
    """The names of the pyc ops of ``--emit`` text."""
    assert pyc_compile.run(["m.py:layer", *flags]) == 0
    return re.findall(r'"(pyc\.\w+)"', capsys.readouterr().out)


def test_the_imported_module_and_passes_of_plugins(folder, capsys, monkeypatch):
    monkeypatch.setitem(PASSES._registered, Widen.name, Widen)
    imported = emitted(capsys, "--emit", "imported")
    assert "pyc.group" not in imported and imported.count("pyc.maximum") == 1
    assert emitted(capsys, "--emit", "pyc", "--passes", "test-widen,default").count(
        "pyc.maximum"
    ) == emitted(capsys, "--emit", "pyc").count("pyc.maximum")  # relu of relu is one relu
    only = emitted(capsys, "--emit", "pyc", "--passes", "test-widen", "--kernels", "iree")
    assert "pyc.group" not in only and only.count("pyc.maximum") == 2
    assert pyc_compile.run(["m.py:layer", "--passes", "default,cse", "-o", "m.vmfb"]) == 0
    assert read("m.vmfb").manifest.options.passes.endswith(",pyc-fuse,cse")
    assert pyc_compile.run(["m.py:layer", "--passes", "no-such-pass", "-o", "x.vmfb"]) == 1
    assert "no-such-pass" in capsys.readouterr().err
