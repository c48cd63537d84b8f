"""Calibrations as files and as figures of a target: round trips, damaged files, other CPUs."""

import json
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from calibrations import AVX512_CPU, calibration

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.target.calibration import Calibration, Figure, check_name
from pyc_mlir.pipelines.target.target import TARGETS, V3_FEATURES, V4_FEATURES, CpuInfo, Target

HOST = Target.named("cpu").on(AVX512_CPU)


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(PycError) as caught:
        call(*arguments)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT
    return caught.value.message


def changed(path: str, value: Any) -> bytes:
    """The file with another value at ``a.b.c``; `...` takes the key away."""
    data = json.loads(calibration().to_bytes())
    *folders, last = path.split(".")
    inner = data
    for folder in folders:
        inner = inner[folder]
    inner[last] = value
    if value is ...:
        del inner[last]
    return json.dumps(data).encode()


def test_round_trip_keeps_bytes_and_hash(tmp_path: Path):
    made = calibration()
    file = tmp_path / "lab.json"
    file.write_bytes(made.to_bytes())
    again = Calibration.load(file)
    assert again == made
    assert (again.to_bytes(), again.hash) == (made.to_bytes(), made.hash)
    assert made.label == f"lab@{made.hash[:16]}"


def test_the_hash_is_of_the_content():
    made = calibration()
    assert made.hash == calibration().hash
    assert made.hash != replace(made, name="other").hash
    figures = replace(made.figures, bandwidth=Figure(1e9, 3, 0.1))
    assert made.hash != replace(made, figures=figures).hash


def test_a_file_without_some_caches_reads():
    none = Calibration.from_bytes(changed("figures.l3_bandwidth", None))
    assert none.figures.l3_bandwidth is None and none.figures.l2_bandwidth is not None


DAMAGED = [
    ("schema", 2, ".schema: expected 1, got 2"),
    ("schema", ..., ".schema: expected 1, got None"),
    ("name", "", "letters, digits"),
    ("name", "two\nlines", "letters, digits"),
    ("name", 7, ".name: expected str, got 7"),
    ("machine", [], ".machine: expected MeasuredMachine, got []"),
    ("machine.cpu", None, ".machine.cpu: expected str"),
    ("machine.cpu", "half \ud800", ".machine: expected lines of text"),
    ("machine.cpu", "two\nlines", ".machine: expected lines of text"),
    ("machine.packages", {"\udfff": "2"}, ".machine: expected lines of text"),
    ("machine.packages", {"numpy": 2}, ".machine: expected lines of text, got 2"),
    ("machine.packages", ["numpy"], ".machine.packages: expected versions by name"),
    ("machine.cores", 0, ".machine: expected 1 core or more"),
    ("machine.cores", True, ".machine.cores: expected int"),
    ("machine.cores", 2.0, ".machine.cores: expected int"),
    ("machine.features", "avx2", ".machine.features: expected"),
    ("machine.features", ["fma", "avx2"], "sorted"),
    ("machine.features", ["avx2", "avx2"], "sorted"),
    ("machine.host", "name", "`host`"),
    ("figures.flops", ..., ".figures.flops: expected a value, got none"),
    ("figures.flops", None, ".figures.flops: expected Figure"),
    ("figures.flops.value", 0, ".figures: expected a positive `flops`"),
    ("figures.flops.value", -1.0, ".figures.flops: expected a finite value of 0 or more"),
    ("figures.flops.value", float("nan"), ".figures.flops: expected a finite value"),
    ("figures.flops.value", 10**400, ".figures.flops.value: expected float"),
    ("figures.flops.value", "fast", "got 'fast'"),
    ("figures.flops.rounds", 0, "1 round or more"),
    ("figures.flops.spread", -0.1, "a finite spread"),
    ("figures.wake_seconds.value", -1e-6, ".figures.wake_seconds: expected a finite value"),
    ("figures.speed", 1, "`speed`"),
]


