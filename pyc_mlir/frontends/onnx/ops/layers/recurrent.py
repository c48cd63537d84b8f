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
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import chain, expand_to, swap_last, take
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node

_MAX_STEPS = 256
_ACTIVATIONS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu"}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}

Activation = Callable[[Any], Any]
# From the input's products and the states (h, or h and c) at a step to the new states.
Step = Callable[[Any, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class _Direction:
    """Weights of one direction: R transposed, both biases by gate, and the activations."""

    n: OnnxNode
    number: int
    hidden: int
    activations: Sequence[Activation]

    def part(self, index: int, width: int, place: int) -> Any:
        """Return columns [place * width, (place + 1) * width) of an input [directions, columns]."""
        b = self.n.b
        rows = take(b, self.n.x(index), 0, self.number, self.number + 1)
        return take(b, rows, 1, place * width, (place + 1) * width)

    def gate(self, x: Any, place: int) -> Any:
        """Return the columns of one gate."""
        return take(self.n.b, x, 1, place * self.hidden, (place + 1) * self.hidden)

    def matrix(self, index: int) -> Any:
        """Return W or R of this direction, transposed: [columns, gates * hidden]."""
        b = self.n.b
        one = take(b, self.n.x(index), 0, self.number, self.number + 1)
        return swap_last(b, b.squeeze(one, 0))

    def clipped(self, x: Any) -> Any:
        """x within [-clip, clip]."""
        clip = self.n.attr("clip", 0.0)
        if not clip:
            return x
        return self.n.b.clip(x, self.n.number(-clip), self.n.number(clip))


@node("LSTM")
def lstm(n: OnnxNode) -> Any:
    """i, o, f = s(...), c' = f c + i tanh(...), h' = o tanh(c'). Hochreiter, Schmidhuber, 1997."""
    states = [n.x(5) if n.has(5) else None, n.x(6) if n.has(6) else None]
    return _recurrent(n, _lstm_step, states)


def _lstm_step(d: _Direction) -> Step:
    b, n = d.n.b, d.n
    recurrent = d.matrix(2)
    sigmoid, inner, outer = d.activations
    peepholes = [d.part(7, d.hidden, i) for i in range(3)] if n.has(7) else None
    coupled = bool(n.attr("input_forget", 0))

    def step(products: Any, states: Sequence[Any]) -> Sequence[Any]:
        h, c = states
        gates = b.add(products, b.matmul(h, recurrent))
        i, o, f, g = (d.gate(gates, k) for k in range(4))
        if peepholes:
            i = b.add(i, b.mul(peepholes[0], c))
            f = b.add(f, b.mul(peepholes[2], c))
        i = sigmoid(d.clipped(i))
        f = b.sub(n.number(1), i) if coupled else sigmoid(d.clipped(f))
        new = b.add(b.mul(f, c), b.mul(i, inner(d.clipped(g))))
        o = b.add(o, b.mul(peepholes[1], new)) if peepholes else o
        return b.mul(sigmoid(d.clipped(o)), outer(new)), new

    return step


@node("GRU")
def gru(n: OnnxNode) -> Any:
    """z, r = s(...), g = tanh(...), h' = (1 - z) g + z h. Cho et al., 2014."""
    return _recurrent(n, _gru_step, [n.x(5) if n.has(5) else None])


def _gru_step(d: _Direction) -> Step:
    b, n, width = d.n.b, d.n, d.hidden
    sigmoid, tanh = d.activations
    before = bool(n.attr("linear_before_reset", 0))
    recurrent = d.matrix(2)
    update = take(b, recurrent, 1, 0, 2 * width)
    last = take(b, recurrent, 1, 2 * width, 3 * width)
    bias = d.part(3, width, 5) if n.has(3) else None

    def with_bias(x: Any) -> Any:
        return x if bias is None else b.add(x, bias)

    def step(products: Any, states: Sequence[Any]) -> Sequence[Any]:
        (h,) = states
        gates = b.add(take(b, products, 1, 0, 2 * width), b.matmul(h, update))
        z, r = (sigmoid(d.clipped(d.gate(gates, k))) for k in range(2))
        own = take(b, products, 1, 2 * width, 3 * width)
        if before:
            past = b.mul(r, with_bias(b.matmul(h, last)))
        else:
            past = with_bias(b.matmul(b.mul(r, h), last))
        g = tanh(d.clipped(b.add(own, past)))
        return (b.add(b.mul(b.sub(n.number(1), z), g), b.mul(z, h)),)

    return step


@node("RNN")
def rnn(n: OnnxNode) -> Any:
    """h' = f(W x + R h + b). Elman, 1990."""
    return _recurrent(n, _rnn_step, [n.x(5) if n.has(5) else None])


def _rnn_step(d: _Direction) -> Step:
    b = d.n.b
    recurrent = d.matrix(2)
    (activation,) = d.activations

    def step(products: Any, states: Sequence[Any]) -> Sequence[Any]:
        (h,) = states
        return (activation(d.clipped(b.add(products, b.matmul(h, recurrent)))),)

    return step


def _recurrent(n: OnnxNode, step_of: Callable[[_Direction], Step], given: Sequence[Any]) -> Any:
    """Build Y of all steps [length, directions, batch, hidden], and last states [directions, ...].

    given: the first states, [directions, batch, hidden] or None for zeros.
    """
    b, batch_first = n.b, bool(n.attr("layout", 0))
    x = b.transpose(n.x(0), permutation=(1, 0, 2)) if batch_first else n.x(0)
    if batch_first:
        given = [v if v is None else b.transpose(v, permutation=(1, 0, 2)) for v in given]
    length = b.type_of(x).shape[0]
    if length is None or not 0 < length <= _MAX_STEPS:
        raise unsupported(f"{length or 'a dynamic number of'} steps: expected 1 to {_MAX_STEPS}")
    rows = n.type(2).shape[2]
    if rows is None or (n.attr("hidden_size") or rows) != rows:
        raise PycError(ReasonCode.BAD_MODEL, f"`hidden_size`: expected {rows}, that of R")
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    direction = n.attr("direction", "forward")
    if direction not in ways:
        raise PycError(ReasonCode.BAD_MODEL, f"`direction`: expected one of {', '.join(ways)}")
    made = []
    for number, backwards in enumerate(ways[direction]):
        d = _Direction(n, number, rows, _activations(n, number))
        made.append(_run(d, step_of(d), x, given, range(length)[:: -1 if backwards else 1]))
    return _results(n, made, batch_first)


def _run(
    d: _Direction, step: Step, x: Any, given: Sequence[Any], order: Sequence[int]
) -> tuple[list[Any], Sequence[Any]]:
    """Return the state h after each step, by place, and the last states."""
    b, n = d.n.b, d.n
    products = b.matmul(x, d.matrix(1))
    if n.has(3):
        products = b.add(products, _input_bias(d))
    batch = b.dims(x)[1]
    states = []
    for state in given:
        if state is None:
            zero = b.constant(np.zeros((), n.type().dtype))
            states.append(expand_to(b, zero, (batch, d.hidden)))
        else:
            states.append(b.squeeze(take(b, state, 0, d.number, d.number + 1), 0))
    lengths = b.reshape(b.convert(n.x(4), I64), shape=(-1, 1)) if n.has(4) else None
    found: dict[int, Any] = {}
    for place in order:
        new = list(step(b.squeeze(take(b, products, 0, place, place + 1), 0), states))
        found[place] = new[0]
        if lengths is not None:
            runs = b.compare(lengths, np.array(place, np.int64), predicate="gt")
            found[place] = b.select(runs, new[0], n.number(0))
            new = [b.select(runs, s, old) for s, old in zip(new, states, strict=True)]
        states = new
    return [found[i] for i in sorted(found)], states


def _input_bias(d: _Direction) -> Any:
    """Return the inputs' bias, plus the states' unless a function stands between them."""
    gates = _GATES[d.n.op]
    parts = []
    for gate in range(gates):
        own = d.part(3, d.hidden, gate)
        apart = d.n.op == "GRU" and gate == 2
        parts.append(own if apart else d.n.b.add(own, d.part(3, d.hidden, gates + gate)))
    return chain(d.n.b, parts, 1)


def _activations(n: OnnxNode, number: int) -> list[Activation]:
    """Return the functions of one direction."""
    usual = _DEFAULTS[n.op]
    names = [v.decode() for v in n.attr("activations", [])] or list(usual) * 2
    for name in ("activation_alpha", "activation_beta"):
        n.attr(name)  # Of functions that are refused below.
    chosen = [v.lower() for v in names[number * len(usual) : (number + 1) * len(usual)]]
    if len(chosen) < len(usual) or not set(chosen) <= set(_ACTIVATIONS):
        raise unsupported(f"activations {names}: expected Sigmoid, Tanh or Relu")
    return [partial(_apply, n.b, _ACTIVATIONS[v]) for v in chosen]


def _apply(b: Any, name: str, x: Any) -> Any:
    return getattr(b, name)(x)


def _results(
    n: OnnxNode, made: Sequence[tuple[list[Any], Sequence[Any]]], batch_first: bool
) -> tuple[Any, ...]:
    """Return Y and the last states of all directions; None for outputs that the node omits."""
    b = n.b
    out: list[Any] = [None]
    if n.wants(0):
        axis = 2 if batch_first else 1
        ways = [chain(b, [_apart(b, h, batch_first) for h in found], axis - 1) for found, _ in made]
        out[0] = chain(b, [b.expand_dims(w, axis) for w in ways], axis)
    for place in range(len(made[0][1])):
        axis = 1 if batch_first else 0
        out.append(chain(b, [b.expand_dims(s[place], axis) for _, s in made], axis))
    return tuple(out)


def _apart(b: Any, h: Any, batch_first: bool) -> Any:
    """h as one step of Y: [1, batch, hidden] or [batch, 1, hidden]."""
    return b.expand_dims(h, 1 if batch_first else 0)
