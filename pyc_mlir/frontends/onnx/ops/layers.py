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
from functools import partial
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
_PREVIEW = "ai.onnx.preview.training"


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


@node("InstanceNormalization")
def instance_norm(b: Any, x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5) -> Any:
    """Normalize each channel of each sample by itself, then scale and bias by channel."""
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
    channels = b.type_of(x).shape[1]
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
    rank, channels = b.type_of(x).rank, b.type_of(x).shape[1]
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


def _tensors(tensors: Sequence[Any], kinds: int) -> list[tuple[Any, ...]]:
    """Return for each weight itself, its gradient and its states. Raises PycError (BAD_MODEL)."""
    count = len(tensors) // kinds
    if len(tensors) % kinds or not count:
        expected = f"expected {kinds} tensors for each weight, got {len(tensors)}"
        raise PycError(ReasonCode.BAD_MODEL, expected)
    return [tuple(tensors[k * count + i] for k in range(kinds)) for i in range(count)]


def _ordered(results: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return all new weights, then all first states, ..."""
    return tuple(r for kind in zip(*results, strict=True) for r in kind)


def _regular(b: Any, x: Any, gradient: Any, coefficient: float) -> Any:
    return b.add(b.mul(x, coefficient), gradient)


def _started(b: Any, steps: Any) -> Any:
    return b.gt(steps, 0)


@node(f"{_PREVIEW}.Momentum")
def momentum_step(
    b: Any, rate: Any, steps: Any, *tensors: Any, alpha: float, beta: float, mode: str,
    norm_coefficient: float = 0.0,
) -> Any:  # fmt: skip
    """v' = alpha v + beta g; x' = x - R v', or x - R (g + alpha v') after Nesterov."""
    results = []
    for x, gradient, v in _tensors(tensors, 3):
        g = _regular(b, x, gradient, norm_coefficient)
        one, first, keep = (b.scalar(s, x) for s in (1.0, beta, alpha))
        new = b.add(b.mul(keep, v), b.mul(b.select(_started(b, steps), first, one), g))
        direction = b.add(g, b.mul(keep, new)) if mode == "nesterov" else new
        results.append((b.sub(x, b.mul(b.convert(rate, b.type_of(x).dtype), direction)), new))
    return _ordered(results)


@node(f"{_PREVIEW}.Adagrad")
def adagrad_step(
    b: Any, rate: Any, steps: Any, *tensors: Any, decay_factor: float = 0.0, epsilon: float = 0.0,
    norm_coefficient: float = 0.0,
) -> Any:  # fmt: skip
    """h' = h + g^2; x' = x - R / (1 + T decay) * g / (sqrt(h') + epsilon). Duchi et al., 2011."""
    results = []
    for x, gradient, h in _tensors(tensors, 3):
        dtype = b.type_of(x).dtype
        g = _regular(b, x, gradient, norm_coefficient)
        decay = b.mul(b.cast(steps, dtype=dtype), decay_factor)
        own = b.div(b.convert(rate, dtype), b.add(1, decay))
        new = b.add(h, b.mul(g, g))
        root = b.add(b.sqrt(new), epsilon)
        results.append((b.sub(x, b.div(b.mul(own, g), root)), new))
    return _ordered(results)


@node(f"{_PREVIEW}.Adam")
def adam_step(
    b: Any, rate: Any, steps: Any, *tensors: Any, alpha: float = 0.9, beta: float = 0.999,
    epsilon: float = 0.0, norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> Any:  # fmt: skip
    """Keep running means of gradients and their squares, without bias. Kingma and Ba, 2015."""
    results = []
    for x, gradient, v, h in _tensors(tensors, 4):
        dtype = b.type_of(x).dtype
        g = _regular(b, x, gradient, norm_coefficient)
        one = b.scalar(1, x)
        new_v = b.add(b.mul(alpha, v), b.mul(1 - alpha, g))
        squared = b.mul(1 - beta, b.mul(g, g))
        new_h = b.add(b.mul(beta, h), squared)
        root = b.add(b.sqrt(new_h), epsilon)
        made = b.cast(steps, dtype=dtype)
        grown = [b.sub(one, b.pow(s, made)) for s in (alpha, beta)]
        plain = b.convert(rate, dtype)
        unbiased = b.div(b.mul(plain, b.sqrt(grown[1])), grown[0])
        own = b.select(_started(b, steps), unbiased, plain)
        out = b.sub(x, b.div(b.mul(own, new_v), root))
        results.append((b.mul(1 - norm_coefficient_post, out), new_v, new_h))
    return _ordered(results)


_MAX_STEPS = 256
_ACTIVATIONS = ("sigmoid", "tanh", "relu")
# Of each op its gates, and the functions that it has if it names none.
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}

# From the input's products and the states (h, or h and c) at a step to the new states.
Step = Callable[[Any, Sequence[Any]], Sequence[Any]]


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
    op: str
    form: _Form
    number: int
    hidden: int
    x: Any
    weights: Any
    recurrent: Any
    bias: Any
    peepholes: Any
    activations: Sequence[Callable[[Any], Any]]

    def part(self, x: Any, width: int, place: int) -> Any:
        """Return columns [place * width, (place + 1) * width) of an input [directions, columns]."""
        rows = take(self.b, x, 0, self.number, self.number + 1)
        return take(self.b, rows, 1, place * width, (place + 1) * width)

    def gate(self, x: Any, place: int) -> Any:
        """Return the columns of one gate."""
        return take(self.b, x, 1, place * self.hidden, (place + 1) * self.hidden)

    def matrix(self, x: Any) -> Any:
        """Return W or R of this direction, transposed: [columns, gates * hidden]."""
        one = take(self.b, x, 0, self.number, self.number + 1)
        return swap_last(self.b, self.b.squeeze(one, 0))

    def clipped(self, x: Any) -> Any:
        """x within [-clip, clip]."""
        clip = self.form.clip
        return self.b.clip(x, -clip, clip) if clip else x

    def one(self) -> Any:
        """Return 1 in the element type of x."""
        return self.b.scalar(1, self.x)

    def products(self) -> Any:
        """Return the inputs' products and bias, the states' too unless a function lies between."""
        b, gates = self.b, _GATES[self.op]
        out = b.matmul(self.x, self.matrix(self.weights))
        if self.bias is None:
            return out
        parts = []
        for gate in range(gates):
            own = self.part(self.bias, self.hidden, gate)
            if self.op != "GRU" or gate != 2:
                own = b.add(own, self.part(self.bias, self.hidden, gates + gate))
            parts.append(own)
        return b.add(out, chain(b, parts, 1))


def _lstm(d: _Direction) -> Step:
    """i, o, f = s(...), c' = f c + i tanh(...), h' = o tanh(c'). Hochreiter, Schmidhuber, 1997."""
    b, recurrent, (sigmoid, inner, outer) = d.b, d.matrix(d.recurrent), d.activations
    peeps = None if d.peepholes is None else [d.part(d.peepholes, d.hidden, i) for i in range(3)]

    def step(products: Any, states: Sequence[Any]) -> Sequence[Any]:
        h, c = states
        gates = b.add(products, b.matmul(h, recurrent))
        i, o, f, g = (d.gate(gates, k) for k in range(4))
        if peeps:
            i = b.add(i, b.mul(peeps[0], c))
            f = b.add(f, b.mul(peeps[2], c))
        i = sigmoid(d.clipped(i))
        f = b.sub(d.one(), i) if d.form.input_forget else sigmoid(d.clipped(f))
        new = b.add(b.mul(f, c), b.mul(i, inner(d.clipped(g))))
        o = b.add(o, b.mul(peeps[1], new)) if peeps else o
        return b.mul(sigmoid(d.clipped(o)), outer(new)), new

    return step


def _gru(d: _Direction) -> Step:
    """z, r = s(...), g = tanh(...), h' = (1 - z) g + z h. Cho et al., 2014."""
    b, width, (sigmoid, tanh) = d.b, d.hidden, d.activations
    recurrent = d.matrix(d.recurrent)
    update = take(b, recurrent, 1, 0, 2 * width)
    last = take(b, recurrent, 1, 2 * width, 3 * width)
    bias = None if d.bias is None else d.part(d.bias, width, 5)

    def with_bias(x: Any) -> Any:
        return x if bias is None else b.add(x, bias)

    def step(products: Any, states: Sequence[Any]) -> Sequence[Any]:
        (h,) = states
        gates = b.add(take(b, products, 1, 0, 2 * width), b.matmul(h, update))
        z, r = (sigmoid(d.clipped(d.gate(gates, k))) for k in range(2))
        own = take(b, products, 1, 2 * width, 3 * width)
        if d.form.linear_before_reset:
            past = b.mul(r, with_bias(b.matmul(h, last)))
        else:
            past = with_bias(b.matmul(b.mul(r, h), last))
        g = tanh(d.clipped(b.add(own, past)))
        return (b.add(b.mul(b.sub(d.one(), z), g), b.mul(z, h)),)

    return step


def _rnn(d: _Direction) -> Step:
    """h' = f(W x + R h + b). Elman, 1990."""
    b, recurrent, (activation,) = d.b, d.matrix(d.recurrent), d.activations

    def step(products: Any, states: Sequence[Any]) -> Sequence[Any]:
        (h,) = states
        return (activation(d.clipped(b.add(products, b.matmul(h, recurrent)))),)

    return step


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


@node(*_STEPS)
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
    made = []
    for number, backwards in enumerate(_DIRECTIONS[form.direction]):
        functions = _activations(n, form.activations, number)
        d = _Direction(b, n.op, form, number, rows, x, w, r, bias, peepholes, functions)
        order = range(length)[:: -1 if backwards else 1]
        made.append(_run(d, _STEPS[n.op](d), lengths, given, order))
    return _results(n, made, batch_first)


def _run(
    d: _Direction, step: Step, lengths: Any, given: Sequence[Any], order: Sequence[int]
) -> tuple[list[Any], Sequence[Any]]:
    """Return the state h after each step, by place, and the last states."""
    b, products = d.b, d.products()
    batch, dtype = b.dims(d.x)[1], b.type_of(d.x).dtype
    states = []
    for state in given:
        if state is None:
            zero = b.constant(np.zeros((), dtype))
            states.append(expand_to(b, zero, (batch, d.hidden)))
        else:
            states.append(b.squeeze(take(b, state, 0, d.number, d.number + 1), 0))
    if lengths is not None:
        lengths = b.reshape(b.convert(lengths, I64), shape=(-1, 1))
    found: dict[int, Any] = {}
    for place in order:
        new = list(step(b.squeeze(take(b, products, 0, place, place + 1), 0), states))
        found[place] = new[0]
        if lengths is not None:
            runs = b.gt(lengths, place)
            found[place] = b.select(runs, new[0], 0)
            new = [b.select(runs, s, old) for s, old in zip(new, states, strict=True)]
        states = new
    return [found[i] for i in sorted(found)], states


def _activations(n: OnnxNode, given: Sequence[bytes], number: int) -> list[Callable[[Any], Any]]:
    usual = _DEFAULTS[n.op]
    names = [v.decode() for v in given] or list(usual) * 2
    chosen = [v.lower() for v in names[number * len(usual) : (number + 1) * len(usual)]]
    if len(chosen) < len(usual) or not set(chosen) <= set(_ACTIVATIONS):
        raise unsupported(f"activations {names}: expected Sigmoid, Tanh or Relu")
    return [getattr(n.b, v) for v in chosen]


def _results(
    n: OnnxNode, made: Sequence[tuple[list[Any], Sequence[Any]]], batch_first: bool
) -> tuple[Any, ...]:
    """Return Y and the last states of all directions; None for outputs that the node omits."""
    b, axis = n.b, 1 if batch_first else 0
    out: list[Any] = [None]
    if n.wants(0):
        # Each step is [1, batch, hidden] or [batch, 1, hidden].
        ways = [chain(b, [b.expand_dims(h, axis) for h in found], axis) for found, _ in made]
        out[0] = chain(b, [b.expand_dims(w, axis + 1) for w in ways], axis + 1)
    for place in range(len(made[0][1])):
        out.append(chain(b, [b.expand_dims(s[place], axis) for _, s in made], axis))
    return tuple(out)
