"""The token of a machine, and what disturbs a measurement."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.machine import (
    Counters,
    disturbances,
    flush_bytes,
    measure_token,
    read_counters,
    require_quiet,
    stolen_share,
)

START = Counters(at=0.0, busy=0.0, stolen=0.0, throttled=0, hot=0, load=0.0)
# Ten seconds later on two cores: 20 CPU seconds.
QUIET = replace(START, at=10.0, busy=10.0)

HOLD = """
import sys, time
from pathlib import Path
from pyc_mlir.measure.machine import measure_token
with measure_token("the other", path=Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_at_a_time_and_the_second_is_told_who_measures(tmp_path):
    path = tmp_path / "token"
    with measure_token("the first", path=path):
        with pytest.raises(PycError) as error, measure_token("the second", path=path):
            pass
        assert error.value.code is ReasonCode.MACHINE_BUSY
        assert f"process {os.getpid()} (the first)" in str(error.value)
    with measure_token("the second", path=path):
        pass


def test_the_token_dies_with_its_process(tmp_path):
    path = tmp_path / "token"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        reported = pytest.raises(PycError, match=f"process {other.pid} \\(the other\\)")
        with reported, measure_token("this", path=path):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with measure_token("this", path=path):
        pass


def test_a_damaged_token_is_still_a_token(tmp_path):
    path = tmp_path / "token"
    with measure_token("first", path=path):
        path.write_bytes(b"\x00[")
        reported = pytest.raises(PycError, match="an unnamed process")
        with reported, measure_token("second", path=path):
            pass


@pytest.mark.parametrize(
    ("after", "own", "reported"),
    [
        (QUIET, 10.0, ""),
        (QUIET, 9.0, ""),
        (QUIET, 0.0, "other processes used 50%"),
        (replace(QUIET, stolen=0.4), 10.0, "hypervisor took 2.0%"),
        (replace(QUIET, throttled=3), 10.0, "held back 3 times"),
        (replace(QUIET, hot=1), 10.0, "slowed for heat 1 times"),
    ],
)
def test_what_disturbs(after, own, reported):
    found = "; ".join(disturbances(START, after, own, cores=2))
    assert reported in found and bool(reported) == bool(found)


def test_a_quiet_machine_is_required_only_where_asked():
    require_quiet(())
    with pytest.raises(PycError) as error:
        require_quiet(("other processes used 50%",))
    assert error.value.code is ReasonCode.MACHINE_BUSY and "50%" in str(error.value)


def test_counters_of_a_system_that_tells_all(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu 100 200 300 9 9 0 0 400 0 0\ncpu0 1\n")
    (tmp_path / "proc/loadavg").write_text("1.50 1 1 1/1 1\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.stat").write_text("nr_periods 9\nnr_throttled 7\n")
    folder = tmp_path / "sys/devices/system/cpu/cpu0"
    (folder / "thermal_throttle").mkdir(parents=True)
    (folder / "thermal_throttle/core_throttle_count").write_text("2\n")
    (folder / "cache/index3").mkdir(parents=True)
    for name, text in (("level", "3"), ("type", "Unified"), ("size", "1024K")):
        (folder / "cache/index3" / name).write_text(text)
    found = read_counters(tmp_path)
    second = os.sysconf("SC_CLK_TCK")
    assert (found.busy, found.stolen) == (600 / second, 400 / second)
    assert (found.throttled, found.hot, found.load) == (7, 2, 1.5)
    assert flush_bytes(tmp_path) == 2 << 20
    later = replace(found, at=found.at + 1, stolen=found.stolen + 0.5)
    assert stolen_share(found, later, cores=2) == pytest.approx(0.25)


def test_a_system_that_tells_nothing_is_undisturbed(tmp_path):
    found = read_counters(tmp_path)
    assert (found.busy, found.stolen, found.throttled, found.hot, found.load) == (0, 0, 0, 0, 0)
    assert disturbances(found, read_counters(tmp_path), 0.0) == ()
    assert flush_bytes(tmp_path) == 128 << 20
