"""Reducing modules: a planted failure in many ops comes down to a few, the same every time."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from pyc_mlir import ReasonCode
from pyc_mlir.debug.minimal import minimal
from pyc_mlir.debug.reduce import reduce_module
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.mlir_text import parse_mlir
from pyc_mlir.tools import pyc_reduce

T = "tensor<8x16xf32>"


@given(st.integers(1, 80), st.data())
@pytest.mark.full
def test_what_is_left_is_what_is_needed(count: int, data):
    needed = data.draw(st.sets(st.integers(0, count - 1)))
    left = minimal(range(count), lambda kept: needed <= set(kept))
    assert set(left) == needed and list(left) == sorted(left)


@given(st.integers(1, 30), st.randoms(use_true_random=False))
def test_any_answers_end_with_parts_that_fail(count: int, random):
    known: dict[tuple[int, ...], bool] = {tuple(range(count)): True}
    left = minimal(range(count), lambda kept: known.setdefault(tuple(kept), random.random() < 0.3))
    assert known[left]
    assert len(left) < 2 or not any(
        known.get((*left[:i], *left[i + 1 :])) for i in range(len(left))
    )


def test_one_of_many_takes_few_questions():
    requested: list[Sequence[int]] = []

    def fails(kept: Sequence[int]) -> bool:
        requested.append(kept)
        return 41 in kept

    assert minimal(range(64), fails) == (41,) and len(requested) <= 13


def chain(ops: Sequence[str]) -> str:
    """Unary ops one after the other; `mul` takes the first argument too."""
    lines = []
    for i, op in enumerate(ops):
        second = (", %x0", f", {T}") if op == "mul" else ("", "")
        lines.append(f'  %x{i + 1} = "pyc.{op}"(%x{i}{second[0]}) : ({T}{second[1]}) -> {T}\n')
    head = f'func.func @main(%x0: {T} {{pyc.name = "x"}}, %y: {T}) -> ({T}, {T}) {{\n'
    return f"{head}{''.join(lines)}  return %x{len(ops)}, %y : {T}, {T}\n}}\n"


SIXTY = chain((["tanh", "mul", "relu"] * 20)[:30] + ["exp", "sqrt"] + ["neg", "mul"] * 14)


PAIR = re.compile(r'(%\w+) = "pyc.exp".*\n *%\w+ = "pyc.sqrt"\(\1\) : \(tensor<8x')


def pair(text: str) -> bool:
    """Fails where a root is taken of an exponential of 8 rows."""
    with new_context() as context, ir.Location.unknown():
        assert parse_mlir(text, context).operation.verify()
    return PAIR.search(text) is not None


@pytest.mark.full
def test_a_planted_pair_in_sixty_ops():
    found = reduce_module(SIXTY, pair)
    assert (found.before, found.ops) == (60, 2) and pair(found.text)
    assert found.tries < 80
    assert found.text == reduce_module(SIXTY, pair).text
    # One argument is left; the size that matters stayed, the other one is small.
    assert "@main(%arg0: tensor<8x1xf32>)" in found.text
    assert reduce_module(found.text, pair).ops == 2


def test_names_of_arguments_stay_with_them():
    text = chain(["mul"])
    found = reduce_module(text, lambda t: "pyc.mul" in t and 'pyc.name = "x"' in t)
    assert 'pyc.name = "x"' in found.text and found.ops == 1


LINALG = """
func.func private @unused(%x: tensor<4xf32>) -> tensor<4xf32>
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x4xf32>) -> tensor<4x4xf32> {
  %z = arith.constant 0.0 : f32
  %t = math.tanh %x : tensor<4x8xf32>
  %e = tensor.empty() : tensor<4x4xf32>
  %f = linalg.fill ins(%z: f32) outs(%e: tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = linalg.matmul ins(%t, %w: tensor<4x8xf32>, tensor<8x4xf32>)
    outs(%f: tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = math.exp %r : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}
"""


def test_linalg_with_regions_and_other_functions():
    found = reduce_module(LINALG, lambda text: "linalg.matmul" in text)
    assert found.ops == 1 and "@unused" not in found.text
    with new_context() as context, ir.Location.unknown():
        assert parse_mlir(found.text, context).operation.verify()


GROUP = f"""func.func @main(%x: {T}, %y: {T}) -> {T} {{
  %0 = "pyc.tanh"(%y) : ({T}) -> {T}
  %1 = "pyc.group"() ({{
    %2 = "pyc.add"(%x, %0) : ({T}, {T}) -> {T}
    "pyc.yield"(%2) : ({T}) -> ()
  }}) {{kind = "elementwise"}} : () -> {T}
  return %1 : {T}
}}"""


def test_values_that_a_region_reads_become_arguments():
    found = reduce_module(GROUP, lambda text: "pyc.group" in text)
    assert found.ops == 1 and "tanh" not in found.text and found.text.count("%arg1") == 2


def test_a_module_that_passes_is_refused():
    refused(
        ReasonCode.BAD_ARGUMENT,
        reduce_module,
        SIXTY,
        lambda text: False,
        match="expected a module that fails",
    )
    refused(ReasonCode.INVALID_IR, reduce_module, "func.func", lambda text: True)


# The command line.


@pytest.fixture
def module(tmp_path) -> str:
    (tmp_path / "m.mlir").write_text(SIXTY)
    return str(tmp_path / "m.mlir")


def test_a_command_judges(module, tmp_path, capsys):
    script = "import sys\nsys.exit(3 * ('pyc.exp' in open(sys.argv[1]).read()))\n"
    (tmp_path / "judge.py").write_text(script)
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'judge.py'))} {{}}"
    out = tmp_path / "small.mlir"
    assert pyc_reduce.main([module, "--check", command, "-o", str(out)]) == 0
    assert len(re.findall(r"= \"?pyc", out.read_text())) == 1
    assert "1 of 60 ops are left" in capsys.readouterr().err


@pytest.mark.full
def test_a_reason_code_judges(tmp_path, capsys):
    text = chain(["tanh", "relu"]).replace("8x16xf32", "1xf64")
    (tmp_path / "m.mlir").write_text(text)
    line = [str(tmp_path / "m.mlir"), "--code", "UNSUPPORTED_DTYPE", "--", "--target", "vulkan"]
    assert pyc_reduce.main(line) == 0
    assert "f64" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    ["--code NONE", "--check true", "", "--mismatch --code WRONG_RESULT", "--check {} -- --x"],
)
def test_checks_that_are_none(module, capsys, line):
    status, err = pyc_reduce.main([module, *line.split()]), capsys.readouterr().err
    assert "BAD_ARGUMENT" in err and status == (2 if "command line: " in err else 1)


def test_what_cannot_be_written_is_told_first(module, tmp_path, capsys):
    tried = tmp_path / "tried"
    line = [module, "--check", f"touch {tried}; false {{}}", "-o", str(tmp_path / "no" / "out")]
    assert pyc_reduce.main(line) == 1
    assert "FILE_ACCESS" in capsys.readouterr().err and not tried.exists()


def test_errors_name_the_file(tmp_path, capsys):
    (tmp_path / "bad.mlir").write_text("oops")
    assert pyc_reduce.main([str(tmp_path / "bad.mlir"), "--check", "false {}"]) == 1
    assert f"{tmp_path / 'bad.mlir'}:1:1: error" in capsys.readouterr().err


def test_a_missing_file_is_told(capsys):
    assert pyc_reduce.main(["missing.mlir", "--code", "WRONG_RESULT"]) == 1
    assert str(Path("missing.mlir")) in capsys.readouterr().err
