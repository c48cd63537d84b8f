"""What a node states and its handler does not read is refused, by every front end."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import node_model

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.importing.importer import Stated
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.onnx.ops import node as onnx_handler
from pyc_mlir.frontends.stablehlo import importer as stablehlo
from pyc_mlir.frontends.stablehlo.importer import enter
from pyc_mlir.frontends.stablehlo.operations import IGNORED as OF_STABLEHLO


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
    handler = onnx_handler.Handler(lambda b, x: x)
    monkeypatch.setitem(onnx_handler.HANDLERS, "Transpose", handler)
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(PycError, match=r"attribute `perm` is \[1, 0\]"):
        import_onnx(node_model("Transpose", [x], [], {"perm": [1, 0]}))


_IMAGE = np.random.default_rng(0).normal(size=(1, 2, 7, 6)).astype(np.float32)
_HEADS = [np.ones((1, 2, 3, 4), np.float32)] * 3
_POOL = {"kernel_shape": [3, 2], "strides": [2, 2]}
_SAME = {**_POOL, "auto_pad": "SAME_UPPER"}
_BYTES, _FILTERS = np.ones((1, 2, 7, 6), np.uint8), np.ones((3, 2, 3, 2), np.int8)
_SCALE = [np.array(0.5, np.float32), np.uint8(2)]
_LSTM = [np.ones(s, np.float32) for s in ((2, 1, 3), (1, 8, 3), (1, 8, 2))]
# (op, inputs, constants, attributes, what is stated and means nothing beside them, opset)
MEANS_NOTHING: list[tuple[str, list[np.ndarray], list[Any], dict, dict, int]] = [
    *(("DequantizeLinear", [np.array([[-4, 0], [2, 100]], np.int8)],
       [np.array(0.5, np.float32), np.int8(2)], {}, {"axis": axis}, 13) for axis in (0, -1)),
    ("QuantizeLinear", [_IMAGE[0, 0]], [np.array([0.5], np.float32), np.array([2], np.int8)], {},
     {"axis": 0}, 13),
    *((op, [_IMAGE], [], {**_SAME, **more}, {"ceil_mode": 1}, 19)
      for op, more in (("MaxPool", {}), ("AveragePool", {}),
                       ("AveragePool", {"count_include_pad": 1}))),
    ("Attention", _HEADS, [], {}, {"q_num_heads": 2, "kv_num_heads": 2}, 23),
    *((op, [_BYTES], constants, {}, {"kernel_shape": [3, 2]}, 17)
      for op, constants in (("ConvInteger", [_FILTERS]),
                            ("QLinearConv", [*_SCALE, _FILTERS, _SCALE[0], np.int8(0), *_SCALE]))),
    ("LSTM", _LSTM, [], {"hidden_size": 2},
     {"activation_alpha": [0.0] * 3, "activation_beta": [0.0] * 3}, 17),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "attributes", "more", "opset"), MEANS_NOTHING
)
def test_what_means_nothing_beside_the_others_may_be_stated(
    op: str, inputs: list, constants: list, attributes: dict, more: dict, opset: int
) -> None:
    plain, stated = (
        interpret(import_onnx(node_model(op, inputs, constants, a, opset=opset)), inputs)
        for a in (attributes, attributes | more)
    )
    np.testing.assert_array_equal(plain[0], stated[0])


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
        stablehlo._STRUCTURED, "sort", lambda state, op: op["dimension"] or op.operands
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


@pytest.mark.parametrize(("op", "weights"), [("Conv", np.float32), ("ConvInteger", np.int8)])
def test_a_kernel_shape_that_the_weights_do_not_have_is_refused(op: str, weights: Any) -> None:
    inputs = [_BYTES.astype(np.float32 if op == "Conv" else np.uint8)]
    proto = node_model(op, inputs, [_FILTERS.astype(weights)], {"kernel_shape": [5, 5]})
    with pytest.raises(PycError, match=r"`kernel_shape`: expected the sizes \[3, 2\]") as refused:
        import_onnx(proto)
    assert refused.value.code is ReasonCode.BAD_MODEL
