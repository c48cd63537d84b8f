"""The measurements of the suite `predict`: rows of work, and programs under several recipes.

Comes in: records of a stored report, or numbers of a session. Goes out: `Observed`, from which
every figure of the suite is computed again, and `PricedProgram` programs for the simulator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyc_mlir.artifact.account import Account
from pyc_mlir.lab.simulation.estimate import ExecutionContext
from pyc_mlir.lab.simulation.program import PricedProgram, PricedSite
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.choices.choices import Site
from pyc_mlir.pipelines.choices.wisdom import Wisdom, WisdomRow
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target

WORK, CALL = "kernel", "call"
# What a call takes that computes next to nothing: its workload.
NOTHING = "call of nothing"
# Rows of one machine and toolchain: which ones, the report's environment says.
HERE = ExecutionContext("here", "here")


@dataclass(frozen=True)
class ObservedChoice:
    """One choice of one work: seconds predicted, and measured with their least and most."""

    work: str
    choice: str
    predicted: float
    seconds: float
    lo: float
    hi: float
    processes: int = 1

    @property
    def wisdom(self) -> WisdomRow:
        """The row as compiles read it."""
        return WisdomRow(
            self.work, SELECT, self.choice, HERE.hardware, HERE.toolchain, "", "warm", "cpu",
            self.seconds, self.lo, self.hi, 1, self.processes,
        )  # fmt: skip


@dataclass(frozen=True)
class ObservedRecipe:
    """One recipe of one program: the choice at each kernel, and what a call took.

    kernels: (work, choice) in order. other: predicted seconds of what is no kernel. planned: bytes
    by the planner without code; stated: by the compile; None where it was not asked.
    """

    program: str
    label: str
    kernels: tuple[tuple[str, str], ...]
    other: float
    seconds: float
    planned: int | None = None
    stated: int | None = None


@dataclass(frozen=True)
class Observed:
    """Rows of works, recipes of programs, and the seconds of a call of nothing."""

    rows: tuple[ObservedChoice, ...]
    recipes: tuple[ObservedRecipe, ...]
    call_seconds: float = 0.0

    @cached_property
    def programs(self) -> Mapping[str, tuple[ObservedRecipe, ...]]:
        """The recipes of each program."""
        names = dict.fromkeys(recipe.program for recipe in self.recipes)
        return {name: tuple(w for w in self.recipes if w.program == name) for name in names}

    @cached_property
    def costs(self) -> Mapping[str, Mapping[str, Cost]]:
        """Predicted costs by work and choice."""
        found: dict[str, dict[str, Cost]] = {}
        for row in self.rows:
            found.setdefault(row.work, {})[row.choice] = Cost(row.predicted)
        return found

    def works_of(self, program: str) -> frozenset[str]:
        """Return the works of a program's kernels."""
        return frozenset(work for recipe in self.programs[program] for work, _ in recipe.kernels)

    def wisdom(self, without: Iterable[str] = ()) -> Wisdom:
        """Return the rows as wisdom, those of some works left out."""
        left_out = set(without)
        return Wisdom.of([r.wisdom for r in self.rows if r.work not in left_out], {})

    def priced(self, recipe: ObservedRecipe) -> PricedProgram:
        """Return a program as numbers; its kernels' sites are their places."""
        kernels = tuple(
            PricedSite(Site(SELECT, str(i), work=work), choice, self.costs[work])
            for i, (work, choice) in enumerate(recipe.kernels)
        )
        target = Target.named("cpu")
        return PricedProgram("", kernels, (), (), frozenset(), recipe.other, Account(), target)

    def to_records(self) -> list[Record]:
        """Return the records of a report."""
        found = [record(NOTHING, CALL, "CPU time", "s", self.call_seconds)]
        for r in self.rows:
            found.append(
                record(
                    r.work, r.choice, WORK, "s", r.seconds,
                    lo=r.lo, hi=r.hi, predicted=r.predicted, processes=r.processes,
                )
            )  # fmt: skip
        for w in self.recipes:
            found.append(
                record(
                    w.program, w.label, CALL, "s", w.seconds, kernels=[list(k) for k in w.kernels],
                    other=w.other, planned=w.planned, stated=w.stated,
                )
            )  # fmt: skip
        return found

    @staticmethod
    def of_records(records: Sequence[Mapping[str, Any]]) -> "Observed":
        """Read the records of `to_records`; other records are passed over."""
        rows, recipes, call = [], [], 0.0
        for r in records:
            if r["workload"] == NOTHING:
                call = r["value"]
            elif r["metric"] == WORK:
                numbers = (r["predicted"], r["value"], r["lo"], r["hi"], r["processes"])
                rows.append(ObservedChoice(r["workload"], r["candidate"], *numbers))
            elif r["metric"] == CALL:
                kernels = tuple((work, choice) for work, choice in r["kernels"])
                sizes = (r["planned"], r["stated"])
                recipes.append(
                    ObservedRecipe(
                        r["workload"], r["candidate"], kernels, r["other"], r["value"], *sizes
                    )
                )
        return Observed(tuple(rows), tuple(recipes), call)
