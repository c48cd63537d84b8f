"""The dimension of each operand that corresponds to a dimension of the result.

Index i of that dimension of the result then needs of an operand only its index i along the
dimension given, or the operand whole, so that a part of the result can be computed from parts of
the operands. Windows need some rows around (`operand_rows`): parts overlap there, in halos (Alwani
et al., Fused-Layer CNN Accelerators, 2016).
Comes in: an op by definition, types and parameters, and a dimension of its result.
Goes out: for each operand a dimension or None (whole); None instead of the tuple where the
dimension does not run through. Ops are entered in `RULES`, elementwise ops and reductions by their
trait. What is not entered blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from pyc_mlir.dialects.opdef import OpDef, Trait
from pyc_mlir.dialects.ops.movement import END, START, python_slice
from pyc_mlir.dialects.ops.reduction import reduced_axes
from pyc_mlir.dialects.types import TensorType

Dims = tuple[int | None, ...]
# Neighbouring indices of a dimension, from the first to before the last.
Rows = tuple[int, int]


@dataclass(frozen=True)
class OpCall:
    """One op with everything static: its definition, types and complete parameters."""

    definition: type[OpDef]
    inputs: tuple[TensorType, ...]
    out: TensorType
    params: dict[str, Any]

    @cached_property
    def dims(self) -> tuple[Dims | None, ...]:
        """By dimension of the result, that of each operand; None where it does not run through."""
        return tuple(_operand_dims(self, dim) for dim in range(self.out.rank))

    @cached_property
    def windows(self) -> tuple["ChunkWindow | None", ...]:
        """By dimension of the result, the window whose outputs it has; None without one."""
        return tuple(_window_of(self, dim) for dim in range(self.out.rank))


def _operand_dims(call: OpCall, dim: int) -> Dims | None:
    if call.definition.has(Trait.ELEMENTWISE):
        return tuple(_aligned(x, call.out, dim) for x in call.inputs)
    if call.definition.has(Trait.REDUCES):
        rank = call.inputs[0].rank
        gone = {a % rank for a in reduced_axes(call.params)}
        if call.params["keepdims"]:
            return None if dim in gone else (dim,)
        return ([i for i in range(rank) if i not in gone][dim],)
    rule = RULES.get(call.definition.name)
    return None if rule is None else rule(call, dim)


@dataclass(frozen=True)
class ChunkWindow:
    """A window along one axis of `size` positions, of which `low` are padding in front."""

    size: int
    reach: int
    stride: int
    low: int

    def bounds(self, rows: Rows) -> Rows:
        """Return the positions that some outputs see, padding included."""
        first = rows[0] * self.stride - self.low
        return first, (rows[1] - 1) * self.stride - self.low + self.reach

    def source(self, rows: Rows) -> Rows:
        """Return the positions of the image that some outputs see."""
        first, end = self.bounds(rows)
        return max(first, 0), min(end, self.size)

    def pads(self, rows: Rows) -> tuple[int, int]:
        """Return the padding around them."""
        first, end = self.bounds(rows)
        return max(-first, 0), max(end - self.size, 0)


def _window_of(call: OpCall, dim: int) -> ChunkWindow | None:
    """Return the window whose outputs are dimension `dim` of a result; None where there is none."""
    if not call.definition.has(Trait.WINDOW) or dim not in _sides(call):
        return None
    axis, x = dim - _sides(call)[0], call.inputs[0]
    size, kernel = x.shape[dim], call.params.get("kernel")
    if kernel is None:
        weight = call.inputs[1].shape
        kernel = weight[:2] if call.params["layout"] == "NHWC" else weight[2:]
    taps = kernel[axis]
    assert size is not None and taps is not None
    dilation = call.params.get("dilations", (1, 1))[axis]
    reach = dilation * (taps - 1) + 1
    return ChunkWindow(size, reach, call.params["strides"][axis], call.params["pads"][axis])


def operand_rows(call: OpCall, dim: int, rows: Rows) -> Rows:
    """Return what some rows along `dim` of the result need of the operands that it runs along."""
    window = call.windows[dim]
    return rows if window is None else window.source(rows)


def _sides(call: OpCall) -> tuple[int, int]:
    return (1, 2) if call.params["layout"] == "NHWC" else (2, 3)


def part_params(call: OpCall, dim: int, out: TensorType, rows: Rows) -> dict[str, Any]:
    """Return the parameters of `call` for `out`: `rows` of its result along `dim`."""
    if window := call.windows[dim]:
        pads, axis = list(call.params["pads"]), dim - _sides(call)[0]
        pads[axis], pads[axis + 2] = window.pads(rows)
        return {**call.params, "pads": tuple(pads)}
    if "shape" in call.params:
        return {**call.params, "shape": out.shape}
    if call.definition.name == "slice":
        starts, stops = list(call.params["starts"]), list(call.params["stops"])
        starts[dim], stops[dim] = START, END
        return {**call.params, "starts": tuple(starts), "stops": tuple(stops)}
    return call.params


def _aligned(x: TensorType, out: TensorType, dim: int) -> int | None:
    """Return numpy's alignment at the last dimension; None where x is stretched along `dim`."""
    at = dim - (out.rank - x.rank)
    return None if at < 0 or (x.shape[at] == 1 and out.shape[dim] != 1) else at


