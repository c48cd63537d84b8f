"""Islands: single ONNX nodes that torch-mlir lowers to linalg, where PyC's own rule refuses them.

    outputs = island(node, operands, builder, emitted, opset)

An island is a private function of linalg, with the attribute `pyc.island` that has the node's op,
and a call of it; import reports count such calls as breaks of the graph. Sizes that torch-mlir
cannot tell are new dynamic dimensions.

torch-mlir may abort, so it runs in a process of its own: this module with two paths, which reads
the model of one node from the first one and writes the text to the second one. A node that
torch-mlir refuses ends it with status `_REFUSED`.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx

from pyc_mlir.artifact.import_report import ISLAND
from pyc_mlir.dialects.errors import PycError, ReasonCode, VerificationError
from pyc_mlir.dialects.ir.bindings import func, ir, onnx_importer, passmanager, torch_dialect
from pyc_mlir.dialects.ir.irtypes import from_mlir, to_mlir
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.frontends.importing.builders import GraphBuilder
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.sizes import SymbolicSize
from pyc_mlir.util import children

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


_PIPELINE = (
    "builtin.module(torch-onnx-to-torch-backend-pipeline,"
    "torch-backend-to-linalg-on-tensors-backend-pipeline)"
)
_REFUSED = 3
_WHY_CHARACTERS = 300
# Models of one node often come again: the same layer of a network.
_KEPT = 256
_BOOT = "from pyc_mlir.frontends.onnx.islands import main; sys.exit(main(sys.argv[1:]))"


def is_tested(op: str, node: onnx.NodeProto) -> bool:
    """Return whether a node may be an island: its op, with its domain, is in `TESTED`."""
    unset = TESTED.get(op)
    return unset is not None and not any(a.name in unset and a.i for a in node.attribute)


def island(
    node: onnx.NodeProto, operands: Sequence[Any], builder: GraphBuilder,
    emitted: Callable[[Any], ir.Value], opset: int,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the node's results; operands are as of `Importer.node`, `emitted` makes them values.

    Raises PycError: UNSUPPORTED_OP, UNSUPPORTED_DTYPE or UNSUPPORTED_ATTRIBUTE for a node that is
    no island, NATIVE_CRASH if the process that lowers it ends.
    """
    # Small operands that are known are written out, but not the first, whose type is the result's.
    known = {
        i for i, o in enumerate(operands)
        if i and isinstance(o, np.ndarray) and o.size <= _WRITTEN_OUT
    }  # fmt: skip
    values = {i: emitted(o) for i, o in enumerate(operands) if o is not None and i not in known}
    model = _model(node, operands, known, values, builder, opset)
    parsed = _parsed(to_linalg(model.SerializeToString()))
    function = parsed.body.operations[0].operation
    given = list(values.values())
    wanted = [to_mlir(builder.type_of(v)) for v in given]
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    if list(type_.inputs) != wanted:
        ours, theirs = (", ".join(map(str, types)) for types in (wanted, type_.inputs))
        raise unsupported(
            f"as an island: operands of types {ours}, torch-mlir takes {theirs}",
            ReasonCode.UNSUPPORTED_DTYPE,
        )
    try:
        shapes = [from_mlir(result).shape for result in type_.results]
    except VerificationError as error:
        raise unsupported(f"as an island: {error}", ReasonCode.UNSUPPORTED_DTYPE) from None
    name = _insert(function, node.op_type)
    results = list(func.CallOp(list(type_.results), name, given).results)
    for number, (value, shape) in enumerate(zip(results, shapes, strict=True)):
        dims = [
            SymbolicSize(1, (f"%{name}.{number}.{axis}",)) if d is None else d
            for axis, d in enumerate(shape)
        ]
        builder.name_dims(value, dims)
    return tuple(results)


def _model(
    node: onnx.NodeProto, operands: Sequence[Any], known: set[int], values: dict[int, ir.Value],
    builder: GraphBuilder, opset: int,
) -> onnx.ModelProto:  # fmt: skip
    """Make a model of the node alone, with the types that onnx infers. Raises PycError."""

    def info(name: str, value: ir.Value, dims: Sequence[Any]) -> onnx.ValueInfoProto:
        element = onnx.helper.np_dtype_to_tensor_dtype(builder.type_of(value).dtype)
        return onnx.helper.make_tensor_value_info(name, element, dims)

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    names = ["" if o is None else f"x{i}" for i, o in enumerate(operands)]
    copy.input[:], copy.output[:] = names, ["y"]
    initializers = [onnx.numpy_helper.from_array(operands[i], names[i]) for i in sorted(known)]
    # Sizes that are equal have one name.
    inputs = [
        info(names[i], v, [str(d) if isinstance(d, SymbolicSize) else d for d in builder.dims(v)])
        for i, v in values.items()
    ]
    output = info("y", values[0], [None] * builder.type_of(values[0]).rank)
    graph = onnx.helper.make_graph([copy], _FUNCTION, inputs, [output], initializers)
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    try:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        raise unsupported(f"as an island: onnx infers no types: {error}"[:300]) from None


def _parsed(text: str) -> ir.Module:
    """Return a module of one function. Raises PycError (UNSUPPORTED_OP) for other modules."""
    try:
        module = ir.Module.parse(text)
    except ir.MLIRError as error:
        why = f"as an island: operations that PyC's context does not know: {error}"
        raise unsupported(why[:300], ReasonCode.UNSUPPORTED_OP) from None
    names = [op.operation.name for op in module.body.operations]
    if names != ["func.func"]:
        why = f"as an island: expected one function, got {', '.join(names)}"
        raise unsupported(why, ReasonCode.UNSUPPORTED_OP)
    return module


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


@lru_cache(maxsize=_KEPT)
def to_linalg(model: bytes) -> str:
    """Return the text of a module on tensors that computes a serialized model of one node.

    Raises PycError: UNSUPPORTED_OP for a node that torch-mlir does not lower, NATIVE_CRASH if the
    process ends otherwise.
    """
    with children.temporary_folder("pyc-island-") as folder:
        source, result = folder / "node.onnx", folder / "node.mlir"
        write_file(source, model)
        ended = children.run(children.python_command(_BOOT, str(source), str(result)))
        if ended.returncode == 0:
            return read_file(result).decode()
    said = (ended.stderr or "").strip()
    if ended.returncode == _REFUSED:
        why = f"torch-mlir does not lower it: {said[:_WHY_CHARACTERS]}"
        raise PycError(ReasonCode.UNSUPPORTED_OP, why)
    status = ended.returncode
    ending = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    raise PycError(
        ReasonCode.NATIVE_CRASH,
        "expected torch-mlir to lower the node or to refuse it, got a process that ended by "
        f"{ending}; compile without the option `islands`; its last words: "
        f"{said[-_WHY_CHARACTERS:]}",
    )


def main(arguments: Sequence[str]) -> int:
    """Lower the model at one path to text at another; `_REFUSED`, with the reason, if it cannot."""
    source, result = arguments
    try:
        with ir.Context() as context:
            torch_dialect.register_dialect(context)
            info = onnx_importer.ModelInfo(onnx.load(source))
            module = info.create_module(context=context).operation
            onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
            module.verify()
            passmanager.PassManager.parse(_PIPELINE).run(module)
            text = module.get_asm()
    # The process boundary: whatever the importer or the passes raise is the reason.
    except Exception as error:  # noqa: BLE001
        print(" ".join(f"{type(error).__name__}: {error}".split()), file=sys.stderr)
        return _REFUSED
    write_file(result, text.encode())
    # Without native destructors, which have nothing left to do.
    sys.stderr.flush()
    os._exit(0)
