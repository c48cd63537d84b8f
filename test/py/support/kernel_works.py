"""Groups of pyc ops as families see them: from a shape and an op's parameters, or drawn.

`drawn(family, random)` draws a group that the family may have kernels for: inputs with known and
dynamic dimensions, constants, elementwise ops around them, of sizes around vectors, panels, tiles
and blocks. What is not offered is drawn again by who asks (`family_checks.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

import pyc_mlir.dialects.ops  # noqa: F401
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.ops.elementwise import PREDICATES
from pyc_mlir.dialects.ops.resize import COORDINATES, ROUNDINGS
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.pipelines.kernels.lang.functions import STEPS
from pyc_mlir.pipelines.kernels.lang.pointwise import FULL, ROW, Pointwise, PointwiseStep
from pyc_mlir.pipelines.kernels.match import MatrixView
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp

Dim = int | str  # A name is a dynamic dimension; equal names have equal sizes.
Array = np.ndarray
Fill = Callable[[np.random.Generator, tuple[int, ...]], Array]
HALVES = ("f16", "bf16")
BYTES = ("i8", "ui8")
# Around vectors and blocks of them: lengths of rows, sides of products, channels and filters.
LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 200, 257, 400)
SIDES = (1, 2, 3, 5, 6, 7, 8, 12, 13, 16, 17, 31, 33, 48, 64, 65, 79, 100, 130)
CHANNELS = (1, 2, 3, 4, 5, 8, 13, 16, 33)
FILTERS = (1, 3, 4, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 79)
FEW = (1, 2, 3)
# Depths of several blocks.
DEEP = (520, 1025, 1100, 1500, 2100)
# Stand for dynamic sizes where a shape is inferred: no sum or product of sizes is one of them.
_PRIMES = (100_003, 100_019, 100_043, 100_049, 100_057, 100_069)


def lone(name: str, *shapes: tuple, dtype: npt.DTypeLike = np.float32, **params: Any) -> Work:
    """A group of one op on arguments of these shapes; None is a dynamic dimension."""
    types = [TensorType(shape, np.dtype(dtype)) for shape in shapes]
    operands = tuple(range(len(types)))
    node = WorkOp(name, operands, params, OPS[name].infer(*types, **params))
    return Work(tuple(map(Input, types)), (node,))


def constant(work: Work, value: int, array: Array) -> Work:
    """The group with an argument that is a constant."""
    given = replace(work.inputs[value], array=lambda: array)
    inputs = (*work.inputs[:value], given, *work.inputs[value + 1 :])
    return replace(work, inputs=inputs)


def layer(bias: bool = False, activation: str = "", residual: bool = False) -> Pointwise:
    """activation(x + bias) + residual: a number a column, a step's name, a matrix; all optional."""
    reads = (ROW,) * bias + (FULL,) * residual
    steps: list[PointwiseStep] = []

    def last() -> int:
        return len(reads) + len(steps) if steps else 0

    if bias:
        steps.append(PointwiseStep("add", (0, 1)))
    if activation:
        steps.append(PointwiseStep(activation, (last(),)))
    if residual:
        steps.append(PointwiseStep("add", (last(), len(reads))))
    return Pointwise(reads, (), tuple(steps))


def normal(scale: float = 1.0, mean: float = 0.0) -> Fill:
    return lambda values, shape: values.normal(mean, scale, shape)


def whole(low: int, high: int) -> Fill:
    return lambda values, shape: values.integers(low, high, shape)


def any_byte(dtype: str) -> Fill:
    info = np.iinfo(DTYPES[dtype])
    return whole(info.min, info.max + 1)


@dataclass
class _Value:
    """A value of a group: its type, its shape with names, and what it is made by or filled with."""

    type: TensorType
    shape: tuple[Dim, ...]
    array: Array | None = None
    fill: Fill = field(default_factory=normal)
    op: tuple[str, tuple[int, ...], dict[str, Any]] | None = None


