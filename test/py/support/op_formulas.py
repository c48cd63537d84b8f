"""What each op means, written another way than its reference: element by element with Python's own
numbers, or in f64 from the definition. `FORMULAS[op](*arrays, **params)` is exact before rounding.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from random_formulas import philox, threefry

from pyc_mlir.dialects.ops.movement import END, START
from pyc_mlir.dialects.types import BOOL, is_float


def f64(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) if is_float(a.dtype) else a for a in arrays]


def elementwise(scalar: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """A formula for one element, applied to all with Python's own numbers."""

    def formula(*arrays: np.ndarray) -> np.ndarray:
        arrays = np.broadcast_arrays(*f64(*arrays))
        out = np.empty(arrays[0].shape, object)
        for i in np.ndindex(out.shape):
            out[i] = _or_nan(scalar, [a[i].item() for a in arrays])
        return out

    return formula


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _or_nan(scalar: Callable[..., Any], values: Sequence[Any]) -> Any:
    if any(map(_is_nan, values)) and scalar not in _ANSWERS_FOR_NAN:
        return math.nan
    try:
        return scalar(*values)
    except OverflowError:
        return math.inf
    except ValueError:  # math's functions refuse what IEEE answers with NaN
        return math.nan


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, int):
        return 0 if b == 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    return float(np.divide(a, b))


def _log(x: float) -> float:
    return -math.inf if x == 0 else math.log(x)


def _sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))


