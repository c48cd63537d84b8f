"""Programs run on the names of elements: what is computed of which elements, bit by bit.

Each element of each value is a hash of the operation and the elements that it is computed from
(Merkle). Ops that move elements move their hashes, so that programs with equal results do the same
operations on the same elements, however they are arranged: equal in every bit, for these sizes.
What is computed from constants alone is computed.

Hashes are `Lanes` [2, *shape]: two independent lanes of 64 bits for each element. Equal inputs give
equal hashes; different ones give equal ones with a chance of about 2^-128 a pair (`mixed` is the
finalizer of splitmix64, Steele, Lea and Flood, 2014). Salts are keyed by text, so that different
operations never meet. Sums and products of arrays wrap without a warning.
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
from pyc_mlir.pipelines.pyc.equivalence.nodes import EXACT, VALUE, NotComparable, TermNode, sizes_of

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
_U64 = np.uint64
_FIRST = np.array([0xBF58476D1CE4E5B9, 0xFF51AFD7ED558CCD], _U64)
_SECOND = np.array([0x94D049BB133111EB, 0xC4CEB9FE1A85EC53], _U64)
_STEP = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], _U64)
Lanes = np.ndarray


@cache
def salt(text: str) -> np.ndarray:
    """Return the salt of a text: one number for each lane."""
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), _U64).copy()


@cache
def _salts(text: str, rank: int) -> np.ndarray:
    return _of_lanes(salt(text), rank)


@cache
def _factors(rank: int) -> tuple[np.ndarray, np.ndarray]:
    return _of_lanes(_FIRST, rank), _of_lanes(_SECOND, rank)


@cache
def _step(part: int, rank: int) -> np.ndarray:
    """Return what tells one operand from the others."""
    return _of_lanes(_STEP * _U64(2 * part + 1), rank)


def _of_lanes(numbers: np.ndarray, rank: int) -> np.ndarray:
    return numbers.reshape(2, *(1,) * rank)


def mixed(lanes: Lanes) -> Lanes:
    """Return a bijective mix of each number."""
    first, second = _factors(lanes.ndim - 1)
    x = lanes ^ (lanes >> _U64(30))
    x *= first
    x ^= x >> _U64(27)
    x *= second
    x ^= x >> _U64(31)
    return x


def combined(text: str, parts: Sequence[Lanes], ordered: bool = True) -> Lanes:
    """Return the hash of an operation on aligned elements; the parts broadcast.

    ordered: whether the order of the parts counts.
    """
    rank = max((p.ndim - 1 for p in parts), default=0)
    out = _salts(text, rank)
    for i, part in enumerate(parts):
        if part.ndim <= rank:
            part = part.reshape(2, *(1,) * (rank + 1 - part.ndim), *part.shape[1:])
        out = out + mixed(part + _step(i if ordered else 0, rank))
    return mixed(out)


def of_integers(text: str, numbers: np.ndarray) -> Lanes:
    """Return the hashes of 64-bit numbers, or of what is viewed as such."""
    raw = np.asarray(numbers).astype(_U64)
    return mixed(raw[None] + _salts(text, raw.ndim))


def of_array(array: np.ndarray) -> Lanes:
    """Return the hashes of a constant's elements, by their bits and their type."""
    plain = np.ascontiguousarray(array).reshape(array.shape)
    bits = plain if plain.dtype == np.bool_ else plain.view(f"u{plain.dtype.itemsize}")
    return of_integers(f"constant {plain.dtype}", bits)


def along(lanes: Lanes, axes: Sequence[int], ordered: bool = True) -> Lanes:
    """Return the hash of all elements along axes, which keep a size of 1.

    axes: counted without the axis of lanes. ordered: whether their places count; else a multiset.
    """
    shape = lanes.shape[1:]
    value = lanes
    if ordered:
        value = lanes + _places([shape[a] if a in axes else 1 for a in range(len(shape))])
    return mixed(value).sum(axis=tuple(a + 1 for a in axes), keepdims=True, dtype=_U64)


def _places(sizes: Sequence[int], text: str = "place") -> Lanes:
    return of_integers(text, np.arange(prod(sizes), dtype=np.int64).reshape(sizes))