class Group:
    """A group of ops that grows; its values are numbered in the order in which they are made."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.made: list[_Value] = []
        self.dynamic: dict[str, Sequence[int]] = {}
        self._values = np.random.default_rng(random.randrange(1 << 30))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def size(self, sizes: Sequence[int], dynamic: float = 0.25) -> Dim:
        """One of the sizes, or a dynamic dimension that has them."""
        if not self.chance(dynamic) or len(self.dynamic) == len(_PRIMES):
            return self.random.choice(sizes)
        name = f"d{len(self.dynamic)}"
        self.dynamic[name] = sizes
        return name

    def dims(self, most: int, sizes: Sequence[int] = FEW, least: int = 1) -> tuple[Dim, ...]:
        return tuple(self.size(sizes) for _ in range(self.random.randint(least, most)))

    def input(self, shape: Sequence[Dim], dtype: str = "f32", fill: Fill | None = None) -> int:
        type_ = TensorType(tuple(d if isinstance(d, int) else None for d in shape), DTYPES[dtype])
        self.made.append(_Value(type_, tuple(shape), fill=fill or normal()))
        return len(self.made) - 1

    def constant(self, shape: Sequence[int], dtype: str = "f32", fill: Fill | None = None) -> int:
        array = np.asarray((fill or normal())(self._values, tuple(shape))).astype(DTYPES[dtype])
        self.made.append(_Value(TensorType(array.shape, array.dtype), array.shape, array))
        return len(self.made) - 1

    def number(self, number: float, dtype: str = "f32") -> int:
        return self.constant((), dtype, lambda values, shape: np.array(number))

    def op(self, name: str, *operands: int, **params: Any) -> int:
        """An op on values; dynamic sizes of its result keep the names that operands have."""
        definition, params = OPS[name], OPS[name].bind(params)
        known = [self.made[v] for v in operands]
        primes = dict(zip(self.dynamic, _PRIMES, strict=False))
        named: dict[int | None, str] = {prime: name for name, prime in primes.items()}
        static = [TensorType(_sized(v.shape, primes), v.type.dtype) for v in known]
        shape = definition.infer(*static, **params).shape
        type_ = definition.infer(*(v.type for v in known), **params)
        names = tuple(named.get(d, d or 0) for d in shape)
        self.made.append(_Value(type_, names, op=(name, operands, params)))
        return len(self.made) - 1

    def shape(self, value: int) -> tuple[Dim, ...]:
        return self.made[value].shape

    def dtype(self, value: int) -> str:
        return next(n for n, d in DTYPES.items() if d == self.made[value].type.dtype)

    @property
    def work(self) -> Work:
        """The group, inputs first."""
        inputs = [n for n, v in enumerate(self.made) if v.op is None]
        nodes = [n for n, v in enumerate(self.made) if v.op is not None]
        numbers = {n: place for place, n in enumerate((*inputs, *nodes))}
        return Work(
            tuple(map(self._input, inputs)),
            tuple(
                WorkOp(op[0], tuple(numbers[v] for v in op[1]), op[2], self.made[n].type)
                for n in nodes
                if (op := self.made[n].op) is not None
            ),
        )

    def _input(self, value: int) -> Input:
        made = self.made[value]
        array = made.array
        return Input(made.type, None if array is None else (lambda: array))

    def arrays(self, values: np.random.Generator) -> list[Array]:
        """Contents of the inputs, of any sizes where these are dynamic."""
        taken = {name: int(values.choice(sizes)) for name, sizes in self.dynamic.items()}
        return [
            made.fill(values, _sized(made.shape, taken)).astype(made.type.dtype)
            if made.array is None
            else made.array
            for made in self.made
            if made.op is None
        ]

    def layer(self, value: int) -> int:
        """A bias, an activation and a residual, each of them perhaps."""
        dtype, shape = self.dtype(value), self.shape(value)
        columns = shape[-1]
        if self.chance(0.5) and isinstance(columns, int):
            value = self.op("add", value, self.constant((columns,), dtype))
        activation = self.random.choice(("", "relu", "gelu", "tanh"))
        if activation:
            value = self.op(activation, value)
        if self.chance(0.3):
            value = self.op("add", value, self.input(shape, dtype))
        return value

    def chain(self, value: int, most: int, cut: int) -> int:
        """Up to so many elementwise ops, each on the result of the one before.

        Operands broadcast to the matrix whose rows are the first `cut` dimensions. What is taken
        logarithms, roots or quotients of is x * x + 1, and exp is that of -|x|: all stays finite.
        """
        known = [value]
        for _ in range(self.random.randrange(most + 1)):
            value = self._step(value, known, cut)
            known.append(value)
        return value

    def _step(self, value: int, known: Sequence[int], cut: int) -> int:
        dtype = self.dtype(value)
        name = self.random.choice([n for n in STEPS if not n.startswith("to_")])

        def other() -> int:
            kind = self.random.randrange(4)
            if kind == 0:
                return self.random.choice(known)
            if kind == 1:
                return self.number(self.random.choice((0.5, -1.0, 2.0, 0.1)), dtype)
            shape = self.random.choice(list(_broadcasts(self.shape(value), cut)))
            return self.input(shape, dtype)

        def above(x: int) -> int:
            return self.op("add", self.op("mul", x, x), self.number(1.0, dtype))

        if name in PREDICATES or name == "select":
            predicate = self.random.choice(list(PREDICATES)) if name == "select" else name
            mask = self.op("compare", value, other(), predicate=predicate)
            return self.op("select", mask, value, other())
        if name == "mul" and self.chance(0.3):
            return self.op("pow", value, self.number(2.0, dtype))
        if name in ("log", "sqrt", "rsqrt"):
            return self.op(name, above(value))
        if name == "div":
            return self.op(name, value, above(self.random.choice(known)))
        if name == "exp":
            return self.op(name, self.op("neg", self.op("abs", value)))
        if name in ("gelu", "gelu_tanh"):
            form = "tanh" if name == "gelu_tanh" else "none"
            return self.op("gelu", value, approximate=form)
        return self.op(name, value, *(other() for _ in range(STEPS[name].operands - 1)))

    def float_type(self) -> str:
        return self.random.choice(("f32", "f32", *HALVES))


def _sized(shape: Sequence[Dim], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[d] if isinstance(d, str) else d for d in shape)


def _broadcasts(shape: tuple[Dim, ...], cut: int) -> Iterator[tuple[Dim, ...]]:
    """Shapes that broadcast to `shape` and that a kernel of its matrix can read."""
    types = tuple(d if isinstance(d, int) else None for d in shape)
    view = MatrixView(types, cut)
    for first in range(len(shape) + 1):
        for kept in product((True, False), repeat=len(shape) - first):
            made = tuple(d if k else 1 for d, k in zip(shape[first:], kept, strict=True))
            known = tuple(d if isinstance(d, int) else None for d in made)
            if view.read(known) is not None:
                yield made


def _rows(g: Group) -> None:
    dtype, operation = g.float_type(), g.random.choice(list(_ROW_OPS))
    shape = (*g.dims(3, LENGTHS[:6]), g.random.choice(LENGTHS))
    fill = normal(g.random.choice((0.1, 1, 20)), g.random.choice((0, 3)))
    x, cut = g.input(shape, dtype, fill), len(shape) - 1
    if g.chance(0.4):
        x = g.chain(x, 2, cut)
    weights = [g.input(shape[-1:], dtype) for _ in range(_ROW_OPS[operation])]
    keeps = g.chance(0.5)
    params: dict[str, Any] = {"axis": g.random.choice((-1, cut))}
    if operation.startswith("reduce_"):
        params = {"axes": (cut,), "keepdims": keeps}
    y = g.op(operation, x, *weights, **params)
    g.chain(y, 3, min(cut, len(g.shape(y))))


# By op: how many vectors of weights it takes.
_ROW_OPS = {
    **{"softmax": 0, "log_softmax": 0, "layernorm": 2, "rmsnorm": 1},
    **{f"reduce_{name}": 0 for name in ("sum", "mean", "max", "min")},
}


def _span(g: Group, columns: Sequence[int]) -> None:
    """A reduction of neighbouring dimensions in the middle, or of the last ones."""
    before = g.dims(2, LENGTHS[:5], least=0)
    reduced = g.dims(2, LENGTHS[:16] if columns != (1,) else (*LENGTHS, 1000, 3001))
    after = (g.size(columns, 0 if columns == (1,) else 0.25),) * (columns != (1,))
    shape = (*before, *reduced, *after)
    if np.prod([d if isinstance(d, int) else max(LENGTHS[:16]) for d in shape]) > 300_000:
        before, shape = (), (g.random.choice(LENGTHS[:12]), *after)
    axes = tuple(range(len(before), len(shape) - len(after)))
    fill = normal(g.random.choice((0.1, 1, 20)), g.random.choice((0, 3)))
    operation = g.random.choice(("sum", "mean", "max", "min"))
    g.op(f"reduce_{operation}", g.input(shape, "f32", fill), axes=axes, keepdims=g.chance(0.5))


def _columns(g: Group) -> None:
    _span(g, g.random.choice((LENGTHS[1:], (2, 3, 8, 16, 32, 48), (1000, 2500, 5000))))


def _full_reduce(g: Group) -> None:
    if g.chance(0.05):
        x = g.input((g.random.choice((33_000, 70_001)),))
        g.op("reduce_sum", x, axes=(0,), keepdims=False)
    else:
        _span(g, (1,))


def _argmax(g: Group) -> None:
    """Few different numbers, so that many are equal, and sometimes an infinity or NaN."""
    shape = (*g.dims(2, LENGTHS[:6], least=0), g.random.choice((*LENGTHS, 3000)))
    odd = np.float32(g.random.choice((np.nan, np.inf, -np.inf, 0.0)))
    high, share = g.random.choice((-2, 3, 300)), g.random.choice((0, 0.01, 0.3))

    def fill(values: np.random.Generator, shape: tuple[int, ...]) -> Array:
        x = values.integers(-3, high, shape).astype(np.float32)
        return np.where(values.random(shape) < share, odd, x)

    ones = (1,) * g.chance(0.2)
    x = g.input((*shape, *ones), "f32", fill)
    g.op("argmax", x, axis=len(shape) - 1, keepdims=g.chance(0.5))


def _product(g: Group, dtype: str, most_rows: int = 130) -> int:
    """A product with constant weights; now and then several blocks of the depth, or far rows."""
    rows = g.dims(2, [s for s in SIDES if s <= most_rows])
    depth, columns = g.random.choice(SIDES), g.random.choice([s for s in SIDES if s >= 5])
    if g.chance(0.25):
        depth, rows = g.random.choice(DEEP), (g.size(SIDES[:9]),)
    elif g.chance(0.1):
        columns, rows = g.random.choice((300, 520, 1100)), (g.size(SIDES[:9]),)
    a = g.input((*rows, depth), dtype)
    ones = (1,) * (len(rows) > 1 and g.chance(0.2))
    return g.op("matmul", a, g.constant((*ones, depth, columns), dtype))


def _gemm(g: Group) -> None:
    y = _product(g, "f32")
    if g.chance(0.5):
        g.layer(y)
    else:
        g.chain(y, 3, len(g.shape(y)) - 1)


def _layer(g: Group) -> None:
    """Of epilogues only those of layers: most others turn a large error into any number."""
    g.layer(_product(g, "f32"))


def _half_gemm(g: Group) -> None:
    dtype = g.random.choice(HALVES)
    if g.chance(0.3):
        channels = g.random.choice(CHANNELS)
        x = g.input((*g.dims(1), *g.dims(2, (1, 5, 14), least=2), channels), dtype)
        weights = g.constant((1, 1, channels, g.random.choice(FILTERS)), dtype)
        y = g.op("conv2d", x, weights, layout="NHWC")
    else:
        y = _product(g, dtype)
    if g.chance(0.7):
        g.layer(y)
    else:
        g.chain(y, 3, len(g.shape(y)) - 1)


def _contraction(g: Group, rows: Sequence[int], dynamic: float) -> None:
    """A product of two arguments, stored in any order of dimensions, batches repeated or not."""
    dtype = "f32" if g.chance(0.6) else g.random.choice(HALVES)
    batch = g.dims(2, FEW, least=0)
    m, n, k = g.size(rows, dynamic), g.size(SIDES), g.size(SIDES)
    if g.chance(0.2):
        m = g.random.choice(SIDES[:6])
        k = DEEP[0] if dtype in HALVES else g.size((g.random.choice(DEEP), 700, 129))
    sides = []
    for own in ((m, k), (k, n)):
        kept = tuple(d if g.chance(0.8) else 1 for d in batch)
        shape = (*kept[g.random.randint(0, len(batch)) if g.chance(0.3) else 0 :], *own)
        order = list(range(len(shape)))
        if g.chance(0.6):
            g.random.shuffle(order)
        elif g.chance(0.6):
            order[-2:] = order[:-3:-1]
        sides.append((shape, order))
    stored = [g.input([shape[i] for i in order], dtype) for shape, order in sides]
    turned = [
        v if order == sorted(order) else g.op("transpose", v, permutation=tuple(np.argsort(order)))
        for v, (_, order) in zip(stored, sides, strict=True)
    ]
    y = g.op("matmul", *turned)
    rank = len(g.shape(y))
    if rank > 2 and g.chance(0.3):
        first = g.random.sample(range(rank - 1), rank - 1)
        y = g.op("transpose", y, permutation=(*first, rank - 1))
    if g.chance(0.5):
        g.layer(y)
    else:
        g.chain(y, 3, rank - 1)


def _batch_gemm(g: Group) -> None:
    _contraction(g, SIDES, 0.25)


def _gemv(g: Group) -> None:
    _contraction(g, SIDES[:5], 0.0)


@dataclass(frozen=True)
class Window:
    """One axis of a window: the size of the image, and the op's parameters."""

    size: Dim
    kernel: int
    stride: int
    low: int
    high: int
    dilation: int


