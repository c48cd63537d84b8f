"""Processes that write into a benchmark database until they are killed, and the check afterwards.

A writer claims a trial, finishes it with a trace and, once `EvidenceStore.finish` has returned,
appends the trace's id to a file: an acknowledged row. `kill_writers` ends writers at random moments
by SIGKILL, starts others in their place, and counts acknowledged rows that the database lacks.
"""

import os
import signal
import tempfile
import time
import traceback
import uuid
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import DONE, EvidenceStore, problems
from pyc_mlir.lab.evidence.rows import Graph, Implementation, Session, Study, Trace, Workload
from pyc_mlir.measure.environment import Environments

PLACE = Environments({"cpu": "bench"}, {"source": "bench"}, {"threads": 1}, "bench")
GRAPH = Graph("bench", "program", "bench", "a graph of no ops", 0)
WORKLOAD = Workload(GRAPH.graph_id)
MADE = Implementation(GRAPH.graph_id, {"pass": "choice"})
# Trials are claimed in time, but late ones must expire while a run lasts.
_LEASE_SECONDS = 2.0
_BATCH = 2000
_LONGEST_SECONDS = 0.1
_SAMPLES = 30
WRITERS = 8


@dataclass(frozen=True)
class Killed:
    """The counts of a run.

    kills: of writers. acknowledged, lost: rows. damaged: rows whose contents do not fit their ids.
    twice: trials whose trace came from a lease that another worker had.
    """

    kills: int
    acknowledged: int
    lost: int
    damaged: int
    twice: int


def fill(url: str, trials: int) -> Study:
    """Make the rows that writers refer to, and a study with trials."""
    study = Study(
        GRAPH.graph_id, (WORKLOAD.id,), PLACE.id, "seconds", "", "bench", 0, nonce=uuid.uuid4().hex
    )
    with EvidenceStore.open(url) as store:
        store.add_place(PLACE)
        store.add(GRAPH, WORKLOAD, MADE, study)
        for start in range(0, trials, _BATCH):
            more = range(start, min(start + _BATCH, trials))
            store.add_trials(study.id, [{"number": n} for n in more])
    return study


def write(url: str, study_id: str, seed: int, path: Path | None = None) -> int:
    """Claim, measure nothing, finish, acknowledge, until no trial is left; how many were done."""
    chance = np.random.default_rng(seed)
    done, name = 0, f"writer-{seed}-{os.getpid()}"
    acknowledged = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with EvidenceStore.open(url) as store:
        session = Session(PLACE.id, uuid.uuid4().hex, 1, _SAMPLES, seed, 1, "2026-01-01")
        store.add(session)
        while (trial := store.claim(study_id, name, _LEASE_SECONDS)) is not None:
            times = chance.random(_SAMPLES)
            trace = Trace(session.id, MADE.id, WORKLOAD.id, done, wall=times, cpu=times)
            try:
                store.finish(trial, trace)
            except PycError as error:
                # On a busy machine a lease may expire: what was measured is dropped, as it must be.
                if error.code is not ReasonCode.LEASE_LOST:
                    raise
                continue
            done += 1
            if acknowledged is not None:
                os.write(acknowledged, f"{trace.id}\n".encode())
    return done


def fork(url: str, study_id: str, seed: int, path: Path | None = None) -> int:
    """Start a writer; return its process id. This process must not have compiled anything."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        write(url, study_id, seed, path)
        status = 0
    except BaseException:  # noqa: BLE001  (the process's boundary)
        traceback.print_exc()
    finally:
        os._exit(status)


def kill_writers(url: str, kills: int, writers: int = WRITERS, seed: int = 0) -> Killed:
    """Kill so many writers, `writers` of which run at a time; `kills` is no less than that."""
    assert kills >= writers, "writers that are not killed would run on"
    chance = Random(seed)
    study = fill(url, 400 * (kills + writers))
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(n)) for n in range(max(kills, writers))]
        running = {fork(url, study.id, n, paths[n]): paths[n] for n in range(writers)}
        for number in range(writers, kills + writers):
            _kill_one(running, chance)
            if number < kills:
                running[fork(url, study.id, number, paths[number])] = paths[number]
        printed = [path.read_text().splitlines() for path in paths if path.exists()]
    acknowledged = {name for lines in printed for name in lines if len(name) == len(MADE.id)}
    with EvidenceStore.open(url) as store:
        rows = {trace.id for trace in store.find(Trace)}
        known = [t.trace_id for t in store.trials(study.id) if t.state == DONE]
        damaged = len(list(problems(store)))
    lost, twice = acknowledged - rows, len(known) - len(set(known))
    return Killed(kills, len(acknowledged), len(lost), damaged, twice)


def _ready(running: dict[int, Path], chance: Random) -> int:
    """Wait for writers that have acknowledged a row, and return one of them at random."""
    while True:
        for process in running:
            ended, status = os.waitpid(process, os.WNOHANG)
            assert not ended, f"a writer ended by itself with status {status}"
        ready = [p for p, path in running.items() if path.exists() and path.stat().st_size]
        if ready:
            return chance.choice(sorted(ready))
        time.sleep(0.005)


def _kill_one(running: dict[int, Path], chance: Random) -> None:
    """Kill a writer at a random moment after its first acknowledged row."""
    victim = _ready(running, chance)
    time.sleep(chance.random() * _LONGEST_SECONDS)
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    del running[victim]


def claims_per_second(url: str, trials: int, writers: int = WRITERS) -> float:
    """Measure trials claimed and finished in a second by so many processes together."""
    study = fill(url, trials)
    begin = time.perf_counter()
    children = [fork(url, study.id, n) for n in range(writers)]
    for child in children:
        os.waitpid(child, 0)
    seconds = time.perf_counter() - begin
    with EvidenceStore.open(url) as store:
        states = {trial.state for trial in store.trials(study.id)}
    assert states == {DONE}
    return trials / seconds