def stretched(lanes: Lanes, type_: TensorType) -> Lanes:
    """Return lanes broadcast to the shape of a type."""
    shape, own = sizes_of(type_), lanes.shape[1:]
    if shape == own:
        return lanes
    return np.broadcast_to(lanes.reshape(2, *(1,) * (len(shape) - len(own)), *own), (2, *shape))


@dataclass(frozen=True)
class Elements:
    """The elements of a value; `array`: the value itself where it is known."""

    type: TensorType
    lanes: Lanes
    array: np.ndarray | None = None

    @property
    def arrays(self) -> list[np.ndarray]:
        """All that it consists of, beside its type."""
        return [self.lanes, np.zeros(0, bool) if self.array is None else np.asarray(self.array)]


class ElementNames:
    """The interpreter over names of elements: `step` computes a node from its operands."""

    def step(self, node: TermNode, operands: Sequence[Any]) -> Any:
        """Return the elements of a node. Raises NotComparable for what is too large."""
        if node.type.elements > MOST_ELEMENTS:
            raise NotComparable(f"{node.name}: {node.type} has more than {MOST_ELEMENTS} elements")
        if node.name == VALUE:
            return self.argument(node)
        if node.name == "constant":
            return self.constant(node.type, np.asarray(node.params["value"]))
        if node.name == EXACT:
            return self.exact(node.type, node.params["fractions"])
        is_known = node.has(Trait.CREATES) or all(o.array is not None for o in operands)
        if is_known and self.folds(node):
            definition, types = OPS[node.name], [o.type for o in operands]
            if definition.evaluation_work(types, node.type, **node.params) <= MOST_WORK:
                arrays = [np.zeros(sizes_of(o.type), o.type.dtype) if o.array is None else o.array
                          for o in operands]  # fmt: skip
                return self.constant(node.type, evaluate(definition, arrays, **node.params))
        return self.operation(node, operands)

    def argument(self, node: TermNode) -> Any:
        """Return an argument: each element is its own name."""
        number = node.params["number"]
        return Elements(node.type, _places(sizes_of(node.type), f"argument {number}"))

    def constant(self, type_: TensorType, array: np.ndarray) -> Any:
        """Return a constant: its elements are named by their bits."""
        return Elements(type_, of_array(array), array)

    def exact(self, type_: TensorType, fractions: np.ndarray) -> Any:
        """Return a constant of fractions: its elements are named by their digits."""
        digests = (hashlib.blake2b(str(f).encode(), digest_size=8) for f in fractions.ravel())
        numbers = np.array([int.from_bytes(d.digest(), "big") for d in digests], _U64)
        return Elements(type_, of_integers("fraction", numbers.reshape(fractions.shape)))

    def folds(self, node: TermNode) -> bool:
        """Return whether a node of known operands is computed."""
        return True

    def kind(self, type_: TensorType) -> str:
        """Return what an op's result type adds to its name."""
        return _name(type_.dtype)

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
        fills = self.fill(node).lanes if node.name == "pad" else (None, None)
        return np.stack([move([p[i] for p in parts], fills[i]) for i in (0, 1)])

    def fill(self, node: TermNode) -> Any:
        """Return the one element that a pad adds."""
        value = np.array(node.params["value"]).astype(node.type.dtype)
        return self.constant(TensorType((), node.type.dtype), value)

    def hashed(self, node: TermNode, parts: Sequence[Lanes]) -> Lanes:
        """Return the elements of any op by what they are computed from."""
        kind, x = self.kind(node.type), parts[0] if parts else _NOTHING
        given = " ".join(f"{name}={value!r}" for name, value in sorted(node.params.items()))
        text = f"{node.name} {kind} {given}"
        if node.has(Trait.ELEMENTWISE):
            arithmetic = node.has(Trait.ARITHMETIC) or not is_float(node.type.dtype)
            ordered = not (node.has(Trait.COMMUTATIVE) and arithmetic)
            return stretched(combined(text, parts, ordered), node.type)
        if node.name == "matmul" and min(p.ndim for p in parts) > 2:
            rows, columns = along(x, (x.ndim - 2,)), along(parts[1], (parts[1].ndim - 3,))
            return stretched(combined(text, (rows, columns)), node.type)
        if node.name in ("conv2d", "integer_conv2d"):
            return _convolved(node, kind, parts)
        if node.has(Trait.REDUCES) and "axes" in node.params:
            axes = normalize_axes(node.params["axes"], x.ndim - 1)
            kept = {k: v for k, v in node.params.items() if k not in ("axes", "keepdims")}
            count = prod(x.shape[a + 1] for a in axes)
            # The order in which floats are added may follow from the shape.
            order = "" if node.name in _SETS or not is_float(node.type.dtype) else (x.shape, axes)
            row = along(x, axes, ordered=node.name not in _SETS)
            out = combined(f"{node.name} {kind} {kept} {count} {order}", [row])
            return out.reshape(2, *sizes_of(node.type))
        if node.name in _ROWS:
            return _by_rows(node, kind, parts)
        if node.name == "gather":
            # What an unknown index may take, and the index.
            axis, indices = node.params["axis"] % (x.ndim - 1), parts[1]
            line = along(x, (axis,))
            rank, shape = indices.ndim - 1, line.shape[1:]
            line = line.reshape(2, *shape[:axis], *(1,) * rank, *shape[axis + 1 :])
            after = (1,) * (len(shape) - axis - 1)
            index = indices.reshape(2, *(1,) * axis, *indices.shape[1:], *after)
            return stretched(combined(f"gather {kind}", (line, index)), node.type)
        everything = [along(p, range(p.ndim - 1)).reshape(2) for p in parts]
        return combined(text, [*everything, _places(sizes_of(node.type), "element")])


