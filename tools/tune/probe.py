"""`pyc-tune probe`: how small a difference this machine shows, by verdicts on known differences."""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyc_mlir.dialects.util.files import require_writable
from pyc_mlir.runtime.selection.verdict import VerdictKind
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.tune.profile import argument

if TYPE_CHECKING:
    from pyc_mlir.lab.tune.probes import ProbeSession
    from pyc_mlir.measure.records import Record, Report

SUITE = "noise"
SESSIONS, ROUNDS, PROCESSES = 60, 15, 6
# What is compared with A: itself, 5 % more calls, 10 % more calls.
OTHERS = {"A2": "a program against itself", "B5": "5 % more", "B10": "10 % more"}


ARGUMENTS = (
    argument("--sessions", metavar="N", type=int, default=SESSIONS,
             help=f"number of sessions; default: {SESSIONS}"),
    argument("--rounds", metavar="N", type=int, default=ROUNDS,
             help=f"rounds of each process; default: {ROUNDS}"),
    argument("--processes", metavar="N", type=int, default=PROCESSES,
             help=f"processes of each session; default: {PROCESSES}"),
    argument("--json", metavar="OUT", help="store all samples in this file"),
)  # fmt: skip


def run_probe(url: str, flags: argparse.Namespace) -> int:
    """Probe; print a line for each session, last the share of differences found."""
    from pyc_mlir.lab.sessions.session import SessionPlan
    from pyc_mlir.lab.tune.probes import probe_sessions

    if flags.json:
        require_writable(flags.json, "a file for the samples (`--json`)")
    plan = SessionPlan(flags.rounds, flags.processes)
    sessions: list[ProbeSession] = []
    try:
        for session in probe_sessions(flags.sessions, plan):
            sessions.append(session)
            print(_line(session), flush=True)
    finally:
        # Those of a run that was interrupted count too.
        if flags.json and sessions:
            report(sessions, plan.rounds, plan.processes).save(Path(flags.json))
    print("".join(f"{line}\n" for line in summary(sessions)), end="")
    return cli.OK


def _line(session: "ProbeSession") -> str:
    answer_texts = (f"{OTHERS[other]}: {session.verdicts[other].answer}" for other in OTHERS)
    why = f" [disturbed: {'; '.join(session.disturbed)}]" if session.disturbed else ""
    return f"{session.program} {session.number}: {', '.join(answer_texts)}{why}"


def summary(sessions: Sequence["ProbeSession"]) -> Iterator[str]:
    """Yield for each difference the counts of answers."""
    noisy = sum(bool(s.disturbed) for s in sessions)
    yield f"{len(sessions)} sessions, {noisy} on a disturbed machine"
    for other, text in OTHERS.items():
        counts = Counter(s.verdicts[other].answer for s in sessions)
        answer_texts = ", ".join(f"{a} {counts[a]}" for a in VerdictKind)
        yield f"{text}: {answer_texts}"


def report(sessions: Sequence["ProbeSession"], rounds: int, processes: int) -> "Report":
    """Make the report of the sessions: verdicts with intervals, all samples in nanoseconds."""
    from pyc_mlir.measure.environment import probe
    from pyc_mlir.measure.records import Report

    settings = {"rounds": rounds, "processes": processes}
    return Report(SUITE, probe(), settings, [r for s in sessions for r in _records(s)])


def _records(session: "ProbeSession") -> "Iterator[Record]":
    from pyc_mlir.measure.records import record

    for other in ("A", *OTHERS):
        found = session.verdicts.get(other)
        verdict_data: dict[str, Any] = {}
        if found is not None:
            ends = {"low": found.interval.low, "high": found.interval.high}
            verdict_data = {"answer": str(found.answer), "clock": found.clock, **ends}
        yield record(
            f"{session.program} {session.number}",
            other,
            "times of A",
            "ratio",
            found.interval.ratio if found is not None else 1.0,
            **verdict_data,
            load=session.load,
            disturbed=list(session.disturbed),
        )


def markdown(stored: "Report") -> str:
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
