"""How small a difference this machine shows: sessions of a program against itself and more of it.

    for session in probe_sessions(60, plan): ...

In each session fresh processes call a matrix product and a softmax, compiled by PyC, in interleaved
rounds: A and again A (which differ in nothing), B with 5 % and C with 10 % more calls in a sample.
Verdicts on A against A show how often noise is called a difference, those on B and C how often
differences of this size are found (`pyc_mlir/runtime/selection/verdict.py`).
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import tensor
from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.lab.sessions.compiling import Compiler
from pyc_mlir.lab.sessions.local import ALLOCATOR
from pyc_mlir.lab.sessions.processes import TIME, MeasureJob, OnDevice, run_job, stored
from pyc_mlir.lab.sessions.session import MeasuredChoice, SessionPlan
from pyc_mlir.lab.sessions.subjects import subject_of_work
from pyc_mlir.measure import machine
from pyc_mlir.measure.machine import measure_token
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.runtime.selection.verdict import Judgement, Rounds, judge

# Calls of a sample of A; 5 and 10 % more are whole calls.
CALLS = 20
KINDS = {"A": CALLS, "A2": CALLS, "B5": CALLS * 21 // 20, "B10": CALLS * 11 // 10}
_ROWS, _INNER, _COLUMNS = 64, 256, 256


def probe_works() -> dict[str, Work]:
    """Return the programs that are probed with: bound by arithmetic, and by memory."""
    x, w = tensor("f32", _ROWS, _INNER), tensor("f32", _INNER, _COLUMNS)
    out = tensor("f32", _ROWS, _COLUMNS)
    wide = tensor("f32", 256, 1024)
    constant = Input(w, lambda: np.zeros((_INNER, _COLUMNS), np.float32))
    return {
        "gemm": Work((Input(x), constant), (WorkOp("matmul", (0, 1), {}, out),), ("",)),
        "softmax": Work((Input(wide),), (WorkOp("softmax", (0,), {"axis": -1}, wide),), ("",)),
    }


@dataclass(frozen=True, eq=False)
class ProbeSession:
    """One session: the verdict on each other kind of call beside A, by name.

    disturbed: why the machine was no place to measure.
    """

    program: str
    number: int
    verdicts: Mapping[str, Judgement]
    load: float
    disturbed: tuple[str, ...] = ()


def probe_sessions(
    sessions: int, plan: SessionPlan, programs: Sequence[str] = ("gemm", "softmax")
) -> Iterator[ProbeSession]:
    """Measure so many sessions of each program, one after the other.

    plan: its rounds, processes, seed and limit of seconds count; always one thread, warm.
    Raises PycError: MACHINE_BUSY, RUNTIME_FAILED for a process that ends early.
    """
    with (
        tempfile.TemporaryDirectory(prefix="pyc-probe-") as name,
        measure_token("pyc-tune probe"),
    ):
        ready = {program: _job(program, plan, Path(name)) for program in programs}
        for number in range(sessions):
            for program in programs:
                yield _session(program, number, ready[program], plan, Path(name))


def _job(program: str, plan: SessionPlan, folder: Path) -> MeasureJob:
    """Return a job that times the program under its four names."""
    subject = subject_of_work(probe_works()[program])
    made = Compiler(subject, plan.timeout_seconds).compile(MeasuredChoice())
    if made.artifact is None or subject.arguments is None:
        raise PycError(ReasonCode.RUNTIME_FAILED, f"probe {program}: {made.result.reason}")
    path = folder / f"{program}.vmfb"
    write_file(path, made.data)
    return MeasureJob(
        TIME,
        (str(path),) * len(KINDS),
        stored(subject.arguments, folder, program),
        OnDevice(allocator=ALLOCATOR),
        plan.rounds,
        plan.warmup,
        calls=tuple(KINDS.values()),
    )


def _session(
    program: str, number: int, job: MeasureJob, plan: SessionPlan, folder: Path
) -> ProbeSession:
    before, own = machine.read_counters(), 0.0
    rounds: dict[str, list[Rounds]] = {name: [] for name in KINDS if name != "A"}
    for process in range(plan.processes):
        seed = plan.seed + number * plan.processes + process
        outcome = run_job(replace(job, seed=seed), folder, plan.timeout_seconds)
        own += outcome.cpu_seconds
        times = sorted((m for m in outcome.messages if "times" in m), key=lambda m: m["times"])
        if len(times) != len(KINDS):
            raise PycError(
                ReasonCode.RUNTIME_FAILED,
                f"probe {program}: expected times of {len(KINDS)} programs, got {len(times)}: "
                f"{outcome.reason or 'one refused to run'}",
            )
        a, *others = ([np.array(m[clock]) for clock in ("wall", "cpu")] for m in times)
        for found, (wall, cpu) in zip(rounds.values(), others, strict=True):
            found.append(Rounds(wall, a[0], cpu, a[1]))
    after = machine.read_counters()
    verdicts = {name: judge(found) for name, found in rounds.items()}
    disturbed = machine.disturbances(before, after, own)
    return ProbeSession(program, number, verdicts, after.load, disturbed)
