"""Verification records beside the entries of the cache: a warm start does not compare again."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyc_mlir import Tensor
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.verification import Verification
from pyc_mlir.cache.cache import KIND, Cache, Verifications
from pyc_mlir.cache.key import Identity
from pyc_mlir.cache.store import CacheStore, side_name
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime import device as devices
from pyc_mlir.runtime.device import Device, _first_name, environment_of
from pyc_mlir.runtime.monitor import Monitor
from pyc_mlir.runtime.program import Program

W = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
OPTIONS = make_options(kernels="iree", planner_mode="iree", contract=Contract(max_error="rounding"))
WHO = Identity({"numpy": "1"}, "s", {"cpu": "x"})


def model(x: Tensor["f32", 2, 8]):  # noqa: F821
    return np.tanh(x @ W)


@pytest.fixture
def compared(monkeypatch) -> list[str]:
    """The hashes of programs whose samples were computed."""
    seen: list[str] = []
    real = Monitor._compare_samples

    def counted(monitor: Monitor) -> tuple[Verification, str, ReasonCode]:
        seen.append(monitor._hash)
        return real(monitor)

    monkeypatch.setattr(Monitor, "_compare_samples", counted)
    return seen


def made(folder: Path) -> Artifact:
    """The program through a cache that has nothing in memory, and then loaded."""
    cache = Cache(CacheStore(folder), identity=lambda: WHO)
    artifact = build(model, None, OPTIONS, cache=cache)
    program = Program(artifact, Device("local-sync"))
    assert program.verification is not None and program.verification.passed
    return artifact


def side(folder: Path) -> tuple[CacheStore, str, str]:
    store = CacheStore(folder)
    (entry,) = store.entries()
    return store, entry.name, side_name(KIND, environment_of(Device("local-sync")))


@pytest.mark.full
def test_a_warm_start_does_not_compare(tmp_path, compared):
    first = made(tmp_path)
    assert first.cached is not None and first.cached.outcome == "miss" and len(compared) == 1
    again = made(tmp_path)
    assert again.cached is not None and again.cached.outcome == "hit" and len(compared) == 1
    store, name, file = side(tmp_path)
    reported = json.loads(store.read_side(name, file) or b"")
    assert (
        reported["done"] == reported["of"] > 0
        and reported["wrong"] == ""
        and reported["artifact"] == compared[0]
    )
    assert store.check(name) == ""


@pytest.mark.parametrize("what", ["runtime", "cpu", "features"])
@pytest.mark.sampled(2)
def test_another_environment_compares_once_more(tmp_path, compared, monkeypatch, what):
    made(tmp_path)
    with monkeypatch.context() as elsewhere:
        if what == "runtime":
            elsewhere.setattr(devices, "runtime_version", lambda: "0.0")
        else:
            cpu = devices.host_cpu()
            assert cpu is not None
            other = {"cpu": {"model": "another"}, "features": {"features": frozenset({"x"})}}[what]
            elsewhere.setattr(devices, "host_cpu", lambda: replace(cpu, **other))
        made(tmp_path)
        assert len(compared) == 2
        made(tmp_path)
        assert len(compared) == 2, "it has a verification record of its own"
    made(tmp_path)
    assert len(compared) == 2, "the first one still holds here"


def damages(reported: dict) -> dict[str, bytes]:
    """Contents that no verification record of this program has."""
    return {
        "empty": b"",
        "no JSON": b"{",
        "deep": b"[" * 200_000,
        "a list": b"[]",
        "another schema": json.dumps({**reported, "schema": 99}).encode(),
        "another program": json.dumps({**reported, "artifact": "0" * 64}).encode(),
        "another CPU": json.dumps(
            {**reported, "environment": {**reported["environment"], "cpu": "another"}}
        ).encode(),
        "some samples": json.dumps({**reported, "done": reported["of"] - 1}).encode(),
        "wrong": json.dumps({**reported, "wrong": "result 0"}).encode(),
        "numbers too large": json.dumps(reported).replace(str(reported["of"]), "9" * 5000).encode(),
    }


def test_what_is_no_verdict_of_this_program_here_is_compared_again(tmp_path, compared):
    made(tmp_path)
    store, name, file = side(tmp_path)
    whole = store.read_side(name, file)
    assert whole is not None
    for count, (kind, data) in enumerate(damages(json.loads(whole)).items(), start=2):
        store.write_side(name, file, data)
        made(tmp_path)
        assert len(compared) == count, kind
        assert store.read_side(name, file) == whole, "the new verification record takes its place"


def test_flipped_bytes_are_compared_again(tmp_path, compared):
    made(tmp_path)
    store, name, file = side(tmp_path)
    path = store.path(name) / "side" / file
    whole = path.read_bytes()
    for count, place in enumerate((0, 70, len(whole) - 1), start=2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        made(tmp_path)
        assert len(compared) == count
        assert path.read_bytes() == whole


def test_failed_comparisons_are_not_kept(tmp_path, compared, monkeypatch):
    made(tmp_path)
    store, name, file = side(tmp_path)
    (store.path(name) / "side" / file).unlink()
    real = Monitor._compare_samples

    def failing(monitor: Monitor) -> tuple[Verification, str, ReasonCode]:
        verification, plan, cause = real(monitor)
        return replace(verification, wrong="result 0"), plan, cause

    monkeypatch.setattr(Monitor, "_compare_samples", failing)
    with pytest.raises(PycError) as caught:
        made(tmp_path)
    assert caught.value.code is ReasonCode.WRONG_RESULT
    assert store.read_side(name, file) is None


def test_programs_past_the_cache_have_no_place_for_a_verdict(tmp_path):
    assert Verifications.of(Cache(CacheStore(tmp_path)), None) is None


@dataclass
class Gpu:
    """What a verification record asks of a device."""

    name: str
    runs: str = "cuda"
    is_cpu: bool = False


def test_a_verdict_of_a_gpu_names_it_and_its_driver(tmp_path):
    release = tmp_path / "version"
    release.write_text("module 1.2\ncompiler 3\n")
    pairs: Any = [(gpu, file) for gpu in (Gpu("a"), Gpu("b")) for file in (release, tmp_path)]
    reported = [environment_of(gpu, file) for gpu, file in pairs]
    assert (reported[0]["gpu"], reported[0]["driver"], reported[1]["driver"]) == (
        "a",
        "module 1.2",
        "",
    )
    assert len({side_name(KIND, t) for t in reported}) == 4
    assert "gpu" not in environment_of(Device("local-sync"))


class Driver:
    """A driver of IREE's that knows these devices."""

    def __init__(self, *devices: dict[str, Any]) -> None:
        self.devices = devices

    def query_available_devices(self) -> list[dict[str, Any]]:
        if not self.devices:
            raise RuntimeError("no devices")
        return list(self.devices)


@pytest.mark.full
def test_what_a_gpu_is_called():
    named: Any = Driver({"device_id": 1, "name": "Maker X", "path": "GPU-12"}, {"name": "Y"})
    bare: Any = Driver({"device_id": 1, "name": "", "path": None})
    none: Any = Driver()
    assert [_first_name(d) for d in (named, bare, none)] == ["Maker X GPU-12", "", ""]
