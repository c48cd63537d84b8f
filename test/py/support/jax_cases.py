"""JAX functions of one primitive each, with arguments over types and edge shapes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np
from jax import lax  # pyright: ignore[reportMissingImports]

SHAPES = ((), (1,), (0, 3), (4, 3), (2, 1, 5))
FLOATS = (np.float32, np.float16, jnp.bfloat16)
INTEGERS = (np.int32, np.int8)


@dataclass(frozen=True)
class Case:
    """A function and arrays for it. tolerance: relative to the largest result; 0 for equal bits."""

    name: str
    function: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    tolerance: float = 1e-5


def array(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Numbers around 0; integers from -7 to 7."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype) == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind == "i":
        return rng.integers(-7, 8, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


_UNARY = {
    "neg": lax.neg, "abs": lax.abs, "sign": lax.sign, "floor": lax.floor, "ceil": lax.ceil,
    "round_away": lax.round, "exp": lax.exp, "expm1": lax.expm1, "sin": lax.sin, "cos": lax.cos,
    "round_even": partial(lax.round, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN),
    "tanh": lax.tanh, "logistic": lax.logistic, "erf": lax.erf, "erfc": lax.erfc,
    "square": lax.square, "sinh": lax.sinh, "cosh": lax.cosh, "asinh": lax.asinh,
    "is_finite": lax.is_finite, "cbrt": lax.cbrt, "exp2": lax.exp2,
}  # fmt: skip
_POSITIVE = {"log": lax.log, "log1p": lax.log1p, "sqrt": lax.sqrt, "rsqrt": lax.rsqrt}
_BINARY = {
    "add": lax.add, "sub": lax.sub, "mul": lax.mul, "max": lax.max, "min": lax.min, "div": lax.div,
    "rem": lax.rem, "eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt,
    "ge": lax.ge,
}  # fmt: skip
_TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float16): 4e-3}


def elementwise() -> Iterator[Case]:
    """One elementwise primitive each, over types and shapes."""
    for dtype in FLOATS:
        tolerance = _TOLERANCE.get(np.dtype(dtype), 2e-2)
        for shape in SHAPES:
            label = f"{np.dtype(dtype).name}-{'x'.join(map(str, shape)) or 'scalar'}"
            x, y = array(shape, dtype), array(shape, dtype, 1)
            for name, function in _UNARY.items():
                yield Case(f"{name}-{label}", function, (x,), tolerance)
            for name, function in _POSITIVE.items():
                yield Case(
                    f"{name}-{label}", function, (np.abs(x) + np.array(0.1, dtype),), tolerance
                )
            for name, function in _BINARY.items():
                yield Case(f"{name}-{label}", function, (x, y), tolerance)
    for dtype in INTEGERS:
        for shape in SHAPES:
            label = f"{np.dtype(dtype).name}-{'x'.join(map(str, shape)) or 'scalar'}"
            x, y = array(shape, dtype), array(shape, dtype, 1)
            for name in ("neg", "abs", "sign", "square"):
                yield Case(f"{name}-{label}", _UNARY[name], (x,), 0)
            for name, function in _BINARY.items():
                yield Case(f"{name}-{label}", function, (x, y), 0)
            for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"):
                given = (x,) if name == "bitwise_not" else (x, y)
                yield Case(f"{name}-{label}", getattr(lax, name), given, 0)


def _window(reducer: Any, start: Any, **parameters: Any) -> Callable[..., Any]:
    return lambda x: lax.reduce_window(x, np.array(start, x.dtype), reducer, **parameters)


def _conv(**parameters: Any) -> Callable[..., Any]:
    return lambda x, w: lax.conv_general_dilated(x, w, **parameters)


def _images() -> Iterator[Case]:
    nhwc, hwio = array((2, 8, 7, 4)), array((3, 3, 4, 6), seed=1)
    numbers = ("NHWC", "HWIO", "NHWC")
    nchw, oihw = array((2, 4, 8, 7)), array((6, 4, 3, 2), seed=1)
    plain = {"window_strides": (1, 1), "padding": "SAME"}
    forms: dict[str, dict[str, Any]] = {
        "same": {**plain},
        "valid-strided": {"window_strides": (2, 1), "padding": "VALID"},
        "dilated": {**plain, "rhs_dilation": (2, 2)},
        "transposed": {
            "window_strides": (1, 1),
            "padding": ((2, 2), (1, 2)),
            "lhs_dilation": (2, 3),
        },
        "negative-pad": {"window_strides": (1, 1), "padding": ((-1, 2), (0, -1))},
    }
    for name, form in forms.items():
        yield Case(f"conv-nhwc-{name}", _conv(**form, dimension_numbers=numbers), (nhwc, hwio))
        yield Case(f"conv-nchw-{name}", _conv(**form), (nchw, oihw))
    grouped = _conv(**plain, dimension_numbers=numbers, feature_group_count=2)
    yield Case("conv-groups", grouped, (nhwc, array((3, 3, 2, 6))))
    depthwise = _conv(**plain, dimension_numbers=numbers, feature_group_count=4)
    yield Case("conv-depthwise", depthwise, (nhwc, array((3, 3, 1, 8))))
    batches = _conv(**plain, dimension_numbers=numbers, batch_group_count=2)
    yield Case("conv-batch-groups", batches, (nhwc, array((3, 3, 4, 6))))
    mixed = _conv(**plain, dimension_numbers=("CHWN", "IHWO", "NHWC"))
    yield Case("conv-chwn", mixed, (array((4, 8, 7, 2)), array((4, 3, 3, 6))))
    line = _conv(window_strides=(2,), padding=((1, 1),), dimension_numbers=("NWC", "WIO", "NWC"))
    yield Case("conv-1d", line, (array((2, 9, 4)), array((3, 4, 5))))
    yield Case(
        "conv-1d-ncw",
        _conv(window_strides=(1,), padding="SAME"),
        (array((2, 4, 9)), array((5, 4, 3))),
    )
    loss = lambda x, w: (_conv(**plain, dimension_numbers=numbers)(x, w) ** 2).sum()  # noqa: E731
    yield Case("conv-grad", jax.grad(loss, (0, 1)), (nhwc, hwio), 1e-4)
    by_group = lambda x, w: (grouped(x, w) ** 2).sum()  # noqa: E731
    yield Case("conv-groups-grad", jax.grad(by_group, (0, 1)), (nhwc, array((3, 3, 2, 6))), 1e-4)
    square = {"window_dimensions": (1, 3, 3, 1), "window_strides": (1, 2, 2, 1)}
    for padding in ("SAME", "VALID"):
        shape = {**square, "padding": padding}
        yield Case(f"max-pool-{padding}", _window(lax.max, -np.inf, **shape), (nhwc,), 0)
        yield Case(f"min-pool-{padding}", _window(lax.min, np.inf, **shape), (nhwc,), 0)
        yield Case(f"sum-pool-{padding}", _window(lax.add, 0.0, **shape), (nhwc,))
        of = lambda x, s=shape: (_window(lax.max, -np.inf, **s)(x) ** 2).sum()  # noqa: E731
        yield Case(f"max-pool-grad-{padding}", jax.grad(of), (nhwc,))
    integers = array((2, 6, 6, 1), np.int32)
    yield Case("max-pool-i32", _window(lax.max, -(2**31), **square, padding="SAME"), (integers,), 0)
    yield Case("sum-pool-i32", _window(lax.add, 0, **square, padding="SAME"), (integers,), 0)


def _indexing() -> Iterator[Case]:
    x, table = array((5, 4, 3)), array((7, 6))
    rows = np.array([[0, 6], [3, 2]], np.int32)
    wild = np.array([-9, -1, 0, 6, 7, 99], np.int32)
    yield Case("take", lambda t, i: t[i], (table, rows), 0)
    yield Case("take-axis-1", lambda t, i: jnp.take(t, i, axis=1), (table, rows % 6), 0)
    for mode in ("clip", "fill"):
        yield Case(
            f"take-{mode}", lambda t, i, m=mode: jnp.take(t, i, axis=0, mode=m), (table, wild), 0
        )
    yield Case(
        "take-along",
        lambda x, i: jnp.take_along_axis(x, i, 1),
        (table, np.array([[0], [5], [1], [2], [3], [4], [0]], np.int32)),
        0,
    )
    yield Case("index-pairs", lambda x, i: x[i, :, i % 3], (x, np.array([0, 4, 2], np.int32)), 0)
    yield Case(
        "dynamic-slice",
        lambda x, i: lax.dynamic_slice(x, (i, 1, i), (2, 3, 1)),
        (x, np.array(4, np.int32)),
        0,
    )
    yield Case(
        "dynamic-update",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0, i)),
        (x, array((2, 2, 2)), np.array(9, np.int32)),
        0,
    )
    yield Case("scatter-set", lambda x, u, i: x.at[i].set(u), (table, array((2, 2, 6)), rows), 0)
    yield Case("scatter-add", lambda x, u, i: x.at[i].add(u), (table, array((6, 6)), wild % 3))
    yield Case("scatter-add-out", lambda x, u, i: x.at[i].add(u), (table, array((6, 6)), wild))
    yield Case("scatter-max", lambda x, u, i: x.at[i].max(u), (table, array((6, 6)), wild % 4), 0)
    yield Case("scatter-min", lambda x, u, i: x.at[i].min(u), (table, array((6, 6)), wild % 4), 0)
    yield Case("scatter-mul", lambda x, u, i: x.at[i].multiply(u), (table, array((6, 6)), wild % 4))
    yield Case(
        "scatter-points",
        lambda x, u, i: x.at[i, :, i % 3].add(u),
        (x, array((3, 4)), np.array([0, 4, 0], np.int32)),
    )
    yield Case("scatter-box", lambda x, u: x.at[1:3, 2].set(u), (x, array((2, 3))), 0)
    embed = lambda t, i: (t[i] ** 2).sum()  # noqa: E731
    yield Case("take-grad", jax.grad(embed), (table, rows))


def _reductions() -> Iterator[Case]:
    x, whole = array((3, 4, 5)), array((3, 4, 5), np.int32)
    for name in ("sum", "prod", "max", "min", "mean", "argmax", "argmin"):
        for axis in (0, -1, None):
            yield Case(f"{name}-{axis}", partial(getattr(jnp, name), axis=axis), (x,), 2e-5)
        if name != "mean":
            yield Case(f"{name}-i32", partial(getattr(jnp, name), axis=1), (whole,), 0)
    ties = np.array([[1, 3, 3, 0], [np.nan, 1, np.nan, 2]], np.float32)
    for name in ("argmax", "argmin"):
        yield Case(f"{name}-ties", partial(getattr(jnp, name), axis=1), (ties,), 0)
    mask = array((3, 4), np.bool_)
    for name in ("all", "any", "argmax"):
        yield Case(f"{name}-bool", partial(getattr(jnp, name), axis=1), (mask,), 0)
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        for reverse in (False, True):
            yield Case(
                f"{name}-{reverse}",
                partial(getattr(lax, name), axis=1, reverse=reverse),
                (x,),
                2e-5,
            )
    far = np.array([[1e3, 0, -1e3, -np.inf], [-np.inf, -1e4, 5, np.inf], [0, 1e3, np.nan, 1]])
    for dtype, reverse in product(FLOATS[:2], (False, True)):
        yield Case(
            f"cumlogsumexp-far-{np.dtype(dtype).name}-{reverse}",
            lambda x, r=reverse: jnp.exp(lax.cumlogsumexp(x, 1, reverse=r) / 500),
            (far.astype(dtype),), _TOLERANCE[np.dtype(dtype)],
        )  # fmt: skip
    yield Case("sort", partial(jnp.sort, axis=1), (x,), 0)
    yield Case("sort-nan", jnp.sort, (np.array([np.nan, 1, -np.inf, np.inf, 0], np.float32),), 0)
    yield Case("argsort", partial(jnp.argsort, axis=0), (x,), 0)
    yield Case("argsort-stable", jnp.argsort, (array((40,), np.int8),), 0)
    yield Case("top-k", lambda x: lax.top_k(x, 3), (x,), 0)
    yield Case("top-k-ties", lambda x: lax.top_k(x, 4), (array((3, 9), np.int32),), 0)


def _movement() -> Iterator[Case]:
    x = array((4, 3))
    yield Case("transpose", lambda x: x.T, (x,), 0)
    yield Case("broadcast", lambda x: jnp.broadcast_to(x[:, None], (2, 4, 5, 3)), (x,), 0)
    yield Case("broadcast-front", lambda x: lax.broadcast_in_dim(x, (4, 2, 3), (0, 2)), (x,), 0)
    yield Case("pad", lambda x: lax.pad(x, np.float32(7), ((1, 2, 0), (0, 1, 2))), (x,), 0)
    yield Case(
        "pad-negative", lambda x: lax.pad(x, np.float32(7), ((-1, 2, 1), (1, -2, 0))), (x,), 0
    )
    yield Case("pad-computed", lambda x: lax.pad(x, x[0, 0], ((1, 0, 1), (-1, 2, 0))), (x,), 0)
    yield Case("reverse", lambda x: x[::-1, ::2], (x,), 0)
    yield Case("concat", lambda x: jnp.concatenate([x, x * 2, x[:0]], 1 - 1), (x,), 0)
    yield Case("split", lambda x: jnp.split(x, (1, 3), 0), (x,), 0)
    yield Case("stack", lambda x: jnp.stack([x, -x], 1), (x,), 0)
    yield Case(
        "iota", lambda x: lax.broadcasted_iota(jnp.int32, (2, 3), 1) + x[:2].astype(int), (x,), 0
    )
    yield Case("clamp", lambda x: lax.clamp(np.float32(-1), x, np.float32(0.5)), (x,), 0)
    yield Case("select", lambda x: jnp.where(x > 0, x, 0), (x,), 0)
    which = array((4, 3), np.int32) % 3
    yield Case("select-n", lambda w, x: lax.select_n(w, x, x * 2, x * 3), (which, x), 0)
    yield Case("integer-pow", lambda x: (x**0, x**1, x**3, x**-2), (x,), 1e-5)
    special = np.array([np.inf, -np.inf, np.nan, 0], np.float32)
    yield Case("integer-pow-special", lambda x: (x**0, lax.integer_pow(x, 0)), (special,), 0)
    yield Case("pow", lambda x: jnp.abs(x) ** 1.7, (x,))
    for dtype in (np.int32, np.float16, jnp.bfloat16, np.bool_, np.int8):
        yield Case(f"convert-{np.dtype(dtype).name}", lambda x, d=dtype: x.astype(d), (x,), 0)


def _narrowed(dtype: Any) -> Callable[..., Any]:
    """A product whose result type is narrower than its operands."""
    sizes = (((1,), (0,)), ((), ()))
    return lambda x, y: lax.dot_general(x, y, sizes, preferred_element_type=dtype)


def _contractions() -> Iterator[Case]:
    pairs = {
        "ij,jk->ik": ((3, 4), (4, 5)), "ij,kj->ik": ((3, 4), (5, 4)), "i,i->": ((4,), (4,)),
        "ij,j->i": ((3, 4), (4,)), "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
        "bij,jk->bik": ((2, 3, 4), (4, 5)), "bthd,bshd->bhts": ((2, 3, 4, 5), (2, 6, 4, 5)),
        "bhts,bshd->bthd": ((2, 4, 3, 6), (2, 6, 4, 5)), "thd,hde->te": ((3, 4, 5), (4, 5, 6)),
        "td,dhe->the": ((3, 4), (4, 5, 6)), "i,j->ij": ((3,), (4,)), "ab,bc->ca": ((3, 4), (4, 5)),
        "tkgd,skd->tkgs": ((3, 2, 4, 5), (6, 2, 5)), "bi,bi->b": ((3, 4), (3, 4)),
        "ij,jk->ik0": ((3, 0), (0, 5)),
    }  # fmt: skip
    for equation, shapes in pairs.items():
        arrays = tuple(array(s, seed=i) for i, s in enumerate(shapes))
        yield Case(f"einsum-{equation}", partial(jnp.einsum, equation.rstrip("0")), arrays)
    halves = tuple(a.astype(jnp.bfloat16) for a in (array((3, 8)), array((8, 5), seed=1)))
    wide = partial(jnp.einsum, "ij,jk->ik", preferred_element_type=jnp.float32)
    yield Case("einsum-wide", wide, halves)
    far = np.array([[1e6, 1]], np.float32), np.array([[1e-6], [1]], np.float32)
    for dtype in (np.float16, jnp.bfloat16):
        yield Case(f"dot-narrow-{np.dtype(dtype).name}", _narrowed(dtype), far, 0)
    bytes_ = (array((3, 8), np.int8), array((8, 5), np.int8, 1))
    yield Case(
        "einsum-i8", partial(jnp.einsum, "ij,jk->ik", preferred_element_type=jnp.int32), bytes_, 0
    )


def _control() -> Iterator[Case]:
    x = array((5, 3))
    running = lambda x: lax.scan(lambda c, r: (c + r, c * 2), x[0], x)  # noqa: E731
    yield Case("scan", running, (x,))
    yield Case(
        "scan-reverse", lambda x: lax.scan(lambda c, r: (c + r, c), x[0], x, reverse=True), (x,)
    )
    yield Case("scan-empty", lambda x: lax.scan(lambda c, r: (c, r), x[0], x[:0]), (x,))
    yield Case("scan-counted", lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, 4), (x,))
    yield Case("fori", lambda x: lax.fori_loop(0, 4, lambda i, c: c + i, x), (x,))
    yield Case(
        "while",
        lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, x)),
        (x,),
    )
    for sign in (1, -1):
        yield Case(
            f"cond-{sign}",
            lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
            (sign * np.abs(x),),
        )
    for index in (-2, 0, 1, 2, 9):
        branches = (jnp.sin, jnp.cos, jnp.tanh)
        yield Case(
            f"switch-{index}",
            lambda i, x, b=branches: lax.switch(i, b, x),
            (np.array(index, np.int32), x),
        )
    yield Case("checkpoint", jax.grad(lambda x: jax.checkpoint(jnp.sin)(x).sum()), (x,))
    yield Case("scan-grad", jax.grad(lambda x: running(x)[1].sum()), (x,))
    yield Case("relu-grad", jax.grad(lambda x: jax.nn.relu(x).sum()), (x,), 0)


def cases() -> dict[str, Case]:
    """Every case by name."""
    groups = (elementwise, _images, _indexing, _reductions, _movement, _contractions, _control)
    found = [case for group in groups for case in group()]
    table = {case.name: case for case in found}
    assert len(table) == len(found)
    return table
