"""Measure works and programs for the suite `predict`, through the measuring library.

Each work is one session of all its choices; each program is one session of its recipes: PyC's own,
IREE's code everywhere, and the other choice at one kernel after the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pyc_mlir.artifact.memory import from_bytes
from pyc_mlir.compilation.build import plan_only
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.lab.sessions.session import ChoiceResult, MeasuredChoice, Measurer, SessionPlan
from pyc_mlir.lab.sessions.subjects import subject_of_program, subject_of_work
from pyc_mlir.lab.simulation.estimate import on_threads
from pyc_mlir.lab.simulation.program import PricedProgram, priced, priced_parts
from pyc_mlir.lab.tune.works import TunedWork, kernel_works
from pyc_mlir.pipelines.choices.choices import Decision, Recipe
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.tools.bench.peers.workload import BenchWorkload
from pyc_mlir.tools.bench.predict.observed import Observed, ObservedChoice, ObservedRecipe
from pyc_mlir.tools.bench.report.suite import note

IREE = "iree"
MOST_FLIPS = 3


def observe(
    programs: Sequence[BenchWorkload], nothing: BenchWorkload, measurer: Measurer, plan: SessionPlan
) -> Iterator[Observed]:
    """Measure everything that the programs need, each work once; what is known after each program.

    A program that cannot be measured is left out, with a note.
    """
    call = _seconds(_measured(nothing, [MeasuredChoice(label="own")], measurer, plan)[0])
    rows: dict[str, list[ObservedChoice]] = {}
    recipes: list[ObservedRecipe] = []
    for program in programs:
        try:
            lowered = lower(Job.of(program.source, program.specs, make_options()))
            costs = _predicted(priced(lowered, make_options().target))
            for work in kernel_works(Job.of(program.source, program.specs, make_options())):
                name = work.graph.graph_id
                if name not in rows:
                    rows[name] = list(_rows(work, costs[name], measurer, plan))
            found = list(_ways(program, measurer, plan))
        except PycError as error:
            note(f"{program.name}: left out: {error}")
            continue
        known = {(r.work, r.choice) for of_work in rows.values() for r in of_work}
        recipes += [recipe for recipe in found if set(recipe.kernels) <= known]
        note(f"{program.name}: {len(found)} recipes")
        every = tuple(row for of_work in rows.values() for row in of_work)
        yield Observed(every, tuple(recipes), call or 0.0)


def _predicted(program: PricedProgram) -> Mapping[str, Mapping[str, float]]:
    """Return predicted seconds on one thread by work and choice."""
    return {
        site.site.work: {name: on_threads(cost, program, 1) for name, cost in site.costs.items()}
        for site in program.kernels
    }


def _rows(
    work: TunedWork, costs: Mapping[str, float], measurer: Measurer, plan: SessionPlan
) -> Iterator[ObservedChoice]:
    """Yield the choices of one work; those that gave no time are left out."""
    subject = subject_of_work(work.graph.text)
    candidates = [MeasuredChoice({work.pass_name: name}, name) for name in work.names]
    for result in measurer.measure(subject, candidates, plan).results:
        seconds = _seconds(result)
        if seconds is not None:
            medians = _medians(result)
            name = result.candidate.name
            lo, hi = min(medians), max(medians)
            yield ObservedChoice(
                work.graph.graph_id, name, costs[name], seconds, lo, hi, len(medians)
            )


def _ways(
    program: BenchWorkload, measurer: Measurer, plan: SessionPlan
) -> Iterator[ObservedRecipe]:
    options = make_options()
    own = [
        d for d in lower(Job.of(program.source, program.specs, options)).decisions if _is_kernel(d)
    ]
    recipes = {"own": {}, "IREE": {d.site.key: IREE for d in own}, **_flips(own)}
    candidates = [MeasuredChoice(recipe, label) for label, recipe in recipes.items()]
    for result in _measured(program, candidates, measurer, plan):
        seconds = _seconds(result)
        if seconds is None:
            continue
        recipe = Recipe(dict(recipes[result.candidate.name]))
        by_recipe = replace(options, recipe=recipe)
        lowered = lower(Job.of(program.source, program.specs, by_recipe))
        planned = plan_only(lowered, by_recipe)
        report = from_bytes(planned.memory)
        numbers = priced_parts("", planned.decisions, planned.account, report, options.target)
        yield ObservedRecipe(
            program.name,
            result.candidate.name,
            tuple((k.site.work, k.chosen) for k in numbers.kernels),
            numbers.other_seconds,
            seconds,
            planned.account.transients if result.arena_bytes is not None else None,
            result.arena_bytes,
        )


def _flips(decisions: Sequence[Decision]) -> Mapping[str, Mapping[str, str]]:
    """Return the other choice at one kernel, for the kernels of most predicted seconds."""
    found = {}
    several = [d for d in decisions if len(d.alternatives) > 1]
    for number, d in enumerate(sorted(several, key=lambda d: -_cost(d))[:MOST_FLIPS]):
        other = next(a.name for a in d.alternatives if a.name != d.chosen)
        found[f"{other} at {number}"] = {d.site.key: other}
    return found


def _cost(decision: Decision) -> float:
    return sum(
        a.cost.seconds for a in decision.alternatives if a.cost and a.name == decision.chosen
    )


def _is_kernel(decision: Decision) -> bool:
    return decision.site.pass_name == SELECT


def _measured(
    program: BenchWorkload,
    candidates: Sequence[MeasuredChoice],
    measurer: Measurer,
    plan: SessionPlan,
) -> Sequence[ChoiceResult]:
    subject = subject_of_program(program.source, program.specs)
    return measurer.measure(subject, candidates, plan).results


def _seconds(result: ChoiceResult) -> float | None:
    return result.seconds() if result.ok else None


def _medians(result: ChoiceResult) -> list[float]:
    """Return CPU seconds of each process, else those of the clock."""
    cpu = [replace(result, processes=(p,)).seconds() for p in result.processes]
    return [seconds for seconds in cpu if seconds is not None]
