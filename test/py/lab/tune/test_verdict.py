"""Verdicts: differences are found, noise is not, contradictions are unclear."""

from pathlib import Path

import numpy as np
import pytest

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.runtime.selection.verdict import Rounds, VerdictKind, judge, student

NOISE = Path(__file__).parents[4].parent / "shared/data/evidence/noise"


def process(rng, ratio=1.0, rounds=30, spread=0.02, wall_spread=0.05, offset=0.0) -> Rounds:
    """Simulated rounds: lognormal noise, some wall times disturbed, a shift of the process."""
    shift = np.exp(offset * rng.standard_normal())

    def times(scale: float, noise: float) -> np.ndarray:
        return scale * np.exp(noise * rng.standard_normal(rounds))

    def disturbed() -> np.ndarray:
        return np.where(rng.random(rounds) < 0.2, 3.0, 1.0)

    return Rounds(
        times(ratio * shift, wall_spread) * disturbed(),
        times(1.0, wall_spread) * disturbed(),
        times(ratio * shift, spread),
        times(1.0, spread),
    )


@pytest.mark.parametrize("processes", [1, 6])
def test_equal_programs_are_not_told_apart(processes):
    rng = np.random.default_rng(7)
    answers = [judge([process(rng) for _ in range(processes)]).answer for _ in range(300)]
    assert sum(a is not VerdictKind.UNCLEAR for a in answers) <= 6  # 300 at 1 %, and luck


def test_processes_that_differ_are_samples():
    """Each process has a shift of 5 %: thousands of rounds of a few of them decide nothing."""
    rng = np.random.default_rng(8)
    answers = [judge([process(rng, offset=0.05) for _ in range(6)]).answer for _ in range(200)]
    assert sum(a is not VerdictKind.UNCLEAR for a in answers) <= 6


@pytest.mark.parametrize(
    "ratio, expected", [(0.95, VerdictKind.FASTER), (1.05, VerdictKind.SLOWER)]
)
def test_five_per_cent_are_found(ratio, expected):
    rng = np.random.default_rng(9)
    answers = [judge([process(rng, ratio) for _ in range(6)]).answer for _ in range(100)]
    assert answers.count(expected) >= 90
    assert set(answers) <= {expected, VerdictKind.UNCLEAR}


def test_clocks_that_contradict_each_other_are_unclear():
    rng = np.random.default_rng(10)
    base = np.exp(0.001 * rng.standard_normal((4, 40)))
    verdict = judge([Rounds(1.2 * base[0], base[1], 0.8 * base[2], base[3])])
    assert verdict.answer is VerdictKind.UNCLEAR
    assert verdict.intervals["wall"].answer is VerdictKind.SLOWER
    assert verdict.intervals["cpu"].answer is VerdictKind.FASTER


def test_an_unclear_verdict_says_what_would_decide():
    rng = np.random.default_rng(11)
    wide = [process(rng, 0.97, offset=0.02) for _ in range(5)]
    verdict = judge(wide)
    assert verdict.answer is VerdictKind.UNCLEAR and verdict.needed is not None
    assert verdict.needed >= 5
    assert "interval" in str(verdict)


@pytest.mark.parametrize(
    "rounds",
    [
        Rounds(np.ones(3), np.ones(3)),
        Rounds(np.ones(20), np.ones(19)),
        Rounds(np.zeros(20), np.ones(20)),
    ],
)
def test_measurements_that_decide_nothing_are_refused(rounds):
    with pytest.raises(PycError, match="expected"):
        judge([rounds])


def test_quantiles_of_student():
    assert student(0.995, 4) == pytest.approx(4.604095, abs=1e-5)
    assert student(0.995, 29) == pytest.approx(2.756386, abs=1e-5)
    assert student(0.975, 1) == pytest.approx(12.706205, abs=1e-4)
    with pytest.raises(PycError, match="freedom"):
        student(0.995, 0)


@pytest.mark.skipif(not NOISE.exists(), reason="the recorded noise is not there")
@pytest.mark.parametrize("name", ["gemm", "softmax"])
@pytest.mark.full
def test_recorded_noise_of_a_loaded_machine(name):
    data = np.load(NOISE / f"pyc_{name}_loaded.npz", allow_pickle=False)

    def sessions(other: str) -> list[VerdictKind]:
        pairs = zip(data[other], data["A"], strict=True)
        return [judge([Rounds(b[:, 0], a[:, 0], b[:, 1], a[:, 1])]).answer for b, a in pairs]

    assert set(sessions("A2")) == {VerdictKind.UNCLEAR}
    for other in ("B5", "B10"):
        assert VerdictKind.FASTER not in sessions(other)
    assert sessions("B10").count(VerdictKind.SLOWER) >= 25
