"""Named numbers that later runs are compared with, by version: `freeze`, `reports_of`.

A baseline holds either stored benchmark reports, each as a session with its samples, or the times
of the recipes in use. Freezing under a known name makes the next version; none is ever changed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    STABLE,
    Baseline,
    EvidenceRow,
    Graph,
    Implementation,
    Session,
    State,
    Status,
    Trace,
    Workload,
    samples,
)
from pyc_mlir.measure.environment import Environment, Environments
from pyc_mlir.measure.records import Record, Report, record
from pyc_mlir.util.checksum import canonical, digest

# The kind of a graph that stands for a row of a benchmark, and the beginning of its id.
BENCHMARK, _ID = "benchmark", "b1-"
SAMPLES = "samples"


def freeze(store: EvidenceStore, name: str, reports: Sequence[Report], moment: str) -> int:
    """Keep reports, or the recipes in use where there are none, as the next version of a name.

    moment: now as UTC text. Returns the version. Raises PycError (BAD_ARGUMENT) where there is
    nothing to keep: no recipe in use, or reports without times.
    """
    version = 1 + max((b.version for b in store.find(Baseline, name=name)), default=0)
    found: list[EvidenceRow] = []
    for number, report in enumerate(reports):
        found += _of_report(store, name, version, number, report, moment)
    if not reports:
        found += _in_use(store, name, version, moment)
    if not any(isinstance(row, Baseline) for row in found):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"baseline {name!r}: expected times in seconds in the reports, or a recipe in use, got "
            "none; give a stored report of `pyc-bench`",
        )
    store.add(*found)
    return version


def versions(store: EvidenceStore) -> dict[str, list[int]]:
    """Return the versions of every name, ascending."""
    found: dict[str, set[int]] = {}
    for row in store.find(Baseline):
        found.setdefault(row.name, set()).add(row.version)
    return {name: sorted(found[name]) for name in sorted(found)}


def rows_of(store: EvidenceStore, name: str) -> list[Baseline]:
    """Return the rows of ``NAME``, its newest version, or ``NAME@VERSION``.

    Raises PycError (BAD_ARGUMENT) where there is none.
    """
    bare, _, number = name.partition("@")
    known = versions(store).get(bare, [])
    version = int(number) if number.isdecimal() else known[-1] if known and not number else 0
    if version not in known:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"baseline {name!r}: expected NAME or NAME@VERSION of {versions(store)}, got none; "
            "`pyc-tune baseline NAME REPORT.json` makes one",
        )
    return store.find(Baseline, name=bare, version=version)


def reports_of(store: EvidenceStore, name: str) -> list[Report]:
    """Return a baseline's reports. Raises PycError (BAD_ARGUMENT) for one of recipes, or none."""
    rows = rows_of(store, name)
    sessions: dict[str, list[Record]] = {}
    envs: dict[str, str] = {}
    for row in rows:
        start = f"baseline {row.name} {row.version} "
        for session in store.find(Session, env_id=row.env_id):
            if session.nonce.startswith(start):
                traces = store.find(
                    Trace, session_id=session.id, impl_id=row.impl_id, workload_id=row.workload_id
                )
                envs[session.id] = row.env_id
                sessions.setdefault(session.id, []).extend(_record(store, t) for t in traces)
    if not sessions:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"baseline {name!r}: expected one made from reports of `pyc-bench`, got one of recipes",
        )
    places = store.places()
    reports = []
    for session, records in sorted(sessions.items()):
        place = places[envs[session]]
        environment = from_data(Environment, place.hardware_facts["environment"])
        unique = {(r["workload"], r["candidate"], r["metric"]): r for r in records}
        suite = place.context_facts["suite"]
        reports.append(Report(suite, environment, {}, tuple(unique.values())))
    return reports


def _of_report(
    store: EvidenceStore, name: str, version: int, number: int, report: Report, moment: str
) -> Iterator[EvidenceRow]:
    facts = {"environment": to_data(report.environment)}
    place = Environments(facts, {}, {"suite": report.suite}, report.environment.fingerprint)
    store.add_place(place)
    nonce = f"baseline {name} {version} {number}"
    session = Session(place.id, nonce, 0, int(report.settings.get("rounds", 1)), 0, 1, moment)
    yield session
    for row in report.records:
        if row["unit"] != "s" or row["value"] <= 0:
            continue
        what = {"suite": report.suite, "workload": row["workload"], "metric": row["metric"]}
        graph_id = _ID + digest(what)
        graph, load = (
            Graph(graph_id, BENCHMARK, graph_id, canonical(what), 0),
            Workload(graph_id),
        )
        # Two keys, since wisdom takes up recipes of one choice.
        made = Implementation(graph_id, {"suite": report.suite, "candidate": row["candidate"]})
        times = samples(row.get(SAMPLES, [row["value"]]))
        yield from (graph, load, made, Trace(session.id, made.id, load.id, wall=times))
        numbers = {"seconds": float(row["value"])}
        yield Baseline(name, version, made.id, load.id, place.id, numbers, moment)


def _record(store: EvidenceStore, trace: Trace) -> Record:
    made = store.get(Implementation, trace.impl_id)
    assert made is not None, "a trace refers to its implementation"
    graph = store.get(Graph, made.graph_id)
    assert graph is not None and graph.kind == BENCHMARK
    what = parse_json(graph.text)
    times = [float(t) for t in trace.wall]
    more: dict[str, Any] = {SAMPLES: times} if len(times) > 1 else {}
    names = (what["workload"], made.recipe["candidate"], what["metric"])
    return record(*names, "s", float(np.median(times)), **more)


def _in_use(store: EvidenceStore, name: str, version: int, moment: str) -> Iterator[EvidenceRow]:
    """Yield one row for each recipe in use, workload and environment."""
    for impl_id in sorted({s.impl_id for s in store.states(lane=STABLE, state=State.PROMOTED)}):
        envs = {s.id: s.env_id for s in store.find(Session)}
        groups: dict[tuple[str, str], list[Trace]] = {}
        for trace in store.find(Trace, impl_id=impl_id, status=Status.OK):
            groups.setdefault((trace.workload_id, envs[trace.session_id]), []).append(trace)
        for (load, env), traces in sorted(groups.items()):
            figures = [t.figures for t in traces]
            numbers = {
                "seconds": float(np.median([f["p50"] for f in figures])),
                "processes": float(len(traces)),
                "sessions": float(len({t.session_id for t in traces})),
            }
            cpu = [f["cpu_p50"] for f in figures if f["cpu_p50"]]
            if cpu:
                numbers["cpu_seconds"] = float(np.median(cpu))
            yield Baseline(name, version, impl_id, load, env, numbers, moment)
