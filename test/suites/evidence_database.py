"""The measurements of the suite `evidence`, on one database."""

import os
import time
from collections.abc import Iterator

import numpy as np
import sqlalchemy as sa

from pyc_mlir.lab.evidence.database.exchange import measured
from pyc_mlir.lab.evidence.database.store import EvidenceStore, columns_of
from pyc_mlir.lab.evidence.database.tables import METADATA
from pyc_mlir.lab.evidence.rows import Graph, Implementation, Session, Trace, Workload, samples
from pyc_mlir.measure.records import Record, record
from pyc_mlir.tools.bench.report.suite import note
from suites.evidence_writers import PLACE, WRITERS, claims_per_second, kill_writers

KILLS, CLAIMS, ROWS, LOOKUPS = 200, 1000, 1_000_000, 200
# Of each graph in the database of many rows.
_WAYS, _TRACES, _BATCH = 5, 10, 5000


def measure(url: str, share: int = 1) -> list[Record]:
    """Measure all, or one part in `share`; the database is left full."""
    kept = _kept(url, max(WRITERS, KILLS // share))
    return [*kept, *_claimed(url, CLAIMS // share), *_looked_up(url, ROWS // share)]


def _engine(url: str) -> str:
    return url.partition(":")[0].partition("+")[0]


def _load() -> float:
    return round(os.getloadavg()[0], 1)


def _kept(url: str, kills: int) -> Iterator[Record]:
    engine, found = _engine(url), kill_writers(url, kills)
    note(f"{engine}: {found}")
    yield record(
        f"{found.kills} SIGKILLs, 8 writers",
        engine,
        "acknowledged rows lost",
        "rows",
        found.lost,
        acknowledged=found.acknowledged,
        damaged=found.damaged,
        twice=found.twice,
        load=_load(),
    )


def _claimed(url: str, trials: int) -> Iterator[Record]:
    rate = claims_per_second(url, trials)
    note(f"{_engine(url)}: {rate:.0f} claims a second")
    yield record(
        "claim and finish, 8 workers", _engine(url), "trials a second", "trials", rate, load=_load()
    )


def _looked_up(url: str, rows: int) -> Iterator[Record]:
    names = fill_rows(url, rows)
    chance, times = np.random.default_rng(0), []
    with EvidenceStore.open(url) as store:
        for name in chance.choice(names, LOOKUPS):
            begin = time.perf_counter()
            found = measured(store, (name,), PLACE.hardware, PLACE.toolchain)
            times.append(time.perf_counter() - begin)
            assert len(found) == _WAYS * _TRACES, len(found)
    p50, p95 = (float(q) for q in np.quantile(times, (0.5, 0.95)))
    note(f"{_engine(url)}: a look-up in {rows} rows {p50 * 1e3:.2f} ms")
    yield record(
        f"all traces of a work among {rows} rows",
        _engine(url),
        "look-up",
        "s",
        p50,
        p95=p95,
        min=min(times),
        n=LOOKUPS,
        found=_WAYS * _TRACES,
        load=_load(),
    )


def fill_rows(url: str, rows: int) -> list[str]:
    """Add so many traces of works, `_WAYS` implementations of each; return the works' ids."""
    session = Session(PLACE.id, "many rows", 1, 1, 0, 1, "2026-01-01")
    names = [f"w1-{number:064x}" for number in range(rows // (_WAYS * _TRACES))]
    with EvidenceStore.open(url) as store:
        store.add_place(PLACE)
        store.add(session)
        for start in range(0, len(names), _BATCH // _WAYS):
            some = names[start : start + _BATCH // _WAYS]
            graphs = [Graph(name, "work", name, name, 1) for name in some]
            loads = [Workload(name) for name in some]
            ways = [Implementation(n, {"pass": f"choice {w}"}) for n in some for w in range(_WAYS)]
            traces = [
                Trace(session.id, way.id, loads[i // _WAYS].id, p, wall=samples([1e-3]))
                for i, way in enumerate(ways)
                for p in range(_TRACES)
            ]
            for made in (graphs, loads, ways, traces):
                table = METADATA.tables[made[0].table]
                with store.writing() as connection:
                    connection.execute(sa.insert(table), [columns_of(row) for row in made])
    return names