def _matmul(call: OpCall, dim: int) -> Dims | None:
    """Return batch entries of both, rows of lhs, columns of rhs."""
    lhs, rhs = call.inputs
    if min(lhs.rank, rhs.rank) < 2:
        return None
    if dim == call.out.rank - 2:
        return (lhs.rank - 2, None)
    if dim == call.out.rank - 1:
        return (None, rhs.rank - 1)
    return tuple(_aligned(x, call.out, dim) for x in call.inputs)


def _attention(call: OpCall, dim: int) -> Dims | None:
    """Return batch and heads of all; query rows unless they are masked by their index.

    Columns of the value would repeat the scores.
    """
    rank = call.out.rank
    if dim < rank - 2:
        return tuple(_aligned(x, call.out, dim) for x in call.inputs)
    if dim == rank - 1 or call.params["is_causal"]:
        return None
    query, *mask = call.inputs[0], *call.inputs[3:]
    rows = (m.rank - 2 if m.rank > 1 and m.shape[-2] != 1 else None for m in mask)
    return (query.rank - 2, None, None, *rows)


def _slides(call: OpCall, dim: int) -> bool:
    """Return whether a window slides along `dim`, and meets the image wherever it is."""
    window = call.windows[dim]
    outputs = call.out.shape[dim]
    if window is None or not outputs:
        return False
    return window.low < window.reach and window.bounds((outputs - 1, outputs))[0] < window.size


def _reshape(call: OpCall, dim: int) -> Dims | None:
    """Return a dimension that is neither merged nor split: as many elements stand before it."""
    (x, *like), out = call.inputs, call.out
    before = prod(d or 0 for d in out.shape[:dim])
    for at, size in enumerate(x.shape):
        if size == out.shape[dim] and prod(d or 0 for d in x.shape[:at]) == before:
            return (at, *(None for _ in like))
    return None


def _slice(call: OpCall, dim: int) -> Dims | None:
    """Return a dimension that is taken whole and in order."""
    size = call.inputs[0].shape[dim]
    assert size is not None
    bounds = (call.params[n][dim] for n in ("starts", "stops", "steps"))
    return (dim,) if range(size)[python_slice(*bounds)] == range(size) else None


def _gather(call: OpCall, dim: int) -> Dims | None:
    """Return dimensions of the indices, and those of x but the one that is indexed."""
    x, indices = call.inputs
    axis = call.params["axis"] % x.rank
    if dim < axis:
        return (dim, None)
    within = dim - axis
    return (None, within) if within < indices.rank else (within - indices.rank + axis + 1, None)


def _axis(call: OpCall) -> int:
    return call.params["axis"] % call.out.rank


def _when(holds: bool, *dims: int | None) -> Dims | None:
    return dims if holds else None


Rule = Callable[[OpCall, int], Dims | None]
RULES: dict[str, Rule] = {
    "matmul": _matmul,
    "attention": _attention,
    "reshape": _reshape,
    "slice": _slice,
    "gather": _gather,
    "transpose": lambda call, dim: (call.params["permutation"][dim],),
    "pad": lambda call, dim: _when(call.params["low"][dim] == call.params["high"][dim] == 0, dim),
    # Without `like`, which only serves dynamic sizes.
    "broadcast_to": lambda call, dim: _when(
        len(call.inputs) == 1, _aligned(call.inputs[0], call.out, dim)
    ),
    **dict.fromkeys(
        ("softmax", "log_softmax", "concat"),
        lambda call, dim: _when(dim != _axis(call), *(dim for _ in call.inputs)),
    ),
    # The dimensions before those that are normalized.
    **dict.fromkeys(
        ("layernorm", "rmsnorm"),
        lambda call, dim: _when(dim < _axis(call), dim, *(None for _ in call.inputs[1:])),
    ),
    "batchnorm": lambda call, dim: (
        dim,
        *(0 if dim == _axis(call) else None for _ in call.inputs[1:]),
    ),
    # Images, and rows or columns of them.
    "conv2d": lambda call, dim: _when(dim == 0 or _slides(call, dim), dim, None),
    **dict.fromkeys(
        ("max_pool2d", "avg_pool2d"),
        lambda call, dim: _when(dim not in _sides(call) or _slides(call, dim), dim),
    ),
    "resize": lambda call, dim: _when(dim not in _sides(call), dim),
}


def hidden_bytes(call: OpCall) -> int:
    """Return the bytes that an op keeps for itself while it runs: the scores of attention."""
    if call.definition.name != "attention":
        return 0
    length = call.inputs[1].shape[-2]
    assert length is not None
    return call.out.with_shape((*call.out.shape[:-1], length)).nbytes


def cuts_a_product(call: OpCall, dim: int) -> bool:
    """Return whether the part is of a product's rows or columns, not of its batch (or images).

    Code generation may then tile it differently, so that the last bits of sums may differ.
    """
    if call.definition.anchor not in ("contraction", "attention"):
        return False
    return dim > 0 if call.definition.has(Trait.WINDOW) else dim >= call.out.rank - 2
