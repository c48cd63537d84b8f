"""Comparisons with a baseline: differences are found, drift of the machine is not one."""

from dataclasses import replace

import numpy as np
import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.environment import Environment
from pyc_mlir.measure.records import Report, record
from pyc_mlir.tools import pyc_bench
from pyc_mlir.tools.bench.report.compare import MIN_SESSIONS, SPREAD, VerdictKind, compare, lines

HERE = Environment("cpu", 2, (), 8, (), "Linux", "CPython", {}, "1", None, False)
ROUNDS = 21


def report(rng, pyc=1.0, machine=1.0, between=0.02, environment=HERE) -> Report:
    """A session: `pyc` and a reference on a machine that is so many times slower today."""
    rows = []
    for name, scale in (("pyc", pyc * np.exp(between * rng.standard_normal())), ("iree", 2.0)):
        times = 1e-3 * machine * scale * np.exp(0.02 * rng.standard_normal(ROUNDS))
        value = float(np.median(times))
        rows.append(record("mlp", name, "latency", "s", value, samples=times.tolist()))
    rows.append(record("mlp", "pyc", "arena", "B", 1000))
    return Report("latency", environment, {}, rows)


def answers(before, after) -> list[VerdictKind]:
    return [row.answer for row in compare(before, after) if row.candidate == "pyc"]


def test_one_session_on_each_side_finds_large_differences_only():
    rng = np.random.default_rng(1)
    assert answers([report(rng)], [report(rng, 2.0)]) == [VerdictKind.SLOWER]
    assert answers([report(rng)], [report(rng, 0.5)]) == [VerdictKind.FASTER]
    (row, *_) = compare([report(rng)], [report(rng, 1.1)])
    assert row.answer is VerdictKind.UNCLEAR and "2 more sessions" in str(row)


def test_a_machine_that_is_slower_today_is_no_difference():
    rng = np.random.default_rng(2)
    for _ in range(50):
        assert answers([report(rng)], [report(rng, machine=3.0)]) == [VerdictKind.UNCLEAR]


@pytest.mark.parametrize("sessions", [1, MIN_SESSIONS, 6])
def test_equal_programs_are_rarely_told_apart(sessions):
    rng = np.random.default_rng(3)
    side = lambda: [report(rng, between=0.05) for _ in range(sessions)]  # noqa: E731
    wrong = sum(answers(side(), side()) != [VerdictKind.UNCLEAR] for _ in range(200))
    assert wrong <= 5  # 200 at 1 %, and luck


def test_several_sessions_find_five_per_cent():
    rng = np.random.default_rng(4)
    side = lambda ratio: [report(rng, ratio, between=0.005) for _ in range(6)]  # noqa: E731
    found = [answers(side(1.0), side(1.05))[0] for _ in range(30)]
    assert found.count(VerdictKind.SLOWER) >= 27 and VerdictKind.FASTER not in found


def test_what_cannot_be_compared():
    rng = np.random.default_rng(5)
    one = report(rng)
    other = report(rng, environment=replace(HERE, cores=4))
    with pytest.raises(PycError, match="cores: 2 / 4") as caught:
        compare([one], [other])
    assert caught.value.code is ReasonCode.ENVIRONMENT_MISMATCH
    for before, after in (([], [one]), ([one], [replace(one, suite="gemm")])):
        with pytest.raises(PycError, match="expected"):
            compare(before, after)
    alone = replace(one, records=[r for r in one.records if r["candidate"] == "pyc"])
    (row,) = compare([alone], [alone])
    assert row.answer is VerdictKind.UNCLEAR and "no other system" in str(row)
    wanted = compare([one], [one], reference="torch")
    assert all("no torch" in str(row) for row in wanted)


def test_records_without_samples_have_the_assumed_spread():
    bare = Report("s", HERE, {}, [record("w", c, "t", "s", 1.0) for c in ("pyc", "iree")])
    (row, _) = compare([bare], [bare])
    assert row.interval is not None and row.interval.ratio == 1
    assert np.log(row.interval.high) == pytest.approx(2.5758 * SPREAD * 2**0.5, rel=1e-3)


def test_the_commands(tmp_path, capsys):
    rng = np.random.default_rng(6)
    paths = [str(tmp_path / f"{n}.json") for n in range(2)]
    for path, ratio in zip(paths, (1.0, 2.0), strict=True):
        report(rng, ratio).save(path)
    assert pyc_bench.main(["compare", paths[1], "--to", paths[0]]) == 0
    reported = capsys.readouterr().out
    assert "slower   mlp, pyc, latency: " in reported and "2 rows against" in reported
    assert pyc_bench.main(["compare", paths[1], "--to", str(tmp_path / "gone.json")]) == 1
    rows = compare([report(rng)], [report(rng)])
    assert "".join(lines(rows, "b")).endswith("0 faster, 0 slower, 2 unclear\n")
