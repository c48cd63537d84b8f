"""The core of pyc-bench: environments, stored reports, interleaving, tables, the command line."""

import json
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.measure import environment as env
from pyc_mlir.measure.environment import Environment, probe
from pyc_mlir.measure.hardware import parse_cpuinfo
from pyc_mlir.measure.interleave import Spread, Timing, interleave, ratio
from pyc_mlir.measure.records import Report, check_record, compare, record
from pyc_mlir.tools import pyc_bench
from pyc_mlir.tools.bench.report.suite import timing_records
from pyc_mlir.tools.bench.report.tables import markdown
from pyc_mlir.util.units import quantity

HERE = Environment(
    cpu="Test CPU",
    cores=2,
    features=("avx", "avx2"),
    memory_gib=24,
    accelerators=(),
    system="Linux x86_64",
    python="CPython 3.11.7",
    packages={"numpy": "2.4.6"},
    version="0.1.0",
    commit="a" * 40,
    modified=False,
)
X86 = """processor\t: 0
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7B13
flags\t\t: fpu sse4_2 avx2 avx fma unknown
power management:

processor\t: 1
model name\t: another
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


class FakeClock:
    """Time that only candidates move, so that a test knows every sample."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def candidate(self, name: str, seconds: float):
        def run() -> None:
            self.order.append(name)
            self.now += seconds

        return run


def code_of(error: pytest.ExceptionInfo[PycError]) -> ReasonCode:
    return error.value.code


def test_cpuinfo_x86_and_arm():
    assert parse_cpuinfo(X86) == ("AMD EPYC 7B13 25 1", ("avx", "avx2", "fma", "sse4_2"))
    assert parse_cpuinfo(ARM) == ("0x41 0xd40", ("asimd", "sve"))
    assert parse_cpuinfo("") == ("", ())


def test_probe_reads_the_given_root(tmp_path):
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri Jan\nGCC version:\n"
    )
    (tmp_path / "proc/cpuinfo").write_text(X86)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       25274793984 kB\n")
    found = probe(root=tmp_path, source=tmp_path / "module.py")
    assert found.accelerators == ("NVIDIA H200, driver 570.86.15",)
    assert (found.memory_gib, found.commit, found.modified) == (24104, None, False)
    assert found.packages["iree-base-runtime"] and "numpy" in found.packages


def test_probe_survives_a_system_without_proc(tmp_path):
    found = probe(root=tmp_path, source=tmp_path / "module.py")
    assert found.cpu and found.cores >= 1 and found.memory_gib == 0


def test_git_state(tmp_path):
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    source = tmp_path / "a.py"
    source.write_text("1")
    assert env.git_state(source) == (None, False)
    git("init", "-q")
    assert env.git_state(source) == (None, False), "a file that git does not track"
    git("add", "a.py")
    git("commit", "-qm", "first")
    commit, modified = env.git_state(source)
    assert commit is not None and len(commit) == 40 and not modified
    source.write_text("2")
    assert env.git_state(source) == (commit, True)


def test_fingerprint_ignores_what_may_differ():
    other = replace(HERE, commit=None, modified=True, version="0.2.0")
    assert other.fingerprint == HERE.fingerprint and not HERE.differences(other)


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "Other"},
        {"cores": 3},
        {"features": ("avx",)},
        {"memory_gib": 25},
        {"accelerators": ("GPU",)},
        {"system": "Linux aarch64"},
        {"python": "CPython 3.12.0"},
        {"packages": {"numpy": "2.4.7"}},
    ],
)
def test_fingerprint_holds_what_must_agree(change):
    other = replace(HERE, **change)
    assert other.fingerprint != HERE.fingerprint
    assert [d.split(":")[0] for d in HERE.differences(other)] == list(change)


def test_fingerprint_does_not_depend_on_the_order_of_packages():
    one = replace(HERE, packages={"a": "1", "b": "2"})
    assert one.fingerprint == replace(HERE, packages={"b": "2", "a": "1"}).fingerprint


def test_report_round_trip(tmp_path):
    rows = [record("matmul", "pyc", "latency", "s", 1.5e-3, n=3)]
    report = Report("demo", HERE, {"rounds": 3}, rows)
    path = tmp_path / "report.json"
    report.save(path)
    loaded = Report.load(path)
    assert to_data(loaded) == to_data(report)
    first = path.read_bytes()
    loaded.save(path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not json", "expected a stored report"),
        ("[]", "expected Report, got"),
        ('{"schema": 99}', "schema: expected 2, got 99"),
        ('{"schema": 2, "suite": "x"}', "environment: expected a value"),
    ],
)
def test_a_malformed_report_is_named(tmp_path, text, problem):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(PycError, match=problem) as error:
        Report.load(path)
    assert str(path) in str(error.value)


def test_a_table_with_a_short_row_is_refused(tmp_path):
    path = tmp_path / "report.json"
    Report("x", probe(), {}, [record("w", "c", "m", "s", v) for v in (0.5, 1.5)]).save(path)
    assert [r["value"] for r in Report.load(path).records] == [0.5, 1.5]
    path.write_text(path.read_text().replace("[1.5]", "[]"))
    with pytest.raises(PycError, match="rows as long"):
        Report.load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", None, True])
def test_records_hold_finite_numbers(value):
    with pytest.raises(PycError, match="finite"):
        record("w", "c", "m", "s", value)


def test_records_need_their_keys():
    with pytest.raises(PycError, match="candidate"):
        check_record({"workload": "w", "metric": "m", "unit": "s", "value": 1})


