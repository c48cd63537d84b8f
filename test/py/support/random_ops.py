"""Which ops a random graph grows by: one proposal for each kind of op.

A proposal picks operands among the values so far, makes the constants that it needs, and adds the
op; `Rejected` means that nothing fitted this time.
"""

from collections.abc import Callable
from contextlib import suppress
from random import Random

import numpy as np
from random_graphs import SIZES, Drawing, Graph, Rejected, Value

from pyc_mlir.dialects.ops.movement import END, START, copied
from pyc_mlir.dialects.types import BOOL, DTYPES, is_float, is_integer

FLOATS = [DTYPES[n] for n in ("f32", "f32", "f32", "f16", "bf16", "f64")]
NUMBERS = [*FLOATS, *(DTYPES[n] for n in ("i32", "i8", "i64"))]
FLOAT_UNARY = ("neg", "abs", "floor", "ceil", "round", "exp", "log", "sin", "cos", "sqrt", "rsqrt")
FLOAT_UNARY += ("tanh", "erf", "erfc", "relu", "sigmoid", "silu", "gelu")
PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")
I64 = DTYPES["i64"]


def draw_arguments(d: Drawing) -> None:
    """One to three arguments, mostly of one element type; images now and then."""
    main = d.random.choice(NUMBERS if d.chance(0.3) else FLOATS)
    for _ in range(d.random.randint(1, 3)):
        dtype = main if d.chance(0.8) else d.random.choice([*NUMBERS, BOOL])
        if d.chance(0.2):
            d.argument(dtype, [d.random.choice((1, 2)), d.random.choice((2, 4)), 5, 7])
        else:
            d.argument(dtype, [d.random.choice(SIZES) for _ in range(d.random.randint(0, 3))])


def propose(d: Drawing) -> None:
    """Grow by one op and what it needs. Raises Rejected."""
    proposals, weights = zip(*PROPOSALS, strict=True)
    d.random.choices(proposals, weights)[0](d)


def number(v: Value) -> bool:
    return v.dtype != BOOL


def floating(v: Value) -> bool:
    return is_float(v.dtype)


def ranked(v: Value) -> bool:
    return v.rank >= 1


def both(*conditions: Callable[[Value], bool]) -> Callable[[Value], bool]:
    return lambda v: all(c(v) for c in conditions)


def unary(d: Drawing) -> None:
    x = d.pick(lambda v: True)
    v = d.value(x)
    if floating(v):
        op = d.random.choice(FLOAT_UNARY)
        params = {"approximate": "tanh"} if op == "gelu" and d.chance(0.5) else {}
        d.add(op, x, **params)
        return
    d.add(d.random.choice(("neg", "abs", "relu", "not") if number(v) else ("not",)), x)


def twice(d: Drawing) -> None:
    """The same op twice in a row: what idempotence and involution wait for."""
    x = d.pick(lambda v: True)
    v = d.value(x)
    op = d.random.choice(("neg", "abs", "relu", "round") if floating(v) else ("not",))
    d.add(op, d.add(op, x))


def partner(d: Drawing, x: int) -> int:
    """Another operand that broadcasts with x."""
    v = d.value(x)
    if d.chance(0.5):
        return d.pick(lambda o: o.dtype == v.dtype and _meet(o, v))
    known = [s if s is not None and not d.chance(0.3) else 1 for s in v.shape]
    return d.constant(v.dtype, known[d.random.randint(0, len(known)) :])


def _meet(a: Value, b: Value) -> bool:
    """Static ones stretch; a dynamic dimension meets its own size or a static 1."""
    for (s, m), (t, n) in zip(_dims(a), _dims(b), strict=False):
        if 1 not in (s, t) and m != n:
            return False
    return True


def _dims(v: Value) -> list[tuple[int | None, int]]:
    return list(zip(v.shape, v.array.shape, strict=True))[::-1]


