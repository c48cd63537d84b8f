"""The one graph of a block: positions, numbers and what regions capture."""

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import tensor
from pyc_mlir.pipelines.pyc.graph import BlockGraph

TEXT = """
func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %c = "pyc.constant"() {value = dense<2.0> : tensor<3xf32>} : () -> tensor<3xf32>
  %s = "pyc.softmax"(%x) {axis = -1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %m = "pyc.mul"(%s, %s) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %g = "pyc.group"() ({
    %a = "pyc.add"(%m, %c) : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    "pyc.yield"(%a) : (tensor<2x3xf32>) -> ()
  }) {kind = "elementwise"} : () -> tensor<2x3xf32>
  %t = tensor.cast %g : tensor<2x3xf32> to tensor<2x3xf32>
  func.return %t : tensor<2x3xf32>
}
"""


def test_a_block_is_read_once():
    """Values: 0 is the argument, n + 1 what op n makes."""
    with new_context():
        module = ir.Module.parse(TEXT)
        graph = BlockGraph(entry_function(module))
    constant, softmax, mul, group, cast, end = range(6)
    assert [graph.name(i) for i in range(6)] == ["constant", "softmax", "mul", "", "", ""]
    assert graph.makers == [None, constant, softmax, mul, group, cast]
    assert graph.makes == [1, 2, 3, 4, 5, 6]
    assert graph.operands[mul] == [2, 2] and graph.operands[group] == []
    assert graph.reads[group] == [3, 1]
    assert graph.producers[group] == [mul, constant]
    assert graph.users[softmax] == [mul, mul] and graph.readers[2] == [mul]
    assert graph.users[cast] == [end] and graph.readers[0] == [softmax]
    assert graph.is_constant(1) and not graph.is_constant(0)
    assert graph.type(1) == graph.result(constant) == tensor("f32", 3)
    assert graph.result(end) is None
    assert graph.anchor(softmax) == "row" and graph.anchor(mul) == graph.anchor(group) == ""
    assert graph.has(mul, Trait.ELEMENTWISE) and not graph.has(group, Trait.ELEMENTWISE)
    assert graph.params(softmax) == {"axis": -1} and graph.axis(softmax) == 1
