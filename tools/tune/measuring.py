"""`pyc-tune profile` and `pyc-tune probe`: what a database lacks; how small a difference shows.

In each session of a probe fresh processes call a matrix product and a softmax, compiled by PyC, in
interleaved rounds: A and again A (which differ in nothing), with 5 % and with 10 % more calls in a
sample. Verdicts on A against A show how often noise is called a difference, those on the others how
often differences of this size are found (`pyc_mlir/runtime/selection/verdict.py`).
"""

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import tensor
from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.lab.evidence.rows import COLD, CONSTANTS, WARM
from pyc_mlir.lab.sessions.local import Compiler, LocalMeasurer
from pyc_mlir.lab.sessions.processes import TIME, MeasureJob, SessionPlan, run_job, stored
from pyc_mlir.lab.sessions.session import MeasuredChoice, Measurer
from pyc_mlir.lab.sessions.subjects import subject_of_work
from pyc_mlir.measure import machine
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report, record
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.runtime.selection.verdict import Judgement, Rounds, VerdictKind, judge
from pyc_mlir.tools.cli import common as cli

# A probe needs no database, whose package is optional.
if TYPE_CHECKING:
    from pyc_mlir.lab.evidence.database.store import EvidenceStore
    from pyc_mlir.lab.tune.survey import Surveyed

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
SUITE = "noise"
# Calls of a sample of A; 5 and 10 % more are whole calls.
CALLS = 20
KINDS = {"A": CALLS, "A2": CALLS, "B5": CALLS * 21 // 20, "B10": CALLS * 11 // 10}
# What is compared with A.
OTHERS = {"A2": "a program against itself", "B5": "5 % more", "B10": "10 % more"}
_ROWS, _INNER, _COLUMNS = 64, 256, 256


def run_profile(store: "EvidenceStore", flags: argparse.Namespace) -> int:
    """Measure the works of the models; a line for each session."""
    from pyc_mlir.lab.tune.survey import Surveyed

    programs = [Surveyed(model, model) for model in flags.models]
    return survey(store, flags, programs, LocalMeasurer("pyc-tune profile"))


def survey(
    store: "EvidenceStore",
    flags: argparse.Namespace,
    programs: Sequence["Surveyed"],
    measurer: Measurer,
) -> int:
    """Survey programs as the flags request. Status 1 where not one program could be surveyed."""
    from pyc_mlir.lab.tune.survey import Survey

    made = Survey(store, measurer, plan_of(flags), constants_of(flags.constants), whole=flags.whole)
    for line in made.run(programs, seconds_of(flags.budget)):
        print(line, flush=True)
    return cli.REFUSED if all(p.name in made.skipped for p in programs) else cli.OK


def plan_of(flags: argparse.Namespace) -> SessionPlan:
    """Return the plan of each session. Raises PycError (BAD_ARGUMENT)."""
    return SessionPlan(flags.rounds, flags.processes, threads=flags.threads, quiet=flags.quiet_only)


def constants_of(text: str) -> tuple[str, ...]:
    """``warm,cold`` as states. Raises PycError (BAD_ARGUMENT)."""
    states = tuple(text.split(","))
    if not set(states) <= set(CONSTANTS):
        raise _wrong("--constants", f"{WARM}, {COLD} or {WARM},{COLD}", text)
    return states


def seconds_of(text: str | None) -> float | None:
    """``10min`` in seconds; a number alone is seconds. Raises PycError (BAD_ARGUMENT)."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)?", text)
    if found is None:
        raise _wrong("--budget", "a time such as 90s, 10min or 2h", text)
    return float(found[1]) * _SECONDS[found[2] or "s"]


def _wrong(option: str, expected: str, got: str) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT, f"command line: `{option}`: expected {expected}, got {got!r}"
    )


def run_probe(url: str, flags: argparse.Namespace) -> int:
    """Probe; print a line for each session, last the share of differences found."""
    if flags.json:
        require_writable(flags.json, "a file for the samples (`--json`)")
    plan = SessionPlan(flags.rounds, flags.processes)
    sessions: list[ProbeSession] = []
    try:
        for session in probe_sessions(flags.sessions, plan):
            sessions.append(session)
            answers = (f"{text}: {session.verdicts[o].answer}" for o, text in OTHERS.items())
            why = f" [disturbed: {'; '.join(session.disturbed)}]" if session.disturbed else ""
            print(f"{session.program} {session.number}: {', '.join(answers)}{why}", flush=True)
    finally:
        # Those of a run that was interrupted count too.
        if flags.json and sessions:
            report(sessions, plan.rounds, plan.processes).save(Path(flags.json))
    print("".join(f"{line}\n" for line in summary(sessions)), end="")
    return cli.OK


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
        machine.measure_token("pyc-tune probe"),
    ):
        ready = {program: _job(program, plan, Path(name)) for program in programs}
        for number in range(sessions):
            for program in programs:
                yield _session(program, number, ready[program], plan, Path(name))


def _job(program: str, plan: SessionPlan, folder: Path) -> MeasureJob:
    """Return a job that times a program, bound by arithmetic or memory, under its four names."""
    x, w = tensor("f32", _ROWS, _INNER), tensor("f32", _INNER, _COLUMNS)
    out, wide = tensor("f32", _ROWS, _COLUMNS), tensor("f32", 256, 1024)
    constant = Input(w, lambda: np.zeros((_INNER, _COLUMNS), np.float32))
    works = {
        "gemm": Work((Input(x), constant), (WorkOp("matmul", (0, 1), {}, out),), ("",)),
        "softmax": Work((Input(wide),), (WorkOp("softmax", (0,), {"axis": -1}, wide),), ("",)),
    }
    subject = subject_of_work(works[program])
    made = Compiler(subject, plan.timeout_seconds).compile(MeasuredChoice())
    if made.artifact is None or subject.arguments is None:
        raise PycError(ReasonCode.RUNTIME_FAILED, f"probe {program}: {made.result.reason}")
    path = folder / f"{program}.vmfb"
    write_file(path, made.data)
    given = stored(subject.arguments, folder, program)
    plan = replace(plan, threads=1, constants=WARM)
    return MeasureJob(TIME, (str(path),) * len(KINDS), given, plan, calls=tuple(KINDS.values()))


def _session(
    program: str, number: int, job: MeasureJob, plan: SessionPlan, folder: Path
) -> ProbeSession:
    before, own = machine.read_counters(), 0.0
    rounds: dict[str, list[Rounds]] = {name: [] for name in OTHERS}
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


def summary(sessions: Sequence[ProbeSession]) -> Iterator[str]:
    """Yield for each difference the counts of answers."""
    noisy = sum(bool(s.disturbed) for s in sessions)
    yield f"{len(sessions)} sessions, {noisy} on a disturbed machine"
    for other, text in OTHERS.items():
        counts = Counter(s.verdicts[other].answer for s in sessions)
        yield f"{text}: {', '.join(f'{a} {counts[a]}' for a in VerdictKind)}"


def report(sessions: Sequence[ProbeSession], rounds: int, processes: int) -> Report:
    """Make the report of the sessions: verdicts with intervals, all samples in nanoseconds."""
    settings = {"rounds": rounds, "processes": processes}
    return Report(SUITE, probe(), settings, [r for s in sessions for r in _records(s)])


def _records(session: ProbeSession) -> Iterator[Record]:
    for other in ("A", *OTHERS):
        found, ratio = session.verdicts.get(other), 1.0
        facts: dict[str, Any] = {}
        if found is not None:
            ratio, ends = found.interval.ratio, found.interval
            facts = {"answer": str(found.answer), "clock": found.clock}
            facts |= {"low": ends.low, "high": ends.high}
        facts |= {"load": session.load, "disturbed": list(session.disturbed)}
        name = f"{session.program} {session.number}"
        yield record(name, other, "times of A", "ratio", ratio, **facts)


def markdown(stored: Report) -> str:
    """Write a stored report as a table: the counts of each answer, and the ratios found."""
    lines = [
        "| program | against itself with | sessions | faster | slower | unclear | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    answers: dict[tuple[str, str], list[Record]] = {}
    for r in stored.records:
        if r["candidate"] in OTHERS:
            program = r["workload"].rpartition(" ")[0]
            answers.setdefault((program, r["candidate"]), []).append(r)
    for (program, other), found in answers.items():
        counts = Counter(r["answer"] for r in found)
        low, middle, high = np.percentile([r["value"] for r in found], [10, 50, 90])
        given = " | ".join(str(counts[str(a)]) for a in VerdictKind)
        lines.append(
            f"| {program} | {OTHERS[other]} | {len(found)} | {given} "
            f"| {middle:.3f} ({low:.3f} to {high:.3f}) |"
        )
    noisy = sum(bool(r["disturbed"]) for found in answers.values() for r in found)
    return "\n".join([*lines, "", f"Of these, {noisy} on a disturbed machine.", ""])