def binary(d: Drawing) -> None:
    x = d.pick(lambda v: True)
    y = partner(d, x)
    v = d.value(x)
    if floating(v):
        ops = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
    elif number(v):
        ops = ("add", "sub", "mul", "div", "maximum", "minimum", "and", "or", "xor")
    else:
        ops = ("and", "or", "xor")
    d.add(d.random.choice(ops), *((x, y) if d.chance(0.7) else (y, x)))


def compare(d: Drawing) -> None:
    x = d.pick(number)
    d.add("compare", x, partner(d, x), predicate=d.random.choice(PREDICATES))


def select(d: Drawing) -> None:
    x = d.pick(number)
    y = partner(d, x)
    wide = x if d.value(x).rank >= d.value(y).rank else y
    d.add("select", d.add("compare", wide, partner(d, wide), predicate="lt"), x, y)


def clip(d: Drawing) -> None:
    x = d.pick(number)
    d.add("clip", x, partner(d, x), d.constant(d.value(x).dtype, ()))


def cast(d: Drawing) -> None:
    x = d.pick(lambda v: True)
    between = d.add("cast", x, dtype=d.random.choice([*NUMBERS, BOOL]))
    if d.chance(0.3):
        d.add("cast", between, dtype=d.value(x).dtype)


def matmul(d: Drawing) -> None:
    x = d.pick(both(number, ranked))
    v = d.value(x)
    k = v.shape[-1]
    if k is None or d.chance(0.3):
        swapped = (*range(v.rank - 2), v.rank - 1, v.rank - 2) if v.rank > 1 else (0,)
        d.add("matmul", x, d.add("transpose", x, permutation=swapped))
        return
    n = [d.random.choice(SIZES)] if d.chance(0.8) else []
    batch = [s or 1 for s in v.shape[:-2]] if n and d.chance(0.3) else []
    d.add("matmul", x, d.constant(v.dtype, [*batch, k, *n]))


def linear(d: Drawing) -> None:
    """What the front ends make of a layer: product, bias, activation, residual add."""
    x = d.pick(both(floating, lambda v: v.rank >= 2 and v.shape[-1] is not None))
    k = d.value(x).shape[-1]
    dtype = d.value(x).dtype
    out = d.add("matmul", x, d.constant(dtype, [k or 1, k or 1]))
    out = d.add("add", out, d.constant(dtype, [k or 1]))
    out = d.add(d.random.choice(("relu", "tanh", "silu", "gelu", "sigmoid")), out)
    d.add("add", out, x)


def _image(d: Drawing) -> tuple[int, str, int]:
    """A rank-4 value, a layout for it, and its known number of channels."""
    x = d.pick(both(number, lambda v: v.rank == 4))
    layout = d.random.choice(("NCHW", "NHWC"))
    channels = d.value(x).shape[1 if layout == "NCHW" else 3]
    if not channels:
        raise Rejected
    return x, layout, channels


def _window(d: Drawing) -> dict[str, tuple[int, ...]]:
    random = d.random
    return {
        "strides": (random.randint(1, 2), random.randint(1, 3)),
        "pads": tuple(random.randint(0, 2) for _ in range(4)),
        "dilations": (random.randint(1, 2), random.randint(1, 2)),
    }


def convolution(d: Drawing) -> None:
    x, layout, channels = _image(d)
    groups = d.random.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    filters, depth = groups * d.random.randint(1, 2), channels // groups
    kh, kw = d.random.randint(1, 3), d.random.randint(1, 3)
    shape = [filters, depth, kh, kw] if layout == "NCHW" else [kh, kw, depth, filters]
    weight = d.constant(d.value(x).dtype, shape)
    d.add("conv2d", x, weight, groups=groups, layout=layout, **_window(d))


def pooling(d: Drawing) -> None:
    x, layout, _ = _image(d)
    window = _window(d)
    kernel = (d.random.randint(1, 3), d.random.randint(1, 3))
    window["pads"] = tuple(min(p, kernel[i % 2] - 1) for i, p in enumerate(window["pads"]))
    if d.chance(0.5):
        d.add("max_pool2d", x, kernel=kernel, layout=layout, **window)
        return
    del window["dilations"]
    d.add("avg_pool2d", x, kernel=kernel, layout=layout, count_include_pad=d.chance(0.5), **window)


