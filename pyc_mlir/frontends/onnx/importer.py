"""Import ONNX models as pyc programs, node by node.

    module = import_onnx("model.onnx")

Weights become `pyc.constant`. Nodes with constant operands are computed at import, and shape
arithmetic is evaluated symbolically. All other nodes become pyc ops at the location
``loc("node name"("model.onnx":node:1))``. The function's arguments carry `pyc.name` and, if a
dimension is dynamic, `pyc.dims` with the names of their dimensions. With `islands` a node that PyC
cannot import may become a call of what torch-mlir makes of it (islands.py). What cannot be
imported with dynamic dimensions is imported at the sizes of a compile's `inputs`, if there are any.

An If of a known condition is the chosen branch. Of one that the program computes, both branches are
computed and each result is selected: bodies have no effects, and a select costs less than a branch
that the planner cannot see through. A Loop or a Scan of a known number of steps is unrolled; a
Loop's condition that the program computes keeps the states from where it was false. What stays is
refused: a number of steps that depends on data, results collected under such a condition, and more
steps or nodes than `_MAX_STEPS`, `_MAX_NODES`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from pyc_mlir.frontends.importing.importer import (
    MISSING,
    Argument,
    Importer,
    Lift,
    SourceNode,
    Stated,
)
from pyc_mlir.frontends.importing.shaping import chain, extent_value, show, take
from pyc_mlir.frontends.importing.sizes import Dimension, Extent, SymbolicSize
from pyc_mlir.frontends.onnx import ops as onnx_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.onnx.islands import is_tested, island
from pyc_mlir.frontends.onnx.model import UNKNOWN_OP, PreparedModel, prepare
from pyc_mlir.frontends.onnx.ops.node import HANDLERS, IGNORED, attributes_of, pyc_dtype
from pyc_mlir.frontends.onnx.reading import (
    ModelSource,
    all_nodes,
    bad_model,
    live_nodes,
    names_of,
    opset_of,
    read_model,
    refused,
)
from pyc_mlir.frontends.onnx.weights import unread_weights

CONTROL = frozenset({"If", "Loop", "Scan"})
_MAX_STEPS, _MAX_NODES = 256, 20_000
# No bound on a Loop's steps: ONNX's own examples use the greatest i64.
_ENDLESS = 1 << 62


class _Unroller:
    """Imports nodes with graphs in them, by `inner`, which imports a graph's nodes."""

    importer: Importer
    _left = _MAX_NODES

    def inner(self, graph: onnx.GraphProto, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of a graph for inputs, in the names' scope around."""
        raise NotImplementedError

    def outputs(self, site: SourceNode, node: onnx.NodeProto, operands: Sequence[Any]) -> list[Any]:
        """Return the node's results. Raises PycError for a form that cannot be unrolled."""
        if any(operand is MISSING for operand in operands):
            return [MISSING] * len(node.output)
        attributes = Stated(attributes_of(node), "attribute", IGNORED)
        rule = {"If": self._if, "Loop": self._loop, "Scan": self._scan}[node.op_type]
        out = rule(site, attributes, operands)
        attributes.require_all_read()
        return out

    def _emit(self, site: SourceNode, operands: Sequence[Any], apply: Callable[..., Any]) -> Any:

        def build(b: Any, lift: Callable[[int], Any]) -> Any:
            return apply(b, *(lift(i) for i in range(len(operands))))

        made = self.importer.node(site, operands, build)
        return made[0] if made else MISSING

    def _run(self, graph: onnx.GraphProto, inputs: Sequence[Any]) -> list[Any]:
        self._left -= sum(1 for _ in all_nodes(graph.node))
        if self._left < 0:
            raise unsupported(f"unrolled nodes: expected at most {_MAX_NODES}")
        return self.inner(graph, inputs)

    def _if(self, site: SourceNode, attributes: Stated, operands: Sequence[Any]) -> list[Any]:
        condition = _one(operands[0])
        branches = attributes["then_branch"], attributes["else_branch"]
        if condition is not None:
            return self._run(branches[0 if condition else 1], ())
        yes, no = (self._run(branch, ()) for branch in branches)
        return [self._select(site, operands[0], a, b) for a, b in zip(yes, no, strict=True)]

    def _select(self, site: SourceNode, condition: Any, yes: Any, no: Any) -> Any:

        def build(b: Any, c: Any, x: Any, y: Any) -> Any:
            shapes, c = (b.dims(x), b.dims(y)), b.reshape(c, shape=())
            if shapes[0] == shapes[1]:
                return b.select(c, x, y)
            differ = [i for i, (p, q) in enumerate(zip(*shapes, strict=False)) if p != q]
            if len(shapes[0]) != len(shapes[1]) or len(differ) > 1:
                raise unsupported(
                    f"a condition that the model computes, between shapes {show(shapes[0])} and "
                    f"{show(shapes[1])}: expected equal ones but for one size"
                )
            # Side by side, of which one is taken.
            (axis,) = differ
            sizes = [extent_value(b, shape[axis]) for shape in shapes]
            index = b.add(b.range(b.select(c, *sizes)), b.select(c, 0, sizes[0]))
            return b.gather(b.concat(x, y, axis=axis), index, axis=axis)

        return self._emit(site, [condition, yes, no], build)

    def _loop(self, site: SourceNode, attributes: Stated, operands: Sequence[Any]) -> list[Any]:
        body = attributes["body"]
        limit = _ENDLESS if operands[0] is None else _one(operands[0])
        if limit is None:
            raise unsupported(
                "the number of steps is computed when the model runs: expected a constant"
            )
        condition = True if operands[1] is None else _one(operands[1])
        guard = operands[1] if condition is None else None
        states, collected = list(operands[2:]), []
        runs = condition is None or bool(condition)
        step = 0
        while runs and step < limit:
            if step == _MAX_STEPS:
                raise unsupported(f"a Loop: expected at most {_MAX_STEPS} steps")
            # Of the element types that ONNX gives them; the body may declare others.
            again, *made = self._run(body, [np.array(step, np.int64), np.array(True), *states])
            new, rows = made[: len(states)], made[len(states) :]
            known = _one(again)
            if guard is not None:
                new = [self._select(site, guard, a, b) for a, b in zip(new, states, strict=True)]
            if rows and (guard is not None or known is None):
                raise unsupported(
                    "results of steps whose condition is computed when the model runs"
                )
            states = new
            collected.append(rows)
            guard = self._both(site, guard, again) if known is None or guard is not None else None
            runs = known is None or bool(known)
            step += 1
        count = len(body.output) - 1 - len(states)
        if count and not collected:
            raise unsupported("a Loop without steps that collects results: expected one step")
        return [*states, *(self._joined(site, [r[i] for r in collected], 0) for i in range(count))]

    def _both(self, site: SourceNode, guard: Any, again: Any) -> Any:
        if guard is None:
            return again

        def build(b: Any, x: Any, y: Any) -> Any:
            return b.and_(b.reshape(x, shape=()), b.reshape(y, shape=()))

        return self._emit(site, [guard, again], build)

    def _joined(
        self, site: SourceNode, rows: Sequence[Any], axis: int, backwards: bool = False
    ) -> Any:

        def build(b: Any, *values: Any) -> Any:
            rank = b.type_of(values[0]).rank + 1
            parts = [b.expand_dims(v, axis % rank) for v in values]
            return chain(b, parts[:: -1 if backwards else 1], axis % rank)

        return self._emit(site, rows, build)

    def _scan(self, site: SourceNode, attributes: Stated, operands: Sequence[Any]) -> list[Any]:
        body, count = attributes["body"], attributes["num_scan_inputs"]
        if operands[0] is None:
            raise unsupported("a Scan of opset 8: expected one of opset 9 or newer")
        split = len(operands) - count
        states, sources = list(operands[:split]), operands[split:]
        axes = attributes.get("scan_input_axes", [0] * count)
        reverse = attributes.get("scan_input_directions", [0] * count)
        length = self._length(site, sources[0], axes[0])
        collected = []
        for step in range(length):
            rows = [
                self._row(site, x, axis, length - 1 - step if back else step)
                for x, axis, back in zip(sources, axes, reverse, strict=True)
            ]
            made = self._run(body, [*states, *rows])
            states = made[:split]
            collected.append(made[split:])
        results = len(body.output) - split
        places = attributes.get("scan_output_axes", [0] * results)
        flips = attributes.get("scan_output_directions", [0] * results)
        return [
            *states,
            *(
                self._joined(site, [r[i] for r in collected], places[i], bool(flips[i]))
                for i in range(results)
            ),
        ]

    def _length(self, site: SourceNode, x: Any, axis: int) -> int:
        shape = x.shape if isinstance(x, np.ndarray) else None
        if shape is None:
            type_ = self.importer.b.type_of(self.importer.emitted(x))
            shape = type_.shape
        if not -len(shape) <= axis < len(shape):
            raise PycError(ReasonCode.BAD_MODEL, f"`scan_input_axes`: {axis} is no axis of {shape}")
        size = shape[axis]
        if size is None or not 0 < size <= _MAX_STEPS:
            raise unsupported(f"a Scan of {size or 'dynamic'} steps: expected 1 to {_MAX_STEPS}")
        return size

    def _row(self, site: SourceNode, x: Any, axis: int, place: int) -> Any:
        def build(b: Any, value: Any) -> Any:
            at = axis % b.type_of(value).rank
            return b.squeeze(take(b, value, at, place, place + 1), at)

        return self._emit(site, [x], build)


def _one(value: Any) -> int | None:
    """Return the number that a known tensor of one element holds, else None."""
    known = isinstance(value, np.ndarray) and value.size == 1
    return int(value.reshape(()).item()) if known else None


# The remedy of a node that could be an island.
_ISLANDS = "torch-mlir may lower it for IREE: compile with `islands=True` (`--islands`)"
_NCHWC = "com.microsoft.nchwc"
_LAYOUT = (
    "a layout for one machine; save the model at onnxruntime's optimization level EXTENDED or lower"
)


def import_onnx(
    model: str | Path | bytes | onnx.ModelProto, *,
    context: ir.Context | None = None, name: str = "main", islands: bool = False,
    shapes: Sequence[Any] = (), outputs: Sequence[str] = (),
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> ir.Module:  # fmt: skip
    """Return the pyc module with a function `name` that computes `model`.

    `model` is a path, the bytes of a file or a ModelProto, of opset 13 to 28; older ones go through
    onnx's version converter. `islands`: nodes that PyC lacks, of a tested list of operators, become
    functions that torch-mlir lowers. `shapes`: of the inputs, whose integers become the sizes of
    dynamic dimensions. `outputs`: values of the graph that are the results; what none of them needs
    is no part of the program. `ranges`: bounds of dynamic dimensions, which decide what depends on
    them; nothing checks calls by them here. Raises PycError: BAD_MODEL for a malformed model,
    UnsupportedModel for one with nodes that PyC lacks (all of them are listed), NATIVE_CRASH where
    the process that lowers an island ends.
    """
    proto, source = read_model(model)
    prepared = prepare(proto, source, set(HANDLERS), outputs)
    active = new_context() if context is None else context
    load(active)
    with active, ir.Location.unknown():
        return _Importer(prepared, source, islands, shapes, ranges or {}).run(name)


class _Importer(_Unroller):
    """State of one import: the values of the graph by name."""

    def __init__(
        self, prepared: PreparedModel, source: ModelSource, islands: bool, shapes: Sequence[Any],
        ranges: Mapping[str, tuple[int, int]],
    ) -> None:  # fmt: skip
        self.islands = islands
        self.model = prepared.model
        self.graph = prepared.model.graph
        self.weights = prepared.weights
        self.source = source
        self.values: dict[str, Any] = {}
        self._shapes, self._ranges = iter(shapes), ranges
        self._sizes: dict[str, int] = {}  # of dynamic dimensions, as `shapes` give them
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
        return [(o.name, self._result(o.name)) for o in self.graph.output]

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
            atom = Dimension(name, *self._ranges.get(name, ()))
            dims.append(self._sizes.get(name, SymbolicSize(1, (atom,))))
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
        refused_before = len(self.importer.findings)
        if site.op in CONTROL:
            outputs = self._controlled(site, node, operands)
        elif handler := HANDLERS.get(site.op):
            outputs = self.importer.node(site, operands, handler.bound(node, operands))
        else:
            why = _LAYOUT if node.domain == _NCHWC else UNKNOWN_OP
            self.importer.record(site, unsupported(why, ReasonCode.UNSUPPORTED_OP))
            outputs = ()
        if len(self.importer.findings) > refused_before and is_tested(site.op, node):
            outputs = self._island(site, node, operands)
        for i, output in enumerate(node.output):
            self.values[output] = outputs[i] if i < len(outputs) else MISSING

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

    def _controlled(
        self, site: SourceNode, node: onnx.NodeProto, operands: Sequence[Any]
    ) -> Sequence[Any]:
        outer, self._place = self._place, site.place - 1
        before, self.importer.b.may_not_run = self.importer.b.may_not_run, True
        try:
            return self.outputs(site, node, operands)
        except PycError as error:
            self.importer.record(site, error)
            return ()
        finally:
            self._place, self.importer.b.may_not_run = outer, before

    def inner(self, graph: onnx.GraphProto, inputs: Sequence[Any]) -> list[Any]:
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
        value = self._operand(name)
        try:
            return self.importer.emitted(value)
        except PycError as error:
            where = f"{self.source.name}: output `{name}`"
            raise PycError(error.code, f"{where}: {error.message}") from error
