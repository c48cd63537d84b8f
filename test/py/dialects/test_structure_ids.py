"""Structures of programs: equal for retrained models, unequal for all other changes."""

import pytest

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds, structure_of
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context

C = '"pyc.constant"() {value = dense<%s> : tensor<4xf32>} : () -> tensor<4xf32>'
UNARY = "(tensor<?x4xf32>) -> tensor<?x4xf32>"
BINARY = "(tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>"
BASE = f"""
func.func @main(%x: tensor<?x4xf32>, %y: tensor<?x4xf32>) -> tensor<?x4xf32> {{
  %c = {C % "[1.0, 2.0, 3.0, 4.0]"}
  %d = {C % "[5.0, 6.0, 7.0, 8.0]"}
  %1 = "pyc.exp"(%x) : {UNARY}
  %2 = "pyc.softmax"(%y) {{axis = 1 : i64}} : {UNARY}
  %3 = "pyc.mul"(%1, %c) : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %4 = "pyc.mul"(%2, %d) : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %5 = "pyc.add"(%3, %4) : {BINARY}
  return %5 : tensor<?x4xf32>
}}
"""


def ids(text: str) -> tuple[str, str, str]:
    """The ids of the structure, of the exact text, and of the graph."""
    module = ir.Module.parse(text, new_context())
    function = entry_function(module)
    return structure_of(function).id, structure_of(function, True).id, OpIds(function).graph_id


def swapped(text: str, first: str, second: str) -> str:
    lines = text.splitlines()
    i, j = (next(n for n, line in enumerate(lines) if s in line) for s in (first, second))
    lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


SAME = {
    "names": BASE.replace("%x", "%input").replace("%1", "%first"),
    "function": BASE.replace("@main", "@other"),
    "note": BASE.replace("%1, %c) :", "%1, %c) {pyc.note = 5 : i64} :"),
    "order": swapped(BASE, '"pyc.exp"', '"pyc.softmax"'),
    "order of constants": swapped(BASE, "%c =", "%d ="),
    "operands of the sum": BASE.replace("%3, %4", "%4, %3"),
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_ids_do_not_depend_on(text):
    assert text != BASE
    assert ids(text)[:2] == ids(BASE)[:2]


def test_a_retrained_model_keeps_its_structure_alone():
    retrained = BASE.replace("[1.0, 2.0, 3.0, 4.0]", "[1.5, 2.5, 3.5, 4.5]")
    ours, theirs = ids(BASE), ids(retrained)
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1] and ours[2] != theirs[2]


OTHER = {
    "op": BASE.replace("pyc.exp", "pyc.tanh"),
    "parameter": BASE.replace("axis = 1", "axis = 0"),
    "types": BASE.replace("?x4", "3x4"),
    "an argument for a constant": BASE.replace("(%2, %d)", "(%2, %c)"),
    "arguments": BASE.replace("%x: t", "%z: t").replace("%y: t", "%x: t").replace("%z: t", "%y: t"),
    "readers": BASE.replace("return %5", "return %4"),
}


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_ids_depend_on(text):
    ours, theirs = ids(BASE), ids(text)
    assert ours[0] != theirs[0] and ours[1] != theirs[1]


def test_one_constant_for_two_is_another_structure():
    """By type alone two constants look alike, but a program with one reads less."""
    values = "[1.0, 2.0, 3.0, 4.0]"
    equal = BASE.replace("[5.0, 6.0, 7.0, 8.0]", values)
    one = equal.replace("(%2, %d)", "(%2, %c)")
    assert ids(equal)[1] == ids(one)[1], "equal contents are one constant"
    assert ids(equal)[0] != ids(one)[0]


def test_ops_of_groups_are_part_of_the_structure():
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "pyc.group"() ({
        %1 = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
        "pyc.yield"(%1) : (tensor<4xf32>) -> ()
      }) {kind = "elementwise"} : () -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    module = ir.Module.parse(text, new_context())
    found = structure_of(entry_function(module))
    assert [line.split()[1] for line in found.text.splitlines()[2:]] == [
        "pyc.exp",
        "pyc.yield",
        "pyc.group",
        "func.return",
    ]
    assert found.ops == 3