def reduction(d: Drawing) -> None:
    x = d.pick(number)
    rank = d.value(x).rank
    kinds = ["sum", "max", "min", "prod"] + ["mean"] * floating(d.value(x))
    axes = tuple(d.random.sample(range(-rank, 0), d.random.randint(0, rank)))
    d.add(f"reduce_{d.random.choice(kinds)}", x, axes=axes, keepdims=d.chance(0.5))


def argmax(d: Drawing) -> None:
    x = d.pick(both(number, ranked))
    axis = d.random.randrange(d.value(x).rank)
    d.add("argmax", x, axis=axis, keepdims=d.chance(0.5))


def norm(d: Drawing) -> None:
    x = d.pick(both(floating, ranked))
    v = d.value(x)
    op = d.random.choice(("softmax", "log_softmax", "layernorm", "rmsnorm", "batchnorm"))
    axis = d.random.randrange(v.rank)
    if op in ("softmax", "log_softmax"):
        d.add(op, x, axis=axis)
        return
    shape = v.shape[axis:] if op != "batchnorm" else v.shape[axis : axis + 1]
    if None in shape:
        raise Rejected
    known = [s or 0 for s in shape]
    vectors = [d.constant(v.dtype, known) for _ in range({"rmsnorm": 1, "layernorm": 2}.get(op, 3))]
    if op == "batchnorm":
        variance = np.full(known, d.random.choice((0.5, 1.0, 2.0)), v.dtype)
        vectors.append(d.add("constant", value=variance))
    d.add(op, x, *vectors, axis=axis)


def attention(d: Drawing) -> None:
    query = d.pick(both(floating, lambda v: v.rank >= 2))
    v = d.value(query)
    key = d.pick(
        lambda o: (
            o.dtype == v.dtype
            and o.rank == v.rank
            and (o.shape[:-2], o.shape[-1]) == (v.shape[:-2], v.shape[-1])
        )
    )
    is_causal = d.chance(0.3)
    d.add("attention", query, key, key, scale=0.5, is_causal=is_causal)


def transpose(d: Drawing) -> None:
    x = d.pick(lambda v: True)
    rank = d.value(x).rank
    out = d.add("transpose", x, permutation=tuple(d.random.sample(range(rank), rank)))
    if d.chance(0.3):
        d.add("transpose", out, permutation=tuple(d.random.sample(range(rank), rank)))


def reshape(d: Drawing) -> None:
    x = d.pick(lambda v: True)
    v = d.value(x)
    entries = [copied(i) if s is None else s for i, s in enumerate(v.shape)]
    kind = d.random.randrange(5)
    if kind == 0:
        entries.insert(d.random.randint(0, len(entries)), 1)
    elif kind == 1:
        entries = [e for e in entries if e != 1]
    elif kind == 2:
        entries = [-1]
    elif kind == 3 and len(entries) >= 2:
        at = d.random.randrange(len(entries) - 1)
        entries[at : at + 2] = [-1]
    elif v.declared.is_static:
        entries = _factors(d, v.array.size)
    d.add("reshape", x, shape=tuple(entries))


def _factors(d: Drawing, size: int) -> list[int]:
    """Sizes with the product `size`."""
    out = []
    while size > 1 and d.chance(0.8):
        factor = d.random.choice([f for f in range(1, size + 1) if size % f == 0])
        out.append(factor)
        size //= factor
    return [*out, size]


def broadcast_to(d: Drawing) -> None:
    x = d.pick(lambda v: True)
    v = d.value(x)
    entries = [
        -1 if s is None else (d.random.choice(SIZES) if s == 1 and d.chance(0.7) else s)
        for s in v.shape
    ]
    leading = [d.random.choice(SIZES)] if d.chance(0.3) else []
    d.add("broadcast_to", x, shape=(*leading, *entries))


