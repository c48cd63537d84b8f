"""`pyc-tune MODEL`, `pyc-tune resume` and `pyc-tune worker`: tune, go on, help measuring.

What is printed at the end rests on sessions that the search had no part in: the confirming session
of each work, and two sessions of the whole program.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pyc_mlir.compilation.options import CompileOptions
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import DONE, FAILED, EvidenceStore
from pyc_mlir.lab.evidence.rows import Study
from pyc_mlir.lab.sessions.local import LocalMeasurer
from pyc_mlir.lab.tune.study import WORKS, StudyBudget, StudyResult, WorkResult, effort_of
from pyc_mlir.lab.tune.tuner import tune, work_subject
from pyc_mlir.lab.tune.workers import TrialJob, here, work_once
from pyc_mlir.runtime.selection.verdict import Judgement, VerdictKind
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli.model_source import read_model
from pyc_mlir.tools.cli.option_flags import read_range
from pyc_mlir.tools.tune.evidence import named

_SHORT = 16
_NOTHING = (
    "nothing to tune: no kernel of this program has another choice on this target, or kernels are "
    "attached to its ops already, as in what `pyc-compile --emit pyc` writes"
)
_IDLE_SECONDS = 1.0


def run_tune(url: str, flags: argparse.Namespace) -> int:
    """Tune a model and report the gain."""
    ranges = dict(read_range(text) for text in flags.dim)
    options = CompileOptions(target=flags.target, dims=ranges or None)
    return _print_result(
        tune(
            read_model(flags.model, sys.stdin.buffer),
            budget=flags.budget,
            db=url,
            effort=flags.effort,
            executor=flags.executor,
            workers=_workers(flags.workers),
            dims={name: high for name, (_, high) in ranges.items()},
            seed=flags.seed,
            options=options,
        ),
        flags.db,
    )


def run_resume(url: str, flags: argparse.Namespace) -> int:
    """Go on with a study whose model is a file."""
    with EvidenceStore.open(url) as store:
        study = named(store, flags.id)
    notes: Mapping[str, Any] = study.budget if isinstance(study, Study) else {}
    if "model" not in notes:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"command line: expected a study of a model in a file, got {flags.id!r}; "
            "`pyc-tune ls` lists the studies; for one of a Python function call `tune` again",
        )
    ranges = {name: (low, high) for name, (low, high) in notes["ranges"].items()}
    result = tune(
        notes["model"],
        budget=flags.budget or StudyBudget(notes["seconds"], notes["evaluations"]),
        db=url,
        effort=notes["effort"],
        executor=flags.executor,
        workers=_workers(flags.workers),
        dims=notes["dims"],
        seed=notes["seed"],
        options=CompileOptions(target=notes["target"], dims=ranges or None),
    )
    if result.study_id != study.id:
        print(f"the model, the toolchain or the machine changed: a new study, not {study.id[:16]}")
    return _print_result(result, flags.db)


def run_worker(url: str, flags: argparse.Namespace) -> int:
    """Measure trials of studies of this database until nothing was open for so long."""
    done, last = 0, time.monotonic()
    measurer = LocalMeasurer("pyc-tune worker")
    with EvidenceStore.open(url) as store:
        while not flags.idle or time.monotonic() - last < flags.idle:
            job = _open_job(store, url, measurer)
            if job is None or not work_once(job):
                time.sleep(_IDLE_SECONDS)
                continue
            done, last = done + 1, time.monotonic()
    print(f"{done} trials measured")
    return cli.OK


def _open_job(store: EvidenceStore, url: str, measurer: LocalMeasurer) -> TrialJob | None:
    """Open a study of machines like this one with open trials; works are measured by text."""
    places = store.places()
    for study in store.find(Study, objective=WORKS):
        alike = (places[study.env_id].hardware, places[study.env_id].toolchain)
        if alike != (here().hardware, here().toolchain):
            continue
        if any(t.state not in (DONE, FAILED) for t in store.trials(study.id)):
            notes = study.budget
            options = CompileOptions(target=notes.get("target", "cpu"))
            effort = effort_of(notes["effort"])
            return TrialJob(
                url,
                study.id,
                measurer,
                partial(work_subject, options),
                effort.plans,
                places[study.env_id],
            )
    return None


def _workers(count: int) -> int:
    if count < 0:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"command line: expected a number of workers, got {count}"
        )
    return count


def _print_result(result: StudyResult, db: str | None) -> int:
    print("".join(result_lines(result, f" --db {db}" if db else "")), end="")
    return cli.INTERRUPTED if result.left == "interrupted" else cli.OK


def result_lines(result: StudyResult, db: str = "") -> Iterator[str]:
    """Yield the outcome of a study, for people; `db`: the option that names its database."""
    short = result.study_id[:_SHORT]
    yield f"study {short}: {result.trials} trials in {result.seconds:.0f} s"
    yield f"; {result.left}: go on with `pyc-tune resume {short}{db}`\n" if result.left else "\n"
    if not result.works:
        yield f"{_NOTHING}\n"
    for work in sorted(result.works, key=lambda w: not w.changed):
        yield f"  {_work(work)}\n"
    if result.estimate:
        yield f"{result.estimate}\n"
    if result.program is not None:
        state = result.state or "unknown"
        yield f"whole program: {_gain(result.program)}; the recipe is {state}\n"
    elif result.changed and not result.left:
        yield "whole program: not measured; the recipe does not count\n"
    if result.changed and not result.left:
        yield (
            f"use it:\n  pyc-tune export wisdom.json --here{db}\n"
            "  pyc-compile MODEL --policy fastest --wisdom wisdom.json -o model.vmfb\n"
        )
    unclear = [w for w in result.works if w.verdict and w.verdict.answer is VerdictKind.UNCLEAR]
    for work in unclear:
        assert work.verdict is not None
        more = work.verdict.needed
        yield f"unclear: {work.work.graph.graph_id[:_SHORT]}: {_gain(work.verdict)}"
        yield f"; about {more} processes would tell\n" if more else "\n"


def _work(result: WorkResult) -> str:
    work = result.work
    sites = f"{len(work.sites)} site{'s'[: len(work.sites) != 1]}"
    where = f"{work.graph.graph_id[:_SHORT]} at {sites}"
    wrong = f", {len(result.wrong)} wrong and quarantined" if result.wrong else ""
    if result.changed and result.verdict is not None:
        gain = _gain(result.verdict)
        return f"{where}: {result.best} instead of {work.incumbent}: {gain}{wrong}"
    searched = f"{result.tried} of at most {work.space.size} choices tried"
    hoped = "" if result.leader is None else f"; {result.leader[0]} looked faster, not confirmed"
    return f"{where}: {work.incumbent} stays, {searched}{hoped}{wrong}"


def _gain(verdict: Judgement) -> str:
    """Format the speedup with its interval: a ratio of times the other way round."""
    at, level = verdict.interval, 100 * (1 - verdict.alpha)
    return (
        f"{1 / at.ratio:.2f}x ({1 / at.high:.2f} to {1 / at.low:.2f}, {level:g}%) on"
        f" {verdict.clock} time, {verdict.answer}"
    )