def window(g: Group, kernels: Sequence[int], dynamic: float = 0.0, dilated: bool = True) -> Window:
    """An axis on an image that it fits; of a dynamic size only where as many outputs come out."""
    kernel = g.random.choice(kernels)
    dilation = g.random.choice((1, 1, 1, 2, 3)) if dilated else 1
    reach = dilation * (kernel - 1)
    if g.chance(dynamic):
        low = g.random.randint(0, reach)
        name = g.size((1, 2, 5, 14, 33), 1.0)
        if isinstance(name, str):
            return Window(name, kernel, 1, low, reach - low, dilation)
    half = kernel // 2
    low, high = g.random.choice(((0, 0), (half, half), (0, 1), (2, 1), (4, 3)))
    size = max(1, reach + 1 - low - high) + g.random.choice((0, 1, 3, 6, 12, 13, 20, 31))
    return Window(size, kernel, g.random.choice((1, 1, 2, 3)), low, high, dilation)


def _params(rows: Window, columns: Window) -> dict[str, Any]:
    axes = (rows, columns)
    return {
        "strides": tuple(a.stride for a in axes),
        "pads": (rows.low, columns.low, rows.high, columns.high),
        "dilations": tuple(a.dilation for a in axes),
        "layout": "NHWC",
    }


def _images(g: Group, axes: Sequence[Window], channels: int, dtype: str, parts: float) -> int:
    """Images [n, h, w, c]; perhaps joined of parts of others' channels."""
    outer = (g.size(FEW), *(a.size for a in axes))
    if not g.chance(parts):
        return g.input((*outer, channels), dtype)
    left, pieces = channels, []
    while left:
        width = g.random.randint(1, left) if len(pieces) < 3 else left
        first, more = g.random.choice(((0, 0), (0, 3), (5, 0), (16, 1)))
        image = g.input((*outer, first + width + more), dtype)
        pieces.append((image, first, width, first + more > 0))
        left -= width
    found = []
    for image, first, width, cut in pieces:
        stops = (*(d if isinstance(d, int) else 1 << 62 for d in outer), first + width)
        bounds = {"starts": (0, 0, 0, first), "stops": stops, "steps": (1,) * 4}
        found.append(g.op("slice", image, **bounds) if cut else image)
    x = found[0]
    for other in found[1:]:
        x = g.op("concat", x, other, axis=3)
    return x


