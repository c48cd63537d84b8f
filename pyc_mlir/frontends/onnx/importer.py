"""Import ONNX models as pyc programs, node by node.

    module = import_onnx("model.onnx")

Weights become `pyc.constant`. Nodes with constant operands are computed at import, and shape
arithmetic is evaluated symbolically. All other nodes become pyc ops at the location
``loc("node name"("model.onnx":node:1))``. The function's arguments carry `pyc.name` and, if a
dimension is dynamic, `pyc.dims` with the names of their dimensions. With `islands` a node that PyC
cannot import may become a call of what torch-mlir makes of it (islands.py). What cannot be
imported with dynamic dimensions is imported at the sizes of a compile's `inputs`, if there are any.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from pyc_mlir.artifact.import_report import GraphBreak, UnsupportedModel
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import load, new_context
from pyc_mlir.frontends.importing.builders import GraphBuilder
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import MISSING, Argument, Importer, Lift, SourceNode
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.onnx import ops as onnx_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.onnx.control import CONTROL, Unroller
from pyc_mlir.frontends.onnx.islands import is_tested, island
from pyc_mlir.frontends.onnx.model import UNKNOWN_OP, PreparedModel, prepare
from pyc_mlir.frontends.onnx.ops.node import HANDLERS, pyc_dtype
from pyc_mlir.frontends.onnx.reading import (
    DEFAULT_DOMAINS,
    ModelSource,
    all_nodes,
    bad_model,
    live_nodes,
    names_of,
    opset_of,
    read_model,
)
from pyc_mlir.frontends.onnx.weights import unread_weights
from pyc_mlir.frontends.onnx.work import refused

# The remedy of a node that could be an island.
_ISLANDS = "torch-mlir may lower it for IREE: compile with `islands=True` (`--islands`)"
_NCHWC = "com.microsoft.nchwc"
_LAYOUT = (
    "a layout for one machine; save the model at onnxruntime's optimization level EXTENDED or lower"
)
# Ops whose number of rows depends on data, and ops that compute each element alone.
_SOURCES = frozenset({"NonMaxSuppression"})
_ONE_BY_ONE = frozenset(
    {"Identity", "Cast", "Neg", "Abs", "Sqrt", "Exp", "Log", "Sigmoid", "Tanh", "Relu", "Floor",
     "Ceil", "Round", "Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Greater", "Less", "Not"}
)  # fmt: skip


def import_onnx(
    model: str | Path | bytes | onnx.ModelProto, *,
    context: ir.Context | None = None, name: str = "main", islands: bool = False,
    shapes: Sequence[Any] = (),
) -> ir.Module:  # fmt: skip
    """Return the pyc module with a function `name` that computes `model`.

    `model` is a path, the bytes of a file or a ModelProto, of opset 13 to 28; older ones go through
    onnx's version converter. `islands`: nodes that PyC lacks, of a tested list of operators, become
    functions that torch-mlir lowers. `shapes`: of the inputs, whose integers become the sizes of
    dynamic dimensions. Raises PycError: BAD_MODEL for a malformed model,
    UnsupportedModel for one with nodes that PyC lacks (all of them are listed), NATIVE_CRASH where
    the process that lowers an island ends.
    """
    proto, source = read_model(model)
    prepared = prepare(proto, source, set(HANDLERS))
    active = new_context() if context is None else context
    load(active)
    with active, ir.Location.unknown():
        return _Importer(prepared, source, islands, shapes).run(name)


class _Importer:
    """State of one import: the values of the graph by name."""

    def __init__(
        self, prepared: PreparedModel, source: ModelSource, islands: bool, shapes: Sequence[Any]
    ) -> None:
        self.islands = islands
        self.model = prepared.model
        self.graph = prepared.model.graph
        self.weights = prepared.weights
        self.source = source
        self.values: dict[str, Any] = {}
        self._shapes = iter(shapes)
        self._sizes: dict[str, int] = {}  # of dynamic dimensions, as `shapes` give them
        # The number of rows that count, of values that are buffers (`keeps_rows`).
        self.counts: dict[str, Any] = {}
        # The node of the model's own graph that is being imported, from 0.
        self._place = 0

    def run(self, name: str) -> ir.Module:
        """Build the module; raise UnsupportedModel after all nodes were tried."""
        self._read_initializers()
        self.importer = Importer(self.source.name, sum(v.nbytes for v in self.values.values()))
        inputs = [i for i in self.graph.input if i.name not in self.values]
        arguments = [self._argument(info) for info in inputs]
        return self.importer.function(name, arguments, partial(self._body, arguments))

    def _body(
        self, arguments: Sequence[Argument], values: Sequence[ir.Value]
    ) -> list[tuple[str, ir.Value]]:
        self.values.update({a.name: v for a, v in zip(arguments, values, strict=True)})
        live = live_nodes(self.graph)
        for index, node in enumerate(self.graph.node):
            if index in live:
                self._import_node(index, node)
        if self.importer.findings:
            untried = [place - 1 for place in self.importer.untried]
            raise self._refused(self.importer.findings, untried)
        names = [o.name for o in self.graph.output]
        counted = [name for name in names if name in self.counts]
        results = [(name, self._result(name)) for name in names]
        return [*results, *((f"{n}.count", self.importer.emitted(self.counts[n])) for n in counted)]

    def _read_initializers(self) -> None:
        if self.graph.sparse_initializer:
            why = "sparse weights: expected dense ones"
            finding = GraphBreak("graph", "sparse_initializer", ReasonCode.UNSUPPORTED_DTYPE, why)
            raise self._refused([finding], range(len(self.graph.node)))
        try:
            for tensor in self.graph.initializer:
                self.values[tensor.name] = onnx.numpy_helper.to_array(tensor)
            self.values.update(self.weights.arrays())
        except OSError as error:
            raise unread_weights(self.source.name, error) from error
        except (TypeError, ValueError) as error:
            raise bad_model(self.source.name, f"weights: {error}") from error

    def _argument(self, info: onnx.ValueInfoProto) -> Argument:
        """Return an input's type and sizes; unnamed dynamic dimensions are named after it."""
        kind = info.type
        if kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type  # An argument is always given.
        tensor = kind.tensor_type
        if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
            raise PycError(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"{self.source.name}: input `{info.name}`: expected a tensor of known rank; "
                "export the model with the inputs' shapes",
            )
        dims: list[Extent] = []
        given = next(self._shapes, ())
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value"):
                dims.append(dim.dim_value)
                continue
            name = dim.dim_param or f"{info.name}#{axis}"
            if axis < len(given) and isinstance(given[axis], int | np.integer):
                self._sizes.setdefault(name, int(given[axis]))
            dims.append(self._sizes.get(name, SymbolicSize(1, (name,))))
        try:
            argument = Argument(info.name, pyc_dtype(tensor.elem_type), tuple(dims))
        except PycError as error:
            where = f"{self.source.name}: input `{info.name}`"
            raise PycError(error.code, f"{where}: {error.message}") from error
        if not argument.type.fits or any(d is not None and d < 0 for d in argument.type.shape):
            raise bad_model(
                self.source.name,
                f"input `{info.name}`: expected sizes that a memory holds, got "
                f"{str(argument.type)[:200]}",
            )
        return argument

    def _import_node(self, index: int, node: onnx.NodeProto) -> None:
        """Give values to the node's outputs, MISSING if it cannot be imported."""
        operands = [self._operand(name) for name in node.input]
        site = SourceNode(*names_of(node), index + 1)
        count = self._count(site, node, operands) if self.counts else None
        refused_before = len(self.importer.findings)
        if count is MISSING:
            outputs = ()
        elif site.op in CONTROL:
            outputs = self._controlled(site, node, operands)
        elif handler := HANDLERS.get(site.op):
            outputs = self.importer.node(site, operands, handler.bound(node, operands))
        else:
            why = _LAYOUT if node.domain == _NCHWC else UNKNOWN_OP
            self.importer.record(site, unsupported(why, ReasonCode.UNSUPPORTED_OP))
            outputs = ()
        if len(self.importer.findings) > refused_before and is_tested(site.op, node):
            outputs = self._island(site, node, operands)
        if site.op in _SOURCES and len(outputs) > 1:
            count = outputs[1]
        for i, output in enumerate(node.output):
            self.values[output] = outputs[i] if i < len(outputs) else MISSING
            self.counts.pop(output, None)
            if count is not None:
                self.counts[output] = count

    def _island(
        self, site: SourceNode, node: onnx.NodeProto, operands: Sequence[Any]
    ) -> Sequence[Any]:
        """Return a refused node's results by torch-mlir; without islands, note the option."""
        found = self.importer.findings.pop()
        if not self.islands:
            self.importer.findings.append(replace(found, why=f"{found.why}; {_ISLANDS}"))
            return ()
        opset = opset_of(self.model) or onnx.defs.onnx_opset_version()
        importer = self.importer

        def apply(builder: Any, lift: Lift) -> Any:
            if not isinstance(builder, GraphBuilder):
                raise unsupported(found.why)
            return island(node, operands, builder, importer.emitted, opset)

        return importer.node(site, operands, apply)

    def _count(self, site: SourceNode, node: onnx.NodeProto, operands: Sequence[Any]) -> Any:
        """Return the number of rows that count in the results, None for all; MISSING if mixed."""
        names = {name for inner in all_nodes([node]) for name in inner.input}
        if names.isdisjoint(self.counts):
            return None
        ranks = [self._rank(operand) for operand in operands]
        bounded = [name in self.counts for name in node.input]
        apart = node.domain in DEFAULT_DOMAINS and keeps_rows(node, operands, ranks, bounded)
        counts = {id(c): c for c in map(self.counts.get, node.input) if c is not None}
        if apart and len(counts) == 1:
            return next(iter(counts.values()))
        why = "results of two suppressions in one op: expected those of one"
        if not apart:
            why = (
                f"{node.op_type} of a result whose rows depend on data: expected ops that keep "
                "rows apart; cut the model there, and go on with the rows that count"
            )
        self.importer.record(site, unsupported(why))
        return MISSING

    def _rank(self, value: Any) -> int:
        """Return the rank of a value; 0 for one that is left out or missing."""
        if isinstance(value, ir.Value):
            return self.importer.b.type_of(value).rank
        return value.ndim if isinstance(value, np.ndarray) else 0

    def _controlled(
        self, site: SourceNode, node: onnx.NodeProto, operands: Sequence[Any]
    ) -> Sequence[Any]:
        """Return the results of a node with graphs in it; none if it cannot be imported."""
        outer, self._place = self._place, site.place - 1
        before, self.importer.b.may_not_run = self.importer.b.may_not_run, True
        try:
            return self._unroller.outputs(site, node, operands)
        except PycError as error:
            self.importer.record(site, error)
            return ()
        finally:
            self._place, self.importer.b.may_not_run = outer, before

    @cached_property
    def _unroller(self) -> Unroller:
        return Unroller(self.importer, self._inner)

    def _inner(self, graph: onnx.GraphProto, inputs: Sequence[Any]) -> list[Any]:
        """Import the nodes of a graph inside of a node; what it names is known to all behind."""
        if len(inputs) != len(graph.input):
            raise bad_model(self.source.name, f"graph `{graph.name}`: {len(graph.input)} inputs")
        for tensor in graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                raise unsupported("weights in files beside the model, in a graph inside of a node")
            self.values[tensor.name] = onnx.numpy_helper.to_array(tensor)
        self.values.update({i.name: v for i, v in zip(graph.input, inputs, strict=True)})
        live = live_nodes(graph)
        for index, node in enumerate(graph.node):
            if index in live:
                self._import_node(self._place, node)
        return [self._operand(o.name) for o in graph.output]

    def _refused(self, findings: Sequence[GraphBreak], untried: Sequence[int]) -> UnsupportedModel:
        return UnsupportedModel(refused(self.source.name, self.model, findings, untried))

    def _operand(self, name: str) -> Any:
        if not name:
            return None
        if name not in self.values:
            raise bad_model(self.source.name, f"`{name}` is used before it is defined")
        return self.values[name]

    def _result(self, name: str) -> ir.Value:
        """Return a graph output as an MLIR value."""
        value = self._operand(name)
        try:
            return self.importer.emitted(value)
        except PycError as error:
            where = f"{self.source.name}: output `{name}`"
            raise PycError(error.code, f"{where}: {error.message}") from error


