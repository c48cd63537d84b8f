"""Normalizations in the form that inference uses, steps of optimizers, and LSTM, GRU and RNN.

Recurrent layers are unrolled over the steps of a static length: the planner of memory and the
fusion see every step, which a loop would hide. The products of all inputs with the weights are one
matmul before the steps. Lengths above `_MAX_STEPS` are refused.

x: [length, batch, input]; weights W: [directions, gates * hidden, input], R: [directions,
gates * hidden, hidden]; bias B: [directions, 2 * gates * hidden]; with layout=1 x and the results
begin with the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.types import DTYPES, I64, accumulator, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import (
    chain,
    expand_to,
    reshape_to,
    split,
    swap_last,
    take,
)
from pyc_mlir.frontends.onnx.ops.node import OnnxNode, node

# Each neighbour is an addition in the program.
_MAX_NEIGHBOURS = 1024


@node("BatchNormalization")
def batch_norm(
    b: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, *,
    epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0,
) -> Any:  # fmt: skip
    """pyc.batchnorm over dimension 1; in training by the batch's own mean and variance.

    Training also gives the running statistics. Ioffe and Szegedy, 2015.
    """
    norm = partial(b.batchnorm, axis=1, epsilon=epsilon)
    dtype, rank = b.type_of(x).dtype, b.type_of(x).rank
    if not training_mode:
        vectors = scale, bias, mean, variance
        same = all(b.type_of(v).dtype == dtype for v in vectors)
        return norm(x, *vectors) if same else accumulated(b, x, norm, *vectors)
    wide, axes = accumulator(dtype), tuple(i for i in range(rank) if i != 1)
    x = b.convert(x, wide)
    own = b.reduce_mean(x, axes=axes)
    centered = b.sub(x, b.align(own, 1, rank))
    spread = b.reduce_mean(b.mul(centered, centered), axes=axes)

    def moved(old: Any, new: Any) -> Any:
        return b.add(b.mul(old, momentum), b.mul(new, 1 - momentum))

    running = [accumulated(b, old, moved, new) for old, new in ((mean, own), (variance, spread))]
    vectors = [b.convert(v, wide) for v in (scale, bias)]
    return b.convert(norm(x, *vectors, own, spread), dtype), *running


def normalized(
    b: Any, x: Any, axes: Sequence[int], epsilon: float, *,
    center: bool = True, stash_type: int = 1,
) -> tuple[Any, ...]:  # fmt: skip
    """(x - mean) / sqrt(var + epsilon) over `axes` in at least f32, with the mean and the inverse.

    Without `center` the mean is taken as 0 and not returned. stash_type: that of the statistics,
    f32 by default.
    """
    axes, dtype = tuple(axes), b.type_of(x).dtype
    narrow = is_float(dtype) and dtype.itemsize < 4 and stash_type == 1
    value = b.convert(x, DTYPES["f32"] if narrow else dtype)
    mean = b.reduce_mean(value, axes=axes, keepdims=True) if center else None
    centered = b.sub(value, mean) if center else value
    variance = b.reduce_mean(b.mul(centered, centered), axes=axes, keepdims=True)
    inverse = b.rsqrt(b.add(variance, epsilon))
    return b.convert(b.mul(centered, inverse), dtype), mean, inverse


@node("LayerNormalization")
def layer_norm(
    n: OnnxNode, x: Any, scale: Any, bias: Any = None, *,
    axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1,
) -> Any:  # fmt: skip
    """pyc.layernorm; as a composition where the statistics are wanted or parameters broadcast."""
    b, rank = n.b, n.b.type_of(x).rank
    axis %= rank
    shape = b.type_of(x).shape[axis:]
    plain = not (n.wants(1) or n.wants(2)) and bias is not None
    if plain and all(b.type_of(v).shape == shape for v in (scale, bias)):
        return b.layernorm(x, scale, bias, axis=axis, epsilon=epsilon)
    out, mean, inverse = normalized(b, x, range(axis, rank), epsilon, stash_type=stash_type)
    out = b.mul(out, scale)
    return out if bias is None else b.add(out, bias), mean, inverse


@node("RMSNormalization")
def rms_norm(
    b: Any, x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    """pyc.rmsnorm; as a composition where the scale broadcasts."""
    rank = b.type_of(x).rank
    axis %= rank
    if b.type_of(scale).shape == b.type_of(x).shape[axis:]:
        return b.rmsnorm(x, scale, axis=axis, epsilon=epsilon)
    over = range(axis, rank)
    out, _, _ = normalized(b, x, over, epsilon, center=False, stash_type=stash_type)
    return b.mul(out, scale)


def _channels(b: Any, x: Any) -> int | None:
    """Return the number of channels. Raises PycError (BAD_MODEL) for x without any."""
    shape = b.type_of(x).shape
    if len(shape) < 2:
        raise PycError(
            ReasonCode.BAD_MODEL, f"`X`: expected [batch, channels, ...], got rank {len(shape)}"
        )
    return shape[1]


@node("InstanceNormalization")
def instance_norm(b: Any, x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5) -> Any:
    """Normalize each channel of each sample by itself, then scale and bias by channel."""
    _channels(b, x)
    out, _, _ = normalized(b, x, range(2, b.type_of(x).rank), epsilon)
    return _by_channel(b, out, scale, bias)


@node("GroupNormalization")
def group_norm(
    b: Any, x: Any, scale: Any, bias: Any, *,
    num_groups: int, epsilon: float = 1e-5, stash_type: int = 1,
) -> Any:  # fmt: skip
    """Normalize each group of channels of each sample by itself. Wu and He, 2018.

    Scale and bias have an entry for each channel (before opset 21 the op was deprecated).
    """
    channels = _channels(b, x)
    if channels is None or num_groups < 1 or channels % num_groups:
        raise unsupported(f"{channels} channels in {num_groups} groups: expected a static multiple")
    grouped = split(b, x, 1, (num_groups, channels // num_groups))
    axes = range(2, b.type_of(grouped).rank)
    out, _, _ = normalized(b, grouped, axes, epsilon, stash_type=stash_type)
    return _by_channel(b, reshape_to(b, out, b.dims(x)), scale, bias)


def _by_channel(b: Any, x: Any, scale: Any, bias: Any) -> Any:
    """x * scale + bias, both varying along dimension 1."""
    scale, bias = (b.align(v, 1, b.type_of(x).rank) for v in (scale, bias))
    return b.add(b.mul(x, scale), bias)


@node("LpNormalization")
def lp_norm(b: Any, x: Any, *, axis: int = -1, p: int = 2) -> Any:
    """out = x / |x|_p along `axis`, p = 1 or 2; 0 where the norm is 0."""
    axes = (axis % b.type_of(x).rank,)

    def formula(x: Any) -> Any:
        terms = b.abs(x) if p == 1 else b.mul(x, x)
        total = b.reduce_sum(terms, axes=axes, keepdims=True)
        norm = total if p == 1 else b.sqrt(total)
        empty = b.eq(norm, 0)
        return b.div(x, b.select(empty, 1, norm))

    return accumulated(b, x, formula)


@node("LRN")
def local_response_norm(
    b: Any, x: Any, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Any:
    """out = x / (bias + alpha/size * sum of x^2 over `size` neighbouring channels)^beta."""
    rank, channels = b.type_of(x).rank, _channels(b, x)
    if channels is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    if not 0 < size <= _MAX_NEIGHBOURS:
        raise unsupported(f"size {size}: expected 1 to {_MAX_NEIGHBOURS}")
    low, high = (
        tuple(pad if i == 1 else 0 for i in range(rank)) for pad in ((size - 1) // 2, size // 2)
    )

    def formula(x: Any) -> Any:
        padded = b.pad(b.mul(x, x), low=low, high=high)
        total = take(b, padded, 1, 0, channels)
        for offset in range(1, size):
            total = b.add(total, take(b, padded, 1, offset, offset + channels))
        base = b.add(b.mul(total, alpha / size), bias)
        return b.mul(x, b.pow(base, -beta))

    return accumulated(b, x, formula)


# Steps of optimizers, of ONNX's training preview: new weights and states from gradients. The inputs
# are the rate R, the number of steps T, then weights, gradients and states, several of each.


def _optimizer(name: str, kinds: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function of one weight: (b, x, gradient, states, rate, steps, attributes).

    The gradient of the weight's norm is in its gradient; it returns the new weight and states.
    """

    def enter(step: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
        def handler(b: Any, rate: Any, steps: Any, *tensors: Any, **given: Any) -> tuple[Any, ...]:
            norm, count = given.pop("norm_coefficient"), len(tensors) // kinds
            if len(tensors) % kinds or not count:
                expected = f"expected {kinds} tensors for each weight, got {len(tensors)}"
                raise PycError(ReasonCode.BAD_MODEL, expected)
            results = []
            for x, gradient, *states in (tensors[i::count] for i in range(count)):
                gradient = b.add(b.mul(x, norm), gradient)
                own = b.convert(rate, b.type_of(x).dtype)
                results.append(step(b, x, gradient, states, own, steps, **given))
            return tuple(r for kind in zip(*results, strict=True) for r in kind)

        norm = Parameter("norm_coefficient", Parameter.KEYWORD_ONLY, default=0.0)
        attributes = [p for p in signature(step).parameters.values() if p.kind is p.KEYWORD_ONLY]
        inputs = list(signature(handler).parameters.values())[:-1]
        handler.__signature__ = Signature([*inputs, *attributes, norm])  # type: ignore[attr-defined]
        handler.__doc__ = step.__doc__
        return node(f"ai.onnx.preview.training.{name}")(handler)

    return enter


@_optimizer("Momentum", 3)
def momentum_step(
    b: Any, x: Any, gradient: Any, states: Sequence[Any], rate: Any, steps: Any, *,
    alpha: float, beta: float, mode: str,
) -> tuple[Any, ...]:  # fmt: skip
    """v' = alpha v + beta g; x' = x - R v', or x - R (g + alpha v') after Nesterov."""
    (v,) = states
    share = b.select(b.gt(steps, 0), b.scalar(beta, x), b.scalar(1.0, x))
    new = b.add(b.mul(alpha, v), b.mul(share, gradient))
    direction = b.add(gradient, b.mul(alpha, new)) if mode == "nesterov" else new
    return b.sub(x, b.mul(rate, direction)), new


@_optimizer("Adagrad", 3)
def adagrad_step(
    b: Any, x: Any, gradient: Any, states: Sequence[Any], rate: Any, steps: Any, *,
    decay_factor: float = 0.0, epsilon: float = 0.0,
) -> tuple[Any, ...]:  # fmt: skip
    """h' = h + g^2; x' = x - R / (1 + T decay) * g / (sqrt(h') + epsilon). Duchi et al., 2011."""
    decay = b.mul(b.cast(steps, dtype=b.type_of(x).dtype), decay_factor)
    new = b.add(states[0], b.mul(gradient, gradient))
    step = b.mul(b.div(rate, b.add(1, decay)), gradient)
    return b.sub(x, b.div(step, b.add(b.sqrt(new), epsilon))), new


@_optimizer("Adam", 4)
def adam_step(
    b: Any, x: Any, gradient: Any, states: Sequence[Any], rate: Any, steps: Any, *,
    alpha: float = 0.9, beta: float = 0.999, epsilon: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Any, ...]:  # fmt: skip
    """Keep running means of gradients and their squares, without bias. Kingma and Ba, 2015."""
    v, h = states
    new_v = b.add(b.mul(alpha, v), b.mul(1 - alpha, gradient))
    new_h = b.add(b.mul(beta, h), b.mul(1 - beta, b.mul(gradient, gradient)))
    root, made = b.add(b.sqrt(new_h), epsilon), b.cast(steps, dtype=b.type_of(x).dtype)
    first, second = (b.sub(1, b.pow(s, made)) for s in (alpha, beta))
    unbiased = b.div(b.mul(rate, b.sqrt(second)), first)
    own = b.select(b.gt(steps, 0), unbiased, rate)
    out = b.sub(x, b.div(b.mul(own, new_v), root))
    return b.mul(1 - norm_coefficient_post, out), new_v, new_h


_MAX_STEPS = 256
_ACTIVATIONS = ("sigmoid", "tanh", "relu")
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


@dataclass(frozen=True)
class _Form:
    activations: Sequence[bytes] = ()
    # Of functions that are refused.
    activation_alpha: Sequence[float] = ()
    activation_beta: Sequence[float] = ()
    clip: float = 0.0
    direction: str = "forward"
    hidden_size: int = 0
    input_forget: int = 0
    layout: int = 0
    linear_before_reset: int = 0


@dataclass(frozen=True, eq=False)
class _Direction:
    """One direction of a layer: the inputs of both, its own activations."""

    b: Any
    cell: "_Cell"
    form: _Form
    number: int
    hidden: int
    x: Any
    weights: Any
    states: Any
    bias: Any
    peepholes: Any
    activations: Sequence[Callable[[Any], Any]]

    def part(self, x: Any, place: int) -> Any:
        """Return the columns of one gate of an input [directions, columns]."""
        return self.gates(take(self.b, x, 0, self.number, self.number + 1), place)

    def gates(self, x: Any, first: int, count: int = 1) -> Any:
        """Return the columns of gates."""
        return take(self.b, x, 1, first * self.hidden, (first + count) * self.hidden)

    def matrix(self, x: Any) -> Any:
        """Return W or R of this direction, transposed: [columns, gates * hidden]."""
        one = take(self.b, x, 0, self.number, self.number + 1)
        return swap_last(self.b, self.b.squeeze(one, 0))

    @cached_property
    def recurrent(self) -> Any:
        """R of this direction."""
        return self.matrix(self.states)

    @cached_property
    def peeps(self) -> list[Any]:
        """The peepholes of a LSTM; none without."""
        return [] if self.peepholes is None else [self.part(self.peepholes, i) for i in range(3)]

    @cached_property
    def split(self) -> tuple[Any, Any, Any]:
        """R of a GRU's gates and of its new state, and the bias of that."""
        update, last = self.gates(self.recurrent, 0, 2), self.gates(self.recurrent, 2)
        return update, last, None if self.bias is None else self.part(self.bias, 5)

    def clipped(self, x: Any) -> Any:
        """x within [-clip, clip]."""
        return self.b.clip(x, -self.form.clip, self.form.clip) if self.form.clip else x

    def products(self) -> Any:
        """Return the inputs' products and bias, the states' too unless a function lies between."""
        b, gates = self.b, self.cell.gates
        out = b.matmul(self.x, self.matrix(self.weights))
        if self.bias is None:
            return out
        parts = []
        for gate in range(gates):
            own = self.part(self.bias, gate)
            if gate != self.cell.apart:
                own = b.add(own, self.part(self.bias, gates + gate))
            parts.append(own)
        return b.add(out, chain(b, parts, 1))


def _lstm(d: _Direction, products: Any, h: Any, c: Any) -> Sequence[Any]:
    """i, o, f = s(...), c' = f c + i tanh(...), h' = o tanh(c'). Hochreiter, Schmidhuber, 1997."""
    b, (sigmoid, inner, outer) = d.b, d.activations
    gates = b.add(products, b.matmul(h, d.recurrent))
    i, o, f, g = (d.gates(gates, k) for k in range(4))
    if d.peeps:
        i, f = b.add(i, b.mul(d.peeps[0], c)), b.add(f, b.mul(d.peeps[2], c))
    i = sigmoid(d.clipped(i))
    f = b.sub(1, i) if d.form.input_forget else sigmoid(d.clipped(f))
    new = b.add(b.mul(f, c), b.mul(i, inner(d.clipped(g))))
    o = b.add(o, b.mul(d.peeps[1], new)) if d.peeps else o
    return b.mul(sigmoid(d.clipped(o)), outer(new)), new


def _gru(d: _Direction, products: Any, h: Any) -> Sequence[Any]:
    """z, r = s(...), g = tanh(...), h' = (1 - z) g + z h. Cho et al., 2014."""
    b, (sigmoid, tanh), (update, last, bias) = d.b, d.activations, d.split

    def product(x: Any) -> Any:
        out = b.matmul(x, last)
        return out if bias is None else b.add(out, bias)

    gates = b.add(d.gates(products, 0, 2), b.matmul(h, update))
    z, r = (sigmoid(d.clipped(d.gates(gates, k))) for k in range(2))
    past = b.mul(r, product(h)) if d.form.linear_before_reset else product(b.mul(r, h))
    g = tanh(d.clipped(b.add(d.gates(products, 2), past)))
    return (b.add(b.mul(b.sub(1, z), g), b.mul(z, h)),)


def _rnn(d: _Direction, products: Any, h: Any) -> Sequence[Any]:
    """h' = f(W x + R h + b). Elman, 1990."""
    b, (activation,) = d.b, d.activations
    return (activation(d.clipped(b.add(products, b.matmul(h, d.recurrent)))),)


@dataclass(frozen=True)
class _Cell:
    """A cell: its gates, the functions that it has if a node names none, and a step.

    step: from the input's products and the states (h, or h and c) to the new states. apart: a gate
    with a function between the two products.
    """

    gates: int
    functions: tuple[str, ...]
    step: Callable[..., Sequence[Any]]
    apart: int = -1


_CELLS = {
    "LSTM": _Cell(4, ("Sigmoid", "Tanh", "Tanh"), _lstm),
    "GRU": _Cell(3, ("Sigmoid", "Tanh"), _gru, apart=2),
    "RNN": _Cell(1, ("Tanh",), _rnn),
}


@node(*_CELLS)
def recurrent(
    n: OnnxNode, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, h: Any = None,
    c: Any = None, peepholes: Any = None, *,
    form: _Form,
) -> Any:  # fmt: skip
    """Build Y of all steps [length, directions, batch, hidden], and last states [directions, ...].

    h, c: the first states, [directions, batch, hidden] or None for zeros.
    """
    b, batch_first, given = n.b, bool(form.layout), [h, c] if n.op == "LSTM" else [h]
    if batch_first:
        x = b.transpose(x, permutation=(1, 0, 2))
        given = [v if v is None else b.transpose(v, permutation=(1, 0, 2)) for v in given]
    length = b.type_of(x).shape[0]
    if length is None or not 0 < length <= _MAX_STEPS:
        raise unsupported(f"{length or 'a dynamic number of'} steps: expected 1 to {_MAX_STEPS}")
    rows = b.type_of(r).shape[2]
    if rows is None or (form.hidden_size or rows) != rows:
        raise PycError(ReasonCode.BAD_MODEL, f"`hidden_size`: expected {rows}, that of R")
    if form.direction not in _DIRECTIONS:
        expected = f"`direction`: expected one of {', '.join(_DIRECTIONS)}"
        raise PycError(ReasonCode.BAD_MODEL, expected)
    cell, made = _CELLS[n.op], []
    names = [v.decode() for v in form.activations] or list(cell.functions) * 2
    for number, backwards in enumerate(_DIRECTIONS[form.direction]):
        count = len(cell.functions)
        chosen = [v.lower() for v in names[number * count : (number + 1) * count]]
        if len(chosen) < count or not set(chosen) <= set(_ACTIVATIONS):
            raise unsupported(f"activations {names}: expected Sigmoid, Tanh or Relu")
        functions = [getattr(b, v) for v in chosen]
        d = _Direction(b, cell, form, number, rows, x, w, r, bias, peepholes, functions)
        made.append(_run(d, lengths, given, range(length)[:: -1 if backwards else 1]))
    axis, out = 1 if batch_first else 0, [None]
    if n.wants(0):
        # Each step is [1, batch, hidden] or [batch, 1, hidden].
        ways = [chain(b, [b.expand_dims(h, axis) for h in found], axis) for found, _ in made]
        out[0] = chain(b, [b.expand_dims(w, axis + 1) for w in ways], axis + 1)
    last = zip(*(states for _, states in made), strict=True)
    return *out, *(chain(b, [b.expand_dims(s, axis) for s in kind], axis) for kind in last)


def _run(
    d: _Direction, lengths: Any, given: Sequence[Any], order: Sequence[int]
) -> tuple[list[Any], Sequence[Any]]:
    """Return the state h after each step, by place, and the last states."""
    b, products, states = d.b, d.products(), []
    for state in given:
        if state is None:
            zero = b.constant(np.zeros((), b.type_of(d.x).dtype))
            states.append(expand_to(b, zero, (b.dims(d.x)[1], d.hidden)))
        else:
            states.append(b.squeeze(take(b, state, 0, d.number, d.number + 1), 0))
    if lengths is not None:
        lengths = b.reshape(b.convert(lengths, I64), shape=(-1, 1))
    found: dict[int, Any] = {}
    for place in order:
        own = b.squeeze(take(b, products, 0, place, place + 1), 0)
        new = list(d.cell.step(d, own, *states))
        found[place] = new[0]
        if lengths is not None:
            runs = b.gt(lengths, place)
            found[place] = b.select(runs, new[0], 0)
            new = [b.select(runs, s, old) for s, old in zip(new, states, strict=True)]
        states = new
    return [found[i] for i in sorted(found)], states