def _rsqrt(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else 1 / math.sqrt(x)


def _gelu(x: float) -> float:
    return x if x == math.inf else x * 0.5 * math.erfc(-x / math.sqrt(2))


def _gelu_tanh(x: float) -> float:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _erf(x: float) -> float:
    """1 - erfc(x); near zero, where that cancels, Maclaurin's series."""
    terms = (x * (-x * x) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(16))
    return 2 / math.sqrt(math.pi) * math.fsum(terms) if abs(x) < 0.5 else 1 - math.erfc(x)


def _not(x: Any) -> Any:
    return not x if isinstance(x, bool) else -x - 1


_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _select(condition: bool, a: Any, b: Any) -> Any:
    return a if condition else b


_ANSWERS_FOR_NAN = {*_RELATIONS.values(), _select}


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    out = np.empty(x.shape, object if not is_float(dtype) else np.float64)
    for i in np.ndindex(x.shape):
        out[i] = _cast_one(x[i].item(), dtype)
    return out


def _cast_one(v: Any, dtype: np.dtype) -> Any:
    if is_float(dtype):
        return float(v)
    if dtype == BOOL:
        return v != 0
    info = np.iinfo(dtype)
    if isinstance(v, float):
        if math.isnan(v):
            return 0
        return info.max if v >= info.max else info.min if v <= info.min else math.trunc(v)
    return (int(v) - info.min) % 2**info.bits + info.min


def _matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = f64(a, b)
    left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    out = (left[..., :, :, None] * right[..., None, :, :]).sum(-2)
    out = out[..., 0] if b.ndim == 1 else out
    return out[..., 0] if a.ndim == 1 and b.ndim == 1 else out[..., 0, :] if a.ndim == 1 else out


def _windows(
    x: np.ndarray, kernel: Sequence[int], window: dict[str, Any], fill: float
) -> np.ndarray:
    """x [n, c, h, w] as [n, c, oh, ow, kh, kw], one position after the other."""
    (sh, sw), (t, left, b, r) = window.get("strides", (1, 1)), window.get("pads", (0, 0, 0, 0))
    dh, dw = window.get("dilations", (1, 1))
    n, c, h, w = x.shape
    big = np.full((n, c, h + t + b, w + left + r), fill)
    big[:, :, t : t + h, left : left + w] = x
    rows = range(0, big.shape[2] - dh * (kernel[0] - 1), sh)
    columns = range(0, big.shape[3] - dw * (kernel[1] - 1), sw)
    out = np.empty((n, c, len(rows), len(columns), *kernel))
    for (i, y), (j, z), p, q in product(
        enumerate(rows), enumerate(columns), range(kernel[0]), range(kernel[1])
    ):
        out[:, :, i, j, p, q] = big[:, :, y + p * dh, z + q * dw]
    return out


def _image(x: np.ndarray, layout: str) -> np.ndarray:
    return np.asarray(x, np.float64 if is_float(x.dtype) else None).transpose(
        (0, 1, 2, 3) if layout == "NCHW" else (0, 3, 1, 2)
    )


def _laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    return x if layout == "NCHW" else np.moveaxis(x, 1, -1)


def _block_matmul(x, weight, scale, point, bits, accuracy="f32") -> np.ndarray:
    """Sums over one number after the other, each taken out of its byte."""
    rows, _, held = weight.shape
    each, out = 8 // bits, np.zeros((*x.shape[:-1], rows))
    for k in range(x.shape[-1]):
        block, at = divmod(k, held * each)
        byte = weight[:, block, at // each].astype(np.int64)
        number = (byte >> (at % each * bits)) % (1 << bits) - point[:, block].astype(np.int64)
        out += x[..., k : k + 1] * (number * scale[:, block])
    return out


def _less(x, zero) -> np.ndarray:
    """Quantized numbers less their zero point."""
    return x.astype(np.int64) - int(zero)


def _conv2d(x, weight, *, groups=1, layout="NCHW", **window) -> np.ndarray:
    image = _image(x, layout)
    filters = weight if layout == "NCHW" else weight.transpose(3, 2, 0, 1)
    patches = _windows(image, filters.shape[2:], window, 0.0)
    per_group = filters.shape[0] // groups
    outputs = []
    for f, kernel in enumerate(filters.astype(np.float64)):
        first = f // per_group * kernel.shape[0]
        chosen = patches[:, first : first + kernel.shape[0]]
        outputs.append((chosen * kernel[:, None, None]).sum((1, 4, 5)))
    return _laid_out(np.stack(outputs, 1), layout)


def _max_pool(x, *, kernel, layout="NCHW", **window) -> np.ndarray:
    patches = _windows(_image(x, layout), kernel, window, -np.inf)
    return _laid_out(patches.max((-1, -2)), layout)


def _avg_pool(x, *, kernel, layout="NCHW", count_include_pad=False, **window) -> np.ndarray:
    image = _image(x, layout)
    total = _windows(image, kernel, window, 0.0).sum((-1, -2))
    inside = _windows(np.ones_like(image), kernel, window, float(count_include_pad))
    return _laid_out(total / inside.sum((-1, -2)), layout)


def _reduce(function: Callable[[list[Any]], Any]) -> Callable[..., np.ndarray]:
    """Apply `function` to the list of elements that fall together."""

    def formula(x: np.ndarray, *, axes: tuple[int, ...], keepdims: bool = False) -> np.ndarray:
        (x,) = f64(x)
        axes = tuple(a % x.ndim for a in axes) if x.ndim else ()
        kept = [d for d in range(x.ndim) if d not in axes]
        out = np.empty([x.shape[d] for d in kept], object)
        for i in np.ndindex(out.shape):
            key = [slice(None)] * x.ndim
            for d, at in zip(kept, i, strict=True):
                key[d] = at  # type: ignore[call-overload]
            out[i] = function(x[tuple(key)].reshape(-1).tolist())
        shape = [1 if d in axes else s for d, s in enumerate(x.shape)]
        return out.reshape(shape) if keepdims else out

    return formula


def _extreme(pick: Callable[..., Any], empty: float) -> Callable[[list[Any]], Any]:
    return lambda v: math.nan if any(map(_is_nan, v)) else pick(v, default=empty)


def _mean(values: list[float]) -> float:
    return float(np.sum(values)) / len(values) if values else math.nan


def _argmax(x: np.ndarray, *, axis: int, keepdims: bool = False) -> np.ndarray:
    def first(values: np.ndarray) -> int:
        ranked = [
            (not math.isnan(v), 0 if math.isnan(v) else -v, i)
            for i, v in enumerate(values.tolist())
        ]
        return min(ranked)[2]

    moved = np.moveaxis(f64(x)[0], axis, -1)
    out = np.empty(moved.shape[:-1], np.int64)
    for i in np.ndindex(out.shape):
        out[i] = first(moved[i])
    return np.expand_dims(out, axis) if keepdims else out


def _log_softmax(x: np.ndarray, *, axis: int = -1) -> np.ndarray:
    x = np.moveaxis(x.astype(np.float64), axis, -1)
    total = np.logaddexp.reduce(x, -1, keepdims=True)
    total = np.where((x == np.inf).any(-1, keepdims=True), np.nan, total)
    out = np.where(x == -np.inf, np.where(np.isfinite(total), -np.inf, np.nan), x - total)
    return np.moveaxis(out, -1, axis)


def _softmax(x: np.ndarray, *, axis: int = -1) -> np.ndarray:
    return np.exp(_log_softmax(x, axis=axis))


def _trailing(x: np.ndarray, axis: int) -> tuple[np.ndarray, tuple[int, ...]]:
    x = x.astype(np.float64)
    return x, tuple(range(axis % x.ndim, x.ndim))


def _layernorm(x, scale, bias, *, axis=-1, epsilon=1e-5) -> np.ndarray:
    x, axes = _trailing(x, axis)
    scale, bias = f64(scale, bias)
    spread = np.var(x, axes, keepdims=True) + epsilon
    return scale * (x - x.mean(axes, keepdims=True)) * spread**-0.5 + bias


def _rmsnorm(x, scale, *, axis=-1, epsilon=1e-5) -> np.ndarray:
    x, axes = _trailing(x, axis)
    return scale.astype(np.float64) * x * ((x * x).mean(axes, keepdims=True) + epsilon) ** -0.5


def _batchnorm(x, scale, bias, mean, variance, *, axis=1, epsilon=1e-5) -> np.ndarray:
    out = np.moveaxis(x.astype(np.float64), axis, -1)
    scale, bias, mean, variance = f64(scale, bias, mean, variance)
    return np.moveaxis(scale * (out - mean) * (variance + epsilon) ** -0.5 + bias, -1, axis)


def _attention(query, key, value, mask=None, *, scale, is_causal=False) -> np.ndarray:
    q, k, v = f64(query, key, value)
    scores = np.einsum("...sd,...td->...st", q, k) * scale
    if mask is not None:
        extra = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
        scores = scores + extra
    s, t = scores.shape[-2:]
    if is_causal:
        hidden = np.triu(np.ones((s, t), bool), t - s + 1)
        scores = np.where(hidden, -np.inf, scores)
    return np.einsum("...st,...te->...se", _softmax(scores), v)


def _iota(*like: np.ndarray, shape, axis=0, dtype=None) -> np.ndarray:
    sizes = [like[0].shape[i] if d == -1 else d for i, d in enumerate(shape)]
    return np.indices(sizes)[axis % len(sizes)] if 0 not in sizes else np.zeros(sizes)


def _suppress(boxes: np.ndarray, groups: np.ndarray, *, overlap) -> np.ndarray:
    """Non-maximum suppression by its definition, pair by pair."""
    kept: list[int] = []
    for i, (low_y, high_y, low_x, high_x) in enumerate(boxes.astype(np.float32)):
        struck = False
        for j in kept:
            height = min(high_y, boxes[j, 1]) - max(low_y, boxes[j, 0])
            width = min(high_x, boxes[j, 3]) - max(low_x, boxes[j, 2])
            shared = max(height, 0) * max(width, 0)
            areas = (high_y - low_y) * (high_x - low_x), np.prod(boxes[j, 1::2] - boxes[j, ::2])
            near = min(areas) > 0 and shared / (sum(areas) - shared) > overlap
            struck |= bool(near and groups[i] == groups[j])
        if not struck:
            kept.append(i)
    return np.isin(np.arange(len(boxes)), kept)


def _transpose(x: np.ndarray, *, permutation) -> np.ndarray:
    out = np.empty([x.shape[p] for p in permutation], x.dtype)
    for i in np.ndindex(x.shape):
        out[tuple(i[p] for p in permutation)] = x[i]
    return out


def _reshape(x: np.ndarray, *like: np.ndarray, shape) -> np.ndarray:
    named = [size for operand in (x, *like) for size in operand.shape]
    sizes = [named[-2 - d] if d < -1 else d for d in shape]
    rest = math.prod(d for d in sizes if d >= 0)
    sizes = [x.size // rest if d == -1 else d for d in sizes]
    out = np.empty(sizes, x.dtype)
    for place, value in zip(np.ndindex(out.shape), x.flatten(), strict=True):
        out[place] = value
    return out


def _broadcast_to(x: np.ndarray, *like: np.ndarray, shape) -> np.ndarray:
    lead = len(shape) - x.ndim
    source = like[0].shape if like else (1,) * lead + x.shape
    sizes = [source[i] if d == -1 else d for i, d in enumerate(shape)]
    out = np.empty(sizes, x.dtype)
    for i in np.ndindex(out.shape):
        out[i] = x[tuple(0 if d == 1 else j for j, d in zip(i[lead:], x.shape, strict=True))]
    return out


def _concat(lhs: np.ndarray, rhs: np.ndarray, *, axis) -> np.ndarray:
    return np.moveaxis(np.array([*np.moveaxis(lhs, axis, 0), *np.moveaxis(rhs, axis, 0)]), 0, axis)


def _slice(x: np.ndarray, *, starts, stops, steps) -> np.ndarray:
    for axis, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        first = None if start in (START, END) else start
        last = None if stop in (START, END) else stop
        x = np.take(x, range(x.shape[axis])[first:last:step], axis)
    return x


def _update_slice(x: np.ndarray, update: np.ndarray, starts: np.ndarray) -> np.ndarray:
    out = x.copy()
    for i in np.ndindex(update.shape):
        room = [a - b for a, b in zip(x.shape, update.shape, strict=True)]
        begin = [min(max(int(s), 0), r) for s, r in zip(starts, room, strict=True)]
        out[tuple(b + j for b, j in zip(begin, i, strict=True))] = update[i]
    return out


def _coordinate(i: int, size: int, out: int, scale: float, how: str) -> float:
    """ONNX's coordinate of position i of the result."""
    if how == "align_corners":
        return 0.0 if out == 1 else i * (size - 1) / (out - 1)
    if how == "asymmetric":
        return i / scale
    if how == "pytorch_half_pixel" and out == 1:
        return 0.0
    shift = size / 2 * (1 - out / (scale * size)) if how == "half_pixel_symmetric" else 0.0
    return shift + (i + 0.5) / scale - 0.5


def _parts_at(u: float, mode: str, rounding: str) -> list[tuple[int, float]]:
    """The elements that a coordinate reads, with their weights."""
    below = math.floor(u)
    if mode == "linear":
        return [(below, 1 - (u - below)), (below + 1, u - below)]
    up = {
        "floor": False, "ceil": u > below, "round_prefer_floor": u - below > 0.5,
        "round_prefer_ceil": u - below >= 0.5,
    }[rounding]  # fmt: skip
    return [(below + up, 1.0)]


def _resized(
    x: np.ndarray, sizes, scales=(), mode="nearest", coordinates="half_pixel",
    rounding="round_prefer_floor", layout="NCHW",
) -> np.ndarray:  # fmt: skip
    out = x.astype(np.float64)
    for place, axis in enumerate((2, 3) if layout == "NCHW" else (1, 2)):
        size, wanted = x.shape[axis], sizes[place]
        wanted = math.floor(size * scales[place]) if wanted < 0 else wanted
        scale = scales[place] if scales else wanted / size
        rows, made = np.moveaxis(out, axis, 0), []
        places = [_coordinate(i, size, wanted, scale, coordinates) for i in range(wanted)]
        plain = all(u == math.floor(u) for u in places)
        for u in places:
            parts = _parts_at(u, mode, rounding)[: 1 if plain else 2]
            made.append(sum(w * rows[min(max(p, 0), size - 1)] for p, w in parts))
        out = np.moveaxis(np.array(made).reshape(wanted, *rows.shape[1:]), 0, axis)
    return out


def _pad(x: np.ndarray, *, low, high, value=0.0) -> np.ndarray:
    sizes = [a + d + c for a, d, c in zip(low, x.shape, high, strict=True)]
    out = np.full(sizes, value, x.dtype)
    out[tuple(slice(a, a + d) for a, d in zip(low, x.shape, strict=True))] = x
    return out


def _gather(x: np.ndarray, indices: np.ndarray, *, axis=0) -> np.ndarray:
    size = x.shape[axis]
    flat = [int(i) + size if i < 0 else int(i) for i in indices.reshape(-1)]
    rows = np.moveaxis(x, axis, 0)
    taken = [rows[min(max(i, 0), size - 1)] for i in flat]
    out = np.array(taken, x.dtype).reshape(*indices.shape, *rows.shape[1:])
    places = range(indices.ndim)
    return np.moveaxis(out, list(places), [axis % x.ndim + p for p in places])


def _rem(a: Any, b: Any) -> Any:
    if isinstance(a, int):
        return a if b == 0 else a - b * _divide(a, b)
    return math.fmod(a, b)


def _shift(a: np.ndarray, b: np.ndarray, *, left: bool) -> np.ndarray:
    width = 8 * a.dtype.itemsize

    def one(x: int, count: int) -> int:
        inside = 0 <= count < width
        if left:
            return x << count if inside else 0
        return x >> (count if inside else width)

    return elementwise(one)(a, b)


def _bitcast(x: np.ndarray, *, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(x.tobytes(), dtype).reshape(x.shape)


def _cumulative(x: np.ndarray, *, axis: int, reduction: str = "add") -> np.ndarray:
    combine = {
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "min": np.minimum,
        "max": np.maximum,
    }[reduction]
    rows = np.moveaxis(f64(x)[0].astype(None if is_float(x.dtype) else object), axis, 0)
    out = [r.copy() for r in rows[:1]]
    for row in rows[1:]:
        out.append(combine(out[-1], row))
    return np.moveaxis(np.array(out, rows.dtype).reshape(rows.shape), 0, axis)


def _argsort(x: np.ndarray, *, axis=-1, descending=False, count=-1) -> np.ndarray:
    moved = np.moveaxis(x, axis, -1)
    out = np.empty(moved.shape, np.int64)
    for i in np.ndindex(moved.shape[:-1]):
        keys = [(math.isnan(v), 0 if math.isnan(v) else v) for v in moved[i].tolist()]
        # Sorting keeps the order of equal keys, in reverse too.
        out[i] = sorted(range(len(keys)), key=keys.__getitem__, reverse=descending)
    return np.moveaxis(out[..., : None if count == -1 else count], -1, axis)


def _scatter(x, indices, updates, *, reduction="none") -> np.ndarray:
    out = f64(x)[0].astype(object if not is_float(x.dtype) and x.dtype != BOOL else None)
    combine = {
        "none": lambda a, b: b,
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "min": np.minimum,
        "max": np.maximum,
    }[reduction]
    for index, update in zip(indices.tolist(), f64(updates)[0].astype(out.dtype), strict=True):
        if -len(out) <= index < len(out):
            out[index] = combine(out[index], update)
    return out


FORMULAS: dict[str, Callable[..., np.ndarray]] = {
    "add": elementwise(lambda a, b: a + b),
    "sub": elementwise(lambda a, b: a - b),
    "mul": elementwise(lambda a, b: a * b),
    "div": elementwise(_divide),
    "maximum": elementwise(max),
    "minimum": elementwise(min),
    "pow": lambda a, b: np.float_power(*f64(a, b)),
    "neg": elementwise(lambda a: -a),
    "abs": elementwise(abs),
    "floor": elementwise(lambda a: math.floor(a) if math.isfinite(a) else a),
    "ceil": elementwise(lambda a: math.ceil(a) if math.isfinite(a) else a),
    "round": elementwise(lambda a: round(a) if math.isfinite(a) else a),
    "exp": elementwise(math.exp),
    "log": elementwise(_log),
    "sin": elementwise(math.sin),
    "cos": elementwise(math.cos),
    "sqrt": elementwise(math.sqrt),
    "rsqrt": elementwise(_rsqrt),
    "tanh": elementwise(math.tanh),
    "erf": elementwise(_erf),
    "erfc": elementwise(math.erfc),
    "and": elementwise(lambda a, b: a & b),
    "or": elementwise(lambda a, b: a | b),
    "xor": elementwise(lambda a, b: a ^ b),
    "not": elementwise(_not),
    "compare": lambda a, b, predicate: elementwise(_RELATIONS[predicate])(a, b),
    "select": elementwise(_select),
    "cast": _cast,
    "clip": elementwise(lambda a, low, high: min(max(a, low), high)),
    "relu": elementwise(lambda a: max(a, 0)),
    "sigmoid": elementwise(_sigmoid),
    "silu": elementwise(lambda a: a * _sigmoid(a)),
    "gelu": lambda x, approximate="none": elementwise(
        _gelu_tanh if approximate == "tanh" else _gelu
    )(x),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layernorm": _layernorm,
    "rmsnorm": _rmsnorm,
    "batchnorm": _batchnorm,
    "attention": _attention,
    "rem": elementwise(_rem),
    "shift_left": partial(_shift, left=True),
    "shift_right": partial(_shift, left=False),
    "threefry": elementwise(threefry),
    "philox": elementwise(philox),
    "bitcast": _bitcast,
    "cumulative": _cumulative,
    "argsort": _argsort,
    "scatter": _scatter,
    "matmul": _matmul,
    "reduce_sum": _reduce(sum),
    "reduce_prod": _reduce(math.prod),
    "reduce_max": _reduce(_extreme(max, -math.inf)),
    "reduce_min": _reduce(_extreme(min, math.inf)),
    "reduce_mean": _reduce(_mean),
    "argmax": _argmax,
    "conv2d": _conv2d,
    "integer_matmul": lambda x, w, zero: _matmul(_less(x, zero), w.astype(np.int64)),
    "block_matmul": _block_matmul,
    "integer_conv2d": lambda x, w, zero, **p: _conv2d(_less(x, zero), w.astype(np.int64), **p),
    "max_pool2d": _max_pool,
    "avg_pool2d": _avg_pool,
    "resize": _resized,
    "constant": lambda value: value,
    "iota": _iota,
    "range": lambda n: np.array([i for i in range(int(n))], np.int64),
    "nonzero": lambda x: np.array([i for i, v in enumerate(x) if v], np.int64),
    "suppress": _suppress,
    "size": lambda x, axes: np.array(math.prod(x.shape[a] for a in axes)),
    "transpose": _transpose,
    "reshape": _reshape,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "slice": _slice,
    "update_slice": _update_slice,
    "pad": _pad,
    "gather": _gather,
}
