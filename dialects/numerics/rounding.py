"""A tolerance for every element: how far a correct program may be from the numpy reference.

Comes in: arrays; goes out: for each value of a program the reference's array and the standard
deviation of the error that roundings explain, element by element. It is a running error analysis
(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.3) in the probabilistic
model of Higham and Mary (A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci.
Comput. 41, 2019): roundings are independent with mean zero, so that deviations of operands add in
quadrature and a sum of n terms errs by sqrt(n) u * sum |terms| where the worst case says n. An
error beyond `LAMBDA` deviations has, for a sum, a probability below 2 exp(-LAMBDA^2 / 2).

What rounding may decide (a comparison of nearly equal values, the index of a maximum, the side of
an integer) gets a deviation as large as the step that it decides."""

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.ops.quantized import block_weights
from pyc_mlir.dialects.types import accumulator, dtype_name, is_float

LAMBDA = 4.0
# Half the distance of 1 from the next number.
UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
# Roundings of an elementwise composite, of its result and of its operands.
_COMPOSITE_ULPS = 16.0
# The least number that f16 rounds to infinity, and half the distance of its subnormal numbers.
_F16_OVERFLOW, _F16_UNIT = 65520.0, 2.0**-25


@dataclass(frozen=True, eq=False)
class Uncertain:
    """A value of the reference, and the standard deviation (f64, same shape) of its error.

    approximate: an approximate product is among what it was computed from.
    """

    value: np.ndarray
    deviation: np.ndarray
    approximate: bool = False

    @staticmethod
    def exact(value: np.ndarray) -> "Uncertain":
        """Return a value that every correct program has, but that subnormal numbers may be zero."""
        value = np.asarray(value)
        if is_float(value.dtype) and value.dtype != np.float16:
            subnormal = (np.abs(value) < flushed(value.dtype)) & (value != 0)
            if subnormal.any():
                return Uncertain(value, np.where(subnormal, flushed(value.dtype), 0.0))
        # One zero for all elements: constants are large.
        return Uncertain(value, np.broadcast_to(0.0, value.shape))

    @property
    def tolerance(self) -> np.ndarray:
        """The distance that a correct program may keep: it and the reference err independently."""
        return LAMBDA * math.sqrt(2) * self.deviation


# The deviation of a result, from the result, the operands and the op's parameters.
Rule = Callable[..., np.ndarray]


def roundoff(dtype: np.dtype) -> float:
    """Return the unit roundoff of an element type; 0 for integers."""
    return UNIT_ROUNDOFF.get(dtype_name(dtype), 0.0)


def flushed(dtype: np.dtype) -> float:
    """Return the least number that is never flushed: of f32, in which 16 bits are computed."""
    return float(np.finfo(accumulator(dtype)).tiny)


