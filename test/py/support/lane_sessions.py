"""Simulated sessions of a candidate and its incumbent, as rows of a database."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pyc_mlir.lab.evidence.rows import (
    Graph,
    Implementation,
    Session,
    SessionEnd,
    Status,
    Trace,
    Workload,
)
from pyc_mlir.measure.environment import Environments

GRAPH = Graph("g1", "program", "s1-structure", "graph 1\n", 3)
SMALL, LARGE = Workload("g1", {"batch": 1}, cluster="small"), Workload("g1", {"batch": 64})
DEFAULT = Implementation("g1", {}, origin="default", arena_bytes=1000)
BETTER = Implementation("g1", {"pass": "b"}, origin="tuner", arena_bytes=1000, compile_seconds=2.0)
OTHER = Implementation("g1", {"pass": "c"}, origin="tuner", arena_bytes=1000)
EQUAL = {"cpu_ratio": 1.01, "wall_ratio": 1.3}
ROUNDS = 20


def place(toolchain: str = "1", machine: str = "m1") -> Environments:
    """An environment that is no machine's."""
    return Environments({"cpu": "made"}, {"source": toolchain}, {"threads": 1}, machine)


@dataclass
class Bench:
    """Adds sessions to a store; `ratio` is candidate / incumbent, noise a log deviation."""

    store: Any
    noise: float = 0.01
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    made: int = 0

    def prepare(self) -> "Bench":
        self.store.add(GRAPH, SMALL, LARGE, DEFAULT, BETTER, OTHER)
        return self

    def session(
        self, ratio, processes=3, where=None, loads=(SMALL, LARGE), candidate=BETTER,
        incumbent=DEFAULT, probe=EQUAL, status=Status.OK, day=1, after=EQUAL,
    ):  # fmt: skip
        """One session with so many processes, on each workload."""
        where = where or place()
        self.made += 1
        self.store.add_place(where)
        moment = f"2026-01-{day:02}T{self.made // 60:02}:{self.made % 60:02}:00+00:00"
        session = Session(where.id, f"n{self.made}", 1, ROUNDS, 0, processes, moment, probe)
        self.store.add(session, SessionEnd(session.id, moment, after))
        rows = []
        for load in loads:
            for number in range(processes):
                base = 1e-3 * np.exp(self.noise * self.rng.standard_normal())
                for impl, scale in ((candidate, ratio), (incumbent, 1.0)):
                    shape = (2, ROUNDS)
                    times = base * scale * np.exp(self.noise * self.rng.standard_normal(shape))
                    row = Trace(session.id, impl.id, load.id, number, wall=times[0], cpu=times[1])
                    if impl is candidate and status != Status.OK:
                        row = replace(row, status=status, reason="made so")
                    rows.append(row)
        self.store.add(*rows)
        return session
