"""The table of cases that every op is tested on: operand types, parameters, kinds of values.

`CASES` is plain data; `inputs(case, seed)` makes its arrays. The values `special` are NaN,
infinities and negative zeros. `dynamic_types(case)` is the case with unknown sizes, but for 1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.convolution import LAYOUTS
from pyc_mlir.dialects.ops.movement import END, START, copied
from pyc_mlir.dialects.types import DTYPES, TensorType, is_float

Shape = tuple[int, ...]

FLOATS = ("f32", "f16", "bf16", "f64")
INTEGERS = ("i32", "i8", "i64", "ui8", "i16", "ui16", "ui32", "ui64")
NUMBERS = FLOATS + INTEGERS
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 2.5, -3.5)


@dataclass(frozen=True)
class Operand:
    """Element type, shape and what kind of values: a key of `VALUES`."""

    dtype: str
    shape: Shape
    values: str = "plain"

    @property
    def type(self) -> TensorType:
        return TensorType(self.shape, DTYPES[self.dtype])

    def __str__(self) -> str:
        return "x".join(map(str, (*self.shape, self.dtype)))


@dataclass(frozen=True, eq=False)
class Case:
    """One call of an op. `params` are those that differ from the defaults."""

    op: str
    operands: tuple[Operand, ...]
    params: tuple[tuple[str, Any], ...] = ()
    dynamic: bool = True

    @property
    def types(self) -> list[TensorType]:
        return [operand.type for operand in self.operands]

    @property
    def keywords(self) -> dict[str, Any]:
        return dict(self.params)

    def __str__(self) -> str:
        values = ",".join(sorted({o.values for o in self.operands} - {"plain"}))
        parts = [self.op, *map(str, self.operands), values, *(_brief(p) for p in self.params)]
        return " ".join(filter(None, parts))


def _brief(param: tuple[str, Any]) -> str:
    name, value = param
    if isinstance(value, np.ndarray):
        return f"{name}={value.dtype}{list(value.shape)}"
    return f"{name}={value}".replace(str(END), "end").replace(str(START), "start")


def dynamic_types(case: Case) -> list[TensorType]:
    """The operand types with every size other than 1 unknown."""
    return [t.with_shape(tuple(d if d == 1 else None for d in t.shape)) for t in case.types]


def inputs(case: Case, seed: int = 0) -> list[np.ndarray]:
    """The arrays of a case; equal seeds give equal arrays."""
    rng = np.random.default_rng(seed)
    return [make(operand, rng) for operand in case.operands]


def make(operand: Operand, rng: np.random.Generator) -> np.ndarray:
    """One array. What is too large for the element type is not generated."""
    dtype = DTYPES[operand.dtype]
    values = VALUES[operand.values](rng, operand)
    if not is_float(dtype) and operand.dtype != "i1":
        info, values = np.iinfo(dtype), np.asarray(values)
        if values.dtype != object:
            values = values.astype(np.int64)
        return np.asarray(values.clip(info.min, info.max)).astype(dtype)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype)


def _plain(rng: np.random.Generator, o: Operand) -> Any:
    if o.dtype == "i1":
        return rng.integers(0, 2, o.shape)
    if o.dtype in INTEGERS:
        return rng.integers(-9, 10, o.shape)
    return rng.normal(size=o.shape) * 2


def _extreme_integers(rng: np.random.Generator, o: Operand) -> Any:
    info = np.iinfo(DTYPES[o.dtype])
    # An array of Python's numbers: no element type of numpy's holds all of them.
    values = [info.min, info.max, -1 if info.min else info.max - 1, 0, 1, 7]
    return rng.choice(np.array(values, object), o.shape)


def _specials(rng: np.random.Generator, o: Operand) -> Any:
    """Every special value in turn, each operand in an order of its own."""
    count = int(np.prod(o.shape, dtype=int))
    repeats = -(-count // len(_SPECIAL))
    return rng.permutation(np.tile(_SPECIAL, repeats)[:count]).reshape(o.shape)


def _wide(rng: np.random.Generator, o: Operand) -> Any:
    """Floats around and beyond the ranges of the integer types, and ties."""
    edges = (0.5, 1.5, 2.5, 126.6, 127.5, 128.5, 300.0, 2.0**31, 2.0**40, 2.0**63, 1e19)
    return rng.choice(np.array([*edges, *(-e for e in edges)]), o.shape)


VALUES: dict[str, Callable[[np.random.Generator, Operand], Any]] = {
    "plain": _plain,
    "positive": lambda rng, o: rng.uniform(0.1, 4, o.shape),
    "nonzero": lambda rng, o: rng.integers(1, 8, o.shape) * rng.choice([-1, 1], o.shape),
    "exponent": lambda rng, o: rng.uniform(-2, 3, o.shape),
    "ties": lambda rng, o: rng.integers(-7, 8, o.shape) / 2,
    "angle": lambda rng, o: rng.uniform(-6, 6, o.shape),
    "bytes": lambda rng, o: rng.integers(-128, 256, o.shape),
    "small": lambda rng, o: rng.uniform(-1, 1, o.shape),
    "factor": lambda rng, o: rng.choice([1, 1, 1, 2, -1], o.shape),
    "boxes": lambda rng, o: np.cumsum(rng.random((*o.shape[:-1], 2, 2)), -1).reshape(o.shape),
    "index": lambda rng, o: rng.integers(-3, 3, o.shape),
    "far_index": lambda rng, o: rng.choice([-100, -4, 0, 2, 3, 100], o.shape),
    "start": lambda rng, o: rng.integers(0, 2, o.shape),
    "far_start": lambda rng, o: rng.choice([-7, 0, 50], o.shape),
    "bits": lambda rng, o: rng.integers(-2, 70, o.shape),
    "few": lambda rng, o: rng.integers(0, 3, o.shape),
    "row": lambda rng, o: rng.integers(-5, 6, o.shape),
    "half_minus_inf": lambda rng, o: np.where(rng.random(o.shape) < 0.5, -np.inf, 0.0),
    "extreme": _extreme_integers,
    "special": _specials,
    "wide": _wide,
    "words": lambda rng, o: np.asarray(rng.integers(0, 1 << 64, o.shape, np.uint64), object),
}


def case(op: str, *operands: Operand, dynamic: bool = True, **params: Any) -> Case:
    """A case from operands and keyword parameters."""
    return Case(op, operands, tuple(params.items()), dynamic and bool(operands))


UNARY_SHAPES: tuple[Shape, ...] = ((3, 5), (), (0, 4), (17,), (2, 1, 3, 4))
BINARY_SHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((3, 5), (3, 5)),
    ((3, 1), (1, 5)),
    ((5,), (3, 5)),
    ((), (3, 5)),
    ((2, 3, 1), ()),
    ((0, 4), (1, 4)),
    ((), ()),
    ((33,), (33,)),
)
SPECIAL_SHAPE = (9, 9)


def _unary(
    op: str, dtypes: Sequence[str], values: str = "plain", special: bool = True, **params: Any
) -> Iterator[Case]:
    for i, dtype in enumerate(dtypes):
        for shape in UNARY_SHAPES if i == 0 else UNARY_SHAPES[:1]:
            yield case(op, Operand(dtype, shape, values), **params)
    for dtype in dtypes if special else ():
        if dtype in FLOATS:
            yield case(op, Operand(dtype, SPECIAL_SHAPE, "special"), **params)


def _binary(
    op: str,
    dtypes: Sequence[str],
    left: str = "plain",
    right: str = "plain",
    special: bool = True,
    **params: Any,
) -> Iterator[Case]:
    for i, dtype in enumerate(dtypes):
        for a, b in BINARY_SHAPES if i == 0 else BINARY_SHAPES[:2]:
            yield case(op, Operand(dtype, a, left), Operand(dtype, b, right), **params)
    for dtype in dtypes if special else ():
        if dtype in FLOATS:
            pair = [Operand(dtype, SPECIAL_SHAPE, "special")] * 2
            yield case(op, *pair, **params)


def _elementwise() -> Iterator[Case]:
    for op in ("add", "sub", "mul", "maximum", "minimum"):
        yield from _binary(op, NUMBERS)
        for dtype in INTEGERS:
            yield case(op, *[Operand(dtype, (6, 7), "extreme")] * 2)
    yield from _binary("div", NUMBERS, right="nonzero")
    for dtype in INTEGERS:
        yield case("div", *[Operand(dtype, (9, 9), "extreme")] * 2)
    yield from _binary("pow", FLOATS, "positive", "exponent")
    yield from _unary("neg", NUMBERS)
    yield from _unary("abs", NUMBERS)
    for op, dtype in product(("neg", "abs"), ("i8", "ui8")):
        yield case(op, Operand(dtype, (9,), "extreme"))
    for op in ("floor", "ceil", "round"):
        yield from _unary(op, FLOATS, "ties")
    for op in ("log", "sqrt", "rsqrt"):
        yield from _unary(op, FLOATS, "positive")
    for op in ("sin", "cos"):
        yield from _unary(op, FLOATS, "angle")
    for op in ("exp", "tanh", "erf", "erfc", "sigmoid", "silu"):
        yield from _unary(op, FLOATS)
    yield from _unary("gelu", FLOATS)
    yield from _unary("gelu", FLOATS, approximate="tanh")
    yield from _unary("relu", NUMBERS)
    for op in ("and", "or", "xor"):
        yield from _binary(op, ("i1", *INTEGERS))
    yield from _unary("not", ("i1", *INTEGERS))
    yield from _choices()


def _choices() -> Iterator[Case]:
    """compare, select, cast and clip."""
    for predicate in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield from _binary("compare", NUMBERS, predicate=predicate)
    for predicate in ("eq", "ne"):
        yield case("compare", *[Operand("i1", (4, 3))] * 2, predicate=predicate)
    for dtype in (*NUMBERS, "i1"):
        yield case("select", Operand("i1", (3, 5)), *[Operand(dtype, (3, 5))] * 2)
    for shapes in (((3, 1), (1, 5), (5,)), ((), (3,), (3,)), ((2, 3), (), ()), ((0,), (1,), ())):
        yield case("select", Operand("i1", shapes[0]), *(Operand("f32", s) for s in shapes[1:]))
    for source, dtype in product((*NUMBERS, "i1"), repeat=2):
        yield case("cast", Operand(source, (3, 5)), dtype=DTYPES[dtype])
        if source in FLOATS:
            special = Operand(source, SPECIAL_SHAPE, "special")
            yield case("cast", special, dtype=DTYPES[dtype])
            if dtype in INTEGERS:
                yield case("cast", Operand(source, (40,), "wide"), dtype=DTYPES[dtype])
        elif source != "i1" and dtype in INTEGERS:
            yield case("cast", Operand(source, (12,), "extreme"), dtype=DTYPES[dtype])
    for dtype in NUMBERS:
        yield case("clip", Operand(dtype, (3, 5)), Operand(dtype, ()), Operand(dtype, (5,)))
    yield case("clip", *[Operand("f32", SPECIAL_SHAPE, "special")] * 3)


MATMUL_SHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((3, 4), (4, 5)),
    ((17, 31), (31, 13)),
    ((1, 1), (1, 1)),
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 5)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
)


def _contraction() -> Iterator[Case]:
    for a, b in MATMUL_SHAPES:
        yield case("matmul", Operand("f32", a), Operand("f32", b))
    for dtype, (a, b) in product(NUMBERS[1:], (MATMUL_SHAPES[0], MATMUL_SHAPES[8])):
        yield case("matmul", Operand(dtype, a, "small"), Operand(dtype, b))
    pair = Operand("f32", (5, 4), "special"), Operand("f32", (4, 3), "special")
    yield case("matmul", *pair)


CONVOLUTIONS: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((2, 3, 8, 7), (5, 3, 3, 3), {}),
    ((1, 4, 9, 9), (6, 2, 3, 2), {"groups": 2, "strides": (2, 1), "pads": (1, 0, 2, 1)}),
    ((1, 2, 9, 8), (3, 2, 2, 3), {"dilations": (2, 3)}),
    ((2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4, "pads": (1, 1, 1, 1)}),
    ((1, 3, 4, 4), (2, 3, 1, 1), {}),
    ((1, 2, 7, 7), (2, 2, 5, 3), {"strides": (3, 2), "dilations": (1, 2), "pads": (2, 2, 2, 2)}),
    ((0, 3, 4, 4), (2, 3, 3, 3), {}),
)


def _nhwc(image: Shape, weight: Shape) -> tuple[Shape, Shape]:
    n, c, h, w = image
    f, depth, kh, kw = weight
    return (n, h, w, c), (kh, kw, depth, f)


def _convolution() -> Iterator[Case]:
    for image, weight, params in CONVOLUTIONS:
        yield case("conv2d", Operand("f32", image), Operand("f32", weight), **params)
        a, b = (Operand("f32", s) for s in _nhwc(image, weight))
        yield case("conv2d", a, b, layout="NHWC", **params)
    for dtype in NUMBERS[1:]:
        (image, weight, params) = CONVOLUTIONS[1]
        yield case("conv2d", Operand(dtype, image, "small"), Operand(dtype, weight), **params)


def _integer_products() -> Iterator[Case]:
    zero = Operand("i32", ())
    for dtype, (image, weight, params) in zip(("ui8", "i8") * 3, CONVOLUTIONS[:6], strict=True):
        for layout, (a, b) in (("NCHW", (image, weight)), ("NHWC", _nhwc(image, weight))):
            x, w = Operand(dtype, a, "bytes"), Operand("i8", b, "bytes")
            yield case("integer_conv2d", x, w, zero, layout=layout, **params)
    for dtype, shape in (("ui8", (3, 4)), ("i8", (2, 3, 4)), ("ui8", (0, 4))):
        yield case("integer_matmul", Operand(dtype, shape, "bytes"), Operand("i8", (4, 5)), zero)
    for count, held, blocks, depth in ((4, 8, 2, 32), (4, 8, 3, 40), (8, 16, 2, 24)):
        w, p = (Operand("ui8", s, "bytes") for s in ((5, blocks, held), (5, blocks)))
        x, scale = Operand("f32", (2, 3, depth)), Operand("f32", (5, blocks), "small")
        params = {"bits": count, "accuracy": ("f32", "int8")[depth > 32]}
        yield case("block_matmul", x, w, scale, p, dynamic=False, **params)


POOLINGS: tuple[tuple[Shape, dict[str, Any]], ...] = (
    ((2, 3, 6, 8), {"kernel": (2, 2), "strides": (2, 2)}),
    ((1, 2, 7, 9), {"kernel": (3, 2), "strides": (2, 3), "pads": (1, 0, 1, 1)}),
    ((1, 1, 5, 5), {"kernel": (3, 3)}),
    ((1, 3, 4, 4), {"kernel": (4, 4)}),
)


def _pooling() -> Iterator[Case]:
    for op in ("max_pool2d", "avg_pool2d"):
        for (shape, params), layout in product(POOLINGS, ("NCHW", "NHWC")):
            yield case(op, Operand("f32", shape), layout=layout, **params)
        shape, params = POOLINGS[1]
        for dtype in NUMBERS[1:] if op == "max_pool2d" else FLOATS[1:]:
            yield case(op, Operand(dtype, shape), **params)
        yield case(op, Operand("f32", (1, 2, 7, 9), "special"), **params)
    shape, params = POOLINGS[1]
    yield case("avg_pool2d", Operand("f32", shape), count_include_pad=True, **params)
    yield case("max_pool2d", Operand("f32", (1, 2, 9, 9)), kernel=(2, 3), dilations=(2, 3))


# Images [n, c, h, w] and parameters.
RESIZED: tuple[tuple[tuple[int, int, int, int], dict[str, Any]], ...] = (
    ((2, 3, 4, 5), {"sizes": (8, 15)}),
    ((1, 2, 6, 7), {"sizes": (4, 9), "rounding": "floor", "coordinates": "asymmetric"}),
    ((1, 2, 5, 5), {"sizes": (-1, -1), "scales": (1.5, 0.6), "rounding": "ceil"}),
    ((1, 3, 4, 6), {"sizes": (1, 6), "coordinates": "pytorch_half_pixel"}),
    ((1, 2, 5, 4), {"sizes": (7, 9), "coordinates": "align_corners"}),
    ((1, 2, 5, 3), {"sizes": (-1, 3), "scales": (1.3, 1.0), "coordinates": "half_pixel_symmetric"}),
    ((1, 2, 1, 3), {"sizes": (0, 3), "rounding": "round_prefer_ceil"}),
)
# Integer scales, which dynamic sizes take too.
GROWING: tuple[dict[str, Any], ...] = (
    {"scales": (2.0, 3.0)},
    {"scales": (1.0, 4.0), "rounding": "ceil", "coordinates": "asymmetric"},
    {"scales": (3.0, 2.0), "rounding": "floor", "coordinates": "half_pixel_symmetric"},
)


def _resize() -> Iterator[Case]:
    modes = ("nearest", "linear")
    for ((n, c, h, w), params), mode, layout in product(RESIZED, modes, LAYOUTS):
        shape = (n, c, h, w) if layout == "NCHW" else (n, h, w, c)
        given = {"mode": mode, "layout": layout, **params}
        yield case("resize", Operand("f32", shape), dynamic=False, **given)
    for params, mode, layout in product(GROWING, modes, LAYOUTS):
        given = {"sizes": (-1, -1), "mode": mode, "layout": layout, **params}
        yield case("resize", Operand("f32", (2, 3, 4, 5)), **given)
    shape, params = RESIZED[1]
    for dtype, mode in (*product(FLOATS[1:], modes), *product(INTEGERS, modes[:1])):
        yield case("resize", Operand(dtype, shape), dynamic=False, mode=mode, **params)
    for mode in modes:
        given = {"sizes": (-1, -1), "scales": (2.0, 2.0), "mode": mode}
        yield case("resize", Operand("f32", (1, 2, 6, 7), "special"), **given)


REDUCED: tuple[tuple[Shape, tuple[int, ...]], ...] = (
    ((3, 5), (1,)),
    ((3, 5), (0,)),
    ((3, 5), (0, 1)),
    ((2, 3, 4, 5), (1, -1)),
    ((2, 3, 4), (0, 2)),
    ((33,), (0,)),
    ((), ()),
    ((0, 4), (0,)),
    ((0, 4), (1,)),
)


def _reduction() -> Iterator[Case]:
    for op in ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_mean"):
        dtypes = FLOATS if op == "reduce_mean" else NUMBERS
        values = "factor" if op == "reduce_prod" else "plain"
        for (shape, axes), keepdims in product(REDUCED, (False, True)):
            yield case(op, Operand("f32", shape, values), axes=axes, keepdims=keepdims)
        for dtype in dtypes[1:]:
            yield case(op, Operand(dtype, (4, 6), values), axes=(1,))
        yield case(op, Operand("f32", (9, 4), "special"), axes=(1,))
    for dtype, axis, keepdims in product(NUMBERS, (0, -1), (False, True)):
        yield case("argmax", Operand(dtype, (4, 7)), axis=axis, keepdims=keepdims)
    yield case("argmax", Operand("f32", (17,)), axis=0)
    yield case("argmax", Operand("f32", (0, 3)), axis=1)
    yield case("argmax", Operand("f32", (9, 9), "special"), axis=1)


def _normalization() -> Iterator[Case]:
    for op in ("softmax", "log_softmax"):
        for shape, axis in (((3, 5), -1), ((3, 5), 0), ((2, 3, 33), 1), ((0, 4), 1), ((1,), 0)):
            yield case(op, Operand("f32", shape), axis=axis)
        for dtype in FLOATS[1:]:
            yield case(op, Operand(dtype, (3, 7)))
        yield case(op, Operand("f32", (9, 5), "special"))
    for dtype, (shape, axis) in product(FLOATS, (((3, 8), -1), ((2, 3, 5), 1), ((0, 4), -1))):
        vector = Operand(dtype, shape[axis:])
        yield case("layernorm", Operand(dtype, shape), vector, vector, axis=axis)
        yield case("rmsnorm", Operand(dtype, shape), vector, axis=axis, epsilon=1e-3)
    for dtype, (shape, axis) in product(FLOATS, (((2, 3, 5, 4), 1), ((2, 5, 3), -1), ((0, 2), 1))):
        vector = Operand(dtype, (shape[axis],))
        variance = Operand(dtype, (shape[axis],), "positive")
        yield case("batchnorm", Operand(dtype, shape), *[vector] * 3, variance, axis=axis)


def _attention() -> Iterator[Case]:
    shapes = (
        ((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6)),
        ((7, 4), (7, 4), (7, 4)),
        ((2, 3, 4, 8), (3, 5, 8), (2, 1, 5, 8)),
        ((1, 1, 4), (1, 1, 4), (1, 1, 4)),
    )
    for qkv, is_causal in product(shapes, (False, True)):
        operands = [Operand("f32", s, "small") for s in qkv]
        longer = qkv[0][-2] > qkv[1][-2]
        assert not longer, "a causal row that sees nothing is NaN"
        yield case("attention", *operands, scale=0.5, is_causal=is_causal)
    for dtype in FLOATS:
        operands = [Operand(dtype, s, "small") for s in shapes[0]]
        yield case("attention", *operands, Operand(dtype, (4, 5)), scale=0.3)
        yield case("attention", *operands, Operand(dtype, (3, 1, 5)), scale=0.3)
    operands = [Operand("f32", s) for s in shapes[0]]
    yield case("attention", *operands, Operand("i1", (4, 5)), scale=0.3)
    mask = Operand("f32", (4, 5), "half_minus_inf")
    yield case("attention", *operands, mask, scale=0.3)


def _creation() -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for dtype in (*NUMBERS, "i1"):
        for shape in ((2, 3), (), (0, 3), (300,)):
            yield case("constant", value=make(Operand(dtype, shape), rng))
        yield case("constant", value=np.ones((40, 40), DTYPES[dtype]))
    for dtype, (shape, axis) in product(NUMBERS, (((5,), 0), ((2, 3), 1), ((2, 3), -2))):
        yield case("iota", shape=shape, axis=axis, dtype=DTYPES[dtype])
    yield case("iota", shape=(0, 3), axis=0)
    yield case("iota", Operand("f32", (3, 4)), shape=(-1, 2), axis=0)
    yield case("iota", Operand("f32", (3, 4)), shape=(-1, -1), axis=1, dtype=DTYPES["f32"])
    for axes in ((0,), (0, 2), ()):
        yield case("size", Operand("f32", (3, 4, 5)), axes=axes)
    yield case("size", Operand("i1", (0, 4)), axes=(0, 1))


def _selection() -> Iterator[Case]:
    yield case("range", Operand("i64", ()))
    for size in (0, 1, 7, 300):
        yield case("nonzero", Operand("i1", (size,)))
        boxes, groups = Operand("f32", (size, 4), "boxes"), Operand("i64", (size,), "index")
        yield case("suppress", boxes, groups, overlap=0.2)


# Shapes, entries, and whether sizes may be dynamic.
RESHAPES: tuple[tuple[Shape, tuple[int, ...], bool], ...] = (
    ((2, 6), (3, 4), False),
    ((2, 6), (-1,), True),
    ((2, 3, 4), (copied(0), -1), True),
    ((2, 3, 4), (-1, copied(2)), True),
    ((2, 3, 4), (copied(0), 1, copied(1), copied(2)), True),
    ((2, 1, 4), (copied(0), copied(2)), True),
    ((1,), (), True),
    ((), (1, 1), True),
    ((0, 4), (2, 0), False),
    ((0, 4), (copied(0), 2, 2), False),
)

SLICES: tuple[tuple[Shape, tuple[tuple[int, int, int], ...]], ...] = (
    ((10,), ((2, 7, 1),)),
    ((10,), ((-3, END, 1),)),
    ((10,), ((START, -4, 2),)),
    ((10,), ((END, START, -1),)),
    ((10,), ((8, 1, -3),)),
    ((10,), ((5, 2, 1),)),
    ((10,), ((4, 100, 5),)),
    ((10,), ((-100, 3, 1),)),
    ((7, 9), ((1, END, 3), (-2, 0, -2))),
    ((0, 4), ((START, END, 1), (1, 3, 1))),
)


def _movement() -> Iterator[Case]:
    every = (*NUMBERS, "i1")
    for dtype in every:
        yield case("transpose", Operand(dtype, (2, 3, 4)), permutation=(2, 0, 1))
        yield case("reshape", Operand(dtype, (2, 6)), shape=(4, 3), dynamic=False)
        yield case("concat", Operand(dtype, (2, 3)), Operand(dtype, (2, 4)), axis=1)
        yield case("broadcast_to", Operand(dtype, (3, 1)), shape=(2, 3, 4), dynamic=False)
        bounds: dict[str, Any] = {"starts": (1, END), "stops": (START, 0), "steps": (1, -2)}
        yield case("slice", Operand(dtype, (4, 5)), **bounds)
        yield case("pad", Operand(dtype, (2, 3)), low=(1, 0), high=(0, 2), value=1.0)
        yield case("gather", Operand(dtype, (3, 4)), Operand("i64", (2, 2), "index"))
    for permutation in ((0, 1), (1, 0)):
        yield case("transpose", Operand("f32", (17, 33)), permutation=permutation)
    yield case("transpose", Operand("f32", ()), permutation=())
    yield case("transpose", Operand("f32", (0, 3)), permutation=(1, 0))
    for shape, entries, dynamic in RESHAPES:
        yield case("reshape", Operand("f32", shape), shape=entries, dynamic=dynamic)
    yield case("reshape", Operand("f32", (2, 3)), Operand("f32", (2, 3)), shape=(-5, -4))
    for shape, target in (((), (2, 3)), ((3,), (3,)), ((1, 3), (0, 3)), ((2, 1, 3), (2, 4, 3))):
        yield case("broadcast_to", Operand("f32", shape), shape=target, dynamic=False)
    yield case("broadcast_to", Operand("f32", (3, 1)), shape=(2, -1, 4))
    like = Operand("i64", (2, 3, 4))
    yield case("broadcast_to", Operand("f32", (1, 4)), like, shape=(-1, 3, -1))
    yield case("broadcast_to", Operand("f32", ()), like, shape=(-1, -1, -1))
    for a, b, axis in (((2, 0), (2, 3), 1), ((1, 4), (3, 4), 0), ((5,), (6,), -1)):
        yield case("concat", Operand("f32", a), Operand("f32", b), axis=axis)
    yield from _parts()


def _parts() -> Iterator[Case]:
    """slice, update_slice, pad and gather."""
    for shape, bounds in SLICES:
        starts, stops, steps = zip(*bounds, strict=True)
        yield case("slice", Operand("f32", shape), starts=starts, stops=stops, steps=steps)
    yield case("slice", Operand("f32", ()), starts=(), stops=(), steps=())
    for dtype, values in product((*NUMBERS, "i1"), ("start", "far_start")):
        start = Operand("i64", (2,), values)
        yield case("update_slice", Operand(dtype, (4, 5)), Operand(dtype, (3, 4)), start)
    for x, update in (((5,), (5,)), ((5,), (0,)), ((2, 3, 4), (1, 3, 2)), ((), ())):
        start = Operand("i64", (len(x),), "start")
        yield case("update_slice", Operand("f32", x), Operand("f32", update), start)
    for shape, low, high in (((3,), (0,), (0,)), ((), (), ()), ((0, 2), (2, 0), (1, 1))):
        yield case("pad", Operand("f32", shape), low=low, high=high, value=-2.5)
    for value in (np.inf, -np.inf, np.nan):
        pads: dict[str, Any] = {"low": (1, 2), "high": (1, 0)}
        yield case("pad", Operand("f32", (2, 2)), value=value, **pads)
    for index in ("i64", "i32", "i8", "ui8", "i16"):
        for values in ("index", "far_index"):
            taken = Operand(index, (5,), values)
            yield case("gather", Operand("f32", (2, 3, 4)), taken, axis=1)
    yield case("gather", Operand("f32", (3, 4)), Operand("i64", (), "index"), axis=-1)
    yield case("gather", Operand("f32", (3, 4)), Operand("i64", (0,), "index"), axis=0)


FOLDS = ("add", "mul", "min", "max")


def _bits() -> Iterator[Case]:
    """Shifts, random numbers, bit casts, remainders and cumulative sums."""
    for op, dtype in product(("shift_left", "shift_right"), INTEGERS):
        yield case(op, Operand(dtype, (9, 9), "extreme"), Operand(dtype, (9, 9), "bits"))
    for shapes in (((3, 5), (), (1,)), ((), (4,), (3, 1)), ((2, 9), (2, 9), (9,))):
        words = [Operand("ui64", shape, "words") for shape in shapes]
        yield case("threefry", *words[:2])
        yield case("philox", *words)
    same = {"f64": "i64", "i64": "f64", "f32": "ui32", "i32": "f32", "f16": "i16", "ui16": "bf16"}
    for source, target in (*same.items(), ("i8", "ui8"), ("ui64", "i64")):
        yield case("bitcast", Operand(source, (3, 5)), dtype=DTYPES[target])
    for dtype in NUMBERS:
        yield case("rem", Operand(dtype, (3, 5)), Operand(dtype, (3, 5), "nonzero"))
    for dtype, values in (*product(INTEGERS, ["extreme"]), ("f32", "special"), ("f64", "special")):
        yield case("rem", *[Operand(dtype, (9, 9), values)] * 2)
    for fold in FOLDS:
        for dtype in NUMBERS:
            yield case("cumulative", Operand(dtype, (3, 7), "factor"), axis=1, reduction=fold)
        for shape, axis in (((0, 3), 0), ((5, 2, 3), 0), ((33,), -1)):
            yield case("cumulative", Operand("f32", shape, "factor"), axis=axis, reduction=fold)
    yield case("cumulative", Operand("f32", (9, 9), "special"), axis=0)


def _argsorts() -> Iterator[Case]:
    ends = (((3, 7), 1, 2), ((7, 3), 0, 0), ((100,), 0, 5), ((2, 33), 1, 33))
    for descending in (False, True):
        for dtype in (*NUMBERS, "i1"):
            yield case("argsort", Operand(dtype, (3, 7)), descending=descending)
            few = Operand(dtype, (2, 45), "few")
            yield case("argsort", few, dynamic=False, descending=descending)
        for shape, axis, count in ends:
            params: dict[str, Any] = {"descending": descending, "axis": axis, "count": count}
            yield case("argsort", Operand("f32", shape), dynamic=axis == 0, **params)
        for shape in ((9, 9), (81,)):
            yield case("argsort", Operand("f32", shape, "special"), descending=descending)
    for shape, axis in (((4, 5), 0), ((2, 3, 4), 1), ((0, 4), 1), ((4, 0), 1), ((1,), 0)):
        yield case("argsort", Operand("f32", shape), axis=axis)


def _scatters() -> Iterator[Case]:
    for dtype in (*NUMBERS, "i1"):
        at, x, few = Operand("i64", (4,), "row"), Operand(dtype, (5, 3)), Operand(dtype, (4, 3))
        many = Operand("i32", (40,), "row"), Operand(dtype, (40, 3), "factor")
        yield case("scatter", x, at, few)
        for fold in FOLDS if dtype != "i1" else ():
            yield case("scatter", x, at, few, reduction=fold)
            yield case("scatter", x, *many, reduction=fold)
    sizes = (((5, 3), 4), ((5,), 70), ((4, 2, 3), 40), ((3, 2), 0), ((0, 2), 3), ((2, 0), 3))
    for (shape, count), fold in product(sizes, ("none", "add")):
        at, updates = Operand("i64", (count,), "row"), Operand("f32", (count, *shape[1:]))
        yield case("scatter", Operand("f32", shape), at, updates, reduction=fold)
    special = Operand("f32", (9, 9), "special")
    for fold in ("none", "max"):
        yield case("scatter", special, Operand("i64", (9,), "far_index"), special, reduction=fold)


def _all() -> Iterator[Case]:
    yield from _argsorts()
    yield from _scatters()
    yield from _bits()
    yield from _elementwise()
    yield from _contraction()
    yield from _convolution()
    yield from _integer_products()
    yield from _pooling()
    yield from _resize()
    yield from _reduction()
    yield from _normalization()
    yield from _attention()
    yield from _creation()
    yield from _selection()
    yield from _movement()


CASES: tuple[Case, ...] = tuple(_all())


def cases_of(op: str) -> list[Case]:
    """The cases of one op."""
    return [c for c in CASES if c.op == op]
