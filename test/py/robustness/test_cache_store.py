"""The compile cache's store on a bad day: nothing raises, nothing is lost, nothing is wrong."""

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import rounds

from pyc_mlir import Tensor
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.verification import Verification
from pyc_mlir.cache.cache import KIND, Cache, Verifications
from pyc_mlir.cache.key import Identity
from pyc_mlir.cache.store import ARTIFACT, CHECKSUMS, KEY, CacheStore, sha256, side_name, sweep
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime import device as devices
from pyc_mlir.runtime.device import Device, _first_name, environment_of
from pyc_mlir.runtime.monitor import Monitor
from pyc_mlir.runtime.program import Program

SCRIPTS = Path(__file__).parents[1] / "support" / "cache_scripts.py"
DATA = random.Random(5).randbytes(70_000)


def entry(number: int = 0) -> tuple[str, bytes]:
    key = json.dumps({"schema": 1, "program": {"graph": number}}).encode()
    return sha256(key), key


@pytest.fixture
def store(tmp_path):
    return CacheStore(tmp_path / "cache")


def written(store: CacheStore, number: int = 0, data: bytes = DATA) -> tuple[str, bytes]:
    name, key = entry(number)
    assert store.write(name, key, data) == ()
    return name, key


def code_of(found) -> ReasonCode | None:
    assert found.event is not None or found.data
    return None if found.event is None else found.event.code


def test_round_trip_and_layout(store):
    name, key = entry()
    assert code_of(store.read(name, key)) is ReasonCode.CACHE_MISS
    assert not store.folder.exists(), "a look-up writes nothing"
    written(store)
    assert store.read(name, key).data == DATA
    assert sorted(p.name for p in store.path(name).iterdir()) == [ARTIFACT, CHECKSUMS, KEY]
    assert (store.path(name) / KEY).read_bytes() == key
    assert (store.path(name) / ARTIFACT).read_bytes() == DATA
    assert store.check(name) == "" and [e.name for e in store.entries()] == [name]
    assert list((store.root / "making").iterdir()) == []


def flip(path: Path, seed: int) -> None:
    """Change one byte of one file of an entry."""
    draw = random.Random(seed)
    file = path / draw.choice((ARTIFACT, KEY, CHECKSUMS))
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
    file.write_bytes(data)


def test_flipped_bytes_are_found_dropped_and_written_again(store):
    name, key = written(store)
    for seed in range(rounds(60, 1000)):
        flip(store.path(name), seed)
        assert store.check(name) != "", seed
        assert code_of(store.read(name, key)) is ReasonCode.CACHE_DAMAGED, seed
        assert code_of(store.read(name, key)) is ReasonCode.CACHE_MISS, seed
        written(store)
        assert store.read(name, key).data == DATA


@pytest.mark.parametrize("part", [ARTIFACT, KEY, CHECKSUMS])
@pytest.mark.parametrize("how", ["gone", "empty", "cut", "longer", "zeros", "folder", "link"])
def test_other_damage(store, part, how, tmp_path):
    name, key = written(store)
    file = store.path(name) / part
    data = file.read_bytes()
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        file.symlink_to(tmp_path / "elsewhere")
    elif how != "gone":
        changed = {
            "empty": b"",
            "cut": data[:-1],
            "longer": data + b"\n",
            "zeros": bytes(len(data)),
        }
        file.write_bytes(changed[how])
    assert store.check(name) != ""
    assert code_of(store.read(name, key)) is ReasonCode.CACHE_DAMAGED
    written(store)
    assert store.read(name, key).data == DATA


def test_something_else_in_the_place_of_an_entry(store, tmp_path):
    name, key = written(store)
    whole = store.path(name)
    shutil.move(whole, tmp_path / "moved")
    for make in (lambda: whole.write_bytes(b"x"), lambda: whole.symlink_to(tmp_path / "moved")):
        make()
        assert code_of(store.read(name, key)) is ReasonCode.CACHE_DAMAGED
        written(store)
        assert store.read(name, key).data == DATA
        store.drop(name)
    assert (tmp_path / "moved" / ARTIFACT).read_bytes() == DATA


def test_another_key_under_the_same_name_is_no_hit(store):
    name, _ = written(store)
    assert code_of(store.read(name, entry(1)[1])) is ReasonCode.CACHE_DAMAGED


def test_a_whole_entry_that_took_the_place_of_a_damaged_one_stays(store):
    name, key = written(store)
    folder = os.open(store.path(name), os.O_RDONLY)
    assert store.drop(name)
    written(store)
    assert not store.drop(name, folder), "the one that was open is not there any more"
    os.close(folder)
    assert store.read(name, key).data == DATA


