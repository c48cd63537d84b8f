"""A model compiled by PyC and by plain IREE: errors, latency and memory of both.

Plain IREE is the same model lowered to linalg op by op, without PyC's passes, and compiled by
IREE with the same flags (its O3 defaults, the host's CPU). Both run on `local-sync`, where IREE's
memory statistics count everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.options import NO_KERNELS, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.measure.interleave import Spread, interleave, ratio
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.util.logs import Stage, logged


@dataclass(frozen=True)
class DemoMemory:
    """Device bytes of one call on a fresh device: the peak, and what the call needed beside its
    inputs and results."""

    peak_bytes: int
    transient_bytes: int


@dataclass(frozen=True)
class Side:
    """One compiler's program at one batch size: seconds of IREE's bare invoke, and memory."""

    seconds: Spread
    memory: DemoMemory


@dataclass(frozen=True)
class DemoRow:
    """PyC beside plain IREE at one batch size.

    `guarded` is seconds of a call through PyC's `Program`, guards and statistics included;
    `ratio` is the invoke of PyC's program over that of plain IREE's, by rounds.
    """

    batch: int
    pyc: Side
    plain: Side
    guarded: Spread
    ratio: Spread


@dataclass(frozen=True)
class DemoComparison:
    """All that is known of one model. Scores are those of the largest batch, [n, classes]."""

    scores: np.ndarray
    reference: np.ndarray
    rows: tuple[DemoRow, ...]
    decisions: tuple[Decision, ...]

    @property
    def max_error(self) -> float:
        """The largest absolute difference of a score from the reference's."""
        return float(np.max(np.abs(self.scores - self.reference)))

    @property
    def agreeing(self) -> int:
        """The number of inputs to which both give the same class."""
        return int(np.sum(self.scores.argmax(1) == self.reference.argmax(1)))


def compare(
    model: Path,
    x: np.ndarray,
    batches: Sequence[int],
    rounds: int = 31,
    min_seconds: float = 0.002,
    stage: Stage = logged,
) -> DemoComparison:
    """Compile `model` (ONNX, one input with a dynamic batch) at each batch size; run on x[:batch].

    `rounds` and `min_seconds` as in `interleave`; `stage(title)` surrounds each part of the work.
    Raises PycError.
    """
    rows = []
    scores, decisions, largest = np.empty(0), (), 0
    for batch in batches:
        given = x[:batch]
        with stage(f"{model.stem}: PyC compiles for {batch} images"):
            artifact = _build(model, given)
        with stage(f"{model.stem}: plain IREE compiles for {batch} images"):
            plain = _build(model, given, passes="", planner_modes=(), kernels=NO_KERNELS)
        with stage(f"{model.stem}: both run {batch} images"):
            rows.append(_measure(artifact, plain, given, rounds, min_seconds))
            if batch > largest:
                largest, decisions = batch, tuple(artifact.decisions)
                scores = Program(artifact, Device("local-sync"))(given)
    with stage(f"{model.stem}: onnx's reference evaluator runs {largest} images"):
        reference = onnx_reference(model, x[:largest])
    return DemoComparison(scores, reference, tuple(rows), decisions)


def _build(model: Path, x: np.ndarray, **changed: Any) -> Artifact:
    return build(model, [x.shape], replace(make_options(target="cpu"), **changed))


def _measure(
    pyc: Artifact, plain: Artifact, x: np.ndarray, rounds: int, min_seconds: float
) -> DemoRow:
    """Time both, interleaved, with the arrays on the device."""
    memory = [measure_memory(artifact, x) for artifact in (pyc, plain)]
    device = Device("local-sync")
    array = to_device(x, device)
    program = Program(pyc, device)
    calls = {
        "pyc": serving(program).bare_call(array),
        "plain": serving(Program(plain, device)).bare_call(array),
        "guarded": partial(program, array),
    }
    timings = interleave(calls, rounds=rounds, min_seconds=min_seconds)
    return DemoRow(
        len(x),
        Side(timings["pyc"].spread, memory[0]),
        Side(timings["plain"].spread, memory[1]),
        timings["guarded"].spread,
        ratio(timings, "pyc", "plain"),
    )


def measure_memory(artifact: Artifact, x: np.ndarray) -> DemoMemory:
    """Measure memory of one call with `x` on the device, from the statistics of a fresh device."""
    device = Device("local-sync")
    program = Program(artifact, device)
    array = to_device(x, device)
    before = device.memory().live_bytes
    result = program(array)
    peak = device.memory().peak_bytes
    return DemoMemory(peak, peak - before - result.nbytes)


def onnx_reference(model: Path, x: np.ndarray) -> np.ndarray:
    """Return the first output as onnx's own evaluator, written in numpy, computes it.

    Raises PycError (MISSING_DEPENDENCY) without onnx.
    """
    try:
        from onnx import load
        from onnx.reference import ReferenceEvaluator
    except ModuleNotFoundError:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"reference: expected the package `onnx`; {install('onnx')}",
        ) from None
    proto = load(model)
    evaluator = ReferenceEvaluator(proto)
    scores, *_ = evaluator.run(None, {proto.graph.input[0].name: x})
    return np.asarray(scores)
