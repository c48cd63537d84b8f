"""Names with control characters through every tool: none reaches a terminal, none forges a line."""

import io
import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import ALL_CASES, sample
from onnx import helper
from tool_runs import run_tool

import pyc_mlir
from pyc_mlir import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line, printable
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.tools.cli.common import Progress

FORGED = "FORGED: all is well"
# Clears the screen, sets the title, turns the reading order, begins lines of its own.
ALL = f"ä\x1b[2J\x1b]0;title\x07\x08\x7f\x9b31m\u202e\u2066\n{FORGED}\r{FORGED}\u2028{FORGED}"
PARTS = ["\x1b[2J", "\x07", "\x7f", "\x9b31m", "\u202e", f"\n{FORGED}", f"\r{FORGED}", "\x85"]
NAMES = [f"ä{part}b" for part in PARTS] if ALL_CASES else []
# The tools that have run and said nothing odd, for the count.
RUNS: list[str] = []
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
F = onnx.TensorProto.FLOAT


def good(name: str) -> onnx.ModelProto:
    """A model that compiles, with the name everywhere where that is possible."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Add", [f"in{name}", f"w{name}"], [f"sum{name}"], f"node{name}"),
        helper.make_node("Softmax", [f"sum{name}"], [f"out{name}"], f"last{name}", axis=1),
    ]
    weight = helper.make_tensor(f"w{name}", F, [4], np.ones(4, np.float32))
    given = [value(f"in{name}", F, [f"n{name}", 4])]
    made = [value(f"out{name}", F, [f"n{name}", 4])]
    graph = helper.make_graph(nodes, f"graph{name}", given, made, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], doc_string="a\nb")


def bad(name: str) -> dict[str, onnx.ModelProto]:
    """Models that are refused, each for another name."""
    found = {}
    for place in ("op", "domain", "attribute", "operand", "dtype", "twice"):
        model = good(name)
        node = model.graph.node[1]
        if place == "op":
            node.op_type = name
        elif place == "domain":
            node.domain = name
            model.opset_import.append(helper.make_opsetid(name, 1))
        elif place == "attribute":
            node.attribute.append(helper.make_attribute(name, 1))
        elif place == "operand":
            node.input[0] = f"absent{name}"
        elif place == "dtype":
            model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
        else:
            node.output[0] = model.graph.node[0].output[0]
        found[place] = model
    return found


def wrong(text: str) -> list[str]:
    """Lines that a terminal would not show as they are, or that begin like none of ours."""
    return [
        line
        for line in text.replace("\r", "\n").split("\n")
        if ODD.search(line) or line.lstrip().startswith(FORGED)
    ]


def ran(folder: Path, name: str, *arguments: str) -> tuple[int, str]:
    """Run a tool: its status, and what it writes, which is fit for a terminal."""
    status, written = run_tool(name, *arguments, folder=folder)
    text = written.decode()
    assert not wrong(text), text
    assert status in (0, 1), text
    RUNS.append(name.replace("_", "-"))
    return status, text


@pytest.mark.parametrize("name", [ALL, *NAMES], ids=ascii)
@pytest.mark.full
def test_a_model_through_every_tool(name: str, tmp_path: Path, record_property) -> None:
    RUNS.clear()
    folder = tmp_path / f"folder{name}"
    folder.mkdir()
    model, program, log = (f"{folder}/m{name}{end}" for end in (".onnx", ".vmfb", ".jsonl"))
    onnx.save(good(name), model)
    shape = f"{one_line(f'in{name}')}=2x4xf32"
    made = ran(tmp_path, "pyc_compile", model, "-v", "-o", program, "--log", log, "--progress")
    assert made[0] == 0, made[1]
    written = ("--emit", "pyc", "-o", f"{folder}/t{name}.mlir")
    assert ran(tmp_path, "pyc_compile", model, *written)[0] == 0
    assert ran(tmp_path, "pyc_opt", f"{folder}/t{name}.mlir", "--pyc-fuse")[0] == 0
    ran(tmp_path, "pyc_opt", f"{folder}/t{name}.mlir", f"--{name}")
    assert ran(tmp_path, "pyc_run", program, "--input", f"{shape}=@seed:0")[0] == 0
    ran(tmp_path, "pyc_run", program, "--input", f"{shape.replace('2x4', '2x5')}=@seed:0")
    ran(tmp_path, "pyc_run", program, "--input", f"{name}=4=@seed:0")
    page = f"{folder}/page{name}.html"
    assert ran(tmp_path, "pyc_explain", program, "--html", page, "--log", log)[0] == 0
    assert not wrong(Path(page).read_text())
    for more in (["--decisions"], ["--json", "-"], ["--op", name]):
        ran(tmp_path, "pyc_explain", program, *more)
    ran(tmp_path, "pyc_explain", model)
    ran(tmp_path, "pyc_explain", log)
    ran(tmp_path, "pyc_explain", "--diff", program, log)
    ran(tmp_path, "pyc_explain", model, "--bisect", program, log, "--check", f"true {{}} '{name}'")
    ran(tmp_path, "pyc_reduce", f"{folder}/t{name}.mlir", "--check", "test -s {}")
    ran(tmp_path, "pyc_reduce", f"{folder}/{name}", "--code", "INVALID_IR")
    ran(tmp_path, "pyc_cache", "--dir", f"{folder}/{name}", "ls")
    ran(tmp_path, "pyc_doctor", "--calibrate", f"{folder}/no{name}/there")
    ran(tmp_path, "pyc_bench", "table", f"{folder}/no{name}/there")
    record_property("a name through every tool, in runs", dict(Counter(RUNS)))


@pytest.mark.parametrize("name", [ALL, *NAMES], ids=ascii)
@pytest.mark.parametrize("place", sample(list(bad("x")), 3))
def test_a_refusal(place: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(bad(name)[place].SerializeToString())
    for tool in ("pyc_compile", "pyc_explain"):
        out = ["-o", "out"] if tool == "pyc_compile" else []
        status, _ = ran(tmp_path, tool, str(path), *out)
        assert status == 1 or place in ("attribute", "twice")
    with pytest.raises(PycError) as caught:
        pyc_mlir.compile(bad(name)[place], inputs=[(2, 4)])
    assert not wrong(str(caught.value)) and not wrong(caught.value.message)


MLIR = {
    "symbol": 'func.func @"NAME"(%a: f32) { return }\nfunc.func @"NAME"(%a: f32) { return }\n',
    "argument": "func.func @main(%a: tensor<4xf32> {pyc.name = \"NAME\"}) -> tensor<5xf32> {\n"
    '  %0 = "pyc.relu"(%a) : (tensor<4xf32>) -> tensor<4xf32>\n  return %0 : tensor<4xf32>\n}\n',
    "op": 'func.func @main() {\n  "NAME"() : () -> ()\n  return\n}\n',
    "raw": "func.func @main() { RAW }\n",
}  # fmt: skip


@pytest.mark.parametrize("place", sample(list(MLIR), 2))
def test_mlir_text(place: str, tmp_path: Path) -> None:
    escaped = "".join(f"\\{byte:02X}" for byte in ALL.encode())
    text = MLIR[place].replace("NAME", escaped).replace("RAW", ALL)
    (tmp_path / "m.mlir").write_text(text, newline="")
    ran(tmp_path, "pyc_opt", "m.mlir", "--verify-each")
    ran(tmp_path, "pyc_compile", "m.mlir", "-o", "out")
    ran(tmp_path, "pyc_explain", "m.mlir")


def test_errors_of_the_library() -> None:
    for error in (PycError(ReasonCode.BAD_MODEL, f"a\x1b[2J{ALL}"),):
        assert not ODD.search(str(error)) and not ODD.search(error.message)
    with pytest.raises(PycError) as caught:
        read_file(f"/no/{ALL}")
    assert not wrong(str(caught.value))


def test_letters_of_all_languages_stay() -> None:
    for text in ("größe", "模型", "नमूना", "👩‍🔬", "نموذج", "a b", "\\n"):
        assert printable(text) == one_line(text) == text
    assert printable("a\n\tb") == "a\n\tb" and one_line("a\n\tb") == "a\\n\\tb"
    assert one_line("\x1b\x7f\u202e") == "\\u001b\\u007f\\u202e"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_shows_no_name_as_it_is() -> None:
    terminal = Terminal()
    progress = Progress(terminal, delay=0)
    with progress.stage(f"reading {ALL}"):
        progress.tick()
    assert not wrong(terminal.getvalue().removeprefix("\r\x1b[K"))