class Clock:
    """Unix time that a test moves."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_least_recently_used_go_first(tmp_path):
    clock = Clock()
    store = CacheStore(tmp_path, 3 * 80_000, clock)
    first, second, third = (written(store, i) for i in range(3))
    assert store.read(*first).data == DATA
    fourth = written(store, 3)
    assert [e.name for e in store.entries()] == [fourth[0], first[0], third[0]]
    assert code_of(store.read(*second)) is ReasonCode.CACHE_MISS
    assert sum(e.bytes for e in store.entries()) <= store.max_bytes
    assert store.evict(0) == 3 and store.entries() == []


def test_what_is_larger_than_the_cache_is_not_kept(tmp_path):
    store = CacheStore(tmp_path, 100)
    (event,) = store.write(*entry(), DATA)
    assert event.code is ReasonCode.CACHE_BYPASSED and "70000 bytes" in event.why
    assert store.entries() == []


def test_clock_jumps(tmp_path):
    """Whatever the clock says, an answer is right, the bound holds and the newest entry stays."""
    clock, draw = Clock(), random.Random(7)
    store = CacheStore(tmp_path, 4 * 80_000, clock)
    missed = 0
    for step in range(rounds(40, 300)):
        clock.now = max(1e9, clock.now + draw.choice((0, 1, 3e8, -3e8, 3600, -3600)))
        name, key = entry(draw.randrange(8))
        there = any(e.name == name for e in store.entries())
        assert code_of(store.read(name, key)) is (None if there else ReasonCode.CACHE_MISS), step
        missed += not there
        assert store.write(name, key, DATA) == ()
        assert store.read(name, key).data == DATA, step
        assert sum(e.bytes for e in store.entries()) <= store.max_bytes
    assert missed > 8, "some were there, and gone again"
    clock.now = 5e8
    before = {e.name for e in store.entries()}
    name, _ = written(store, 99)
    assert store.entries()[0].name == name, "times to come are long ago"
    assert len(before) == 4 and name not in before
    written(store, 100)
    assert {e.name for e in store.entries()} >= {name, entry(100)[0]}


def test_full_disk(store):
    """A limit of file sizes stands for it: the write fails half way, nothing is left of it."""
    done = run_script("full_disk", store.folder)
    assert done["code"] == ReasonCode.CACHE_FOLDER.name and "File too large" in done["why"]
    assert done["making"] == [] and done["entries"] == 0


def test_folder_that_cannot_be_written_or_read(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = CacheStore(tmp_path / "file" / "cache")
    name, key = entry()
    assert code_of(store.read(name, key)) is ReasonCode.CACHE_FOLDER
    (event,) = store.write(name, key, DATA)
    assert event.code is ReasonCode.CACHE_FOLDER and str(tmp_path) not in str(event)
    assert store.write_memo("memo", b"x") and store.read_memo("memo") is None
    assert store.entries() == [] and store.evict(0) == 0 and not store.drop(name)


def test_read_only_folder_still_answers(tmp_path):
    done = run_script("read_only", tmp_path / "cache")
    assert done["read"] and done["write"] == ReasonCode.CACHE_FOLDER.name
    assert done["damaged"] == ReasonCode.CACHE_DAMAGED.name


@pytest.mark.parametrize("processes", [2, 8])
@pytest.mark.full
def test_processes_write_and_read_at_once(store, processes):
    times = rounds(15, 100)
    done = run_script("race", store.folder, processes, times)
    assert done == {"wrong": 0, "events": [], "making": [], "damaged": []}


@pytest.mark.full
def test_killed_while_writing(store):
    kills = rounds(25, 200)
    done = run_script("kill", store.folder, kills)
    assert done["damaged"] == [] and done["making"] == [] and done["lost"] == 0
    assert done["kills"] == kills


@pytest.mark.parametrize("damaged", [0, 1])
def test_killed_while_dropping(store, damaged):
    done = run_script("kill_in_drop", store.folder, damaged)
    assert done["killed"] and done["moved"] and done["making"] == [] and done["damaged"] == []
    assert done["there"] is not bool(damaged), "what another process had put there"


def run_script(name: str, *arguments: object) -> dict:
    """Run one of cache_scripts.py in a process of its own, which has no threads to fork."""
    command = [sys.executable, str(SCRIPTS), name, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_what_is_being_made_is_not_swept(store):
    from pyc_mlir.cache.store import making

    written(store)
    (store.root / "making" / "left").mkdir()
    with making(store.root / "making") as folder:
        assert sweep(store.root / "making") == 1
        assert list((store.root / "making").iterdir()) == [folder]
    assert list((store.root / "making").iterdir()) == []


def test_side_files(store):
    name, _ = entry()
    assert store.write_side(name, "verification-x", b"right")[0].code is ReasonCode.CACHE_FOLDER
    written(store)
    assert store.read_side(name, "verification-x") is None
    assert store.write_side(name, "verification-x", b"right") == ()
    assert store.write_side(name, "verification-x", b"right again") == ()
    assert store.read_side(name, "verification-x") == b"right again"
    path = store.path(name) / "side" / "verification-x"
    path.write_bytes(path.read_bytes()[:-1] + b"N")
    assert store.read_side(name, "verification-x") is None
    assert store.read(*entry()).data == DATA
    assert store.drop(name) and store.read_side(name, "verification-x") is None
    names = {side_name("verification", {"runtime": r, "cpu": "x"}) for r in ("1", "2", "1")}
    assert len(names) == 2 and all(n.startswith("verification-") for n in names)


def test_memos(store):
    assert store.read_memo("m") is None
    assert store.write_memo("m", b"{}") == () and store.read_memo("m") == b"{}"


def test_memos_count(tmp_path):
    """They go when the entries are gone, or when they are too many."""
    store = CacheStore(tmp_path, 3 * 80_000, Clock())
    first, _ = written(store, 0), written(store, 1)
    store.write_memo("m", bytes(110_000))
    third = written(store, 2)
    assert [e.name for e in store.entries()] == [third[0]], "three and a memo are too much"
    assert store.read_memo("m") and code_of(store.read(*first)) is ReasonCode.CACHE_MISS
    assert store.evict(100_000, keep=third[0]) == 0 and store.read_memo("m") is None
    assert store.read(*third).data == DATA
    for number in range(4):
        store.write_memo(f"m{number}", b"x")
    assert store.evict() == 0 and store.read_memo("m3") == b"x"


# Verification records beside the entries of the cache: a warm start does not compare again.
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
    """The demands of a verification record on a device."""

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
