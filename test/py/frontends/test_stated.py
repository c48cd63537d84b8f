"""What a node states and its handler does not read is refused, by every front end."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import node_model

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.importing.stated import Stated
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.onnx.shared import handler as onnx_handler
from pyc_mlir.frontends.stablehlo import importer as stablehlo
from pyc_mlir.frontends.stablehlo.op import IGNORED as OF_STABLEHLO
from pyc_mlir.frontends.stablehlo.reader import enter


def test_entries_that_nobody_looks_up_are_refused_unless_they_change_nothing() -> None:
    stated = Stated(
        {"axis": 1, "mode": "x" * 200, "hint": 3, "least": 0},
        "attribute",
        {"hint": "only speed"},
        lambda name, value: value == 0,
    )
    assert (stated["axis"], stated.get("absent", 7)) == (1, 7)
    with pytest.raises(PycError, match="attribute `mode` is xxx") as refused:
        stated.require_all_read()
    assert refused.value.code is ReasonCode.UNSUPPORTED_ATTRIBUTE
    assert len(refused.value.message) < 200
    assert "mode" in stated
    stated.require_all_read()
    stated.begin()
    with pytest.raises(PycError, match="`axis`"):
        stated.require_all_read()


@pytest.mark.parametrize("table", [onnx_handler.IGNORED, OF_STABLEHLO], ids=["onnx", "stablehlo"])
def test_what_is_passed_over_has_a_reason(table: Any) -> None:
    assert all(len(why) > 10 for why in table.values())


def test_a_handler_of_onnx_that_passes_over_an_attribute_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setitem(onnx_handler.HANDLERS, "Transpose", lambda n: n.x())
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(PycError, match=r"attribute `perm` is \[1, 0\]"):
        import_onnx(node_model("Transpose", [x], [], {"perm": [1, 0]}))


def _imported(text: str) -> ir.Module:
    context = new_context()
    enter(context)
    return stablehlo.import_stablehlo(ir.Module.parse(text, context), "model")


_SORT = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.sort"(%x) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) {dimension = 0 : i64, is_stable = true, other.mark = 1 : i32}
    : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""


def test_a_handler_of_stablehlo_that_passes_over_a_region_is_refused(monkeypatch: Any) -> None:
    assert _imported(_SORT)
    with pytest.raises(PycError, match="attribute `novel` is 1"):
        _imported(_SORT.replace("other.mark", "novel"))
    monkeypatch.setitem(
        stablehlo._STRUCTURED, "sort", lambda state, op, given, _: op.integer("dimension") or given
    )
    with pytest.raises(PycError, match="attribute `region 0`"):
        _imported(_SORT)


def test_dead_operations_are_dropped_before_anything_is_refused() -> None:
    """An operation that PyC lacks, whose results nobody reads; one with effects stays."""
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = stablehlo.custom_call @novel(%x) {{has_side_effect = {effect}}}
        : (tensor<4xf32>) -> tensor<4xf32>
      %1 = stablehlo.add %0, %x : tensor<4xf32>
      return %x : tensor<4xf32>
    }}"""
    assert _imported(text.format(effect="false"))
    with pytest.raises(PycError, match="a call of `novel`"):
        _imported(text.format(effect="true"))


def test_nodes_of_onnx_that_no_result_needs_are_dropped_before_anything_is_refused() -> None:
    proto = node_model("Relu", [np.zeros(3, np.float32)], [], {})
    for op, x, y in (("RandomNormalLike", "x0", "z"), ("Relu", "z", "unseen")):
        proto.graph.node.append(onnx.helper.make_node(op, [x], [y]))
    assert "pyc.relu" in str(import_onnx(proto))


def test_a_check_of_sizes_may_state_what_it_wants() -> None:
    assert _imported("""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %c = stablehlo.constant dense<true> : tensor<i1>
      stablehlo.custom_call @shape_assertion(%c)
        {api_version = 2 : i32, error_message = "sizes", has_side_effect = true}
        : (tensor<i1>) -> ()
      return %x : tensor<4xf32>
    }""")
