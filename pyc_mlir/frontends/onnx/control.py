"""If, Loop and Scan, without branches or loops in the program.

An If of a known condition is the chosen branch. Of one that the program computes, both branches are
computed and each result is selected: bodies have no effects, and a select costs less than a branch
that the planner cannot see through. A Loop or a Scan of a known number of steps is unrolled; a
Loop's condition that the program computes keeps the states from where it was false. What stays is
refused: a number of steps that depends on data, results collected under such a condition, and more
steps or nodes than `_MAX_STEPS`, `_MAX_NODES`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import MISSING, Importer, SourceNode, Stated
from pyc_mlir.frontends.importing.shaping import chain, take
from pyc_mlir.frontends.onnx.ops.node import IGNORED, attributes_of
from pyc_mlir.frontends.onnx.reading import all_nodes

CONTROL = frozenset({"If", "Loop", "Scan"})
_MAX_STEPS, _MAX_NODES = 256, 20_000
# No bound on a Loop's steps: ONNX's own examples use the greatest i64.
_ENDLESS = 1 << 62

# From a graph and the values of its inputs to those of its outputs, in the names' scope around.
Body = Callable[[onnx.GraphProto, Sequence[Any]], list[Any]]


class Unroller:
    """Imports nodes with graphs in them, by a `body` that imports a graph's nodes."""

    def __init__(self, importer: Importer, body: Body) -> None:
        self._importer = importer
        self._body = body
        self._left = _MAX_NODES

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
        """Compute one value from others; MISSING if it cannot be."""

        def build(b: Any, lift: Callable[[int], Any]) -> Any:
            return apply(b, *(lift(i) for i in range(len(operands))))

        made = self._importer.node(site, operands, build)
        return made[0] if made else MISSING

    def _run(self, graph: onnx.GraphProto, inputs: Sequence[Any]) -> list[Any]:
        self._left -= sum(1 for _ in all_nodes(graph.node))
        if self._left < 0:
            raise unsupported(f"unrolled nodes: expected at most {_MAX_NODES}")
        return self._body(graph, inputs)

    def _if(self, site: SourceNode, attributes: Stated, operands: Sequence[Any]) -> list[Any]:
        condition = _one(operands[0])
        branches = attributes["then_branch"], attributes["else_branch"]
        if condition is not None:
            return self._run(branches[0 if condition else 1], ())
        yes, no = (self._run(branch, ()) for branch in branches)
        return [self._select(site, operands[0], a, b) for a, b in zip(yes, no, strict=True)]

    def _select(self, site: SourceNode, condition: Any, yes: Any, no: Any) -> Any:
        """Select one of two values of the same type."""

        def build(b: Any, c: Any, x: Any, y: Any) -> Any:
            if b.dims(x) != b.dims(y):
                raise unsupported(
                    f"a condition that the model computes, between shapes {b.dims(x)} and "
                    f"{b.dims(y)}: expected equal ones"
                )
            return b.select(b.reshape(c, shape=()), x, y)

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
        """Stack results of steps along a new axis."""

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
            type_ = self._importer.b.type_of(self._importer.emitted(x))
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
