"""Programs and their mutants, for the engines that decide equivalence.

A mutant changes one node of a program. `differs` is the oracle: f64 on arguments of its own.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pyc_mlir import Tensor, nn, trace
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.pyc.equivalence.floats import run
from pyc_mlir.pipelines.pyc.equivalence.nodes import (
    VALUE,
    Graph,
    NotComparable,
    Program,
    TermNode,
    program,
)

_RNG = np.random.default_rng(3)


def takes(kind: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Annotate all arguments of a function."""

    def annotate(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__annotations__ = dict.fromkeys(inspect.signature(function).parameters, kind)
        return function

    return annotate


def _weights(*shape: int) -> np.ndarray:
    return (_RNG.normal(size=shape) / 2).astype(np.float32)


_Q, _K, _V, _UP, _DOWN, _SCALE, _FILTERS = (
    _weights(6, 6), _weights(6, 6), _weights(6, 6), _weights(6, 8), _weights(8, 6), _weights(6),
    _weights(3, 2, 2, 2),
)  # fmt: skip


@takes(Tensor["f32", 3, 4])
def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@takes(Tensor["f32", 3, 6])
def norm(x):
    mean = x.mean(-1, keepdims=True)
    square = (x * x).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(square - mean * mean + 1e-5) * _SCALE + 0.5


@takes(Tensor["f32", 4, 6])
def attention(x):
    q, k, v = x @ _Q, x @ _K, x @ _V
    scores = (q @ k.T) * np.float32(6**-0.5)
    scores = np.where(np.tri(4, dtype=bool), scores, -np.inf)
    return nn.softmax(scores) @ v + x


@takes(Tensor["f32", 3, 6])
def perceptron(x):
    up = x @ _UP
    inner = np.sqrt(2 / np.pi) * (up + 0.044715 * up * up * up)
    return np.maximum(0.5 * up * (1 + np.tanh(inner)), -0.1) @ _DOWN


@takes(Tensor["f32", 1, 2, 4, 4])
def images(x):
    y = nn.relu(nn.conv2d(x, _FILTERS, pads=(1, 0, 0, 1)))
    return nn.max_pool2d(y, kernel=(2, 2)).mean((2, 3))


@takes(Tensor["f32", 4, 6])
def moves(x):
    a, b = x[:, :3].T.reshape(1, 3, 4), x[:, 3:].T.reshape(1, 3, 4)
    return np.concatenate([a, b], 0) * 2.0 - np.roll(x, 1, 0).reshape(2, 3, 4)


@takes(Tensor["i8", 5])
def integers(x, y):
    return (x * 3 + y) // 4 - np.where(x < y, x, y ^ 5)


@takes(Tensor["f32", 3, 4])
def powers(x, y):
    r = np.sqrt(x * x + 2.25 * y * y + 1.0)
    return (x + y) ** 2 / r - np.log(r) + np.abs(x - y) * np.sin(x)


PROGRAMS: tuple[Callable[..., Any], ...] = (
    softmax, norm, attention, perceptron, images, moves, integers, powers,
)  # fmt: skip

# Ops of one type that a mutant confuses.
_KINDS = (
    ("add", "sub", "mul", "div", "maximum", "minimum"),
    ("exp", "log", "sqrt", "rsqrt", "tanh", "neg", "abs", "erf", "sin", "cos"),
    ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"),
)


def read(function: Callable[..., Any], graph: Graph) -> Program:
    """Return the program of a traced function."""
    module = trace(function)  # lives while its function is read
    with module.context:
        return graph.read(entry_function(module))


def mutants(given: Program, graph: Graph, count: int, seed: int) -> Iterator[Program]:
    """Yield so many mutants, each with one node changed."""
    rng = np.random.default_rng(seed)
    nodes = [n for n in given.nodes if n.name != VALUE]
    made = 0
    for _ in range(count * 40 * bool(nodes)):
        if made == count:
            return
        node = nodes[rng.integers(len(nodes))]
        try:
            other = _mutated(node, given, graph, rng)
            if other is None or other is node or other.type != node.type:
                continue
            out = _rebuilt(given, graph, {node: other})
        except (PycError, NotComparable, ZeroDivisionError):
            continue
        if out.output_types == given.output_types and out.outputs != given.outputs:
            made += 1
            yield out


def _mutated(
    node: TermNode, given: Program, graph: Graph, rng: np.random.Generator
) -> TermNode | None:
    if node.name == "constant":
        return _other_constant(node, graph, rng)
    way = rng.integers(5)
    operands, params = list(node.operands), dict(node.params)
    if way == 0:
        kind = next((k for k in _KINDS if node.name in k), None)
        name = None if kind is None else kind[rng.integers(len(kind))]
        return None if name is None else graph.node(OPS[name], operands, params)
    if way == 1 and len(operands) > 1:
        return graph.node(OPS[node.name], operands[::-1], params)
    if way == 2:
        like = [n for n in given.nodes if n.type == operands[0].type] if operands else []
        # Later nodes would make a cycle.
        before = list(given.nodes).index(node)
        like = [n for n in like if list(given.nodes).index(n) < before]
        if not like:
            return None
        operands[0] = like[rng.integers(len(like))]
        return graph.node(OPS[node.name], operands, params)
    if way == 3:
        same = [o for o in operands if o.type == node.type]
        return same[0] if same else None
    return _other_params(node, operands, params, graph, rng)


def _other_constant(node: TermNode, graph: Graph, rng: np.random.Generator) -> TermNode | None:
    value = np.array(node.params["value"])
    if not value.size:
        return None
    flat = value.reshape(-1)
    at = rng.integers(flat.size)
    if value.dtype == np.bool_:
        flat[at] = not flat[at]
    elif is_float(value.dtype):
        changed = {
            0: np.nextafter(flat[at], np.inf), 1: -flat[at], 2: flat[at] * 2, 3: flat[at] + 1,
            4: flat[at] * np.float32(1 + 1e-4),
        }  # fmt: skip
        flat[at] = changed[int(rng.integers(5))]
    else:
        flat[at] += 1
    return graph.node(OPS["constant"], (), {"value": flat.reshape(value.shape)})


def _other_params(
    node: TermNode, operands: list[TermNode], params: dict[str, Any], graph: Graph,
    rng: np.random.Generator,
) -> TermNode | None:  # fmt: skip
    names = [n for n, v in params.items() if isinstance(v, int | float | tuple | bool)]
    if not names:
        return None
    name = names[rng.integers(len(names))]
    value = params[name]
    if isinstance(value, bool):
        params[name] = not value
    elif isinstance(value, int):
        params[name] = value + int(rng.choice([-1, 1]))
    elif isinstance(value, float):
        params[name] = value * 1.0001
    elif len(value):
        changed = list(value)
        i, j = rng.integers(len(value), size=2)
        changed[i], changed[j] = changed[j], changed[i]
        if rng.random() < 0.5 and isinstance(changed[i], int):
            changed[i] += int(rng.choice([-1, 1]))
        params[name] = tuple(changed)
    return graph.node(OPS[node.name], operands, params)


def _rebuilt(given: Program, graph: Graph, changed: dict[TermNode, TermNode]) -> Program:
    made: dict[TermNode, TermNode] = {}
    for node in given.nodes:
        if node in changed:
            made[node] = changed[node]
        elif node.name == VALUE:
            made[node] = node
        else:
            made[node] = graph.node(OPS[node.name], [made[o] for o in node.operands], node.params)
    return program(given.inputs, [made[o] for o in given.outputs])


def differs(first: Program, second: Program, seed: int, tolerance: float) -> bool:
    """Return whether f64, or integers, tell two programs apart on arguments of many scales."""
    rng = np.random.default_rng([seed, 17])
    for scale in (1.0, 0.1, 3.0, 1.0):
        inputs = []
        for type_ in first.input_types:
            shape = [d or 0 for d in type_.shape]
            if is_float(type_.dtype):
                inputs.append((rng.normal(size=shape) * scale).astype(type_.dtype))
            else:
                info = np.iinfo(type_.dtype)
                drawn = rng.integers(info.min, info.max, shape, type_.dtype, endpoint=True)
                inputs.append(drawn)
        with np.errstate(all="ignore"):
            sides = [run(p, inputs, wide=True) for p in (first, second)]
        for a, b in zip(*sides, strict=True):
            if not is_float(a.dtype):
                if not np.array_equal(a, b):
                    return True
                continue
            both = np.isfinite(a) & np.isfinite(b)
            if both.any() and np.abs(a - b)[both].max() > tolerance * np.abs(a[both]).max():
                return True
    return False