def keeps_rows(
    node: onnx.NodeProto, operands: Sequence[Any], ranks: Sequence[int], bounded: Sequence[bool]
) -> bool:
    """Return whether row i of each result depends on row i of the bounded buffers alone.

    NonMaxSuppression of computed boxes returns rows for the greatest possible number of boxes; rows
    after the selected boxes are -1. Ops that do not mix rows may follow: their results are such
    buffers too, and rows after the count have no meaning. Other ops are refused, because they would
    use these rows. For each such output of the model, the program has one more result,
    `<output>.count`: an i64 of rank 0.

    operands: arrays where they are known. ranks: of the operands. bounded: which are buffers.
    """
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    others = [rank for rank, rows in zip(ranks, bounded, strict=True) if not rows]
    least = min(rank for rank, rows in zip(ranks, bounded, strict=True) if rows)
    if node.op_type in _ONE_BY_ONE:
        return all(rank < least for rank in others)
    if node.op_type == "Gather":
        axis = attributes.get("axis", 0) % max(ranks[0], 1)
        return axis == 0 if bounded[1] and not bounded[0] else axis != 0 and not bounded[1]
    if node.op_type == "GatherND":
        return bounded[1] and not bounded[0] and not attributes.get("batch_dims", 0)
    if node.op_type in ("Concat", "Split"):
        return (
            all(b for b in bounded[:1])
            and attributes.get("axis", 0) % ranks[0] != 0
            and (node.op_type == "Split" or all(bounded))
        )
    if node.op_type in ("Slice", "Squeeze", "Unsqueeze"):
        place = 3 if node.op_type == "Slice" else 1
        axes = operands[place] if len(operands) > place else None
        grown = axes.size if node.op_type == "Unsqueeze" and isinstance(axes, np.ndarray) else 0
        rank = ranks[0] + grown
        return isinstance(axes, np.ndarray) and all(int(a) % rank != 0 for a in axes.reshape(-1))
    return False
