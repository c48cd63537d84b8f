"""Import one ONNX node as an island: a private function of linalg, and a call of it.

    outputs = island(node, operands, builder, emitted, opset)

The function has the attribute `pyc.island` with the node's op; import reports count such calls as
breaks of the graph. Sizes that torch-mlir cannot tell are new dynamic dimensions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from pyc_mlir.artifact.import_report import ISLAND
from pyc_mlir.dialects.errors import ReasonCode, VerificationError
from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.irtypes import from_mlir, to_mlir
from pyc_mlir.frontends.importing.builders import GraphBuilder
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.sizes import SymbolicSize
from pyc_mlir.frontends.islands.lowering import to_linalg

# Operators of ONNX's domain whose cases of the onnx wheel all come out right as islands where PyC's
# own rule refuses them (test/py/frontends/test_islands.py runs them), with attributes that must be
# unset: torch-mlir computes 3-D windows of an AveragePool that reach over the end wrongly. What it
# was seen to get wrong elsewhere (Det, Pad, Resize, random operators) is no member. Each gives one
# result, of the element type and the rank of its first operand: onnx does not infer all of them.
TESTED: Mapping[str, frozenset[str]] = {
    "AveragePool": frozenset({"ceil_mode"}),
    "Conv": frozenset(),
    "ConvTranspose": frozenset(),
}
# What the function reads of operands that are known at import: torch-mlir asks for axes, shapes.
_WRITTEN_OUT = 1 << 10
_IR_VERSION = 10
_FUNCTION = "pyc_island"


def island(
    node: onnx.NodeProto,
    operands: Sequence[Any],
    builder: GraphBuilder,
    emitted: Callable[[Any], ir.Value],
    opset: int,
) -> tuple[Any, ...]:
    """Return the node's results; operands are as of `Importer.node`, `emitted` makes them values.

    Raises PycError: UNSUPPORTED_OP, UNSUPPORTED_DTYPE or UNSUPPORTED_ATTRIBUTE for a node that is
    no island, NATIVE_CRASH if the process that lowers it ends.
    """
    # Not the first, whose type is the result's.
    known = {i for i, o in enumerate(operands) if i and _is_written_out(o)}
    values = {i: emitted(o) for i, o in enumerate(operands) if o is not None and i not in known}
    model = _model(node, operands, known, values, builder, opset)
    parsed = _parsed(to_linalg(model.SerializeToString()))
    function = _only_function(parsed)
    given = list(values.values())
    wanted = [to_mlir(builder.type_of(v)) for v in given]
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    if list(type_.inputs) != wanted:
        raise unsupported(
            f"as an island: operands of types {_listed(wanted)}, torch-mlir takes "
            f"{_listed(type_.inputs)}",
            ReasonCode.UNSUPPORTED_DTYPE,
        )
    for result in type_.results:
        _require_result(result)
    name = _insert(function, node.op_type)
    call = func.CallOp(list(type_.results), name, given)
    results = list(call.results)
    for value in results:
        _name_dims(builder, value, name)
    return tuple(results)


def is_tested(op: str, node: onnx.NodeProto) -> bool:
    """Return whether a node may be an island: its op, with its domain, is in `TESTED`."""
    unset = TESTED.get(op)
    return unset is not None and not any(a.name in unset and a.i for a in node.attribute)


def _is_written_out(operand: Any) -> bool:
    return isinstance(operand, np.ndarray) and operand.size <= _WRITTEN_OUT


def _model(
    node: onnx.NodeProto,
    operands: Sequence[Any],
    known: set[int],
    values: dict[int, ir.Value],
    builder: GraphBuilder,
    opset: int,
) -> onnx.ModelProto:
    """Make a model of the node alone, with the types that onnx infers. Raises PycError."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    names = ["" if o is None else f"x{i}" for i, o in enumerate(operands)]
    del copy.input[:], copy.output[:]
    copy.input.extend(names)
    copy.output.append("y")
    initializers = [onnx.numpy_helper.from_array(operands[i], names[i]) for i in sorted(known)]
    inputs = [_info(names[i], v, builder) for i, v in values.items()]
    first = builder.type_of(values[0])
    element = onnx.helper.np_dtype_to_tensor_dtype(first.dtype)
    output = onnx.helper.make_tensor_value_info("y", element, [None] * first.rank)
    graph = onnx.helper.make_graph([copy], _FUNCTION, inputs, [output], initializers)
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise unsupported(f"as an island: onnx infers no types: {error}"[:300]) from None


def _info(name: str, value: ir.Value, builder: GraphBuilder) -> onnx.ValueInfoProto:
    """Return the type of an operand; sizes that are equal have one name."""
    dims = [str(d) if isinstance(d, SymbolicSize) else d for d in builder.dims(value)]
    element = onnx.helper.np_dtype_to_tensor_dtype(builder.type_of(value).dtype)
    return onnx.helper.make_tensor_value_info(name, element, dims)


def _parsed(text: str) -> ir.Module:
    try:
        return ir.Module.parse(text)
    except ir.MLIRError as error:
        why = f"as an island: operations that PyC's context does not know: {error}"
        raise unsupported(why[:300], ReasonCode.UNSUPPORTED_OP) from None


def _only_function(module: ir.Module) -> ir.Operation:
    found = [op.operation for op in module.body.operations]
    if len(found) != 1 or found[0].name != "func.func":
        names = ", ".join(op.name for op in found)
        raise unsupported(
            f"as an island: expected one function, got {names}", ReasonCode.UNSUPPORTED_OP
        )
    return found[0]


def _listed(types: Sequence[ir.Type]) -> str:
    return ", ".join(map(str, types))


def _require_result(type_: ir.Type) -> None:
    """Raise PycError for a result that is no tensor of PyC's element types."""
    try:
        from_mlir(type_)
    except VerificationError as error:
        why = f"as an island: {error}"
        raise unsupported(why, ReasonCode.UNSUPPORTED_DTYPE) from None


def _insert(function: ir.Operation, op_type: str) -> str:
    """Put a function before the one that is being built, under a name of its own."""
    owner = ir.InsertionPoint.current.block.owner.operation
    body = owner.parent.regions[0].blocks[0]
    taken = sum(ISLAND in op.operation.attributes for op in body.operations)
    name = f"{_FUNCTION}_{taken}"
    copy = function.clone(ir.InsertionPoint(owner))
    copy.attributes["sym_name"] = ir.StringAttr.get(name)
    copy.attributes["sym_visibility"] = ir.StringAttr.get("private")
    copy.attributes[ISLAND] = ir.StringAttr.get(op_type)
    return name


def _name_dims(builder: GraphBuilder, value: ir.Value, name: str) -> None:
    """Name a new dimension for each size of a result that is not known."""
    number = ir.OpResult(value).result_number
    shape = builder.type_of(value).shape
    dims = [
        SymbolicSize(1, (f"%{name}.{number}.{axis}",)) if d is None else d
        for axis, d in enumerate(shape)
    ]
    builder.name_dims(value, dims)
