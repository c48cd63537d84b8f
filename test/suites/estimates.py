"""How good estimates are: what was measured of works and programs, and scores of what is left out.

    scores(observed, ROWS_KNOWN)     the program's times are left out; rows of its works are known
    scores(observed, ROWS_UNKNOWN)   and no row of any of its works is known either

Comes in: records of a stored report, or numbers of a session: `Observed`, from which every figure
of the suite `predict` is computed again. Goes out: `Scores`: pairs of recipes whose winner is
right, regret, coverage.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from pyc_mlir.artifact.memory import Account
from pyc_mlir.lab.simulation.residuals import CALL, PROGRAM, Residual, Residuals, family_of
from pyc_mlir.lab.simulation.simulator import (
    Estimate,
    ExecutionContext,
    Overheads,
    PricedProgram,
    PricedSite,
    Simulator,
)
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.choices.choices import Site
from pyc_mlir.pipelines.choices.wisdom import Wisdom, WisdomRow
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target

# Metrics of records, and the workload of a call that computes next to nothing.
WORK, CALLED = "kernel", "call"
NOTHING = "call of nothing"
# Rows of one machine and toolchain: which ones, the report's environment says.
HERE = ExecutionContext("here", "here")
ROWS_KNOWN, ROWS_UNKNOWN = "its rows known", "no row of its works known"
# Pairs closer than that are no question of which is quicker.
APART = 0.05
_RESAMPLES = 2000


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
        found = [record(NOTHING, CALLED, "CPU time", "s", self.call_seconds)]
        for r in self.rows:
            more = {"lo": r.lo, "hi": r.hi, "predicted": r.predicted, "processes": r.processes}
            found.append(record(r.work, r.choice, WORK, "s", r.seconds, **more))
        for w in self.recipes:
            kernels = [list(k) for k in w.kernels]
            sizes = {"other": w.other, "planned": w.planned, "stated": w.stated}
            found.append(
                record(w.program, w.label, CALLED, "s", w.seconds, kernels=kernels, **sizes)
            )
        return found

    @staticmethod
    def of_records(records: Sequence[Mapping[str, Any]]) -> "Observed":
        """Read the records of `to_records`; other records are passed over."""
        rows, recipes, call = [], [], 0.0
        for r in records:
            name, who, seconds = r["workload"], r["candidate"], r["value"]
            if name == NOTHING:
                call = seconds
            elif r["metric"] == WORK:
                numbers = (r["predicted"], seconds, r["lo"], r["hi"], r["processes"])
                rows.append(ObservedChoice(name, who, *numbers))
            elif r["metric"] == CALLED:
                kernels = tuple((work, choice) for work, choice in r["kernels"])
                numbers = (r["other"], seconds, r["planned"], r["stated"])
                recipes.append(ObservedRecipe(name, who, kernels, *numbers))
        return Observed(tuple(rows), tuple(recipes), call)


@dataclass(frozen=True)
class ProgramScore:
    """One program: pairs apart and those whose winner is right, regret, intervals that hold."""

    program: str
    pairs: int
    right: int
    regret: float
    recipes: int
    held: int
    calibrated: int
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True)
class Scores:
    """Shares over all programs, each with a 90 % interval by resampling programs."""

    judged: tuple[ProgramScore, ...]

    @property
    def winner(self) -> float:
        """The share of pairs more than `APART` apart whose winner is right."""
        return sum(j.right for j in self.judged) / max(1, sum(j.pairs for j in self.judged))

    @property
    def regret(self) -> float:
        """How much longer the recipe estimated to be quickest takes than the quickest, in mean."""
        return float(np.mean([j.regret for j in self.judged]))

    @property
    def coverage(self) -> float:
        """The share of intervals that hold what was measured."""
        return sum(j.held for j in self.judged) / max(1, sum(j.recipes for j in self.judged))

    def interval(self, name: str) -> tuple[float, float]:
        """Return the interval of a figure: programs are drawn with replacement."""
        chance, found = np.random.default_rng(0), []
        for _ in range(_RESAMPLES):
            drawn = chance.integers(0, len(self.judged), len(self.judged))
            found.append(getattr(Scores(tuple(self.judged[i] for i in drawn)), name))
        lo, hi = np.quantile(found, (0.05, 0.95))
        return float(lo), float(hi)


def scores(observed: Observed, known: str) -> Scores:
    """Leave each program out once. `known`: ROWS_KNOWN or ROWS_UNKNOWN."""
    judged, made = [], _Made()
    for name, recipes in observed.programs.items():
        residuals = _known(observed, known, name, made)
        judged.append(_judged(name, recipes, _estimates(observed, name, known, residuals)))
    return Scores(tuple(judged))


def all_residuals(observed: Observed) -> Residuals:
    """Return the residuals of all programs and works, for estimates of others."""
    call = observed.call_seconds
    nothing = [Residual(HERE.environment, CALL, NOTHING, call, call)] if call else []
    return Residuals.of([*nothing, *_known(observed, ROWS_KNOWN, "", _Made()).rows])


# The residuals of a program where these works are hidden: the same for many that are left out.
_Made = dict[tuple[str, frozenset[str]], list[Residual]]


def _known(observed: Observed, known: str, left_out: str, made: _Made) -> Residuals:
    """Return errors of single kernels and of programs, one program left out.

    The estimates of each other program were made without its own times and, with ROWS_UNKNOWN,
    without the rows of its own works too, as those of the one that is left out will be.
    """
    found = list(_of_works(observed, _hidden(observed, known, left_out)))
    for name in observed.programs:
        if name != left_out:
            hidden = _hidden(observed, known, left_out, name)
            if (name, hidden) not in made:
                works = Residuals.of(_of_works(observed, hidden))
                estimates = _estimates(observed, name, known, works)
                made[name, hidden] = list(_of_program(observed, name, estimates))
            found += made[name, hidden]
    return Residuals.of(found)


def _hidden(observed: Observed, known: str, *programs: str) -> frozenset[str]:
    """Return the works whose rows may not be used for these programs."""
    if known == ROWS_KNOWN:
        return frozenset()
    return frozenset(work for name in programs if name for work in observed.works_of(name))


def _estimates(
    observed: Observed, program: str, known: str, residuals: Residuals
) -> list[Estimate]:
    """Estimate a program's recipes."""
    join = residuals.join_seconds(HERE.environment)
    overheads = Overheads(observed.call_seconds, join_seconds=join)
    wisdom = observed.wisdom(_hidden(observed, known, program))
    return [
        Simulator(observed.priced(recipe), wisdom, HERE, residuals, overheads).estimate()
        for recipe in observed.programs[program]
    ]


