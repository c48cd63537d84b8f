""""""

import random
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from modules import add_artifact, add_program, add_text, host_target, ramp, with_manifest

from pyc_mlir.artifact import artifact
from pyc_mlir.artifact.manifest import EntryPoint
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Site
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.runtime.load import Device, load
from pyc_mlir.util.checksum import checksum

DECISION = Decision(
    Site("pyc-fuse", "add.1"), "fuse", (Alternative("fuse", Cost(1e-6), "é"),), "heuristic"
)


def full_artifact():
    return replace(add_artifact(), decisions=(DECISION, DECISION), module=bytes(range(256)))


def test_source_locations_stay_on_the_machine_that_compiled():
    placed = replace(DECISION, site=replace(DECISION.site, location="/home/m.py:3"))
    data = artifact.to_bytes(replace(add_artifact(), decisions=(placed,)))
    assert b"/home" not in data and artifact.from_bytes(data).decisions == (DECISION,)


def test_round_trip(tmp_path):
    path = tmp_path / "add.vmfb"
    artifact.write(full_artifact(), path)
    back = artifact.read(path)
    assert back == full_artifact()
    assert artifact.to_bytes(back) == path.read_bytes()


def test_bytes_are_deterministic_and_free_of_paths_and_times(tmp_path):
    data = artifact.to_bytes(full_artifact())
    assert data == artifact.to_bytes(full_artifact())
    assert str(tmp_path.anchor + "home").encode() not in data and b"/work" not in data
    (tmp_path / "x").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "x") as archive:
        assert {i.date_time[0] for i in archive.infolist()} == {1980}
        assert archive.testzip() is None


