"""Composites written out in primitive ops, in random spellings, and near misses of them.

`draw(rng)` gives a program that computes what one composite computes, `draw_near(rng)` one that
nearly does: another axis, epsilon outside the root, other constants, a divisor n - 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES, TensorType

Body = Callable[..., Any]
ROWS, COLUMNS = 5, 8
NEAR = "near"


@dataclass
class Spelling:
    """A program, the composite that it spells, the types of its arguments, and how it is spelled.

    `miss` names what differs from the composite; "" for a program that spells it.
    """

    composite: str
    types: list[TensorType]
    body: Body
    choices: dict[str, Any] = field(default_factory=dict)
    miss: str = ""

    def __str__(self) -> str:
        chosen = ", ".join(f"{k}={v}" for k, v in self.choices.items())
        return f"{self.composite}({chosen}) {self.miss}"

    def arrays(self, sizes: tuple[int, int], seed: int) -> list[np.ndarray]:
        """Values for the arguments; `sizes` are those of the first two dynamic dimensions."""
        rng = np.random.default_rng(seed)
        made = []
        for type_ in self.types:
            left = iter(sizes)
            shape = [next(left) if d is None else d for d in type_.shape]
            made.append(rng.normal(0, 1.5, shape).astype(type_.dtype))
        return made


class Pen:
    """Writes with a builder, choosing among spellings; every choice is noted."""

    def __init__(self, seed: int, miss: str = "") -> None:
        self.seed, self.miss = seed, miss
        self.noted: dict[str, Any] = {}
        self.rng = Random(seed)
        self.b: Any = None

    def begin(self, b: Any) -> "Pen":
        """Start over with a builder: the same choices."""
        self.b, self.rng = b, Random(self.seed)
        return self

    def pick(self, name: str, *options: Any) -> Any:
        """One of the options."""
        chosen = self.rng.choice(options)
        self.noted[name] = chosen
        return chosen

    def number(self, value: float, like: Any) -> Any:
        """A constant."""
        return self.b.scalar(value, like)

    def mul(self, x: Any, y: Any) -> Any:
        """In either order."""
        return self.b.mul(x, y) if self.rng.random() < 0.5 else self.b.mul(y, x)

    def add(self, x: Any, y: Any) -> Any:
        """In either order."""
        return self.b.add(x, y) if self.rng.random() < 0.5 else self.b.add(y, x)

    def sub(self, x: Any, y: Any) -> Any:
        """As a difference or as the sum with the negative."""
        return self.b.sub(x, y) if self.rng.random() < 0.7 else self.add(x, self.b.neg(y))

    def scaled(self, x: Any, factor: float) -> Any:
        """A product with a number or a quotient by its inverse."""
        if self.rng.random() < 0.5:
            return self.mul(x, self.number(factor, x))
        return self.b.div(x, self.number(1 / factor, x))

    def over(self, x: Any, y: Any) -> Any:
        """A quotient, or a product with the reciprocal."""
        if self.rng.random() < 0.6:
            return self.b.div(x, y)
        return self.mul(x, self.b.div(self.number(1, y), y))

    def square(self, x: Any) -> Any:
        """As a product or a power."""
        return self.b.mul(x, x) if self.rng.random() < 0.5 else self.power(x, 2)

    def power(self, x: Any, n: int) -> Any:
        """By pow."""
        return self.b.pow(x, self.number(n, x))

    def reduced(self, op: str, x: Any, axis: int) -> Any:
        """A reduction that broadcasts back: kept dimensions, a reshape, or a broadcast."""
        b, how = self.b, self.rng.choice(["keep", "reshape", "broadcast"])
        reduce = getattr(b, op)
        if how == "reshape":
            return b.expand_dims(reduce(x, axes=(axis,)), axis)
        kept = reduce(x, axes=(axis,), keepdims=True)
        if how == "keep":
            return kept
        shape = tuple(-1 if d is None else d for d in b.type_of(x).shape)
        return b.broadcast_to(kept, *([x] if -1 in shape else []), shape=shape)

    def mean(self, x: Any, axis: int) -> Any:
        """By reduce_mean, or as a sum over the number of elements."""
        how = self.rng.choice(["mean", "sum", "scaled"])
        if how == "mean":
            return self.reduced("reduce_mean", x, axis)
        total = self.reduced("reduce_sum", x, axis)
        size = self.b.type_of(x).shape[axis]
        if how == "sum":
            return self.b.div(total, self.number(size, x))
        return self.mul(total, self.number(1 / size, x))


def softmax(p: Pen, x: Any) -> Any:
    """softmax or log_softmax along the last axis, or the first one."""
    b, rank = p.b, p.b.type_of(x).rank
    axis = p.pick("axis", rank - 1, rank - 1, 1)
    top_axis = (axis - 1) if p.miss == "max over another axis" else axis
    top = p.reduced("reduce_max", x, top_axis)
    if p.pick("guard", False, False, True):
        low = p.number(-math.inf, x)
        if p.pick("guard is", "ne", "gt") == "ne":
            top = b.select(b.compare(top, low, predicate="ne"), top, p.number(0, x))
        else:
            top = b.select(b.compare(top, low, predicate="gt"), top, p.number(0, x))
    shifted = p.sub(x, top)
    sum_axis = (axis - 1) if p.miss == "sum over another axis" else axis
    e = b.exp(shifted)
    if p.miss == "another base":
        e = b.pow(p.number(2.5, x), shifted)
    total = p.reduced("reduce_sum", e, sum_axis)
    if p.miss == "x exp x":
        return b.mul(x, e)
    if p.miss == "sum plus one":
        total = p.add(total, p.number(1, x))
    form = p.pick("form", "softmax", "softmax", "log of it", "difference", "log sum exp")
    if form == "log of it":
        return b.log(p.over(e, total))
    if form == "difference":
        return b.sub(shifted, b.log(total))
    if form == "log sum exp":
        return p.sub(x, p.add(top, b.log(total)))
    return p.over(e, total)


def norm(p: Pen, x: Any, scale: Any, bias: Any) -> Any:
    """layernorm or rmsnorm, with or without parameters."""
    b, axis = p.b, p.b.type_of(x).rank - 1
    if p.miss == "another axis":
        axis -= 1
    centered = p.pick("centered", True, True, False)
    if p.miss in ("not centered", "one-pass sign", "n - 1"):
        centered = True
    mean = p.mean(x, axis) if centered else None
    value = p.sub(x, mean) if centered else x
    if centered and (p.miss == "one-pass sign" or p.pick("one pass", False, True)):
        squares = p.mean(p.square(x), axis)
        variance = p.sub(squares, p.square(mean))
        if p.miss == "one-pass sign":
            variance = b.add(squares, p.square(mean))
    else:
        variance = p.mean(p.square(value), axis)
    if p.miss == "n - 1":
        variance = b.mul(variance, p.number(COLUMNS / (COLUMNS - 1), x))
    if p.miss == "not centered":
        value = x
    epsilon = p.number(p.pick("epsilon", 1e-5, 1e-6, 0.1), x)
    if p.miss == "epsilon outside":
        inverse = b.div(p.number(1, x), b.add(b.sqrt(variance), epsilon))
    elif p.miss == "no root":
        inverse = b.div(p.number(1, x), b.add(variance, epsilon))
    else:
        inverse = inverse_root(p, p.add(variance, epsilon))
    return with_parameters(p, x, value, mean, inverse, scale, bias)


def inverse_root(p: Pen, x: Any) -> Any:
    """1 / sqrt(x)."""
    how = p.pick("root", "rsqrt", "sqrt", "pow")
    if how == "rsqrt":
        return p.b.rsqrt(x)
    if how == "pow":
        return p.b.pow(x, p.number(-0.5, x))
    return p.b.div(p.number(1, x), p.b.sqrt(x))


def with_parameters(
    p: Pen, x: Any, value: Any, mean: Any, inverse: Any, scale: Any, bias: Any
) -> Any:
    """value * inverse * scale + bias, in some order."""
    b = p.b
    scaled, biased = p.pick("scale", True, False), p.pick("bias", True, False)
    how = p.pick("order", "plain", "factor first", "affine")
    if how == "plain" or p.miss or not scaled:
        out = p.mul(value, inverse)
        out = p.mul(out, scale) if scaled else out
    elif how == "factor first" or mean is None:
        out = p.mul(value, p.mul(inverse, scale))
    else:
        factor = p.mul(inverse, scale)
        out = b.sub(p.mul(x, factor), p.mul(mean, factor))
    return p.add(out, bias) if biased else out


def gelu(p: Pen, x: Any) -> Any:
    """By erf, by erfc, or by tanh."""
    b = p.b
    form = p.pick("form", "erf", "erfc", "tanh")
    if form == "tanh":
        inner = tanh_argument(p, x)
        gate = p.add(b.tanh(inner), p.number(1, x))
    elif form == "erfc":
        z = p.scaled(b.neg(x), 1 / math.sqrt(2))
        gate = b.sub(p.number(1, x), b.erf(z))
    else:
        root = 1.41 if p.miss == "another constant" else math.sqrt(2)
        gate = p.add(b.erf(p.scaled(x, 1 / root)), p.number(1, x))
    if p.miss == "another constant" and form == "erfc":
        gate = b.mul(gate, p.number(1.001, x))
    if p.miss == "one minus":
        gate = b.sub(p.number(2.5, x), gate)
    order = p.pick("half", "x", "gate", "last")
    half = 0.51 if p.miss == "another half" else 0.5
    if order == "x":
        return p.mul(p.scaled(x, half), gate)
    if order == "gate":
        return p.mul(x, p.scaled(gate, half))
    return p.scaled(p.mul(x, gate), half)


def tanh_argument(p: Pen, x: Any) -> Any:
    """sqrt(2/pi) (x + 0.044715 x^3)."""
    b, root = p.b, math.sqrt(2 / math.pi)
    small = 0.0447 if p.miss == "another constant" else 0.044715
    how = p.pick("cube", "pow", "product", "factored")
    if how == "factored":
        inside = p.add(p.number(1, x), p.scaled(p.square(x), small))
        return p.mul(p.mul(x, p.number(root, x)), inside)
    cube = p.power(x, 3) if how == "pow" else p.mul(b.mul(x, x), x)
    if p.pick("distributed", False, True):
        return p.add(p.scaled(x, root), p.scaled(cube, root * small))
    return p.scaled(p.add(x, p.scaled(cube, small)), root)


def silu(p: Pen, x: Any) -> Any:
    """x times the logistic function."""
    b = p.b
    inner = b.mul(x, p.number(1.702, x)) if p.miss == "quick gelu" else x
    if p.pick("sigmoid", False, True) and p.miss not in ("another one", "sign"):
        gate = b.sigmoid(inner)
        return p.mul(inner if p.miss == "both scaled" else x, gate)
    one = p.number(1.5 if p.miss == "another one" else 1, x)
    sign = inner if p.miss == "sign" else b.neg(inner)
    return p.over(x, p.add(one, b.exp(sign)))


def attention(p: Pen, query: Any, key: Any, value: Any, mask: Any) -> Any:
    """[2, rows, 8] by a product of queries and keys, a softmax and a product with values."""
    b = p.b
    scale = p.pick("scale", 0.25, 0.3535533845424652, 1.0)
    where = p.pick("scaled", "query", "key", "scores", "both")
    keys = b.transpose(key, permutation=(0, 2, 1))
    if scale != 1.0 and where == "both":
        query, keys = (p.scaled(v, math.sqrt(scale)) for v in (query, keys))
    elif scale != 1.0 and where == "query":
        query = p.scaled(query, scale)
    elif scale != 1.0 and where == "key":
        keys = p.scaled(keys, scale)
    scores = b.matmul(query, keys)
    masked = p.pick("mask", "none", "added", "kept", "hidden", "causal")
    if p.miss in ("mask before scale", "mask times"):
        masked, where = "added", "scores"
        scale = 0.25
    if p.miss == "mask before scale":
        scores = p.add(scores, mask)
    if scale != 1.0 and where == "scores":
        scores = p.scaled(scores, scale)
    if p.miss == "mask times":
        scores = b.mul(scores, mask)
    elif not p.miss.startswith("mask"):
        scores = with_mask(p, scores, mask, masked)
    axis = 1 if p.miss == "softmax of columns" else 2
    return b.matmul(spelled_softmax(p, scores, axis), value)


def with_mask(p: Pen, scores: Any, mask: Any, how: str) -> Any:
    """The scores where a mask lets them be."""
    b, low = p.b, p.number(-math.inf, scores)
    if p.miss == "finite mask":
        return b.select(b.compare(mask, p.number(0, mask), predicate="gt"), scores, mask)
    if how == "added":
        return p.add(scores, mask)
    if how == "kept":
        return b.select(b.compare(mask, p.number(-1, mask), predicate="gt"), scores, low)
    if how == "hidden":
        return b.select(b.compare(mask, p.number(1, mask), predicate="gt"), low, scores)
    if how == "causal":
        return b.select(np.tri(ROWS, ROWS, dtype=bool), scores, low)
    return scores


def spelled_softmax(p: Pen, x: Any, axis: int) -> Any:
    """As an op or written out."""
    b = p.b
    if p.pick("softmax", True, False):
        return b.softmax(x, axis=axis)
    e = b.exp(b.sub(x, b.reduce_max(x, axes=(axis,), keepdims=True)))
    return p.over(e, b.reduce_sum(e, axes=(axis,), keepdims=True))


# For each: what it computes, what it may spell, the shapes of its arguments, its near misses.
KINDS: dict[str, tuple[Body, tuple[str, ...], tuple[tuple[int, ...], ...], tuple[str, ...]]] = {
    "softmax": (
        softmax,
        ("softmax", "log_softmax"),
        ((2, ROWS, COLUMNS),),
        (
            "max over another axis",
            "sum over another axis",
            "another base",
            "x exp x",
            "sum plus one",
        ),
    ),
    "norm": (
        norm,
        ("layernorm", "rmsnorm"),
        ((2, ROWS, COLUMNS), (COLUMNS,), (COLUMNS,)),
        ("another axis", "n - 1", "epsilon outside", "no root", "not centered", "one-pass sign"),
    ),
    "gelu": (
        gelu,
        ("gelu",),
        ((2, ROWS, COLUMNS),),
        ("another constant", "one minus", "another half"),
    ),
    "silu": (
        silu,
        ("silu",),
        ((2, ROWS, COLUMNS),),
        ("quick gelu", "both scaled", "another one", "sign"),
    ),
    "attention": (
        attention,
        ("attention",),
        (*((2, ROWS, COLUMNS),) * 3, (2, ROWS, ROWS)),
        ("mask before scale", "mask times", "finite mask", "softmax of columns"),
    ),
}


def draw(seed: int) -> Spelling:
    """A program that spells a composite: of f32, f64 or, but for attention, f16; often dynamic."""
    return _drawn(seed, "")


def draw_near(seed: int) -> Spelling:
    """A program of f64 that nearly does."""
    return _drawn(seed, NEAR)


def _drawn(seed: int, miss: str) -> Spelling:
    rng = Random(seed)
    kind = rng.choice(list(KINDS))
    function, names, shapes, misses = KINDS[kind]
    pen = Pen(rng.randrange(1 << 30), rng.choice(misses) if miss else "")
    dtype = DTYPES["f64" if miss else rng.choice(["f32", "f32", "f32", "f64", "f16"])]
    if kind == "attention" and dtype.itemsize < 4:
        dtype = DTYPES["f32"]
    dynamic = rng.random() < 0.4
    types = [TensorType(_opened(s, dynamic), dtype) for s in shapes]

    def body(b: Any, *arguments: Any) -> Any:
        return function(pen.begin(b), *arguments)

    return Spelling("/".join(names), types, body, pen.noted, pen.miss)


def _opened(shape: tuple[int, ...], dynamic: bool) -> tuple[int | None, ...]:
    """The first dimension of what has several left open."""
    return (None, *shape[1:]) if dynamic and len(shape) > 1 else shape
