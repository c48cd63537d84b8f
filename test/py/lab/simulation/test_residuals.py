"""Intervals cover what they state, on errors whose distribution is known; biases are found."""

import math

import numpy as np
import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.simulation.residuals import CALL, PROGRAM, UNCALIBRATED, Residual, Residuals

HERE = "h1-a t1-b"


def programs(errors: list[float], scales: list[float]) -> list[Residual]:
    """Residuals of programs with these errors in deviations."""
    return [
        Residual(HERE, PROGRAM, f"p{i}", 1.0, math.exp(e * s), s)
        for i, (e, s) in enumerate(zip(errors, scales, strict=True))
    ]


@pytest.mark.parametrize("draw", ["normal", "laplace", "standard_cauchy", "uniform"])
def test_intervals_cover_what_they_state(draw: str):
    """Split conformal, 40 programs known, 10 left out, 200 times, whatever the distribution."""
    chance, held = np.random.default_rng(7), []
    for _ in range(200):
        errors = np.clip(getattr(chance, draw)(size=50), -50, 50)
        scales = chance.uniform(0.05, 0.6, 50)
        rows = programs(list(errors), list(scales))
        width = Residuals.of(rows[:40]).width(HERE)
        assert width.calibrated
        assert width.rows == 40
        held += [abs(row.log_ratio()) / row.scale <= width.deviations for row in rows[40:]]
    assert 0.85 <= np.mean(held) <= 0.95, np.mean(held)


def test_too_few_residuals_calibrate_nothing():
    assert not Residuals.of(programs([1.0] * 8, [0.1] * 8)).width(HERE).calibrated
    assert Residuals.of(programs([1.0] * 9, [0.1] * 9)).width(HERE).calibrated
    assert Residuals().width(HERE).deviations == UNCALIBRATED


def test_other_environments_and_families_say_nothing():
    rows = [Residual("elsewhere", PROGRAM, f"p{i}", 1, 9) for i in range(30)]
    kernels = [Residual(HERE, "gemm", f"w{i}", 1, 9) for i in range(30)]
    known = Residuals.of([*rows, *kernels])
    assert known.width(HERE).rows == 0
    assert known.bias(HERE, "iree") == 1
    assert known.bias("elsewhere", "gemm") == 1


def test_a_bias_is_found_and_few_residuals_are_trusted_less():
    rows = [Residual(HERE, "gemm", f"w{i}", 1, 3) for i in range(40)]
    assert Residuals.of(rows).bias(HERE, "gemm") == pytest.approx(3, rel=0.06)
    assert 1 < Residuals.of(rows[:1]).bias(HERE, "gemm") < 1.5
    assert Residuals.of(rows).spread(HERE, "gemm") < Residuals().spread(HERE, "gemm")


def test_what_joining_kernels_costs_is_found():
    """Programs of 1 to 8 kernels of 10 us, each further one costs 2 us more; one is disturbed."""
    rows = [
        Residual(HERE, PROGRAM, f"p{n}", n * 1e-5, n * 1e-5 + (n - 1) * 2e-6, 0.1, n)
        for n in range(1, 9)
    ]
    rows.append(Residual(HERE, PROGRAM, "disturbed", 2e-5, 9e-5, 0.1, 2))
    known = Residuals.of(rows)
    assert known.join_seconds(HERE) == pytest.approx(2e-6)
    assert known.join_seconds("elsewhere") == 0
    assert sorted(abs(r.log_ratio(2e-6)) / r.scale for r in known.rows)[-2] < 1e-9


def test_a_call_of_nothing_is_known_where_it_was_measured():
    known = Residuals.of([Residual(HERE, CALL, "nothing", 1, 4e-6)])
    assert known.call_seconds(HERE) == 4e-6
    assert known.call_seconds("elsewhere") == 0


def test_left_out_subjects_have_no_say():
    rows = [Residual(HERE, "gemm", f"w{i}", 1, 3) for i in range(4)]
    assert Residuals.of(rows).without({f"w{i}" for i in range(4)}) == Residuals()


def test_a_file_is_read_as_it_was_written(tmp_path):
    rows = programs([0.1, -0.3], [0.2, 0.5])
    data = Residuals.of(reversed(rows)).to_bytes()
    (tmp_path / "r.json").write_bytes(data)
    again = Residuals.load(tmp_path / "r.json")
    assert again == Residuals.of(rows)
    assert again.to_bytes() == data


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"kind": "pyc-residuals", "schema": 9}'])
def test_other_files_are_refused(data: bytes):
    with pytest.raises(PycError, match="expected residuals") as caught:
        Residuals.from_bytes(data)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_numbers_that_no_measurement_gives_are_refused():
    with pytest.raises(ValueError, match="positive"):
        Residual(HERE, "gemm", "w", 0, 1)
