"""Make profiles: measured with the dispatch timer, or predicted from what the compile recorded.

Calls are profiled in a process of IREE's own, in rounds that alternate with the same calls without
profiling and with calls of the program itself. Of all profiled calls the half in the middle counts,
by their seconds; a row's seconds are its mean over them, so that rows add up, and what no dispatch
covers is the last row. What dispatches take with helpers the calls of the program itself record.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.dispatch_timer import WARMUP, TimedCall, TimerSettings, time_calls
from pyc_mlir.measure.interleave import Spread
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import CpuInfo, Target
from pyc_mlir.profile.dispatches import (
    KnownDispatch,
    KnownGroup,
    ProfileRow,
    assigned,
    family_of,
    groups_behind,
    groups_of,
    ops_behind,
    recorded,
    report_of,
)
from pyc_mlir.profile.profile import Disturbance, Profile, with_rest

ROUNDS = 3
# The calls in which dispatches try whether helpers pay (`iree/fork_join.mlir`).
_TRIALS = 16
# How long the profiled calls may take in all, and how many there are at least and at most.
_SECONDS, _FEWEST, _MOST = 2.0, 9, 90
_REST = ProfileRow("", 0.0, 0.0)
OwnCall = tuple[float, np.ndarray]


@dataclass(frozen=True)
class ProfiledCall:
    """The call to profile: a function of the artifact, its inputs, and bytes of further buffers.

    own: calls the program itself, by its own way, with `threads` threads; returns seconds, and of
    each dispatch tiles, seconds and seconds of waiting for helpers.
    """

    function: str
    inputs: Sequence[np.ndarray]
    storage: tuple[int, ...]
    own: Callable[[], OwnCall]
    threads: int = 1


def measure(
    artifact: Artifact,
    call: ProfiledCall,
    how: TimerSettings,
    model: CostModel,
    calls: int | None = None,
) -> Profile:
    """Profile `calls` calls (None: as many as take two seconds, 9 to 90).

    how: the device and its allocator. model: of the machine's CPU, for rooflines.
    Raises PycError: CANNOT_PROFILE, BAD_ARGUMENT, RUNTIME_FAILED.
    """
    if calls is not None and (type(calls) is not int or calls < 1):
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"profile: expected one call or more, got {calls!r}"
        )
    tried = [call.own()[0] for _ in range(_TRIALS if call.threads > 1 else ROUNDS)]
    seconds = max(statistics.median(tried[-ROUNDS:]), 1e-9)
    each = -(-(calls or int(min(max(_SECONDS / seconds, _FEWEST), _MOST))) // ROUNDS)
    timed, plain, own = list[TimedCall](), list[TimedCall](), list[OwnCall]()
    for _ in range(ROUNDS):
        for made, profiling in ((plain, False), (timed, True)):
            here = replace(how, calls=each, profiling=profiling)
            made += time_calls(artifact.vmfb, call.function, call.inputs, here, call.storage)
        own += [call.own() for _ in range(WARMUP + each)][WARMUP:]
    if len({tuple(s.symbol for s in one.spans) for one in timed}) > 1:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            "profile: expected the same dispatches in each call, got others; profile a program "
            "whose dispatches do not depend on data",
        )
    cut = len(timed) // 4
    kept = sorted(timed, key=lambda c: c.seconds)[cut : len(timed) - cut]
    seconds = statistics.fmean(c.seconds for c in kept)
    rest = replace(_REST, calls=len(timed))
    alone = with_rest(_rows(artifact, kept, timed, model), seconds, rest)
    rows, helped = _helped(alone, timed[0], own, call.threads)
    threads = {0: "all cores", 1: "1 thread"}.get(how.threads, f"{how.threads} threads")
    return Profile(
        program=artifact.manifest.graph_id or "",
        measured=True,
        how=(
            f"measured on {how.device}, {threads}, entry `{call.function}`: the mean of the middle "
            f"{len(kept)} of {len(timed)} calls; spread is p10 and p90 of all against the median"
        ),
        roof=roof_of(model),
        seconds=seconds,
        rows=rows,
        helped=helped,
        disturbance=Disturbance(
            statistics.median(c.cpu_seconds for c in timed),
            statistics.median(c.cpu_seconds for c in plain),
            statistics.median(seconds for seconds, _ in own),
        ),
        device=how.device,
        threads=how.threads,
        entry=call.function,
        spans=kept[len(kept) // 2].spans,
    )


def _helped(
    rows: tuple[ProfileRow, ...], timed: TimedCall, own: Sequence[OwnCall], threads: int
) -> tuple[tuple[ProfileRow, ...], str]:
    """Add what the program recorded on several threads, and tell how; the last row is the rest.

    Rows match by position: calls with other dispatches, or other tiles in one, do not count.
    """
    if threads == 1:
        return rows, ""
    tiles = [prod(span.workgroups) for span in timed.spans]
    same = [(seconds, r) for seconds, r in own if r[:, 0].tolist() == tiles]
    if not same:
        found = " or ".join(map(str, sorted({len(r) for _, r in own})))
        known = f"expected the {len(tiles)} dispatches that IREE's tool timed, with their tiles"
        return rows, f"not known for {threads} threads: {known}, got {found} in a call from Python"
    medians = np.median([r[:, 1:] for _, r in same], axis=0)
    rest = statistics.median(seconds for seconds, _ in same) - float(medians[:, 0].sum())
    pairs = zip(rows, [*medians.tolist(), (rest, 0.0)], strict=True)
    rows = tuple(replace(row, helped_seconds=t, waited_seconds=w) for row, (t, w) in pairs)
    where = f"{threads} threads: recorded in calls from Python, in turn with the others"
    return rows, f"{where}; medians of {len(same)} calls; wait: of the caller, for helpers"


def _rows(
    artifact: Artifact, kept: Sequence[TimedCall], timed: Sequence[TimedCall], model: CostModel
) -> list[ProfileRow]:
    symbols = [s.symbol for s in timed[0].spans]
    known = assigned(symbols, recorded(report_of(artifact)))
    means = np.mean([c.shares for c in kept], axis=0) if symbols else []
    every = np.transpose([c.shares for c in timed]) if symbols else []
    groups = groups_of(artifact.decisions)
    # Whether the recorded operations and bytes are those of every call.
    static = all(a.static_shape is not None for a in artifact.signature.inputs)
    rows = []
    for symbol, k, mean, samples in zip(symbols, known, means, every, strict=True):
        spread = Spread.of(samples)
        row = _described(symbol, float(mean), k, groups)
        rows.append(
            replace(
                row if static else replace(row, flops=None, traffic_bytes=None),
                median_seconds=spread.median,
                p10_seconds=spread.p10,
                p90_seconds=spread.p90,
                calls=len(timed),
                roofline=_roofline(k, float(mean), model) if static else None,
            )
        )
    return rows


def _described(
    symbol: str, seconds: float, known: KnownDispatch | None, groups: dict[str, KnownGroup]
) -> ProfileRow:
    code = family_of(symbol)
    if known is None:
        return ProfileRow(symbol, seconds, 0.0, code=code)
    behind = groups_behind(known.sources, groups)
    chosen = (g.knobs for g in behind if g.chosen.partition(":")[0] == code)
    return ProfileRow(
        symbol,
        seconds,
        0.0,
        known.sources,
        ops_behind(known.sources, groups),
        tuple(g.name for g in behind),
        tuple(dict.fromkeys(place for g in behind for place in g.locations)),
        code,
        next(chosen, ""),
        flops=known.flops,
        traffic_bytes=known.traffic_bytes,
    )


def _roofline(known: KnownDispatch | None, seconds: float, model: CostModel) -> float | None:
    """Return the share of the roof that a dispatch reaches; above 1 if a cache held more."""
    if known is None or not seconds or not (known.flops or known.traffic_bytes):
        return None
    computing = known.flops / (model.core_flops * model.cores)
    return max(computing, model.moving(known.traffic_bytes)) / seconds


def roof_of(model: CostModel) -> str:
    """Write the basis of rooflines, with the figures."""
    flops, bandwidth = model.core_flops * model.cores / 1e9, model.bandwidth / 1e9
    return (
        f"{flops:.0f} GFLOP/s on {model.cores} core{'s' if model.cores > 1 else ''}, "
        f"{bandwidth:.0f} GB/s of memory and more of caches, by {model.basis}"
    )


def predict(artifact: Artifact, decisions: Sequence[Decision] | None = None) -> Profile | None:
    """Predict the call: the seconds of the artifact's `Prediction`, shared out among dispatches.

    The shares are those of the seconds that the memory plan counts with, which stand for a
    prediction where there is none. None without a memory report. decisions: a log of the same
    compile, whose locations the artifact does not keep.
    """
    report = report_of(artifact)
    made = artifact.prediction or Prediction(report.seconds, basis=report.basis)
    known = recorded(report.of(made))
    if not any(k.seconds for k in known):
        return None
    groups = groups_of(artifact.decisions if decisions is None else decisions)
    rows = [_described(k.symbol, k.seconds, k, groups) for k in known if not k.is_command]
    return Profile(
        program=artifact.manifest.graph_id or "",
        measured=False,
        how=f"predicted for {made.where}, {made.grounds}; `pyc-run --profile` measures",
        roof="",
        seconds=made.seconds,
        rows=with_rest(rows, made.seconds, _REST),
    )


def placed(profile: Profile, decisions: Sequence[Decision]) -> Profile:
    """Return the profile with the locations that a log of the same compile has."""
    groups = groups_of(decisions)
    rows = []
    for row in profile.rows:
        behind = groups_behind(row.sources, groups)
        places = tuple(dict.fromkeys(p for g in behind for p in g.locations))
        rows.append(replace(row, locations=places or row.locations))
    return replace(profile, rows=tuple(rows))


def model_of(
    artifact: Artifact,
    cpu: CpuInfo | None,
    threads: int,
    calibration: Calibration | str | Path | None = None,
) -> CostModel:
    """Return this machine's cost model for an artifact's target and threads (0: all cores).

    Raises PycError: FILE_ACCESS, BAD_ARGUMENT for a calibration of another CPU.
    """
    target = Target.named(artifact.manifest.target)
    target = target if cpu is None else target.on(cpu)
    if isinstance(calibration, str | Path):
        calibration = Calibration.load(calibration)
    if calibration is not None:
        target = target.calibrated(calibration)
    return CostModel(target, calibration, threads)
