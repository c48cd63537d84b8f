"""The suites `architectures-jax` and `transients-jax`: programs of JAX, compared with `jax.jit`.

    pyc-bench architectures-jax CATALOGUE --only NAME,...
    pyc-bench transients-jax CATALOGUE --only NAME,...

CATALOGUE (`catalogue.py`) gives (function, arguments), with random weights.

`architectures-jax`: by jaxpr and by exported StableHLO. Each record says whether the results are
equal, the largest difference relative to the largest result, the number of pyc ops, and the seconds
of the import.

`transients-jax`: bytes of exported StableHLO; `encoder6` beside the catalogue is an encoder of six
layers with its weights as constants. PyC's bytes are measured: the allocator's peak of one call
without results. XLA's are what it reports of the same function, compiled by `jax.jit`; large
constants are not counted on either side.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pyc_mlir.api import compile as compile_program
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.peers.footprint import footprint
from pyc_mlir.tools.bench.report.suite import SuiteRun, suite
from suites.catalogue import OPTIONS, over_catalogue, reason

TRANSIENTS = "transients-jax"
MODES = ("balanced", "memory_first")
_WIDTH, _HEADS, _LENGTH, _LAYERS = 384, 6, 128, 6
ROADS = ("jaxpr", "stablehlo")
# What counts as equal, relative to the largest result: f32 sums in another order.
TOLERANCE = 1e-4


@suite("architectures-jax", 1, *OPTIONS)
def architectures(bench: SuiteRun) -> Iterator[Record]:
    """Compare programs of JAX with random weights, by both roads, with `jax.jit`."""
    bench.settings["tolerance"] = TOLERANCE
    yield from over_catalogue(
        bench, lambda name, make: [_record(name, road, row) for road, row in _rows(make)]
    )


def _record(name: str, road: str, row: dict[str, Any]) -> Record:
    """Return a row as a stored record; a row not compared has the value 0 and says `why`."""
    if "why" in row:
        return record(name, road, row["metric"], "programs", 0, why=row["why"])
    return record(
        name, road, "largest difference", "of the largest result", row.pop("difference"), **row
    )


def _rows(make: Callable[[], Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a row for each road; for a program that JAX itself cannot make, its error."""
    import jax  # pyright: ignore[reportMissingImports]

    try:
        function, arguments = make()
        arguments = jax.tree.map(_shaken, arguments)
        want = jax.tree.leaves(jax.jit(function)(*arguments))
        if not all(np.isfinite(w).all() for w in want):
            raise ValueError("JAX's own results are not finite")
    # A zoo's function may fail in any way, which the row says.
    except Exception as error:  # noqa: BLE001
        for road in ROADS:
            why = reason(error)
            yield road, {"metric": "not made by JAX", "why": why}
        return
    for road in ROADS:
        try:
            yield road, _compared(function, arguments, want, road)
        except PycError as error:
            yield road, {"metric": "refused", "why": f"{error}"[:2000]}


def _shaken(value: Any) -> Any:
    """Add noise to floats: weights that are all 0 or 1 would hide faults.

    Signs stay, so that variances and second moments remain legal.
    """
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return array
    rng = np.random.default_rng(array.size)
    if not array.any():
        return rng.uniform(0.0, 0.1, array.shape).astype(array.dtype)
    return (array * rng.uniform(0.9, 1.1, array.shape)).astype(array.dtype)


def _compared(
    function: Callable[..., Any], arguments: Any, want: Sequence[Any], road: str
) -> dict[str, Any]:
    import jax  # pyright: ignore[reportMissingImports]

    import pyc_mlir.jax as pyc_jax

    began = time.perf_counter()
    if road == "jaxpr":
        jitted = pyc_jax.jit(function, cache=False)
        jitted.module(*arguments)
        seconds = time.perf_counter() - began
        made = jax.tree.leaves(jitted(*arguments))
        report = jitted.program(*arguments).stats().imported
    else:
        exported = jax.export.export(jax.jit(function))(*arguments)
        began = time.perf_counter()
        program = compile_program(exported, cache=False)
        seconds = None
        leaves = jax.tree.leaves(arguments)
        results = program(*(leaves[i] for i in exported.module_kept_var_idx))
        made = results if isinstance(results, (list, tuple)) else [results]
        report = program.stats().imported
    worst = max(map(_difference, made, want), default=0.0)
    row = {
        "equal": worst <= TOLERANCE,
        "difference": worst,
        "ops": report.total,
        "foreign": report.foreign,
    }
    return row if seconds is None else {**row, "import_seconds": round(seconds, 2)}