def _conv(g: Group) -> None:
    dtype = "f32" if g.chance(0.6) else g.random.choice(HALVES)
    dynamic = 0.15 if g.chance(0.5) else 0.0
    axes = [window(g, (1, 1, 2, 3, 3, 5, 7), dynamic) for _ in "hw"]
    groups = g.random.choice((1, 1, 1, 2, 3, 8))
    channels, filters = (groups * g.random.choice(s) for s in (CHANNELS, FILTERS))
    if g.chance(0.2):
        sizes = (g.size(FEW), channels, *(a.size for a in axes))
        x = g.op("transpose", g.input(sizes, dtype), permutation=(0, 2, 3, 1))
    else:
        x = _images(g, axes, channels, dtype, 0.3 if groups == 1 else 0.0)
    shape = (*(a.kernel for a in axes), channels // groups, filters)
    y = g.op("conv2d", x, g.constant(shape, dtype), **_params(*axes), groups=groups)
    _after(g, y)


def _after(g: Group, y: int) -> None:
    if g.chance(0.5):
        g.layer(y)
    else:
        g.chain(y, 3, 3)


def _winograd(g: Group) -> None:
    axes = []
    for _ in "hw":
        low, high = g.random.choice(((0, 0), (1, 1), (1, 1), (0, 1), (2, 2)))
        size = max(1, 3 - low - high) + g.random.choice((0, 1, 2, 5, 8, 13))
        axes.append(Window(size, 3, 1, low, high, 1))
    channels = g.random.choice((1, 3, 8, 16, 17, 40))
    x = _images(g, axes, channels, "f32", 0.4)
    weights = g.constant((3, 3, channels, g.random.choice((1, 8, 16, 17, 32, 48, 65))))
    _after(g, g.op("conv2d", x, weights, **_params(*axes)))


def _depthwise(g: Group) -> None:
    dtype = "f32" if g.chance(0.6) else g.random.choice(HALVES)
    axes = [window(g, (1, 2, 3, 3, 5, 7)) for _ in "hw"]
    channels = g.random.choice((1, 3, 7, 8, 15, 16, 17, 32, 33, 50, 130))
    x = _images(g, axes, channels, dtype, 0.3)
    weights = g.constant((*(a.kernel for a in axes), 1, channels), dtype)
    _after(g, g.op("conv2d", x, weights, **_params(*axes), groups=channels))


def _pooled(g: Group, x: int, axes: Sequence[Window], name: str) -> int:
    params = _params(*axes) | {"kernel": tuple(a.kernel for a in axes)}
    if name == "avg_pool2d":
        del params["dilations"]
        params["count_include_pad"] = g.chance(0.4)
    return g.op(name, x, **params)


def _pool(g: Group) -> None:
    dtype = "f32" if g.chance(0.6) else g.random.choice(HALVES)
    name = g.random.choice(("max_pool2d", "avg_pool2d"))
    axes = [window(g, (1, 2, 3, 3, 5), dilated=name == "max_pool2d") for _ in "hw"]
    channels = g.random.choice((1, 3, 7, 8, 15, 16, 17, 32, 33, 50))
    _after(g, _pooled(g, _images(g, axes, channels, dtype, 0.3), axes, name))


def _zero_point(g: Group, dtype: str, constant: bool) -> int:
    """None, a known one, or one that is an argument."""
    info = np.iinfo(DTYPES[dtype])
    kind = g.random.randrange(3)
    if kind == 0:
        return g.number(0, "i32")
    if kind == 1 or constant:
        return g.number(g.random.randint(info.min, info.max), "i32")
    return g.input((), "i32", whole(info.min, info.max + 1))


def _after_sums(g: Group, y: int, spread: float) -> None:
    """A bias, the sums as f32, ops on these, bytes: as many of these steps as a layer may have."""
    channels = g.shape(y)[-1]
    assert isinstance(channels, int)
    if g.chance(0.5):
        y = g.op("add", y, g.constant((channels,), "i32", whole(-9999, 9999)))
    if g.chance(0.25):
        return
    y = g.op("cast", y, dtype=DTYPES["f32"])
    scale = g.random.choice((30, 100, 300)) / spread
    shape = (channels,) if g.chance(0.5) else ()
    y = g.op("mul", y, g.constant(shape, "f32", lambda v, s: scale * v.uniform(0.5, 1.5, s)))
    if g.chance(0.6):
        y = g.layer(y)
    _to_bytes(g, y, 0.6)


def _to_bytes(g: Group, y: int, share: float) -> None:
    if not g.chance(share):
        return
    if g.chance(0.8):
        y = g.op("round", y)
        if g.chance(0.7):
            y = g.op("add", y, g.number(g.random.choice((5, 120, -128))))
    dtype = g.random.choice(BYTES)
    if g.chance(0.5):
        info = np.iinfo(DTYPES[dtype])
        y = g.op("clip", y, g.number(info.min), g.number(info.max))
    g.op("cast", y, dtype=DTYPES[dtype])


def _int8(g: Group) -> None:
    dtype = g.random.choice(BYTES)
    channels = g.random.choice((4, 5, 8, 11, 16, 33, 64, 70, 130))
    filters = g.random.choice((1, 3, 8, 15, 16, 17, 33, 64, 79))
    zero = _zero_point(g, dtype, constant=False)
    if g.chance(0.4):
        x = g.input((*g.dims(2, (1, 5, 14, 40)), channels), dtype, any_byte(dtype))
        weights = g.constant((channels, filters), "i8", any_byte("i8"))
        y, taps = g.op("integer_matmul", x, weights, zero), 1
    else:
        axes = [window(g, (1, 1, 2, 3, 3, 5)) for _ in "hw"]
        shape = (g.size((1, 2)), *(a.size for a in axes), channels)
        x = g.input(shape, dtype, any_byte(dtype))
        taps = axes[0].kernel * axes[1].kernel
        kernel = (axes[0].kernel, axes[1].kernel, channels, filters)
        weights = g.constant(kernel, "i8", any_byte("i8"))
        y = g.op("integer_conv2d", x, weights, zero, **_params(*axes))
    _after_sums(g, y, 128 * 75 * float(np.sqrt(taps * channels)))


def _int8_depthwise(g: Group) -> None:
    dtype = g.random.choice(BYTES)
    axes = [window(g, (1, 2, 3, 3, 5)) for _ in "hw"]
    channels = g.random.choice((2, 3, 7, 8, 15, 16, 17, 32, 33, 50, 130))
    shape = (g.size(FEW), *(a.size for a in axes), channels)
    x, zero = g.input(shape, dtype, any_byte(dtype)), _zero_point(g, dtype, constant=False)
    kernel = (axes[0].kernel, axes[1].kernel)
    weights = g.constant((*kernel, 1, channels), "i8", any_byte("i8"))
    y = g.op("integer_conv2d", x, weights, zero, **_params(*axes), groups=channels)
    _after_sums(g, y, 128 * 75 * float(np.sqrt(kernel[0] * kernel[1])))


def _int8_pool(g: Group) -> None:
    dtype = g.random.choice(BYTES)
    axes = [window(g, (1, 2, 3, 3, 5)) for _ in "hw"]
    channels = g.random.choice((1, 3, 16, 31, 32, 33, 64, 65, 130))
    x = g.input((g.size((1, 2)), *(a.size for a in axes), channels), dtype, any_byte(dtype))
    _pooled(g, x, axes, "max_pool2d")


def _dequantized(g: Group, shape: tuple[Dim, ...]) -> int:
    """(f32(i32(x) - point)) * scale of bytes x; the point and the scale perhaps."""
    dtype = g.random.choice(BYTES)
    x = g.input(shape, dtype, any_byte(dtype))
    if g.chance(0.7):
        x = g.op("cast", x, dtype=DTYPES["i32"])
        x = g.op("sub", x, g.number(g.random.choice((0, 7, 128)), "i32"))
    x = g.op("cast", x, dtype=DTYPES["f32"])
    return g.op("mul", x, g.number(g.random.choice((0.1, 0.043)))) if g.chance(0.8) else x


def _int8_elementwise(g: Group) -> None:
    shape = (*g.dims(2, (1, 2, 3, 5, 17), least=0), g.size((*LENGTHS, 1000)))
    cut = g.random.randrange(len(shape))
    x = g.input(shape) if g.chance(0.2) else _dequantized(g, shape)
    if g.chance(0.5):
        x = g.op("add", x, _dequantized(g, g.random.choice(list(_broadcasts(shape, cut)))))
    x = g.chain(x, 3, cut)
    _to_bytes(g, g.op("mul", x, g.number(g.random.choice((1.0, 9.0)))), 0.7)


def _packed(g: Group) -> None:
    bits, block = g.random.choice((4, 4, 8)), g.random.choice((16, 32, 64))
    depth = 8 * g.random.choice((1, 2, 3, 4, 8, 8, 9, 12, 16, 20))
    columns = g.random.choice((1, 15, 16, 17, 33, 64, 100, 129, 200))
    blocks = -(-depth // block)
    rows = g.dims(2, (1, 1, 2, 3, 5, 12, 13, 30))
    if g.chance(0.1):
        rows = (g.random.choice((88, 100, 180)),)
    weight = g.constant((columns, blocks, block * bits // 8), "ui8", any_byte("ui8"))
    scale = g.constant((columns, blocks), fill=lambda values, shape: values.random(shape))
    points = whole(0, 1 << bits) if g.chance(0.4) else whole(1 << bits - 1, (1 << bits - 1) + 1)
    point = g.constant((columns, blocks), "ui8", points)
    accuracy = g.random.choice(("f32", "int8"))
    x = g.input((*rows, depth))
    y = g.op("block_matmul", x, weight, scale, point, bits=bits, accuracy=accuracy)
    if g.chance(0.5):
        g.layer(y)
    else:
        g.chain(y, 3, len(g.shape(y)) - 1)


def _transpose(g: Group) -> None:
    """Two runs of dimensions exchanged, between a batch and what stays together."""
    sizes = (5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100)
    sized = [g.random.choice(sizes) for _ in "mn"]
    runs = [[n] if g.chance(0.7) else [n, g.random.choice((2, 3))] for n in sized]
    batch = g.dims(1, (1, 2, 3, 5), least=0)
    inner = (g.size((8, 9, 16, 32, 33)),) * g.chance(0.4)
    shape = (*batch, *runs[0], *runs[1], *inner)
    places = list(range(len(shape)))
    ends = [len(batch), len(batch) + len(runs[0]), len(shape) - len(inner)]
    order = [
        *places[: ends[0]],
        *places[ends[1] : ends[2]],
        *places[ends[0] : ends[1]],
        *places[ends[2] :],
    ]
    g.op("transpose", g.input(shape), permutation=tuple(order))


def _resize(g: Group) -> None:
    planar = g.chance(0.4)
    rows, columns = g.random.choice((1, 2, 5)), g.random.choice((1, 2, 15, 16, 17, 19, 40))
    channels, images = g.random.choice((1, 3, 8, 16, 33)), g.size(FEW)
    factors = (g.random.choice((1, 2, 3)), 2 if planar else g.random.choice((1, 2, 4)))
    shape = (images, channels, rows, columns) if planar else (images, rows, columns, channels)
    g.op(
        "resize",
        g.input(shape),
        sizes=(rows * factors[0], columns * factors[1]),
        mode=g.random.choice(("nearest", "linear")),
        coordinates=g.random.choice([c for c in COORDINATES if c != "align_corners"]),
        rounding=g.random.choice(list(ROUNDINGS)),
        layout="NCHW" if planar else "NHWC",
    )


def _concat(g: Group) -> None:
    """Parts along the last dimension or the one before, joined two by two, and what follows."""
    before, inner = g.dims(2, (7, 12, 30)), g.dims(1, (2, 3), least=0)
    if any(isinstance(d, str) for d in inner):
        inner = ()
    axis = len(before)
    widths = [
        g.random.choice((1, 3, 8, 15, 16, 17, 32, 33, 100)) for _ in range(g.random.randint(2, 5))
    ]
    parts = [g.input((*before, width, *inner)) for width in widths]
    while len(parts) > 1:
        at = g.random.randrange(len(parts) - 1)
        parts[at : at + 2] = [g.op("concat", *parts[at : at + 2], axis=axis)]
    if g.chance(0.7):
        g.chain(parts[0], 4, axis)


def _elementwise(g: Group) -> None:
    last = g.random.choice((1, 7, 8, 9, 15, 16, 17, 33, 64, 100, 129, 257, 1000, 4096))
    shape: tuple[Dim, ...] = (*g.dims(2, (1, 2, 3, 5, 8, 17), least=0), g.size((last, 64, 33)))
    if g.chance(0.05):
        shape = (g.random.choice((1, 2)), 70_001)
    fill = normal(g.random.choice((0.1, 1, 5)))
    x = g.input(shape, g.float_type(), fill)
    g.chain(x, 5, g.random.randrange(len(shape)))


DRAWS: dict[str, Callable[[Group], object]] = {
    "rows": _rows,
    "gemm": _gemm,
    "half_gemm": _half_gemm,
    "checked_gemm": _gemm,
    "approximate_gemm": _layer,
    "batch_gemm": _batch_gemm,
    "gemv": _gemv,
    "int8": _int8,
    "int8_depthwise": _int8_depthwise,
    "int8_pool": _int8_pool,
    "packed": _packed,
    "int8_elementwise": _int8_elementwise,
    "conv": _conv,
    "winograd": _winograd,
    "depthwise": _depthwise,
    "pool": _pool,
    "columns": _columns,
    "full_reduce": _full_reduce,
    "argmax": _argmax,
    "transpose": _transpose,
    "resize": _resize,
    "concat": _concat,
    "elementwise": _elementwise,
}
# The families that offer kernels for groups.
MATCHING = tuple(DRAWS)


def drawn(family: str, random: Random) -> Group:
    """Draw a group of at least one op for a family."""
    while True:
        group = Group(random)
        DRAWS[family](group)
        if any(v.op is not None for v in group.made):
            return group
