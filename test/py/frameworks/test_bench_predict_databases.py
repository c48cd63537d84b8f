"""The suite `predict`: scores of known errors, what is left out, and records that come back."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from suites.estimates import (
    HERE,
    ROWS_KNOWN,
    ROWS_UNKNOWN,
    Observed,
    ObservedChoice,
    ObservedRecipe,
    Scores,
    all_residuals,
    scores,
)
from suites.predict import compared, nothing, observe, programs
from suites.simulated import Simulated
from wisdoms import KERNELS, reversed_wisdom

from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.lab.sessions.processes import SessionPlan

CALL = 4e-6


def observed(noise: float, wrong: float = 0.3, count: int = 16, seed: int = 0) -> Observed:
    """Programs of 2 to 5 kernels with two choices each, all of their own works.

    Kernels are 10 us to 1 ms. wrong: deviation of predictions; noise: of calls of programs.
    """
    chance = np.random.default_rng(seed)
    rows, recipes = [], []
    for number in range(count):
        works = [f"w1-{number:032x}{i:032x}" for i in range(chance.integers(2, 5))]
        true = {}
        for work in works:
            for choice in ("gemm:matmul", "iree"):
                true[work, choice] = float(np.exp(chance.uniform(np.log(1e-5), np.log(1e-3))))
                predicted = true[work, choice] * np.exp(chance.normal(0.5, wrong))
                seconds = true[work, choice] + CALL
                rows.append(
                    ObservedChoice(
                        work, choice, predicted, seconds, seconds * 0.98, seconds * 1.02, 5
                    )
                )
        for label in range(4):
            kernels = tuple(
                (w, ("gemm:matmul", "iree")[(label >> i) % 2]) for i, w in enumerate(works)
            )
            seconds = CALL + sum(true[k] for k in kernels) + 1e-6 * (len(works) - 1)
            seconds *= float(np.exp(chance.normal(0, noise)))
            recipes.append(ObservedRecipe(f"p{number}", str(label), kernels, 0.0, seconds, 64, 64))
    return Observed(tuple(rows), tuple(recipes), CALL)


def test_with_its_rows_the_winner_is_right_and_intervals_cover():
    found = scores(observed(noise=0.02), ROWS_KNOWN)
    assert found.winner > 0.98
    assert found.regret < 0.01
    assert 0.85 <= found.coverage <= 0.97, found.coverage
    lo, hi = found.interval("coverage")
    assert lo <= found.coverage <= hi


def test_without_its_rows_predictions_decide_and_intervals_still_cover():
    """Predictions are off by a factor of 1.65 in the middle, which other works tell."""
    found = scores(observed(noise=0.02), ROWS_UNKNOWN)
    assert 0.8 < found.winner < 0.99
    assert 0.85 <= found.coverage <= 0.97, found.coverage
    middle = np.median([r for j in found.judged for r in j.ratios])
    assert middle == pytest.approx(1, abs=0.15)


def test_what_is_left_out_has_no_say():
    """Other rows of a program's own works, and other times of it, change nothing."""
    before = observed(noise=0.02, count=12)
    own = before.works_of("p0")
    rows = [replace(r, seconds=1.0, lo=1.0, hi=1.0) if r.work in own else r for r in before.rows]
    without = scores(Observed(tuple(rows), before.recipes, CALL), ROWS_UNKNOWN).judged[0]
    assert without == scores(before, ROWS_UNKNOWN).judged[0]
    assert scores(Observed(tuple(rows), before.recipes, CALL), ROWS_KNOWN).judged[0] != without


def test_ties_are_no_question():
    recipe = ObservedRecipe("p", "a", (("w", "iree"),), 0.0, 1e-3)
    rows = (ObservedChoice("w", "iree", 1e-3, 1e-3, 1e-3, 1e-3),)
    close = Observed(rows, (recipe, replace(recipe, label="b", seconds=1.04e-3)))
    (judged,) = scores(close, ROWS_KNOWN).judged
    assert (judged.pairs, judged.regret) == (0, 0)
    apart = Observed(rows, (recipe, replace(recipe, label="b", seconds=1.06e-3)))
    assert scores(apart, ROWS_KNOWN).judged[0].pairs == 1


def test_records_come_back():
    some = observed(noise=0.1, count=2)
    assert Observed.of_records(some.to_records()) == some


def test_residuals_for_others_know_calls_joins_and_biases():
    known = all_residuals(observed(noise=1e-4))
    environment = HERE.environment
    assert known.call_seconds(environment) == CALL
    assert known.join_seconds(environment) == pytest.approx(1e-6, abs=5e-7)
    assert known.bias(environment, "gemm") < 0.8
    assert known.width(environment).calibrated


def test_shares_of_nothing_are_numbers():
    assert Scores(()).winner == 0
    assert Scores(()).coverage == 0


def test_programs_are_measured_by_work_and_by_recipe():
    """A measurer by whose cost a kernel takes 10 us, and IREE's code 30 us."""

    def cost(subject, candidate) -> float:
        chosen = list(candidate.recipe.values())
        return CALL + 1e-5 * (1 + 2 * sum(c == "iree" for c in chosen))

    (found,) = observe(programs(quick=True)[:1], nothing(), Simulated(cost), SessionPlan(3, 2))
    assert found.call_seconds == pytest.approx(CALL + 1e-5)
    labels = [recipe.label for recipe in found.recipes]
    assert labels[:2] == ["own", "IREE"]
    assert len(labels) > 2
    works = {work for recipe in found.recipes for work, _ in recipe.kernels}
    assert works == {row.work for row in found.rows}
    assert {row.choice for row in found.rows} >= {"iree"}
    for recipe in found.recipes[1:2]:
        assert {choice for _, choice in recipe.kernels} == {"iree"}


def test_policies_are_compared_in_one_session():
    """By costs in which IREE's code takes half the time, with rows that say so clearly."""
    program = programs(quick=True)[0]
    decisions = lower(Job.of(program.source, program.specs, make_options())).decisions
    wisdom = reversed_wisdom(decisions)

    def cost(subject, candidate) -> float:
        kernels = [c for s, c in candidate.recipe.items() if s.startswith(KERNELS)]
        return 1e-5 * (4 - sum(c == "iree" for c in kernels))

    found = {
        r["candidate"]: r for r in compared(program, wisdom, Simulated(cost), SessionPlan(3, 2))
    }
    assert list(found) == ["heuristic", "fastest", "explore", "exhaustive"]
    assert found["fastest"]["of_heuristic"] > 1.2
    assert found["exhaustive"]["value"] <= found["fastest"]["value"] * 1.001
