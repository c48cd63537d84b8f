"""Programs run on the names of elements: what is computed of which elements, bit by bit.

Each element of each value is a hash of the operation and the elements that it is computed from
(Merkle). Ops that move elements move their hashes, so that programs with equal results do the same
operations on the same elements, however they are arranged: equal in every bit, for these sizes.
What is computed from constants alone is computed.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OPS, Trait, evaluate
from pyc_mlir.dialects.ops.convolution import from_nchw, padded, taps, to_nchw
from pyc_mlir.dialects.ops.shapes import normalize_axes
from pyc_mlir.dialects.types import TensorType, is_float
from pyc_mlir.pipelines.pyc.equivalence.fields import lanes as hashes
from pyc_mlir.pipelines.pyc.equivalence.fields.lanes import Lanes
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import EXACT, NotComparable
from pyc_mlir.pipelines.pyc.terms.nodes import VALUE, TermNode

# What is computed of constants, at most, in the units of `OpDef.evaluation_work` (0.1 ns).
MOST_WORK = 1 << 31
# Elements of a value, at most: two lanes of 8 bytes each.
MOST_ELEMENTS = 1 << 23
_PLAIN = frozenset({"transpose", "reshape", "broadcast_to", "concat", "slice"})
_ROWS = frozenset({"softmax", "log_softmax", "layernorm", "rmsnorm"})
# Ops that a constant may make do nothing, and the constants that may.
_SIMPLE = frozenset({"add", "sub", "mul", "div", "maximum", "minimum", "and", "or", "xor"})
_NUMBERS = (0.0, 1.0, -1.0, np.inf, -np.inf)
_SETS = frozenset({"reduce_max", "reduce_min"})


@dataclass(frozen=True)
class Elements:
    """The elements of a value; `array`: the value itself where it is known."""

    type: TensorType
    lanes: Lanes
    array: np.ndarray | None = None


class ElementNames:
    """The interpreter over names of elements: `step` computes a node from its operands."""

    def step(self, node: TermNode, operands: Sequence[Any]) -> Elements:
        """Return the elements of a node. Raises NotComparable for what is too large."""
        if node.type.elements > MOST_ELEMENTS:
            raise NotComparable(f"{node.name}: {node.type} has more than {MOST_ELEMENTS} elements")
        if node.name == VALUE:
            return self.argument(node)
        if node.name == "constant":
            return self.constant(node.type, np.asarray(node.params["value"]))
        if node.name == EXACT:
            return self.exact(node.type, node.params["fractions"])
        if (known := self._folded(node, operands)) is not None:
            return self.constant(node.type, known)
        return self.operation(node, operands)

    def argument(self, node: TermNode) -> Elements:
        """Return an argument: each element is its own name."""
        return Elements(node.type, _named(f"argument {node.params['number']}", node.type))

    def constant(self, type_: TensorType, array: np.ndarray) -> Elements:
        """Return a constant: its elements are named by their bits."""
        return Elements(type_, hashes.of_array(array), array)

    def exact(self, type_: TensorType, fractions: np.ndarray) -> Elements:
        """Return a constant of fractions: its elements are named by their digits."""
        digests = (hashlib.blake2b(str(f).encode(), digest_size=8) for f in fractions.ravel())
        numbers = np.array([int.from_bytes(d.digest(), "big") for d in digests], np.uint64)
        return Elements(type_, hashes.of_integers("fraction", numbers.reshape(fractions.shape)))

    def folds(self, node: TermNode) -> bool:
        """Return whether a node of known operands is computed."""
        return True

    def kind(self, type_: TensorType) -> str:
        """Return what an op's result type adds to its name."""
        return _name(type_.dtype)

    def _folded(self, node: TermNode, operands: Sequence[Any]) -> np.ndarray | None:
        definition = OPS[node.name]
        reads = not node.has(Trait.CREATES)
        if not self.folds(node) or (reads and any(o.array is None for o in operands)):
            return None
        types = [o.type for o in operands]
        if definition.evaluation_work(types, node.type, **node.params) > MOST_WORK:
            return None
        arrays = [np.zeros(_shape(o.type), o.type.dtype) if o.array is None else o.array
                  for o in operands]  # fmt: skip
        return evaluate(definition, arrays, **node.params)

    def operation(self, node: TermNode, operands: Sequence[Any]) -> Any:
        """Return the elements of an op."""
        moved = self.moved(node, operands)
        if moved is not None:
            return replace(operands[0], type=node.type, lanes=moved, array=None)
        if (kept := _unchanged(node)) is not None:
            return Elements(node.type, stretched(operands[kept].lanes, node.type))
        return Elements(node.type, self.hashed(node, [o.lanes for o in operands]))

    def moved(self, node: TermNode, operands: Sequence[Any]) -> Lanes | None:
        """Return the lanes of an op that moves elements; None for others."""
        move = mover(node, operands)
        if move is None:
            return None
        parts = [o.lanes for o in operands]
        fill = self.fill(node).lanes if node.name == "pad" else None
        fills = (None, None) if fill is None else (fill[0], fill[1])
        return np.stack([move([p[i] for p in parts], fills[i]) for i in (0, 1)])

    def fill(self, node: TermNode) -> Any:
        """Return the one element that a pad adds."""
        value = np.array(node.params["value"]).astype(node.type.dtype)
        return self.constant(TensorType((), node.type.dtype), value)

    def hashed(self, node: TermNode, parts: Sequence[Lanes]) -> Lanes:
        """Return the elements of any op by what they are computed from."""
        kind = self.kind(node.type)
        text = f"{node.name} {kind} {_text(node)}"
        if node.has(Trait.ELEMENTWISE):
            arithmetic = node.has(Trait.ARITHMETIC) or not is_float(node.type.dtype)
            ordered = not (node.has(Trait.COMMUTATIVE) and arithmetic)
            return _to(hashes.combined(text, parts, ordered), node.type)
        if node.name == "matmul" and min(p.ndim for p in parts) > 2:
            rows = hashes.along(parts[0], (parts[0].ndim - 2,))
            columns = hashes.along(parts[1], (parts[1].ndim - 3,))
            return _to(hashes.combined(text, (rows, columns)), node.type)
        if node.name in ("conv2d", "integer_conv2d"):
            return self._convolved(node, kind, parts)
        if node.has(Trait.REDUCES) and "axes" in node.params:
            x = parts[0]
            axes = normalize_axes(node.params["axes"], x.ndim - 1)
            kept = {k: v for k, v in node.params.items() if k not in ("axes", "keepdims")}
            sizes = [x.shape[a + 1] for a in axes]
            # The order in which floats are added may follow from the shape.
            order = "" if node.name in _SETS or not is_float(node.type.dtype) else (x.shape, axes)
            label = f"{node.name} {kind} {kept} {prod(sizes)} {order}"
            row = hashes.along(x, axes, ordered=node.name not in _SETS)
            return hashes.combined(label, [row]).reshape(2, *_shape(node.type))
        if node.name in _ROWS:
            return _by_rows(node, kind, parts)
        if node.name == "gather":
            return _gathered(node, kind, parts)
        everything = [hashes.along(p, range(p.ndim - 1)).reshape(2) for p in parts]
        return hashes.combined(text, [*everything, _named("element", node.type)])

    def _convolved(self, node: TermNode, kind: str, parts: Sequence[Lanes]) -> Lanes:
        """Hash the window of each result, and the filter that it meets."""
        layout, groups = node.params["layout"], node.params["groups"]
        x = [to_nchw(p, layout) for p in parts[0]]
        weight = np.stack([w if layout == "NCHW" else w.transpose(3, 2, 0, 1) for w in parts[1]])
        f, depth, *kernel = weight.shape[1:]
        # Beyond the image `conv2d` reads zeros, `integer_conv2d` the zero point.
        beyond = np.zeros((), node.operands[0].type.dtype)
        zero = hashes.of_array(beyond) if node.name == "conv2d" else hashes.salt("zero point")
        x = [padded(lane, node.params["pads"], zero[i]) for i, lane in enumerate(x)]
        views = [list(taps(lane, kernel, node.params["strides"], node.params["dilations"]))
                 for lane in x]  # fmt: skip
        # [lane, tap, n, group, channel, rows, columns]
        window = np.stack([np.stack([view for _, _, view in lane]) for lane in views])
        _, count, n, _, rows, columns = window.shape
        window = window.reshape(2, count, n, groups, depth, rows, columns)
        # The places of a filter are channels, then taps, in either layout.
        window = hashes.along(window.transpose(0, 2, 3, 5, 6, 4, 1), (4, 5))[..., 0, 0]
        filters = hashes.along(weight.reshape(2, groups, f // groups, depth, count), (2, 3))
        window = window.reshape(2, n, groups, 1, rows, columns)
        filters = filters.reshape(2, 1, groups, f // groups, 1, 1)
        out = hashes.combined(f"{node.name} {kind}", (window, filters, *parts[2:]))
        out = out.reshape(2, n, f, rows, columns)
        return np.stack([from_nchw(lane, layout) for lane in out])


def mover(
    node: TermNode, operands: Sequence[Any]
) -> Callable[[Sequence[np.ndarray], Any], np.ndarray] | None:
    """Return how an op moves arrays of its operands' shapes; None for one that computes.

    The function takes an array for each operand, and the element that a pad adds.
    """
    params, definition = node.params, OPS[node.name]
    if node.name in _PLAIN:
        return lambda arrays, fill: definition.reference(*arrays, **params)
    if node.name == "pad":

        def pad(arrays: Sequence[np.ndarray], fill: Any) -> np.ndarray:
            widths = np.array([params["low"], params["high"]], np.int64).T
            return np.pad(arrays[0], widths, constant_values=fill) if arrays[0].ndim else arrays[0]

        return pad
    if node.name == "gather" and operands[1].array is not None:
        indices = operands[1].array
        return lambda arrays, fill: definition.reference(arrays[0], indices, **params)
    return None


def _unchanged(node: TermNode) -> int | None:
    """Return the operand that an op with a constant gives as it is, in every bit."""
    if node.name not in _SIMPLE or len(node.operands) != 2:
        return None
    for kept, other in ((0, 1), (1, 0)):
        number = node.operands[other].number
        plain = number is not None and number in _NUMBERS
        if plain and _is_identity(node.name, is_float(node.type.dtype), repr(number), kept):
            return kept
    return None


@cache
def _is_identity(name: str, floats: bool, number: str, kept: int) -> bool:
    """Return whether ``op(x, number)``, or ``op(number, x)``, is x: tried for all f16, or all i8.

    The numbers are exact in every type, and the ops the same in every width.
    """
    if floats:
        x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    else:
        x = np.arange(1 << 8, dtype=np.uint8).view(np.int8)
    constant = np.array(float(number)).astype(x.dtype)
    pair = (x, constant) if kept == 0 else (constant, x)
    out = evaluate(OPS[name], pair)
    same = out.view(f"u{x.itemsize}") == x.view(f"u{x.itemsize}")
    return bool((same | ((out != out) & (x != x))).all())


def stretched(lanes: Lanes, type_: TensorType) -> Lanes:
    """Return lanes broadcast to the shape of a type."""
    shape, own = _shape(type_), lanes.shape[1:]
    if shape == own:
        return lanes
    return np.broadcast_to(lanes.reshape(2, *(1,) * (len(shape) - len(own)), *own), (2, *shape))


def _named(text: str, type_: TensorType) -> Lanes:
    places = np.arange(type_.elements, dtype=np.int64).reshape(_shape(type_))
    return hashes.of_integers(text, places)


def _shape(type_: TensorType) -> tuple[int, ...]:
    return tuple(d or 0 for d in type_.shape)


def _to(lanes: Lanes, type_: TensorType) -> Lanes:
    shape = (2, *_shape(type_))
    return lanes if lanes.shape == shape else np.broadcast_to(lanes, shape)


@cache
def _name(dtype: np.dtype) -> str:
    return str(dtype)


def _text(node: TermNode) -> str:
    return " ".join(f"{name}={value!r}" for name, value in sorted(node.params.items()))


def _by_rows(node: TermNode, kind: str, parts: Sequence[Lanes]) -> Lanes:
    """Hash each row by itself: which place of which row."""
    x, *vectors = parts
    rank = x.ndim - 1
    axis = node.params["axis"] % rank
    trailing = node.name not in ("softmax", "log_softmax")
    axes = tuple(range(axis, rank)) if trailing else (axis,)
    kept = {k: v for k, v in node.params.items() if k != "axis"}
    row = hashes.along(x, axes)
    whole = [hashes.along(v, range(v.ndim - 1)).reshape(2, *(1,) * rank) for v in vectors]
    sizes = [x.shape[a + 1] if a in axes else 1 for a in range(rank)]
    places = hashes.of_integers("place", np.arange(prod(sizes)).reshape(sizes))
    text = f"{node.name} {kind} {kept}"
    return _to(hashes.combined(text, (row, *whole, places)), node.type)


def _gathered(node: TermNode, kind: str, parts: Sequence[Lanes]) -> Lanes:
    """Hash what an unknown index may take, and the index."""
    x, indices = parts
    axis = node.params["axis"] % (x.ndim - 1)
    line = hashes.along(x, (axis,))
    rank = indices.ndim - 1
    shape = line.shape[1:]
    line = line.reshape(2, *shape[:axis], *(1,) * rank, *shape[axis + 1 :])
    after = (1,) * (len(shape) - axis - 1)
    index = indices.reshape(2, *(1,) * axis, *indices.shape[1:], *after)
    return _to(hashes.combined(f"gather {kind}", (line, index)), node.type)