def test_compare_pairs_records():
    before = Report("s", HERE, {}, [record("a", "pyc", "latency", "s", 2.0)])
    rows = [record("b", "pyc", "latency", "s", 9.0), record("a", "pyc", "latency", "s", 1.0)]
    after = Report("s", replace(HERE, commit=None), {}, rows)
    (change,) = compare(before, after)
    assert (change.workload, change.before, change.after) == ("a", 2.0, 1.0)


def test_compare_refuses_other_environments_and_suites():
    with pytest.raises(PycError, match="cores: 2 / 8") as error:
        compare(Report("s", HERE), Report("s", replace(HERE, cores=8)))
    assert code_of(error) is ReasonCode.ENVIRONMENT_MISMATCH
    with pytest.raises(PycError, match="one suite"):
        compare(Report("s", HERE), Report("t", HERE))


def test_interleave_runs_each_candidate_once_a_round():
    clock = FakeClock()
    runs = {"a": clock.candidate("a", 1.0), "b": clock.candidate("b", 3.0)}
    timings = interleave(runs, rounds=20, warmup=1, clock=clock)
    assert timings == {"a": Timing((1.0,) * 20, 1), "b": Timing((3.0,) * 20, 1)}
    rounds = [tuple(clock.order[i : i + 2]) for i in range(2, len(clock.order), 2)]
    assert len(rounds) == 20 and set(rounds) == {("a", "b"), ("b", "a")}
    assert ratio(timings, of="b", to="a") == Spread(3.0, 3.0, 3.0, 3.0, 20)


def test_interleave_order_is_the_seed():
    def order(seed: int) -> list[str]:
        clock = FakeClock()
        runs = {name: clock.candidate(name, 1.0) for name in "abc"}
        interleave(runs, rounds=10, warmup=0, clock=clock, seed=seed)
        return clock.order

    assert order(1) == order(1) != order(2)


def test_interleave_calls_quick_candidates_often_enough():
    clock = FakeClock()
    runs = {"quick": clock.candidate("quick", 0.25), "slow": clock.candidate("slow", 2.0)}
    timings = interleave(runs, rounds=3, warmup=0, min_seconds=1.0, clock=clock)
    assert {name: t.calls for name, t in timings.items()} == {"quick": 4, "slow": 1}
    assert timings["quick"].median == 0.25


@pytest.mark.parametrize(("candidates", "rounds"), [({}, 1), ({"a": int}, 0)])
def test_interleave_needs_something_to_do(candidates, rounds):
    with pytest.raises(PycError, match="at least one"):
        interleave(candidates, rounds=rounds)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=30))
def test_spread_is_ordered(samples):
    spread = Spread.of(samples)
    slack = 1e-9 * spread.p90
    assert spread.min <= spread.p10 + slack <= spread.median + 2 * slack
    assert spread.median <= spread.p90 + slack and spread.n == len(samples)


def test_timing_records_carry_the_spread():
    (row,) = timing_records("matmul", {"pyc": Timing((1.0, 2.0, 3.0), 4)}, threads=2)
    assert (row["value"], row["min"], row["n"], row["calls"]) == (2.0, 1.0, 3, 4)
    assert row["threads"] == 2 and row["unit"] == "s"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (2.0, "s", "2 s"),
        (0, "s", "0 ns"),
        (4718592, "B", "4.5 MiB"),
        (97.5, "%", "97.5%"),
        (12345, "tests", "12345 tests"),
    ],
)
def test_quantities_read_well(value, unit, text):
    assert quantity(value, unit) == text


def test_markdown_has_a_column_for_each_candidate():
    rows = [
        record("a", "pyc", "latency", "s", 1e-3, p10=9e-4, p90=2e-3),
        record("a", "iree", "latency", "s", 2e-3),
        record("a", "pyc", "peak", "B", 1024),
    ]
    lines = markdown(Report("demo", HERE, {}, rows)).splitlines()
    assert HERE.fingerprint in lines[0] and lines[0].startswith("demo: Test CPU, 2 cores")
    assert lines[2:] == [
        "| workload | metric | pyc | iree | iree / pyc |",
        "|---|---|---|---|---|",
        "| a | latency | 1 ms (900 us to 2 ms) | 2 ms | 2x |",
        "| a | peak | 1 KiB |  |  |",
    ]


def test_command_line_prints_the_environment(capsys):
    assert pyc_bench.main(["env"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("fingerprint") == from_data(Environment, printed).fingerprint


def test_command_line_renders_a_report(tmp_path, capsys):
    path = tmp_path / "report.json"
    Report("demo", HERE, {}, [record("a", "pyc", "latency", "s", 1.0)]).save(path)
    assert pyc_bench.main(["table", str(path)]) == 0
    assert "| a | latency | 1 s |" in capsys.readouterr().out


def test_command_line_refuses_what_it_does_not_know(tmp_path, capsys):
    assert pyc_bench.main(["table", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
    assert pyc_bench.main([]) == 2
    assert "required: SUITE" in capsys.readouterr().err
    assert pyc_bench.main(["laten"]) == 2
    assert "did you mean 'latency'?" in capsys.readouterr().err
    assert pyc_bench.main(["pack", "--capcity=3"]) == 2
    assert "did you mean '--capacity'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", pyc_bench.SUITES)
def test_every_suite_loads_and_has_help(name):
    function = pyc_bench.load(pyc_bench.SUITES[name])
    assert function.__doc__, f"suite {name}: its function's docstring is the help"
