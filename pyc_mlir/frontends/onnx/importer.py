"""Import ONNX models as pyc programs, node by node.

    module = import_onnx("model.onnx")

Weights become `pyc.constant`; nodes whose operands are known are computed at import; shape
arithmetic is followed symbolically (`onnx_ops.sizes`); all else becomes pyc ops at the location
``loc("node name"("model.onnx":node:1))``. The function's arguments carry `pyc.name` and, where a
dimension is dynamic, `pyc.dims` with the names of their dimensions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from pyc_mlir.artifact.import_report import Finding, UnsupportedModel
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.fold_work import FoldWork
from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.irtypes import to_mlir
from pyc_mlir.dialects.ir.pyc import load, new_context
from pyc_mlir.dialects.types import DTYPES, TensorType, dtype_name
from pyc_mlir.frontends.onnx import ops as onnx_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.onnx.frame.graph import ConstantBuilder, GraphBuilder, TooLarge
from pyc_mlir.frontends.onnx.frame.handler import HANDLERS, Node, pyc_dtype, unsupported
from pyc_mlir.frontends.onnx.frame.sizes import Extent, Size, Sizes, SizesBuilder, Untracked, settle
from pyc_mlir.frontends.onnx.model import (
    UNKNOWN_OP,
    Prepared,
    Source,
    bad_model,
    prepare,
    read_model,
)
from pyc_mlir.frontends.onnx.names import is_default_domain, node_name, qualified_op
from pyc_mlir.frontends.onnx.work import refused

# A folded result is kept only if it is small or no larger than what it was computed from.
_FOLD_BYTES = 1 << 16
# All of them: so many times the weights, and as much again as a small model may have. Beyond that
# the program computes the rest when it runs.
_FOLD_TIMES, _FOLD_ALL = 8, 1 << 28
_COLLECTED = frozenset(
    {
        ReasonCode.UNSUPPORTED_OP,
        ReasonCode.UNSUPPORTED_ATTRIBUTE,
        ReasonCode.UNSUPPORTED_DTYPE,
        ReasonCode.INVALID_IR,
    }
)


class _Missing:
    """The output of a node that was not imported."""


_MISSING = _Missing()


def import_onnx(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    context: ir.Context | None = None,
    name: str = "main",
) -> ir.Module:
    """The pyc module with one function `name` that computes `model`.

    `model` is a path, the bytes of a file or a ModelProto, of opset 13 to 23; older ones go
    through onnx's version converter. Raises PycError: BAD_MODEL for a malformed model,
    UnsupportedModel for one with nodes that PyC lacks (all of them are listed).
    """
    proto, source = read_model(model)
    prepared = prepare(proto, source, set(HANDLERS))
    active = new_context() if context is None else context
    load(active)
    with active, ir.Location.unknown():
        return _Importer(prepared, source).run(name)


class _Importer:
    """State of one import: the values of the graph by name, and the nodes that failed."""

    def __init__(self, prepared: Prepared, source: Source) -> None:
        self.model = prepared.model
        self.graph = prepared.model.graph
        self.weights = prepared.weights
        self.source = source
        self.b = GraphBuilder()
        self.values: dict[str, Any] = {}
        self.constants: dict[int, tuple[Any, ir.Value]] = {}
        self.findings: list[Finding] = []
        self.untried: list[int] = []
        self.fold_bytes = _FOLD_ALL
        self.fold_work = FoldWork()

    def run(self, name: str) -> ir.Module:
        """Build the module; raise UnsupportedModel after all nodes were tried."""
        self._read_initializers()
        inputs = [i for i in self.graph.input if i.name not in self.values]
        dims = [self._input_dims(i) for i in inputs]
        types = [self._input_type(i, d) for i, d in zip(inputs, dims, strict=True)]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp(name, ([to_mlir(t) for t in types], []))
        block = function.add_entry_block()
        for info, value, extents in zip(inputs, block.arguments, dims, strict=True):
            self.values[info.name] = value
            self.b.name_dims(value, extents)
        with ir.InsertionPoint(block):
            for index, node in enumerate(self.graph.node):
                self._import_node(index, node)
            if self.findings:
                raise self._refused(self.findings, self.untried)
            results = [self._result(o.name) for o in self.graph.output]
            func.ReturnOp(results)
        argument_types = [v.type for v in block.arguments]
        signature = ir.FunctionType.get(argument_types, [v.type for v in results])
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        function.arg_attrs = ir.ArrayAttr.get(
            [_argument_attrs(i.name, d) for i, d in zip(inputs, dims, strict=True)]
        )
        function.attributes["res_attrs"] = ir.ArrayAttr.get(
            [_argument_attrs(o.name, ()) for o in self.graph.output]
        )
        return module

    def _read_initializers(self) -> None:
        if self.graph.sparse_initializer:
            why = "sparse weights: expected dense ones"
            finding = Finding("graph", "sparse_initializer", ReasonCode.UNSUPPORTED_DTYPE, why)
            raise self._refused([finding], range(len(self.graph.node)))
        try:
            for tensor in self.graph.initializer:
                self.values[tensor.name] = onnx.numpy_helper.to_array(tensor)
            self.values.update(self.weights.arrays())
            self.fold_bytes += _FOLD_TIMES * sum(v.nbytes for v in self.values.values())
        except (OSError, TypeError, ValueError) as error:
            raise bad_model(self.source.name, f"weights: {error}") from error

    def _input_dims(self, info: onnx.ValueInfoProto) -> tuple[Extent, ...]:
        """The input's sizes; an unnamed dynamic dimension is named after the input."""
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise PycError(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"{self.source.name}: input `{info.name}`: expected a tensor of known rank; "
                "export the model with the inputs' shapes",
            )
        dims: list[Extent] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value"):
                dims.append(dim.dim_value)
            else:
                dims.append(Size(1, (dim.dim_param or f"{info.name}#{axis}",)))
        return tuple(dims)

    def _input_type(self, info: onnx.ValueInfoProto, dims: Sequence[Extent]) -> TensorType:
        try:
            dtype = pyc_dtype(info.type.tensor_type.elem_type)
        except PycError as error:
            where = f"{self.source.name}: input `{info.name}`"
            raise PycError(error.code, f"{where}: {error.message}") from error
        type_ = TensorType(tuple(None if isinstance(d, Size) else d for d in dims), dtype)
        if not type_.fits or any(d is not None and d < 0 for d in type_.shape):
            raise bad_model(
                self.source.name,
                f"input `{info.name}`: expected sizes that a memory holds, got {str(type_)[:200]}",
            )
        return type_

    def _import_node(self, index: int, node: onnx.NodeProto) -> None:
        """Give values to the node's outputs, or record why there are none."""
        operands = [self._operand(name) for name in node.input]
        outputs: Sequence[Any] = ()
        name = node_name(node)
        try:
            if node.op_type not in HANDLERS or not is_default_domain(node):
                raise unsupported(UNKNOWN_OP, ReasonCode.UNSUPPORTED_OP)
            if any(o is _MISSING for o in operands):
                self.untried.append(index)
            else:
                with self._location(index, name):
                    outputs = self._outputs(node, operands)
        except PycError as error:
            if error.code not in _COLLECTED:
                where = f"{self.source.name}: node {name} ({node.op_type})"
                raise PycError(error.code, f"{where}: {error.message}") from error
            broken = error.code is ReasonCode.INVALID_IR
            code = ReasonCode.UNSUPPORTED_ATTRIBUTE if broken else error.code
            self.findings.append(Finding(name, qualified_op(node), code, error.message, index + 1))
        for i, output in enumerate(node.output):
            self.values[output] = outputs[i] if i < len(outputs) else _MISSING

    def _refused(self, findings: Sequence[Finding], untried: Sequence[int]) -> UnsupportedModel:
        return UnsupportedModel(refused(self.source.name, self.model, findings, untried))

    def _location(self, index: int, name: str) -> ir.Location:
        place = ir.Location.file(self.source.name, index + 1, 1)
        return ir.Location.name(name, place)

    def _operand(self, name: str) -> Any:
        if not name:
            return None
        if name not in self.values:
            raise bad_model(self.source.name, f"`{name}` is used before it is defined")
        return self.values[name]

    def _outputs(self, node: onnx.NodeProto, operands: Sequence[Any]) -> Sequence[Any]:
        """Run the node's handler in the cheapest way: folded, on sizes, or emitting ops."""
        out = self._computed(node, operands)
        if out is None:
            lift = self._lift(operands)
            out = HANDLERS[node.op_type](Node(node, self.b, operands, lift))
        outputs = out if isinstance(out, tuple) else (out,)
        for i, name in enumerate(node.output):
            if name and (i >= len(outputs) or outputs[i] is None):
                raise unsupported(f"output {i} (`{name}`): expected only {len(outputs)} outputs")
        return outputs

    def _computed(self, node: onnx.NodeProto, operands: Sequence[Any]) -> Any:
        """The outputs as arrays or sizes if they are known now, else None."""
        given = [o for o in operands if o is not None]
        handler = HANDLERS[node.op_type]
        if all(isinstance(o, np.ndarray) for o in given):
            plain = Node(node, ConstantBuilder(self.fold_work), operands, operands.__getitem__)
            try:
                out = handler(plain)
            except TooLarge:
                return None
            return out if self._worth_keeping(out, given) else None
        if not all(isinstance(o, (np.ndarray, Sizes)) for o in given):
            return None
        lifted = [Sizes(o, o.dtype) if isinstance(o, np.ndarray) else o for o in operands]
        try:
            out = handler(Node(node, SizesBuilder(), operands, lifted.__getitem__))
        except (Untracked, PycError):
            # Not shape arithmetic: it is computed when the program runs, or refused there.
            return None
        outputs = out if isinstance(out, tuple) else (out,)
        return tuple(settle(o) if isinstance(o, Sizes) else o for o in outputs)

    def _worth_keeping(self, out: Any, inputs: Sequence[np.ndarray]) -> bool:
        """False for a result that would bloat the program: large, and larger than its inputs."""
        made = sum(o.nbytes for o in (out if isinstance(out, tuple) else (out,)) if o is not None)
        self.fold_bytes -= made
        return made <= max(_FOLD_BYTES, sum(i.nbytes for i in inputs)) and self.fold_bytes >= 0

    def _lift(self, operands: Sequence[Any]) -> Any:
        return lambda index: self._emitted(operands[index])

    def _emitted(self, value: Any) -> ir.Value:
        """A value as an MLIR value; a constant is emitted once."""
        if isinstance(value, ir.Value):
            return value
        if id(value) not in self.constants:
            if isinstance(value, Sizes):
                made = self.b.materialize(value)
            else:
                _require_dtype(value)
                made = self.b.constant(value)
            # The array is kept, so that its id stays its own.
            self.constants[id(value)] = value, made
        return self.constants[id(value)][1]

    def _result(self, name: str) -> ir.Value:
        """A graph output as an MLIR value."""
        value = self._operand(name)
        try:
            return self._emitted(value)
        except PycError as error:
            where = f"{self.source.name}: output `{name}`"
            raise PycError(error.code, f"{where}: {error.message}") from error


def _require_dtype(array: np.ndarray) -> None:
    if dtype_name(array.dtype) not in DTYPES:
        raise unsupported(
            f"constant of element type {array.dtype}: expected one of {', '.join(DTYPES)}",
            ReasonCode.UNSUPPORTED_DTYPE,
        )


def _argument_attrs(name: str, dims: Sequence[Extent]) -> ir.DictAttr:
    """`pyc.name`, and `pyc.dims` where a dimension is dynamic ("" is static or unnamed)."""
    attributes: dict[str, ir.Attribute] = {"pyc.name": ir.StringAttr.get(name)}
    if any(isinstance(d, Size) for d in dims):
        names = [d.atoms[0] if isinstance(d, Size) and "#" not in d.atoms[0] else "" for d in dims]
        attributes["pyc.dims"] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in names])
    return ir.DictAttr.get(attributes)
