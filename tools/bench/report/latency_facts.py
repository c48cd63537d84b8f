"""Facts from the records of the suite `latency`: PyC beside the best peer, by workload.

In: a report's records. Out: `WorkloadFacts`s, one per workload and number of threads, and geometric
means over classes of workloads. The table and the page both show these.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyc_mlir.measure.records import Record

# The names are also `peers_systems.PYC` and `IREE`; a table needs no compiler.
PYC, IREE = "pyc", "iree"


@dataclass(frozen=True)
class WorkloadFacts:
    """All systems on one workload with one number of threads; records by system."""

    workload: str
    kind: str
    threads: int
    systems: Mapping[str, Record]

    @property
    def best_peer(self) -> str | None:
        """The quickest system that is not PyC; None where no other ran."""
        seconds = {s: r["median_seconds"] for s, r in self.systems.items() if s != PYC}
        return min(seconds, key=seconds.__getitem__) if seconds else None

    def ratio(self, system: str, to: str | None = None) -> float | None:
        """Return the system's time over that of `to`, which is the best peer by default."""
        base = self.best_peer if to is None else to
        if base is None or base not in self.systems or system not in self.systems:
            return None
        return self.systems[system]["median_seconds"] / self.systems[base]["median_seconds"]

    def over_default(self) -> float | None:
        """Return PyC's time over plain IREE's at O3 without another setting."""
        iree, mine = self.systems.get(IREE), self.systems.get(PYC)
        if iree is None or mine is None or not iree["tried"]:
            return None
        return mine["median_seconds"] / next(iter(iree["tried"].values()))


def results(records: Sequence[Record]) -> list[WorkloadFacts]:
    """Return the results in the records' order."""
    found: dict[tuple[str, int], dict[str, Record]] = {}
    for row in records:
        if "median_seconds" in row:
            found.setdefault((row["workload"], row["threads"]), {})[row["system"]] = row
    return [
        WorkloadFacts(workload, next(iter(systems.values()))["class"], threads, systems)
        for (workload, threads), systems in found.items()
    ]


def systems_of(found: Sequence[WorkloadFacts]) -> list[str]:
    """Return every system that ran, in the records' order."""
    return list(dict.fromkeys(name for result in found for name in result.systems))


@dataclass(frozen=True)
class Mean:
    """A geometric mean of ratios, and the worst of them with its workload."""

    members: int
    mean: float
    worst: float
    worst_workload: str


def mean(
    found: Sequence[WorkloadFacts], ratio: Callable[[WorkloadFacts], float | None]
) -> Mean | None:
    """Average over the results that have the ratio; None if none has."""
    ratios = {r.workload: value for r in found if (value := ratio(r)) is not None}
    if not ratios:
        return None
    worst = max(ratios, key=ratios.__getitem__)
    average = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    return Mean(len(ratios), average, ratios[worst], worst)


def means(
    found: Sequence[WorkloadFacts], classes: Mapping[str, Sequence[str]], to: str | None = None
) -> Iterator[tuple[str, int, Mean]]:
    """(title of the classes, threads, PyC's time over that of `to` or of the best peer)."""
    for title, kinds in classes.items():
        for threads in dict.fromkeys(r.threads for r in found):
            members = [r for r in found if r.threads == threads and r.kind in kinds]
            value = mean(members, lambda r: r.ratio(PYC, to))
            if value is not None:
                yield title, threads, value


def groups(
    found: Sequence[WorkloadFacts], goal_classes: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return titles for means: the goal's classes together, then each class alone."""
    kinds = tuple(dict.fromkeys(r.kind for r in found))
    return {"classes of the goal": tuple(goal_classes), **{kind: (kind,) for kind in kinds}}
