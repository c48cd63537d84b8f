"""Both programs in floats, beside f64: the clause of safety, and a check of proofs over fields.

Comes in: two programs. `cases` runs them with their own roundings on arguments that rewrites break
on: large ones, zeros of both signs, rows masked by -inf; NaN, infinities, subnormals in one at a
time, as two hide each other. `agree` runs both in f64 on ordinary arguments: a function of reals
that differs by a sign differs there.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.opdef import OPS, evaluate
from pyc_mlir.dialects.types import TensorType, is_float
from pyc_mlir.pipelines.pyc.equivalence.answers import FloatCase
from pyc_mlir.pipelines.pyc.equivalence.nodes import (
    EXACT,
    VALUE,
    Graph,
    Kept,
    Program,
    TermNode,
    evaluated,
    sizes_of,
)

# Units of `OpDef.evaluation_work` (0.1 ns) that one run may take.
MOST_WORK = 1 << 33
# Kinds of numbers that stand in one argument alone, and all kinds.
_ALONE = ("infinities", "NaN", "subnormals")
_NAMES = ("ordinary", "large mean", "large spread", "zeros", "signed zeros", "masked", *_ALONE)
# Infinities come up in these, also on the way, and make a result useless as a whole.
_INFINITE = ("large mean", "large spread", "masked", "infinities")
_TOLERANCE = 1e-6
_DRAWS = 12
# What rounded constants of f32 change, and what few digits of 16-bit constants do.
_ROUNDED = 1e-4


def work(given: Program) -> int:
    """Return about how long a run takes, in units of 0.1 ns."""
    total = 0
    for node in given.nodes:
        if node.name not in (VALUE, EXACT):
            types = [o.type for o in node.operands]
            total += OPS[node.name].evaluation_work(types, node.type, **node.params)
    return total


def arguments(given: Program, case: str, seed: int, alone: int | None = None) -> list[np.ndarray]:
    """Return arguments of a case: floats (or `alone`, one's number) as it says, integers small."""
    rng = np.random.default_rng(seed)
    kinds = [case if alone in (None, i) else "ordinary" for i in range(len(given.inputs))]
    return [_argument(rng, *pair) for pair in zip(given.input_types, kinds, strict=True)]


def _argument(rng: np.random.Generator, type_: TensorType, case: str) -> np.ndarray:
    shape = sizes_of(type_)
    if type_.dtype == np.bool_:
        return rng.random(shape) < 0.5
    if not is_float(type_.dtype):
        return rng.integers(0, 4, shape).astype(type_.dtype)
    x = rng.normal(size=shape)
    if case == "large mean":
        x = x + 1000.0
    elif case == "large spread":
        x = x * 100.0
    elif case == "zeros":
        x = np.zeros(shape)
    elif case == "signed zeros":
        x.flat[::2] = 0.0
        x.flat[::4] = -0.0
    elif case == "infinities" and x.size:
        x.flat[0] = np.inf
    elif case == "NaN" and x.size:
        x.flat[-1] = np.nan
    elif case == "subnormals":
        x = x * float(ml_dtypes.finfo(type_.dtype).tiny)
    elif case == "masked" and x.size:
        x.flat[:: max(2, x.size // 2)] = -np.inf
    with np.errstate(all="ignore"):
        return x.astype(type_.dtype)


def run(
    given: Program, inputs: Sequence[np.ndarray], wide: bool = False, kept: Kept | None = None,
    single: bool = False,
) -> list[np.ndarray]:  # fmt: skip
    """Return the results by the references; `wide`: floats in f64 from beginning to end.

    kept: the values of earlier runs on these inputs. single: constants are their first element.
    """

    def compute(node: TermNode, operands: list[Any]) -> np.ndarray:
        if node.name == VALUE:
            x = inputs[node.params["number"]]
            return x.astype(np.float64) if wide and is_float(x.dtype) else x
        if node.name == EXACT:
            return node.params["value"].astype(np.float64 if wide else node.type.dtype)
        params = dict(node.params)
        if single and node.name == "constant":
            return np.asarray(params["value"]).reshape(-1)[0]
        if wide and node.name == "constant" and is_float(node.type.dtype):
            return np.asarray(params["value"]).astype(np.float64)
        if wide and node.name in ("cast", "iota") and is_float(node.type.dtype):
            params["dtype"] = np.dtype(np.float64)
        return evaluate(OPS[node.name], [np.asarray(o) for o in operands], **params)

    return evaluated(given, compute) if kept is None else kept.evaluated(given, compute)


def cases(first: Program, second: Program, seed: int) -> tuple[FloatCase, ...]:
    """Return both programs' errors on each kind of arguments; none for large programs."""
    if work(first) + work(second) > MOST_WORK:
        return ()
    if not any(is_float(t.dtype) for t in (*first.input_types, *first.output_types)):
        return ()
    floating = [i for i, t in enumerate(first.input_types) if is_float(t.dtype)]
    ways = {name: floating if name in _ALONE else [None] for name in _NAMES}
    found = (
        _case(first, second, name, [arguments(first, name, seed, i) for i in alone])
        for name, alone in ways.items()
    )
    return tuple(case for case in found if case is not None)


def _case(
    first: Program, second: Program, name: str, drawn: Sequence[Sequence[np.ndarray]]
) -> FloatCase | None:
    """Return the worst of some arguments; None without any that the programs take."""
    errors, lost = [], 0
    for inputs in drawn:
        try:
            exact = run(first, inputs, wide=True)
            found = [run(p, inputs) for p in (first, second)]
        except PycError:
            return None
        errors.append([_error(f, exact) for f in found])
        results = zip(*found, exact, strict=True)
        lost += sum(int(_lost(a, b, e, name not in _INFINITE).sum()) for a, b, e in results)
    if not errors:
        return None
    one, other = (None if None in side else max(side) for side in zip(*errors, strict=True))
    return FloatCase(name, one, other, lost)


def _lost(a: np.ndarray, b: np.ndarray, exact: np.ndarray, each: bool) -> np.ndarray:
    """Return where the first program is right and the second has no number, or another outcome.

    each: elements count by themselves; else only those of a result that is finite as a whole.
    """
    if not is_float(a.dtype):
        return (a == exact) & (b != exact)
    a, b = _wide(a), _wide(b)
    finite = np.isfinite(a) & np.isfinite(exact)
    if not each and not finite.all():
        return np.zeros(a.shape, bool)
    return (finite & ~np.isfinite(b)) | (np.isinf(exact) & (a == exact) & (b != exact))


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if is_float(x.dtype) else np.zeros(x.shape)


def _error(results: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float | None:
    worst = 0.0
    for a, b in zip(results, exact, strict=True):
        x, y = _wide(a), _wide(b)
        both = np.isfinite(y)
        if not np.isfinite(x[both]).all():
            return None
        if both.any():
            scale = max(float(np.abs(y[both]).max()), 1e-300)
            worst = max(worst, float(np.abs(x[both] - y[both]).max()) / scale)
    return worst


def agree(first: Program, second: Program, graph: Graph, seed: int, rounded: bool) -> bool:
    """Return whether programs of one graph agree in f64 on ordinary arguments."""
    units = work(first) + work(second)
    if units > MOST_WORK:
        return True
    tolerance = _ROUNDED if rounded else _TOLERANCE
    for draw in range(_DRAWS if units < MOST_WORK >> 12 else 3):
        inputs = arguments(first, "ordinary", seed + draw)
        if draw % 3 == 2:
            inputs = [np.abs(x) if is_float(x.dtype) else x for x in inputs]
        kept = graph.kept_of("f64", seed, draw, merges=False)
        sides = [run(p, inputs, wide=True, kept=kept) for p in (first, second)]
        for a, b in zip(*sides, strict=True):
            # Elements that are finite in both, beside the largest of them.
            both = np.isfinite(a) & np.isfinite(b) if is_float(a.dtype) else None
            if both is None and not np.array_equal(a, b):
                return False
            if both is not None and both.any():
                near = tolerance * (float(np.abs(a[both]).max()) + 1e-30)
                if not (np.abs(a[both] - b[both]) <= near).all():
                    return False
    return True
