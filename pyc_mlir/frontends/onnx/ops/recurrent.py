"""LSTM, GRU and RNN, unrolled over the steps of a static length.

The products of all inputs with the weights are one matmul before the steps. Unrolled, because the
planner of memory and the fusion see every step; a loop would hide them. Lengths above `_MAX_STEPS`
are refused.

x: [length, batch, input]; weights W: [directions, gates * hidden, input], R: [directions,
gates * hidden, hidden]; bias B: [directions, 2 * gates * hidden]; with layout=1 x and the results
begin with the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import chain, expand_to, swap_last, take
from pyc_mlir.frontends.onnx.ops.node import OnnxNode, node

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
    """The attributes of a recurrent layer."""

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
    """Return the functions of one direction."""
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