_NOTHING = np.zeros((2, 0), _U64)


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
        widths = np.array([params["low"], params["high"]], np.int64).T
        return lambda arrays, fill: (
            np.pad(arrays[0], widths, constant_values=fill) if arrays[0].ndim else arrays[0]
        )
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


@cache
def _name(dtype: np.dtype) -> str:
    return str(dtype)


def _convolved(node: TermNode, kind: str, parts: Sequence[Lanes]) -> Lanes:
    """Hash the window of each result, and the filter that it meets."""
    layout, groups = node.params["layout"], node.params["groups"]
    x = [to_nchw(p, layout) for p in parts[0]]
    weight = np.stack([w if layout == "NCHW" else w.transpose(3, 2, 0, 1) for w in parts[1]])
    f, depth, *kernel = weight.shape[1:]
    # Beyond the image `conv2d` reads zeros, `integer_conv2d` the zero point.
    beyond = np.zeros((), node.operands[0].type.dtype)
    zero = of_array(beyond) if node.name == "conv2d" else salt("zero point")
    x = [padded(lane, node.params["pads"], zero[i]) for i, lane in enumerate(x)]
    views = [taps(lane, kernel, node.params["strides"], node.params["dilations"]) for lane in x]
    # [lane, tap, n, group, channel, rows, columns]
    window = np.stack([np.stack([view for _, _, view in lane]) for lane in views])
    _, count, n, _, rows, columns = window.shape
    window = window.reshape(2, count, n, groups, depth, rows, columns)
    # The places of a filter are channels, then taps, in either layout.
    window = along(window.transpose(0, 2, 3, 5, 6, 4, 1), (4, 5))[..., 0, 0]
    filters = along(weight.reshape(2, groups, f // groups, depth, count), (2, 3))
    window = window.reshape(2, n, groups, 1, rows, columns)
    filters = filters.reshape(2, 1, groups, f // groups, 1, 1)
    out = combined(f"{node.name} {kind}", (window, filters, *parts[2:]))
    return np.stack([from_nchw(lane, layout) for lane in out.reshape(2, n, f, rows, columns)])


def _by_rows(node: TermNode, kind: str, parts: Sequence[Lanes]) -> Lanes:
    """Hash each row by itself: which place of which row."""
    x, *vectors = parts
    rank = x.ndim - 1
    axis = node.params["axis"] % rank
    axes = (axis,) if node.name in ("softmax", "log_softmax") else tuple(range(axis, rank))
    kept = {k: v for k, v in node.params.items() if k != "axis"}
    whole = [along(v, range(v.ndim - 1)).reshape(2, *(1,) * rank) for v in vectors]
    places = _places([x.shape[a + 1] if a in axes else 1 for a in range(rank)])
    text = f"{node.name} {kind} {kept}"
    return stretched(combined(text, (along(x, axes), *whole, places)), node.type)
