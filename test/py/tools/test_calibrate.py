"""The measuring behind `pyc-doctor --calibrate`, with tiny counts, and the tool around it."""

import contextlib
import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from calibrations import calibration
from pythons import python
from refusals import refused

from pyc_mlir import Device, PycError, ReasonCode
from pyc_mlir import calibrate as measuring
from pyc_mlir.calibrate import (
    CalibrationEffort,
    calibrate,
    copy_probe,
    fma_probes,
    fma_program,
    require_cpu,
    table,
)
from pyc_mlir.compilation.options import make_options
from pyc_mlir.measure.environment import probe
from pyc_mlir.pipelines.target.calibration import Calibration, Figure
from pyc_mlir.runtime.device import host_cpu
from pyc_mlir.tools import pyc_doctor

TINY = CalibrationEffort(
    rounds=2, sample_seconds=0.0, iterations=8, dispatches=2, copied_bytes=1 << 12
)


@pytest.fixture(scope="module")
def made() -> Calibration:
    return calibrate("tiny", require_cpu(host_cpu()), probe(), TINY)


@pytest.mark.full
def test_it_describes_this_machine(made):
    here, cpu = probe(), require_cpu(host_cpu())
    assert (made.name, made.machine.cpu) == ("tiny", cpu.model)
    assert (made.machine.cores, made.machine.fingerprint) == (here.cores, here.fingerprint)
    assert dict(made.machine.packages) == dict(here.packages)
    rates = ("core_flops", "flops", "bandwidth", "l2_bandwidth")
    assert all(getattr(made.figures, key).value > 0 for key in rates)
    assert all(f.rounds == 2 for f in vars(made.figures).values() if f is not None)


@pytest.mark.full
def test_it_reads_and_fits_this_machine(made):
    again = Calibration.from_bytes(made.to_bytes())
    assert again == made and again.hash == made.hash
    target = make_options(calibration=again).target
    assert target.peak_flops == made.figures.flops.value


@pytest.mark.full
def test_one_core_and_small_caches():
    cpu = replace(require_cpu(host_cpu()), l2_bytes=1 << 12, l3_bytes=1 << 13)
    found = calibrate("one", cpu, replace(probe(), cores=1), TINY)
    assert found.machine.cores == 1 and found.figures.l3_bandwidth is None


def test_stages_are_told_and_time_ends_it():
    reported: list[str] = []

    def stage(title: str) -> contextlib.AbstractContextManager[None]:
        reported.append(title)
        return contextlib.nullcontext()

    ticks = itertools.count()
    effort = replace(TINY, rounds=99, limit_seconds=1.0)
    cpu = require_cpu(host_cpu())
    found = calibrate("slow", cpu, probe(), effort, stage, lambda: float(next(ticks)))
    assert reported == ["compiling what is measured", "measuring rounds 1 to 3 of 99"]
    assert found.figures.flops.rounds == 3


def test_figures_come_from_the_quickest_rounds():
    assert measuring._rate(100.0, [1.0, 2.0, 4.0]) == Figure(100.0, 3, 1.5)
    assert measuring._cost([9.0, 5.0, 8.0], [2.0, 1.0, 3.0], 2) == Figure(2.0, 3, 0.6)
    assert measuring._cost([1.0], [2.0]).value == 0.0


def test_the_program_is_a_chain():
    text = fma_program(8, 2, 3, dispatches=3)
    assert text.count("flow.dispatch @fma_exe") == 3 and "return %y3" in text
    (found,) = fma_probes([Device("local-sync")], 2, 5, dispatches=3)
    (single,) = fma_probes([Device("local-sync")], 1, 5)
    found.call()
    assert found.amount == 6 * single.amount


@pytest.mark.parametrize("threads", [1, 3])
def test_copies_count_what_they_move(threads):
    with copy_probe(threads, 3 << 10) as found:
        found.call()
        assert found.amount == 2 * (3 << 10)


def test_a_bad_name_is_told_before_anything_is_measured():
    with pytest.raises(PycError, match="--name"):
        calibrate("a b", require_cpu(host_cpu()), probe())


def test_a_system_that_tells_nothing():
    refused(ReasonCode.DEVICE_UNAVAILABLE, require_cpu, None, match="/proc/cpuinfo")


def test_the_table_has_a_line_a_figure():
    calm = calibration()
    text = table(calm)
    assert text.startswith(f"{calm.label}: Test CPU 25 17, 2 cores\n")
    assert "200 GFLOP/s" in text and "20 GB/s" in text and "1 us" in text and "note" not in text
    assert len(text.splitlines()) == 8
    noisy = replace(calm.figures, flops=Figure(1e9, 7, 0.8), l3_bandwidth=None)
    text = table(replace(calm, figures=noisy))
    assert "L3" not in text and "note: rounds differ by up to 80%" in text


def test_the_tool_writes_what_was_measured(tmp_path: Path, monkeypatch, capsys, made):
    requested = []

    def instead(name: str, *_: object, **__: object) -> Calibration:
        requested.append(name)
        return replace(made, name=name)

    monkeypatch.setattr(measuring, "calibrate", instead)
    file = tmp_path / "lab.json"
    assert pyc_doctor.main(["--calibrate", str(file)]) == 0
    assert Calibration.load(file) == replace(made, name="lab")
    assert pyc_doctor.main(["--calibrate", str(file), "--name", "other"]) == 0
    assert Calibration.load(file).name == "other" and requested == ["lab", "other"]
    out = capsys.readouterr().out
    assert "GFLOP/s" in out and f"wrote {file}" in out


REFUSED = [
    (["--calibrate", "{}"], "got: Is a directory; name a file, not a folder [FILE_ACCESS]"),
    (["--calibrate", "{}/none/x.json"], "check the path and its folder [FILE_ACCESS]"),
    (["--calibrate", "{}/x y.json"], "give another with --name"),
    (["--calibrate", "{}/x.json", "--name", "a/b"], "'a/b'"),
    (["--calibrate", "{}/x.json", "--json"], "got both"),
    (["--name", "x"], "expected --calibrate with --name"),
]


@pytest.mark.parametrize(("argv", "expected"), REFUSED)
def test_what_is_refused_before_measuring(argv, expected, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(measuring, "calibrate", None)
    status, message = pyc_doctor.main([a.format(tmp_path) for a in argv]), capsys.readouterr().err
    assert status == (2 if "command line: " in message else 1)
    assert expected in message and ("[BAD_ARGUMENT]" in message or "FILE_ACCESS" in expected)


def test_a_file_without_permission(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert pyc_doctor.main(["--calibrate", str(tmp_path / "x.json")]) == 1
    assert "got: Permission denied; give permission, or name another" in capsys.readouterr().err


def test_without_a_compiler_it_says_so(tmp_path: Path):
    """The checks work without one; measuring does not, and tells what to install."""
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == "iree.compiler" or name.startswith("iree.compiler."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from pyc_mlir.tools import pyc_doctor
sys.exit(pyc_doctor.main(["--calibrate", "x.json"]))
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "MISSING_DEPENDENCY" in done.stderr and "'.[compile]'" in done.stderr
    assert not (tmp_path / "x.json").exists()