def _of_works(observed: Observed, hidden: Set[str]) -> Iterator[Residual]:
    """Yield errors of predictions of single kernels, but for those of hidden works."""
    for row in observed.rows:
        own = row.seconds - observed.call_seconds
        if row.work not in hidden and own > 0 and row.predicted > 0:
            family, subject = family_of(row.choice), f"{row.work} {row.choice}"
            yield Residual(HERE.environment, family, subject, row.predicted, own)


def _of_program(observed: Observed, name: str, estimates: Sequence[Estimate]) -> Iterator[Residual]:
    """Yield errors of estimates of one program, one a recipe."""
    for recipe, found in zip(observed.programs[name], estimates, strict=True):
        # The expected deviation that the interval was made with.
        scale = max(np.log(found.hi / found.seconds) / found.width.deviations, 1e-3)
        numbers = (found.seconds, recipe.seconds, scale, len(recipe.kernels))
        yield Residual(HERE.environment, PROGRAM, f"{name}: {recipe.label}", *numbers)


def _judged(
    name: str, recipes: Sequence[ObservedRecipe], estimates: Sequence[Estimate]
) -> ProgramScore:
    measured = [recipe.seconds for recipe in recipes]
    expected = [estimate.seconds for estimate in estimates]
    apart = [
        (i, j)
        for i, j in combinations(range(len(recipes)), 2)
        if abs(np.log(measured[i] / measured[j])) > np.log(1 + APART)
    ]
    right = sum((measured[i] < measured[j]) == (expected[i] < expected[j]) for i, j in apart)
    return ProgramScore(
        name,
        len(apart),
        right,
        measured[int(np.argmin(expected))] / min(measured) - 1,
        len(recipes),
        sum(e.lo <= m <= e.hi for e, m in zip(estimates, measured, strict=True)),
        sum(e.width.calibrated for e in estimates),
        tuple(m / e for m, e in zip(measured, expected, strict=True)),
    )
