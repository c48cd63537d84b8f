"""The suite `architectures-jax`: programs of JAX by jaxpr and by exported StableHLO, and `jax.jit`.

    pyc-bench architectures-jax CATALOGUE --only NAME,...

CATALOGUE (`catalogue.py`) gives (function, arguments), with random weights. Each record says
whether the results are equal, the largest difference relative to the largest result, the number of
pyc ops, and the seconds of the import.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pyc_mlir.api import compile as compile_program
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.report.suite import parse
from pyc_mlir.tools.bench.zoo.catalogue import Zoo, make_parser, reason, run_catalogue

SUITE = "architectures-jax"
ROADS = ("jaxpr", "stablehlo")
# What counts as equal, relative to the largest result: f32 sums in another order.
TOLERANCE = 1e-4


def run(arguments: Sequence[str]) -> int:
    """Compare programs of JAX with random weights, by both roads, with `jax.jit`."""
    parsed = parse(SUITE, run.__doc__ or "", 1, arguments, make_parser(SUITE))
    return run_catalogue(parsed, _measure, summary=lambda records: {"tolerance": TOLERANCE})


def _measure(name: str, zoo: Zoo, known: argparse.Namespace) -> list[Record]:
    return [_record(name, road, row) for road, row in _rows(zoo[name])]


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
