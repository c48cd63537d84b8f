"""The suite `transients-jax`: transients of exported StableHLO, by PyC and by XLA.

    pyc-bench transients-jax CATALOGUE --only NAME,...

The programs are those of CATALOGUE (as for jax_programs.py), and `encoder6`, an encoder of six
layers with its weights as constants. PyC's bytes are measured: the allocator's peak of one call
without results. XLA's are what it reports of the same function, compiled by `jax.jit`; large
constants are not counted on either side.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.api import compile as compile_program
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.peers.footprint import footprint
from pyc_mlir.tools.bench.report.suite import parse
from pyc_mlir.tools.bench.zoo.catalogue import Zoo, make_parser, reason, run_catalogue

SUITE = "transients-jax"
MODES = ("balanced", "memory_first")
_WIDTH, _HEADS, _LENGTH, _LAYERS = 384, 6, 128, 6


def run(arguments: Sequence[str]) -> int:
    """Compare transient bytes of programs of JAX with XLA's own figure."""
    parsed = parse(SUITE, run.__doc__ or "", 1, arguments, make_parser(SUITE))
    return run_catalogue(parsed, _measure, {"encoder6": encoder}, _means)


def _measure(name: str, zoo: Zoo, known: argparse.Namespace) -> list[Record]:
    return _rows(name, zoo[name])


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


def _rows(name: str, make: Callable[[], Any]) -> list[Record]:
    """Return XLA's bytes, and PyC's by mode; `why` if a program was not made."""
    import jax  # pyright: ignore[reportMissingImports]

    try:
        function, arguments = make()
        usage = jax.jit(function).lower(*arguments).compile().memory_analysis()
        assert usage is not None, "XLA tells no usage of memory"
        exported = jax.export.export(jax.jit(function))(*arguments)
    # A zoo's function may fail in any way, which the row says.
    except Exception as error:  # noqa: BLE001
        return [record(name, "xla", SUITE, "B", 0, why=reason(error))]
    rows = [record(name, "xla", SUITE, "B", usage.temp_size_in_bytes)]
    leaves = jax.tree.leaves(arguments)
    arrays = [np.asarray(leaves[i]) for i in exported.module_kept_var_idx]
    for mode in MODES:
        try:
            program = compile_program(exported, cache=False, planner_mode=mode)
            found = footprint(program.artifact, arrays)
            rows.append(record(name, f"pyc {mode}", SUITE, "B", found.transient_bytes))
        except PycError as error:
            rows.append(record(name, f"pyc {mode}", SUITE, "B", 0, why=f"{error}"[:300]))
    return rows


def _means(records: Sequence[Record]) -> Mapping[str, Any]:
    return {"geometric mean of pyc / xla": {m: _mean(records, f"pyc {m}") for m in MODES}}


def _mean(records: Sequence[Record], candidate: str) -> float | None:
    """Return the geometric mean of a candidate's bytes over XLA's, of programs that both made."""
    xla = {r["workload"]: r["value"] for r in records if r["candidate"] == "xla"}
    own = {r["workload"]: r["value"] for r in records if r["candidate"] == candidate}
    ratios = [own[n] / xla[n] for n in own if own[n] and xla.get(n)]
    return round(float(np.exp(np.log(ratios).mean())), 3) if ratios else None