def test_iree_run_module_runs_main_unchanged(tmp_path):
    path = tmp_path / "add.vmfb"
    artifact.write(full_artifact(), path)
    tool = Path(sys.executable).with_name("iree-run-module")
    run = subprocess.run(
        [
            *(tool, f"--module={path}", "--device=local-sync", "--function=main"),
            *("--input=4xf32=1,2,3,4", "--input=4xf32=10,10,10,10"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "4xf32=11 12 13 14" in run.stdout


def test_whole_file_loads_as_a_module_and_runs():
    device = Device("local-sync")
    executable = Executable(artifact.to_bytes(full_artifact()), device)
    entry = executable.entry("main", [ResultType(np.dtype(np.float32), (4,))])
    (result,) = entry([to_device(ramp(4), device), to_device(ramp(4), device)])
    np.testing.assert_array_equal(np.asarray(result), 2 * ramp(4))


def test_save_and_load(tmp_path):
    path = tmp_path / "add.vmfb"
    add_program().save(path)
    np.testing.assert_array_equal(load(path)(ramp(4), ramp(4)), 2 * ramp(4))
    again = tmp_path / "again.vmfb"
    load(path, Device("local-sync")).save(again)
    assert again.read_bytes() == path.read_bytes()


def test_damaged_files_are_refused():
    data = artifact.to_bytes(full_artifact())
    rng = random.Random(0)
    cases = [b"", b"PK", data[:100], data[:-1], data[: len(data) // 2], rng.randbytes(500)]
    for _ in range(300):
        at = rng.randrange(len(data))
        cases.append(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
    for case in cases:
        try:
            read = artifact.from_bytes(case)
        except PycError as error:
            assert error.code is ReasonCode.BAD_ARTIFACT
        else:
            # A bit that no reader looks at, such as a date: what was read is whole.
            assert read == full_artifact()


def test_plain_vmfb_is_not_an_artifact():
    with pytest.raises(PycError, match=r"^x: .*one without pyc/decisions.jsonl"):
        artifact.from_bytes(add_artifact().vmfb, "x")
    with pytest.raises(PycError, match="no-such-file: expected a program, got: No such file"):
        artifact.read("no-such-file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 1}, "manifest.schema: expected 8, got 1"),
        ({"device": None}, "manifest.device: expected 'local' or 'cuda'"),
        ({"entries": {}}, "the function of `main`"),
        ({"entries": {"main": {}}}, "manifest.entries.main.function: expected a value, got none"),
        ({"signature": {"inputs": []}}, "manifest.signature.outputs: expected a value"),
        ({"imported": {"total": 1}}, "manifest.imported.counted: expected a value"),
        (
            {"signature": {"inputs": [{"name": "a", "dtype": "f7", "shape": []}], "outputs": []}},
            "f7",
        ),
    ],
)
def test_malformed_manifests(change, message):
    good = full_artifact()
    bad = with_manifest(artifact.to_bytes(good), change)
    with pytest.raises(PycError, match=message) as caught:
        artifact.from_bytes(bad)
    assert caught.value.code is ReasonCode.BAD_ARTIFACT


def test_only_ireees_own_archive_can_be_extended():
    flat = compile_module(add_text(), host_target(), ["--iree-vm-emit-polyglot-zip=false"])
    with pytest.raises(PycError, match="ZIP archive"):
        artifact.to_bytes(replace(add_artifact(), vmfb=flat))
    with pytest.raises(PycError, match="read it first"):
        artifact.to_bytes(replace(add_artifact(), vmfb=artifact.to_bytes(add_artifact())))


def test_manifest_has_what_a_reader_needs():
    manifest = add_artifact().manifest
    assert manifest.schema == 8 and manifest.target == "cpu" and manifest.device == "local"
    assert manifest.entries == {"main": EntryPoint("main")}
    data = to_data(manifest)
    assert data["schema"] == 8 and data["entries"]["main"]["function"] == "main"
    assert data["signature"]["inputs"][0] == {"name": "a", "dtype": "f32", "shape": [4]}
    assert {"iree-base-runtime", "numpy", "ml_dtypes"} <= manifest.versions.keys()


def test_versions_are_those_of_the_packages():
    versions = artifact.installed_versions()
    assert "numpy" in versions and "pyc-mlir" in versions
    assert versions == {name: metadata.version(name) for name in versions}


PAGE = 4096
SIZES = (0, 1, 8, PAGE - 1, PAGE, PAGE + 1, 256 * PAGE, 257 * PAGE + 3)
DATA = np.random.default_rng(7).integers(0, 256, 513 * PAGE + 5, dtype=np.uint8)


def of(data: np.ndarray) -> str:
    return checksum(data.tobytes())


def test_sizes_and_kinds_of_data():
    sums = {of(DATA[:n]) for n in SIZES}
    assert len(sums) == len(SIZES)
    zeros = {checksum(bytes(n)) for n in SIZES}
    assert len(zeros) == len(SIZES) and len(sums & zeros) == 1
    assert checksum(DATA.data) == of(DATA)


def test_one_bit_anywhere():
    draw = np.random.default_rng(8)
    data, whole = DATA.copy(), of(DATA)
    for place in (0, PAGE - 1, PAGE, len(data) - 1, *draw.integers(0, len(data), 100)):
        data[place] ^= 1 << int(draw.integers(8))
        assert of(data) != whole
        data[place] = DATA[place]
    assert of(data) == whole


@pytest.mark.parametrize("first, count", [(0, PAGE), (3 * PAGE, PAGE), (5 * PAGE, 8 * PAGE)])
def test_damage_of_whole_pages(first, count):
    """Pages that were lost, shifted, or written where others belong."""
    changed = DATA.copy()
    changed[first : first + count] = 0
    assert of(changed) != of(DATA)
    changed[first : first + count] = np.roll(DATA[first : first + count], 8)
    assert of(changed) != of(DATA)
    changed[:] = DATA
    other = 200 * PAGE
    changed[first : first + count] = DATA[other : other + count]
    changed[other : other + count] = DATA[first : first + count]
    assert of(changed) != of(DATA)
