"""Both programs in floats, beside f64: the clause of safety, and a check of proofs over fields.

Comes in: two programs. `cases` runs them with their own roundings on arguments that rewrites break
on: large means, large spreads, zeros, infinities, rows masked by -inf. `agree` runs both in f64 on
ordinary arguments: a function of reals that differs by a sign differs there.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.opdef import OPS, evaluate
from pyc_mlir.dialects.types import TensorType, is_float
from pyc_mlir.pipelines.pyc.equivalence.answers import FloatCase
from pyc_mlir.pipelines.pyc.equivalence.fields.kept import Kept, kept_of
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import EXACT, Graph, Program, evaluated
from pyc_mlir.pipelines.pyc.terms.nodes import VALUE, TermNode

# Units of `OpDef.evaluation_work` (0.1 ns) that one run may take.
MOST_WORK = 1 << 33
_NAMES = ("ordinary", "large mean", "large spread", "zeros", "infinities", "masked")
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


def arguments(given: Program, case: str, seed: int) -> list[np.ndarray]:
    """Return arguments of a case: floats as it says, integers small, conditions at random."""
    rng = np.random.default_rng(seed)
    return [_argument(rng, type_, case) for type_ in given.input_types]


def _argument(rng: np.random.Generator, type_: TensorType, case: str) -> np.ndarray:
    shape = [d or 0 for d in type_.shape]
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
    elif case == "infinities" and x.size:
        x.flat[0] = np.inf
    elif case == "masked" and x.size:
        x.flat[:: max(2, x.size // 2)] = -np.inf
    with np.errstate(all="ignore"):
        return x.astype(type_.dtype)


def run(
    given: Program, inputs: Sequence[np.ndarray], wide: bool = False, kept: Kept | None = None
) -> list[np.ndarray]:
    """Return the results by the references; `wide`: floats in f64 from beginning to end.

    kept: the values of earlier runs on these inputs.
    """

    def compute(node: TermNode, operands: list[Any]) -> np.ndarray:
        if node.name == VALUE:
            x = inputs[node.params["number"]]
            return x.astype(np.float64) if wide and is_float(x.dtype) else x
        if node.name == EXACT:
            return node.params["value"].astype(np.float64 if wide else node.type.dtype)
        params = dict(node.params)
        if wide and node.name == "constant" and is_float(node.type.dtype):
            return np.asarray(params["value"]).astype(np.float64)
        if wide and node.name in ("cast", "iota") and is_float(node.type.dtype):
            params["dtype"] = np.dtype(np.float64)
        return evaluate(OPS[node.name], operands, **params)

    values = evaluated(given, compute) if kept is None else kept.evaluated(given, compute)
    return [values[o] for o in given.outputs]


def cases(first: Program, second: Program, seed: int) -> tuple[FloatCase, ...]:
    """Return both programs' errors on each kind of arguments; none for large programs."""
    if work(first) + work(second) > MOST_WORK:
        return ()
    if not any(is_float(t.dtype) for t in first.output_types):
        return ()
    return tuple(_cases(first, second, seed))


def _cases(first: Program, second: Program, seed: int) -> Iterator[FloatCase]:
    for name in _NAMES:
        inputs = arguments(first, name, seed)
        try:
            exact = run(first, inputs, wide=True)
            found = [run(p, inputs) for p in (first, second)]
        except PycError:
            continue
        errors: list[float | None] = []
        for results in found:
            errors.append(_error(results, exact))
        whole = all(np.isfinite(_wide(a)).all() for a in found[0])
        lost = sum(int((~np.isfinite(_wide(b))).sum()) for b in found[1]) if whole else 0
        yield FloatCase(name, errors[0], errors[1], lost)


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
    for draw in range(_DRAWS if units < MOST_WORK >> 12 else 3):
        inputs = arguments(first, "ordinary", seed + draw)
        if draw % 3 == 2:
            inputs = [np.abs(x) if is_float(x.dtype) else x for x in inputs]
        kept = kept_of(graph, "f64", seed, draw, merges=False)
        sides = [run(p, inputs, wide=True, kept=kept) for p in (first, second)]
        for a, b in zip(*sides, strict=True):
            if not _near(a, b, _ROUNDED if rounded else _TOLERANCE):
                return False
    return True


def _near(a: np.ndarray, b: np.ndarray, tolerance: float) -> bool:
    """Return whether elements that are finite in both agree, beside the largest of them."""
    if not is_float(a.dtype):
        return bool(np.array_equal(a, b))
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return True
    scale = float(np.abs(a[both]).max())
    return bool((np.abs(a[both] - b[both]) <= tolerance * (scale + 1e-30)).all())