def leaves_range(exact: np.ndarray, deviation: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return where a number leaves the range of f16, or may: composites compute in f32."""
    reach = np.abs(exact.astype(np.float64)) + LAMBDA * deviation
    return np.isfinite(exact) & (reach >= _F16_OVERFLOW) & (dtype == np.float16)


def rounded(value: np.ndarray, ulps: float = 1.0) -> np.ndarray:
    """Return the deviation of a result computed to `ulps` roundings; results may be flushed.

    Errors of a rounding are taken as uniform up to u |value|. The 16-bit floats are computed in
    f32 and rounded once more. An infinity is taken as exact.
    """
    dtype = value.dtype
    if not is_float(dtype):
        return np.zeros(value.shape)
    wide = accumulator(dtype)
    least = flushed(dtype) if dtype != np.float16 else _F16_UNIT / math.sqrt(3)
    u = ulps * roundoff(wide) + (roundoff(dtype) if wide != dtype else 0.0)
    size = np.abs(value.astype(np.float64))
    return u / math.sqrt(3) * np.where(np.isfinite(size), size, 0.0) + least


def composed(value: np.ndarray, deviation: np.ndarray, operands: Sequence[Uncertain]) -> np.ndarray:
    """Return an elementwise composite's deviation; of exact operands some roundings at most.

    A decomposition that cancels near zero errs by as many of 1, which is no measure.
    """
    if not is_float(value.dtype) or not np.any(deviation):
        return deviation
    size = sum(np.abs(o.value.astype(np.float64)) for o in operands)
    u = _COMPOSITE_ULPS * roundoff(accumulator(value.dtype)) + flushed(value.dtype)
    most = rounded(value, _COMPOSITE_ULPS) + u * size
    inexact = sum(o.deviation for o in operands) > 0
    return np.where(inexact | ~np.isfinite(deviation), deviation, np.minimum(deviation, most))


def summed(magnitudes: np.ndarray, terms: int, value: np.ndarray) -> np.ndarray:
    """Return the forward error bound of a sum whose terms' absolute values add to `magnitudes`."""
    inner = roundoff(accumulator(value.dtype)) * math.sqrt(max(terms, 1))
    return inner * magnitudes + rounded(value)


RULES: dict[str, Rule] = {}
# What composite ops may be off besides their decompositions, whose place a kernel can take.
KERNELS: dict[str, Rule] = {}
# Roundings of a library function: MLIR's and our own approximations stay within a few.
_FUNCTION_ULPS = 8.0
# Of sin, cos and the f64 powers, which are PyC's own on every target (docs/numerics.md).
_OWN_ULPS = 4.0


def _rule(*names: str, named: bool = False) -> Callable[[Any], Any]:
    """Enter the rule of ops; with `named` it gets the op's name first."""

    def enter(rule: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        RULES.update({name: partial(rule, name) if named else rule for name in names})
        return rule

    return enter


def _wide(x: Uncertain) -> np.ndarray:
    return x.value.astype(np.float64)


def _gap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return |a - b|, and 0 for equal infinities and where both are NaN."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.abs(a - b))


def _swing(name: str, *operands: Uncertain, **params: Any) -> np.ndarray:
    """Return how far a monotone op goes when its operands go LAMBDA deviations, or may be NaN."""
    if not any(o.deviation.any() for o in operands):
        return np.zeros(())

    def at(side: float) -> np.ndarray:
        moved = [
            np.where(np.isinf(o.deviation), side * np.inf, _wide(o) + side * LAMBDA * o.deviation)
            for o in operands
        ]
        return np.asarray(OPS[name].reference(*moved, **params)).astype(np.float64)

    middle, low, high = at(0), at(-1), at(1)
    return np.maximum(_gap(low, middle), _gap(high, middle)) / LAMBDA


def _unless_exact(lost: float, a: Uncertain, b: Uncertain) -> np.ndarray:
    return np.where((a.deviation > 0) | (b.deviation > 0), lost, 0.0)


@_rule("constant", "iota", "size")
def _exact(value: np.ndarray, /, *operands: Uncertain, **params: Any) -> np.ndarray:
    return np.zeros(value.shape)


@_rule("add", "sub")
def _add(value: np.ndarray, a: Uncertain, b: Uncertain) -> np.ndarray:
    return np.hypot(a.deviation, b.deviation) + rounded(value)


@_rule("mul")
def _mul(value: np.ndarray, a: Uncertain, b: Uncertain) -> np.ndarray:
    moved = np.hypot(_wide(a) * b.deviation, a.deviation * _wide(b))
    return moved + a.deviation * b.deviation + rounded(value)


@_rule("div")
def _div(value: np.ndarray, a: Uncertain, b: Uncertain) -> np.ndarray:
    if not is_float(value.dtype):
        return _unless_exact(np.inf, a, b)
    quotient = value.astype(np.float64)
    moved = np.hypot(a.deviation, quotient * b.deviation) / np.abs(_wide(b))
    near_zero = (b.deviation > 0) & (LAMBDA * b.deviation >= np.abs(_wide(b)))
    return np.where(near_zero, np.inf, moved) + rounded(value, 2)


@_rule("pow")
def _pow(value: np.ndarray, a: Uncertain, b: Uncertain) -> np.ndarray:
    out, base, exponent = value.astype(np.float64), _wide(a), _wide(b)
    logarithm = np.log(np.abs(base))
    slope = np.where(a.deviation > 0, out * exponent / base * a.deviation, 0.0)
    growth = np.where(b.deviation > 0, out * logarithm * b.deviation, 0.0)
    moved = np.hypot(slope, growth)
    if value.dtype == np.float64:
        return moved + rounded(value, _OWN_ULPS)
    # Targets without f64 compute exp(b log a): the product's rounding becomes a relative error.
    scale = np.where(np.isfinite(logarithm), np.abs(exponent * logarithm), 0.0)
    return moved + rounded(value, _FUNCTION_ULPS) * (1 + scale)


@_rule("neg", "abs", "not")
def _same(value: np.ndarray, x: Uncertain) -> np.ndarray:
    return x.deviation


@_rule("maximum", "minimum", "max_pool2d", "reduce_max", "reduce_min", named=True)
def _extreme(name: str, value: np.ndarray, *operands: Uncertain, **params: Any) -> np.ndarray:
    return _swing(name, *operands, **params)


# Functions of one operand that only grow or only fall: their roundings.
_MONOTONE = {"floor": 0.0, "ceil": 0.0, "round": 0.0, "sqrt": 2.0, "rsqrt": 4.0}
_MONOTONE |= {"log": _FUNCTION_ULPS, "tanh": _FUNCTION_ULPS}


@_rule(*_MONOTONE, named=True)
def _monotone(name: str, value: np.ndarray, x: Uncertain) -> np.ndarray:
    ulps = _MONOTONE[name]
    moved = _swing(name, x) + (rounded(value, ulps) if ulps else 0.0)
    # Near 1 the logarithm is as exact as its argument, not relatively.
    return moved + roundoff(value.dtype) if name == "log" else moved


@_rule("exp")
def _exp(value: np.ndarray, x: Uncertain) -> np.ndarray:
    if value.dtype == np.float64:
        return _swing("exp", x) + rounded(value, _FUNCTION_ULPS)
    # Vulkan allows 3 + 2 |x| ulps: the reduced argument's rounding is a relative error.
    reach = np.where(np.isfinite(x.value), 1 + np.abs(_wide(x)), 1.0)
    return _swing("exp", x) + rounded(value, _FUNCTION_ULPS) * reach


@_rule("erf")
def _erf(value: np.ndarray, x: Uncertain) -> np.ndarray:
    """Return the steepest slope within reach, at most 2 apart: the reference takes long."""
    nearest = np.maximum(np.abs(_wide(x)) - LAMBDA * x.deviation, 0.0)
    moved = 2 / math.sqrt(math.pi) * np.exp(-(nearest**2)) * x.deviation
    moved = np.where(np.isnan(_wide(x)) | (x.deviation == 0), 0.0, np.minimum(moved, 2 / LAMBDA))
    return np.where(np.isinf(x.deviation), np.inf, moved) + rounded(value, _FUNCTION_ULPS)


def _silu(value: np.ndarray, x: Uncertain) -> np.ndarray:
    """Allow any value at minus infinity: a kernel gives the limit 0, the decomposition NaN."""
    return np.where(np.isneginf(_wide(x)), np.inf, 0.0)


def _gelu(value: np.ndarray, x: Uncertain, *, approximate: str) -> np.ndarray:
    """Return the error of a kernel's polynomial: roundings of x or of 1, not of the result."""
    size = np.maximum(np.abs(_wide(x)), 1.0)
    u = _FUNCTION_ULPS * roundoff(accumulator(value.dtype)) / math.sqrt(3)
    return u * np.where(np.isfinite(size), size, 0.0) + _silu(value, x)


def _block_matmul(
    value: np.ndarray,
    x: Uncertain,
    weight: Uncertain,
    scale: Uncertain,
    point: Uncertain,
    *,
    bits: int,
    accuracy: str,
) -> np.ndarray:
    """Return the deviation of rounding x to bytes, which is uniform in a step of each block."""
    if accuracy != "int8":
        return np.zeros(value.shape)
    w = block_weights(weight.value, scale.value, point.value, bits)[:, : x.value.shape[-1]]
    starts = range(0, w.shape[1], 8 * weight.value.shape[2] // bits)
    steps = np.maximum.reduceat(np.abs(_wide(x)), starts, axis=-1) / 127
    squares = np.add.reduceat(w.astype(np.float64) ** 2, starts, axis=-1)
    return np.sqrt(steps**2 / 12 @ squares.T)


KERNELS.update(silu=_silu, gelu=_gelu, block_matmul=_block_matmul)


@_rule("sin", "cos")
def _wave(value: np.ndarray, x: Uncertain) -> np.ndarray:
    # No two results are further apart than 2, whatever is known of x.
    most = 2.0 / (LAMBDA * math.sqrt(2))
    moved = np.where(np.isfinite(x.deviation), np.minimum(x.deviation, most), np.inf)
    return moved + rounded(value, _OWN_ULPS)


@_rule("rem")
def _rem(value: np.ndarray, a: Uncertain, b: Uncertain) -> np.ndarray:
    """Allow no error; uncertain operands may cross a multiple."""
    return _unless_exact(np.inf, a, b)


@_rule("bitcast")
def _bitcast(value: np.ndarray, x: Uncertain, *, dtype: np.dtype) -> np.ndarray:
    return np.where(x.deviation > 0, np.inf, 0.0)


@_rule("cumulative")
def _cumulative(value: np.ndarray, x: Uncertain, *, axis: int, reduction: str) -> np.ndarray:
    """Treat sums as the root of all squares, extremes as the greatest, as the reductions do."""
    if reduction in ("min", "max"):
        return np.maximum.accumulate(x.deviation, axis)
    count = value.shape[axis]
    if reduction == "add":
        moved = np.sqrt(np.cumsum(x.deviation**2, axis))
        if not is_float(value.dtype):
            return moved
        return moved + summed(np.cumsum(np.abs(_wide(x)), axis), count, value)
    relative = np.where(x.deviation > 0, x.deviation / np.abs(_wide(x)), 0.0)
    moved = np.abs(value.astype(np.float64)) * np.sqrt(np.cumsum(relative**2, axis))
    return moved + (rounded(value, math.sqrt(count) + 1) if is_float(value.dtype) else 0.0)


@_rule("shift_left", "shift_right", "and", "or", "xor")
def _logical(value: np.ndarray, a: Uncertain, b: Uncertain) -> np.ndarray:
    return _unless_exact(1.0 if value.dtype == np.bool_ else np.inf, a, b)


@_rule("compare")
def _compare(value: np.ndarray, a: Uncertain, b: Uncertain, *, predicate: str) -> np.ndarray:
    if a is b:
        return np.where(np.isinf(a.deviation), 1.0, 0.0)  # It may be NaN.
    margin = LAMBDA * np.hypot(a.deviation, b.deviation)
    near = ~(_gap(_wide(a), _wide(b)) > margin)
    return np.where(near & (margin != 0), 1.0, 0.0)


@_rule("select")
def _select(value: np.ndarray, c: Uncertain, a: Uncertain, b: Uncertain) -> np.ndarray:
    chosen = np.where(c.value, a.deviation, b.deviation)
    either = np.maximum(np.maximum(a.deviation, b.deviation), _gap(_wide(a), _wide(b)))
    return np.where(c.deviation > 0, either, chosen)


@_rule("cast")
def _cast(value: np.ndarray, x: Uncertain, *, dtype: np.dtype) -> np.ndarray:
    """Return the swing, and the rounding where x is not exact: a composite may leave it out."""
    if dtype == np.bool_:
        margin = LAMBDA * x.deviation
        return np.where((margin > 0) & ~(np.abs(_wide(x)) > margin), 1.0, 0.0)
    if not is_float(x.value.dtype):
        # Integers wrap around.
        return np.where((x.deviation > 0) & ~_fits(x, dtype), np.inf, x.deviation)
    swing = _swing("cast", x, dtype=dtype)
    if is_float(dtype) and dtype.itemsize <= x.value.itemsize:
        return swing + np.where(x.deviation > 0, rounded(value), 0.0)
    return swing


def _fits(x: Uncertain, dtype: np.dtype) -> Any:
    """Return where an integer type holds whatever x may be; True for other types."""
    if is_float(dtype) or dtype == np.bool_:
        return np.True_
    ends, reach = np.iinfo(dtype), LAMBDA * x.deviation
    low, high = np.trunc(_wide(x) - reach), np.trunc(_wide(x) + reach)
    return (low >= float(ends.min)) & (high < float(ends.max + 1))


def _numpy_cast(value: np.ndarray, x: Uncertain, *, dtype: np.dtype) -> np.ndarray:
    """Leave open what numpy leaves to the machine: floats that an integer type does not hold."""
    lost = is_float(x.value.dtype) & ~_fits(x, dtype)
    return np.where(lost, np.inf, _cast(value, x, dtype=dtype))


NUMPY_RULES: Mapping[str, Rule] = ChainMap({"cast": _numpy_cast}, RULES)


@_rule("transpose", "reshape", "slice", "broadcast_to", named=True)
def _movement(
    name: str, value: np.ndarray, x: Uncertain, *like: Uncertain, **params: Any
) -> np.ndarray:
    return OPS[name].reference(x.deviation, *(o.value for o in like), **params)


@_rule("concat")
def _concat(value: np.ndarray, a: Uncertain, b: Uncertain, *, axis: int) -> np.ndarray:
    return np.concatenate([a.deviation, b.deviation], axis)


@_rule("pad")
def _pad(value: np.ndarray, x: Uncertain, /, **params: Any) -> np.ndarray:
    return OPS["pad"].reference(x.deviation, **{**params, "value": 0.0})


@_rule("update_slice")
def _update_slice(
    value: np.ndarray, x: Uncertain, update: Uncertain, starts: Uncertain
) -> np.ndarray:
    if starts.deviation.any():
        return np.full(value.shape, np.inf)
    return OPS["update_slice"].reference(x.deviation, update.deviation, starts.value)


@_rule("gather")
def _gather(value: np.ndarray, x: Uncertain, indices: Uncertain, *, axis: int) -> np.ndarray:
    taken = OPS["gather"].reference(x.deviation, indices.value, axis=axis)
    if not indices.deviation.any():
        return taken
    certain = OPS["gather"].reference(np.zeros(x.value.shape), indices.value, axis=axis)
    before = axis % x.value.ndim
    after = x.value.ndim - before - 1
    lost = indices.deviation.reshape((1,) * before + indices.value.shape + (1,) * after)
    return np.where(np.broadcast_to(lost > 0, certain.shape), np.inf, taken)


@_rule("scatter")
def _scatter(
    value: np.ndarray, x: Uncertain, indices: Uncertain, updates: Uncertain, *, reduction: str
) -> np.ndarray:
    """Return the last update's error, or those of all that are combined, as if they were one."""
    if indices.deviation.any():
        return np.full(value.shape, np.inf)

    def scattered(a: np.ndarray, b: np.ndarray, how: str) -> np.ndarray:
        return OPS["scatter"].reference(a, indices.value, b, reduction=how)

    if reduction != "mul":
        how = "max" if reduction == "min" else reduction
        moved = scattered(x.deviation, updates.deviation, how)
        if reduction != "add" or not is_float(value.dtype):
            return moved
        sizes = scattered(np.abs(_wide(x)), np.abs(_wide(updates)), "add")
        return moved + summed(sizes, updates.value.shape[0] + 1, value)
    if not is_float(value.dtype):
        return scattered(x.deviation, updates.deviation, "max")
    low = scattered(np.abs(_wide(x)), np.abs(_wide(updates)), "mul")
    high = scattered(
        np.abs(_wide(x)) + x.deviation, np.abs(_wide(updates)) + updates.deviation, "mul"
    )
    return _gap(high, low) + rounded(value, math.sqrt(updates.value.shape[0]) + 1)


@_rule("range", "nonzero", "suppress")
def _selected(value: np.ndarray, *operands: Uncertain, **params: Any) -> np.ndarray:
    """Return uncertain, the number of elements too, where rounding may select others."""
    certain = not any(o.deviation.any() for o in operands)
    return np.full(value.shape, 0.0 if certain else np.inf)


@_rule("argsort")
def _argsort(value: np.ndarray, x: Uncertain, *, axis: int, **params: Any) -> np.ndarray:
    """Return uncertain where an element may change places with another."""
    if not x.deviation.any():
        return np.zeros(value.shape)
    whole = OPS["argsort"].reference(x.value, axis=axis, **{**params, "count": -1})
    data, margin = (np.take_along_axis(v, whole, axis) for v in (_wide(x), LAMBDA * x.deviation))
    data, margin = (np.moveaxis(v, axis, -1) for v in (data, margin))
    if params["descending"]:
        data = -data
    low, high = data - margin, data + margin
    before = np.maximum.accumulate(high, -1)[..., :-1]
    after = np.minimum.accumulate(low[..., ::-1], -1)[..., ::-1][..., 1:]
    # Between neighbours: whether none of the left may lie above one of the right.
    apart = before < after
    edge = np.ones((*apart.shape[:-1], 1), bool)
    certain = np.concatenate([edge, apart], -1) & np.concatenate([apart, edge], -1)
    out = np.where(certain, 0.0, np.inf)[..., : value.shape[axis]]
    return np.moveaxis(out, -1, axis)


@_rule("matmul", "conv2d", named=True)
def _product(name: str, value: np.ndarray, a: Uncertain, b: Uncertain, **params: Any) -> np.ndarray:
    product = partial(OPS[name].reference, **params)
    left, right = np.abs(_wide(a)), np.abs(_wide(b))
    variance = np.zeros(value.shape)
    if b.deviation.any():
        variance = variance + product(left**2 + a.deviation**2, b.deviation**2)
    if a.deviation.any():
        variance = variance + product(a.deviation**2, right**2)
    terms = a.value.shape[-1]
    if name == "conv2d":
        filters = b.value.shape[0 if params["layout"] == "NCHW" else 3]
        terms = b.value.size // max(filters, 1)
    local = summed(product(left, right), terms, value)
    return np.sqrt(variance) + (local if is_float(value.dtype) else 0.0)


@_rule("avg_pool2d")
def _avg_pool2d(value: np.ndarray, x: Uncertain, **params: Any) -> np.ndarray:
    mean = OPS["avg_pool2d"].reference
    # As if the errors of a window were one: no smaller than if they are independent.
    moved = np.sqrt(mean(x.deviation**2, **params))
    return moved + summed(mean(np.abs(_wide(x)), **params), math.prod(params["kernel"]), value)


@_rule("resize")
def _resize(value: np.ndarray, x: Uncertain, **params: Any) -> np.ndarray:
    """Round two weights, two products and a sum for each axis."""
    resized = OPS["resize"].reference
    # As if the errors of the neighbours were one: no smaller than if they are independent.
    moved = resized(x.deviation, **params)
    if params["mode"] == "nearest":
        return moved
    return moved + summed(resized(np.abs(_wide(x)), **params), 10, value)


def _terms(x: Uncertain, axes: tuple[int, ...]) -> int:
    return math.prod(x.value.shape[a] for a in axes)


@_rule("reduce_sum")
def _reduce_sum(
    value: np.ndarray, x: Uncertain, *, axes: tuple[int, ...], keepdims: bool
) -> np.ndarray:
    moved = np.sqrt(np.sum(x.deviation**2, axis=axes, keepdims=keepdims))
    if not is_float(value.dtype) or _terms(x, axes) == 1:
        return moved
    magnitudes = np.sum(np.abs(_wide(x)), axis=axes, keepdims=keepdims)
    return moved + summed(magnitudes, _terms(x, axes), value)


@_rule("reduce_prod")
def _reduce_prod(
    value: np.ndarray, x: Uncertain, *, axes: tuple[int, ...], keepdims: bool
) -> np.ndarray:
    relative = np.where(x.deviation > 0, x.deviation / np.abs(_wide(x)), 0.0)
    moved = np.abs(value.astype(np.float64)) * np.sqrt(
        np.sum(relative**2, axis=axes, keepdims=keepdims)
    )
    count = _terms(x, axes)
    return moved + (rounded(value, math.sqrt(count) + 1) if count > 1 else 0.0)


@_rule("argmax")
def _argmax(value: np.ndarray, x: Uncertain, *, axis: int, keepdims: bool) -> np.ndarray:
    """Return uncertain where another element may be the greatest, or where there is a NaN."""
    data, margin = _wide(x), LAMBDA * x.deviation
    best = np.expand_dims(np.argmax(x.value, axis=axis), axis)
    top = np.take_along_axis(data, best, axis)
    reach = margin + np.take_along_axis(margin, best, axis)
    places = np.arange(data.shape[axis]).reshape(
        [-1 if i == axis % data.ndim else 1 for i in range(data.ndim)]
    )
    rivals = ~(_gap(data, top) > reach) & (reach != 0) & (places != best)
    return np.where(rivals.any(axis=axis, keepdims=keepdims), np.inf, 0.0)