def _difference(mine: Any, theirs: Any) -> float:
    """Return the largest difference relative to the largest value; of integers 0 or 1."""
    a, b = np.asarray(mine), np.asarray(theirs)
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.dtype.kind != "f":
        return float((a != b).any())
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30))


@suite(TRANSIENTS, 1, *OPTIONS)
def transients(bench: SuiteRun) -> Iterator[Record]:
    """Compare transient bytes of programs of JAX with XLA's own figure."""
    records = list(over_catalogue(bench, _transients, {"encoder6": encoder}))
    means = {m: _mean(records, f"pyc {m}") for m in MODES}
    bench.settings["geometric mean of pyc / xla"] = means
    yield from records


def encoder() -> tuple[Callable[[Any], Any], tuple[Any, ...]]:
    """Make six blocks, normalization first: x [1, 128, 384], six heads, gelu by tanh."""
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / shape[0] ** 0.5).astype(np.float32)

    sizes = {"q": 1, "k": 1, "v": 1, "o": 1, "up": 4}
    layers = [
        {n: weight(_WIDTH, m * _WIDTH) for n, m in sizes.items()}
        | {"down": weight(4 * _WIDTH, _WIDTH), "one": weight(_WIDTH), "two": weight(_WIDTH)}
        for _ in range(_LAYERS)
    ]

    def norm(x: Any, scale: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale

    def heads(x: Any) -> Any:
        return x.reshape(1, _LENGTH, _HEADS, -1).transpose(0, 2, 1, 3)

    def function(x: Any) -> Any:
        for w in layers:
            y = norm(x, w["one"])
            q, k, v = (heads(y @ w[n]) for n in "qkv")
            scores = q @ jnp.swapaxes(k, -1, -2) * (_WIDTH // _HEADS) ** -0.5
            mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
            x = x + mixed @ w["o"]
            x = x + jax.nn.gelu(norm(x, w["two"]) @ w["up"]) @ w["down"]
        return x

    return function, (rng.normal(size=(1, _LENGTH, _WIDTH)).astype(np.float32),)


def _transients(name: str, make: Callable[[], Any]) -> list[Record]:
    """Return XLA's bytes, and PyC's by mode; `why` if a program was not made."""
    import jax  # pyright: ignore[reportMissingImports]

    try:
        function, arguments = make()
        usage = jax.jit(function).lower(*arguments).compile().memory_analysis()
        assert usage is not None, "XLA tells no usage of memory"
        exported = jax.export.export(jax.jit(function))(*arguments)
    # A zoo's function may fail in any way, which the row says.
    except Exception as error:  # noqa: BLE001
        return [record(name, "xla", TRANSIENTS, "B", 0, why=reason(error))]
    rows = [record(name, "xla", TRANSIENTS, "B", usage.temp_size_in_bytes)]
    leaves = jax.tree.leaves(arguments)
    arrays = [np.asarray(leaves[i]) for i in exported.module_kept_var_idx]
    for mode in MODES:
        try:
            program = compile_program(exported, cache=False, planner_mode=mode)
            found = footprint(program.artifact, arrays)
            rows.append(record(name, f"pyc {mode}", TRANSIENTS, "B", found.transient_bytes))
        except PycError as error:
            rows.append(record(name, f"pyc {mode}", TRANSIENTS, "B", 0, why=f"{error}"[:300]))
    return rows


def _mean(records: Sequence[Record], candidate: str) -> float | None:
    """Return the geometric mean of a candidate's bytes over XLA's, of programs that both made."""
    xla = {r["workload"]: r["value"] for r in records if r["candidate"] == "xla"}
    own = {r["workload"]: r["value"] for r in records if r["candidate"] == candidate}
    ratios = [own[n] / xla[n] for n in own if own[n] and xla.get(n)]
    return round(float(np.exp(np.log(ratios).mean())), 3) if ratios else None