def concat(d: Drawing) -> None:
    x = d.pick(ranked)
    v = d.value(x)
    axis = d.random.randrange(-v.rank, v.rank)

    def fits(o: Value) -> bool:
        same = o.dtype == v.dtype and o.rank == v.rank
        return same and all(
            a == b or i == axis % v.rank
            for i, (a, b) in enumerate(zip(o.array.shape, v.array.shape, strict=True))
        )

    d.add("concat", x, d.pick(fits), axis=axis)


def slice_(d: Drawing) -> None:
    x = d.pick(ranked)
    bounds = []
    for size in d.value(x).array.shape:
        step = d.random.choice((1, 1, 1, 2, -1, -2))
        first = d.random.choice((START, END, 0, 1, -1, -2, size))
        last = d.random.choice((START, END, END, size, -1, 2, 100))
        bounds.append((first, last, step))
    starts, stops, steps = zip(*bounds, strict=True)
    d.add("slice", x, starts=starts, stops=stops, steps=steps)


def update_slice(d: Drawing) -> None:
    x = d.pick(ranked)
    v = d.value(x)
    # A static update of a dynamic dimension is the part that may not fit: size 1 always does.
    update = d.constant(v.dtype, [1 if s is None else d.random.randint(0, s) for s in v.shape])
    starts = np.array([d.random.randint(-1, 4) for _ in v.shape], np.int64)
    d.add("update_slice", x, update, d.add("constant", value=starts))


def pad(d: Drawing) -> None:
    x = d.pick(number)
    rank = d.value(x).rank
    low, high = (tuple(d.random.randint(0, 2) for _ in range(rank)) for _ in "ab")
    d.add("pad", x, low=low, high=high, value=float(d.random.choice((0, 1, -2))))


def gather(d: Drawing) -> None:
    x = d.pick(ranked)
    rank = d.value(x).rank
    if d.chance(0.3):
        indices = d.pick(lambda v: is_integer(v.dtype) and v.rank <= 2)
    else:
        dtype = d.random.choice([DTYPES["i64"], DTYPES["i32"]])
        shape = [d.random.choice(SIZES) for _ in range(d.random.randint(0, 2))]
        indices = d.constant(dtype, shape)
    d.add("gather", x, indices, axis=d.random.randrange(-rank, rank))


def create(d: Drawing) -> None:
    """iota and size, of a value's shape."""
    x = d.pick(ranked)
    v = d.value(x)
    axis = d.random.randrange(v.rank)
    if d.chance(0.5):
        shape = tuple(-1 if s is None else s for s in v.shape)
        like = (x,) if -1 in shape else ()
        d.add("iota", *like, shape=shape, axis=axis, dtype=d.random.choice(NUMBERS))
        return
    total = d.add("size", x, axes=(axis,))
    d.add("add", total, d.constant(I64, ()))


PROPOSALS: list[tuple[Callable[[Drawing], None], int]] = [
    (unary, 6),
    (twice, 1),
    (binary, 7),
    (compare, 1),
    (select, 2),
    (clip, 1),
    (cast, 2),
    (matmul, 3),
    (linear, 2),
    (convolution, 2),
    (pooling, 2),
    (reduction, 3),
    (argmax, 1),
    (norm, 3),
    (attention, 1),
    (transpose, 3),
    (reshape, 3),
    (broadcast_to, 2),
    (concat, 2),
    (slice_, 2),
    (update_slice, 1),
    (pad, 2),
    (gather, 1),
    (create, 1),
]


def draw_graph(random: Random, *, dynamic: bool = False, ops: int = 8) -> Graph:
    """A graph of about `ops` ops with one to three arguments and one to three results."""
    drawing = Drawing(random, dynamic)
    draw_arguments(drawing)
    for _ in range(ops):
        # What an op that did not work out had made already stays: dead code is worth having.
        with suppress(Rejected):
            propose(drawing)
    graph = drawing.graph
    candidates = list(range(len(graph.dims), len(graph.values))) or [0]
    more = random.sample(candidates, min(len(candidates), random.randint(0, 2)))
    graph.results = tuple(dict.fromkeys([candidates[-1], *more]))
    return graph
