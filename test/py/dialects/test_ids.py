"""Canonical ids: what they depend on, and what they must not depend on."""

import numpy as np
import pytest
from op_modules import module_of, ops_of

from pyc_mlir.dialects.ir.attributes import elements_attr, resource_attr
from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import tensor

BASE = """
func.func @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = "pyc.constant"() {value = dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>} : () -> tensor<4xf32>
  %1 = "pyc.exp"(%x) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %2 = "pyc.softmax"(%x) {axis = 1 : i64} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %3 = "pyc.mul"(%1, %0) : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x4xf32>
  %4 = "pyc.sub"(%3, %2) : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  return %4 : tensor<?x4xf32>
}
"""


def ids(text: str) -> tuple[str, dict[str, str]]:
    """The graph's id, and the id of each op by name."""
    module = ir.Module.parse(text, new_context())
    found = OpIds(entry_function(module))
    return found.graph_id, {op.name: found[op] for op in ops_of(module)}


def swapped(text: str, first: str, second: str) -> str:
    lines = text.splitlines()
    i, j = (next(n for n, line in enumerate(lines) if s in line) for s in (first, second))
    lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "same",
    [
        BASE.replace("%x", "%input").replace("%1", "%first"),
        BASE.replace("@main", "@other"),
        BASE.replace("%1, %0) :", "%1, %0) {pyc.note = 5 : i64} :"),
        BASE.replace("%1 = ", "\n\n // a comment\n  %1 = "),
        BASE.replace("-> tensor<?x4xf32>\n  %2", '-> tensor<?x4xf32> loc("a.py":3:4)\n  %2'),
        swapped(BASE, '"pyc.exp"', '"pyc.softmax"'),
        swapped(BASE, '"pyc.constant"', '"pyc.exp"'),
        BASE.replace("[1.0, 2.0, 3.0, 4.0]", "[1.0, 2.0, 30.0e-1, 4.0]"),
    ],
    ids=["names", "function", "note", "text", "location", "order", "constant's place", "spelling"],
)
def test_ids_do_not_depend_on(same):
    assert same != BASE
    assert ids(same) == ids(BASE)


@pytest.mark.parametrize(
    "changed, ops",
    [
        (BASE.replace("4.0]", "4.5]"), {"pyc.constant", "pyc.mul", "pyc.sub"}),
        (BASE.replace("{axis = 1 : i64}", "{axis = 0 : i64}"), {"pyc.softmax", "pyc.sub"}),
        (BASE.replace("(%3, %2)", "(%2, %3)"), {"pyc.sub"}),
        (BASE.replace('"pyc.exp"', '"pyc.tanh"'), {"pyc.exp", "pyc.mul", "pyc.sub"}),
        (
            BASE.replace("?x4", "8x4"),
            {"pyc.exp", "pyc.softmax", "pyc.mul", "pyc.sub"},
        ),
    ],
    ids=["a constant", "a parameter", "operand order", "the op", "a type"],
)
def test_ids_depend_on(changed, ops):
    graph, before = ids(BASE)
    other_graph, after = ids(changed)
    assert graph != other_graph
    assert {op for op, id_ in before.items() if after.get(op) != id_} - {"func.return"} == ops


def test_ids_read_as_the_op_and_a_hash():
    _, found = ids(BASE)
    assert found["pyc.softmax"].startswith("softmax.") and len(found["pyc.softmax"]) == 24


def test_equal_ops_are_numbered():
    text = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "pyc.exp"(%1) : (tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}"""
    module = ir.Module.parse(text, new_context())
    found = OpIds(entry_function(module))
    first, second, third, _ = (found[op] for op in ops_of(module))
    assert second == f"{first}#1" and third.split("#")[0] != first


def test_constants_count_by_content_and_not_by_storage():
    large = np.arange(1000, dtype=np.float32)

    def graph_id(array: np.ndarray, context: ir.Context) -> str:
        module = module_of(lambda b, x: b.add(x, array), [tensor("f32", 1000)], context)
        return OpIds(entry_function(module)).graph_id

    shared = new_context()
    assert graph_id(large, shared) == graph_id(large.copy(), new_context())
    assert graph_id(large, shared) != graph_id(large + 1, shared)
    module = module_of(lambda b, x: b.add(x, large), [tensor("f32", 1000)], shared)
    renamed = str(module).replace("pyc_", "weights_")
    again = ir.Module.parse(renamed, new_context())
    assert OpIds(entry_function(again)).graph_id == graph_id(large, shared)


def test_ids_survive_a_round_trip_and_a_change_of_context():
    module = ir.Module.parse(BASE, new_context())
    again = ir.Module.parse(str(module), new_context())
    assert OpIds(entry_function(module)).graph_id == OpIds(entry_function(again)).graph_id


def test_a_groups_id_covers_its_body():
    text = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.group"() ({
    %1 = "pyc.exp"(%a) : (tensor<4xf32>) -> tensor<4xf32>
    "pyc.yield"(%1) : (tensor<4xf32>) -> ()
  }) {kind = "cluster"} : () -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
    one, two = ids(text), ids(text.replace("pyc.exp", "pyc.tanh"))
    assert one[0] != two[0]
    assert one[1]["pyc.group"] != two[1]["pyc.group"]


def test_a_constant_has_one_id_inline_and_as_a_resource() -> None:
    array = np.arange(3, dtype=np.float32)
    found = []
    with new_context(), ir.Location.unknown():
        for value in (elements_attr(array), resource_attr(array)):
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                function = func.FuncOp("main", ([], []))
            with ir.InsertionPoint(function.add_entry_block()):
                attributes = {"value": value}
                ir.Operation.create("pyc.constant", results=[value.type], attributes=attributes)
                func.ReturnOp([])
            found.append(next(iter(OpIds(function.operation).by_op.values())))
    assert found[0] == found[1]