@pytest.mark.parametrize(("path", "value", "expected"), DAMAGED)
def test_a_damaged_file_is_told(path, value, expected):
    message = refused(Calibration.from_bytes, changed(path, value), "lab.json")
    assert message.startswith("lab.json: expected ")
    assert expected in message and "pyc-doctor --calibrate" in message


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe\x00", b"[]", b"null", b"[" * 100_000])
def test_what_is_no_file_of_ours_is_told(data):
    assert refused(Calibration.from_bytes, data).startswith("calibration: expected ")


def test_every_cut_of_a_file_is_told():
    whole = calibration().to_bytes().rstrip()
    for end in range(0, len(whole), 7):
        refused(Calibration.from_bytes, whole[:end])


def test_a_file_with_wrong_bytes_reads_or_is_told():
    """What reads has a hash and is written as it was read."""
    draw, whole = random.Random(0), calibration().to_bytes()
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.choice(b'0123456789eE.-"\\,:[]{}ntu \xff\x00')
        try:
            found = Calibration.from_bytes(bytes(data))
        except PycError as error:
            assert error.code is ReasonCode.BAD_ARGUMENT
        else:
            assert Calibration.from_bytes(found.to_bytes()).hash == found.hash


def test_a_file_that_cannot_be_read(tmp_path: Path):
    for path, reported in ((tmp_path / "none.json", "No such file"), (tmp_path, "directory")):
        with pytest.raises(PycError, match=reported) as caught:
            Calibration.load(path)
        assert caught.value.code is ReasonCode.FILE_ACCESS


def test_names():
    assert check_name("lab-1_a.b+c") == "lab-1_a.b+c"
    for bad in ("", "-a", "a b", "a/b", "a" * 65, "é"):
        assert "--name" in refused(check_name, bad)


def test_wake_may_be_nothing():
    made = calibration()
    free = replace(made, figures=replace(made.figures, wake_seconds=Figure(0.0, 3, 0.0)))
    assert Calibration.from_bytes(free.to_bytes()) == free


def test_a_target_takes_the_figures_and_nothing_else():
    found = HOST.calibrated(calibration(cores=3, flops=7e9, bandwidth=5e9, dispatch=2e-6))
    assert (found.cores, found.peak_flops, found.peak_bandwidth) == (3, 7e9, 5e9)
    assert found.dispatch_seconds == 2e-6
    own = {"cores", "peak_flops", "peak_bandwidth", "dispatch_seconds", "calibrated_by"}
    before, after = asdict(HOST), asdict(found)
    assert {key for key in before if before[key] != after[key]} <= own


def test_another_model_is_refused():
    other = calibration(cpu="Other CPU 6 85")
    message = refused(HOST.calibrated, other)
    assert "'Test CPU 25 17' for target `cpu`, got 'Other CPU 6 85'" in message
    assert "pyc-doctor --calibrate" in message


@pytest.mark.parametrize("features", [V3_FEATURES, V4_FEATURES - {"avx512vl"}, frozenset()])
def test_other_features_are_refused(features):
    message = refused(HOST.calibrated, calibration(features=features))
    assert "the features avx avx2 avx512bw" in message


def test_a_target_for_elsewhere_takes_a_calibration_from_there():
    made = calibration(cpu="Other CPU 6 85", features=V3_FEATURES, flops=3e9)
    assert Target.named("cpu-avx2").calibrated(made).peak_flops == 3e9
    refused(Target.named("cpu-avx512").calibrated, made)
    refused(Target.named("cpu-avx2").on(AVX512_CPU).calibrated, made)


@pytest.mark.parametrize("name", sorted(n for n, t in TARGETS.items() if t.device != "local"))
def test_gpus_are_not_calibrated(name):
    assert "it measures CPUs" in refused(Target.named(name).calibrated, calibration())


@pytest.mark.full
def test_a_cpu_that_nobody_read_takes_none():
    assert "the features none" in refused(Target.named("cpu").calibrated, calibration())
    bare = Target.named("cpu").on(CpuInfo(V4_FEATURES, 2))
    assert bare.calibrated(calibration()).peak_flops == calibration().figures.flops.value
