"""Programs and devices that are not this machine's: each is refused with its code and a remedy.

A release of IREE's runtime that accepts a program of another one is no refusal, but is told.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from modules import with_manifest
from pythons import python

import pyc_mlir
from pyc_mlir import Contract, Device, Program, PycError, ReasonCode
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact, to_bytes, write
from pyc_mlir.compilation.options import make_options
from pyc_mlir.pipelines.target.cpu_features import LINUX_NAMES, used_in_code
from pyc_mlir.pipelines.target.target import TARGETS, CpuInfo
from pyc_mlir.runtime.device import host_cpu
from pyc_mlir.runtime.executable import other_runtime
from pyc_mlir.tools import pyc_run

X = np.ones((4, 4), np.float32)
SYNC = Device("local-sync")
LIBRARIES = ("libcuda.so", "libcuda.so.1", "libvulkan.so", "libvulkan.so.1", "libamdhip64.so")
MAKE_DEVICE = "import sys, pyc_mlir; pyc_mlir.Device(sys.argv[1])"
RUN = "import sys; from pyc_mlir.tools.pyc_run import main; sys.exit(main(sys.argv[1:]))"
# The field of IREE's bytecode modules (bytecode_module_def.fbs) with 65536 * major + minor.
BYTECODE_VERSION = 13
# Features of LLVM's list that no generated code uses by itself: the system's and intrinsics'.
NOT_IN_CODE = {
    *("64bit", "clflushopt", "clwb", "clzero", "cldemote", "cmov", "crc32", "cx8", "enqcmd"),
    *("fsgsbase", "fxsr", "hreset", "invpcid", "kl", "lwp", "mmx", "mwaitx", "pconfig", "pku"),
    *("prefetchi", "prfchw", "ptwrite", "rdpid", "rdpru", "rdrnd", "rdseed", "rtm", "serialize"),
    *("sgx", "shstk", "sse", "sse2", "tsxldtrk", "uintr", "usermsr", "waitpkg", "wbnoinvd"),
    *("widekl", "x87", "xsave", "xsavec", "xsaveopt", "xsaves"),
    # The features of AVX-512 under one name; each is in the list by itself.
    "avx10.1",
}


def plus_one(x):
    return x + 1


def refusal(artifact: Artifact) -> PycError:
    with pytest.raises(PycError) as caught:
        Program(artifact, SYNC)
    return caught.value


@pytest.fixture(scope="module")
def made() -> Artifact:
    return build(plus_one, [X], make_options(kernels="iree", planner_mode="iree"))


# Drivers.
def without_drivers(folder: Path) -> dict[str, str]:
    """An environment in which no GPU's library can be loaded, installed or not."""
    for name in LIBRARIES:
        (folder / name).write_text("no library")
    return {"LD_LIBRARY_PATH": str(folder), "PATH": "/usr/bin:/bin"}


def refused(environment: dict[str, str], code: str, *arguments: str) -> str:
    """The last line that a process says which a missing device ends."""
    done = python("-c", code, *arguments, env=environment)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("[DEVICE_UNAVAILABLE]")
    return last


@pytest.mark.parametrize("kind", ["cuda", "vulkan", "hip"])
def test_no_driver(tmp_path, kind):
    reported = refused(without_drivers(tmp_path), MAKE_DEVICE, kind)
    assert "install " in reported and "`local`" in reported


def test_a_vulkan_loader_without_drivers():
    """Where there is no loader either, the answer is the same."""
    none = {"VK_DRIVER_FILES": "/none.json", "VK_ICD_FILENAMES": "/none.json", "PATH": "/usr/bin"}
    assert "mesa-vulkan-drivers" in refused(none, MAKE_DEVICE, "vulkan")


def test_the_command_line_without_a_driver(tmp_path):
    """A program for CUDA is compiled here, and refused where it is run."""
    program = tmp_path / "x.vmfb"
    write(build(plus_one, [X], make_options(target="cuda")), program)
    reported = refused(without_drivers(tmp_path), RUN, str(program), "--input", "4x4xf32=1")
    assert reported.startswith("pyc-run: ")


# Devices and CPUs.
@pytest.mark.parametrize("target", ["cuda", "vulkan"])
def test_a_program_for_a_gpu_on_a_cpu(target):
    error = refusal(build(plus_one, [X], make_options(target=target)))
    assert error.code is ReasonCode.DEVICE_UNAVAILABLE
    assert f"device of kind `{target}`" in error.message


def test_a_program_for_another_kind_of_cpu():
    error = refusal(build(plus_one, [X], make_options(target="cpu-neon")))
    assert error.code is ReasonCode.DEVICE_UNAVAILABLE and "without asimd" in error.message


def test_what_the_manifest_hides_ireees_loader_finds():
    """Code for another architecture under a manifest that needs nothing."""
    other = build(plus_one, [X], make_options(target="cpu-neon"))
    error = refusal(other.noted(features=()))
    assert error.code is ReasonCode.BAD_ARTIFACT


def lacking(monkeypatch, *features: str) -> None:
    """As if this machine's CPU had less."""
    cpu = host_cpu()
    assert cpu is not None
    less = replace(cpu, features=cpu.features - set(features))
    monkeypatch.setattr("pyc_mlir.runtime.executable.host_cpu", lambda: less)


def test_a_cpu_that_lacks_any_one_feature(made, monkeypatch):
    """The first instruction of the kind would end the process."""
    needed = made.manifest.features
    assert needed
    for feature in needed:
        lacking(monkeypatch, feature)
        error = refusal(made)
        assert error.code is ReasonCode.DEVICE_UNAVAILABLE
        assert f"without {feature}; compile for" in error.message
    lacking(monkeypatch, "hypervisor", "fsgsbase")
    np.testing.assert_array_equal(Program(made, SYNC)(X), X + 1)


def test_a_level_needs_no_more_than_its_own(monkeypatch):
    cpu = host_cpu()
    if cpu is None or not TARGETS["cpu-avx2"].features <= cpu.features:
        pytest.skip("no AVX2 here")
    artifact = build(plus_one, [X], make_options(target="cpu-avx2"))
    lacking(monkeypatch, *(cpu.features - TARGETS["cpu-avx2"].features))
    np.testing.assert_array_equal(Program(artifact, SYNC)(X), X + 1)


def features_of_code(folder: Path) -> set[str]:
    """LLVM's names of the features that IREE compiled for, by its own dump."""
    texts = (p.read_text() for p in folder.rglob("*executable-targets*"))
    lists = [found[1] for t in texts for found in re.finditer(r'cpu_features = "([^"]*)"', t)]
    assert lists
    return {f[1:] for text in lists for f in text.split(",") if f.startswith("+")}


def test_the_manifest_names_all_that_llvm_may_use_of_the_host(tmp_path):
    artifact = build(plus_one, [X], make_options(dump_phases=tmp_path))
    used = features_of_code(tmp_path)
    assert used - LINUX_NAMES.keys() - NOT_IN_CODE == set(), "name them in cpu_features.py"
    cpu = host_cpu()
    assert cpu is not None
    named = {LINUX_NAMES[f] for f in used & LINUX_NAMES.keys()} & cpu.features
    assert named <= set(artifact.manifest.features)


def test_a_host_target_needs_what_its_cpu_has():
    cpu = CpuInfo(frozenset({"avx2", "fma", "avx512_vnni", "hypervisor"}), 2)
    target = TARGETS["cpu"].on(cpu)
    assert target.features == {"avx2", "fma"} and target.needs == {"avx2", "fma", "avx512_vnni"}
    assert TARGETS["cpu-avx2"].on(cpu).needs == TARGETS["cpu-avx2"].features
    assert used_in_code(["sve", "hypervisor"]) == {"sve"}


@pytest.mark.parametrize("flag", ["cpu=native", "cpu-features=+avx512vnni"])
def test_no_flag_changes_what_a_program_needs(flag):
    with pytest.raises(PycError, match="name the CPU by `target`") as caught:
        make_options(iree_flags=[f"--iree-llvmcpu-target-{flag}"])
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


# Releases.
def with_bytecode_version(vmfb: bytes, change: int) -> bytes:
    """The program as if another release of IREE had made it: its bytecode's version moved.

    The root of the flatbuffer is a table whose field is found through its own table of offsets.
    """
    root = vmfb.index(b"IREE") - 4
    table = root + struct.unpack_from("<I", vmfb, root)[0]
    fields = table - struct.unpack_from("<i", vmfb, table)[0] + 4
    place = table + struct.unpack_from("<H", vmfb, fields + 2 * BYTECODE_VERSION)[0]
    version = struct.unpack_from("<I", vmfb, place)[0] + change
    return vmfb[:place] + struct.pack("<I", version) + vmfb[place + 4 :]


@pytest.mark.parametrize("change", [-1 << 16, 1 << 16, 1])
def test_bytecode_of_another_release(made, change):
    """Another major version, and a newer minor one."""
    other = with_bytecode_version(bytes(made.vmfb), change)
    versions = {**made.manifest.versions, "iree-base-runtime": "99.0"}
    error = refusal(replace(made.noted(versions=versions), vmfb=other))
    assert error.code is ReasonCode.BAD_ARTIFACT and "bytecode version" in error.message
    assert "compiled for iree-base-runtime 99.0, this is " in error.message
    error = refusal(replace(made, vmfb=other))
    assert error.code is ReasonCode.BAD_ARTIFACT and "99.0" not in error.message


@pytest.fixture
def elsewhere(monkeypatch) -> Iterator[str]:
    """As if another release of the runtime were installed here, which takes the same bytecode."""
    monkeypatch.setattr("pyc_mlir.runtime.executable.runtime_version", lambda: "99.0")
    yield "this is 99.0"


def test_a_release_that_accepts_the_program_is_told(made, elsewhere, tmp_path, capsys):
    program = Program(made, SYNC)
    np.testing.assert_array_equal(program(X), X + 1)
    assert program.stats().other_runtime.endswith(elsewhere)
    (reported,) = [d for d in program.log() if d.site.op_id == "release"]
    assert reported.chosen == "loaded" and [a.name for a in reported.alternatives] == [
        "loaded",
        "refused",
    ]
    assert str(reported.reasons[0]).startswith("RUNTIME_DIFFERS: compiled for iree-base-runtime ")
    program.save(tmp_path / "x.vmfb")
    flags = ["--input", "4x4xf32=1", "--stats", "--log", str(tmp_path / "log")]
    assert pyc_run.main([str(tmp_path / "x.vmfb"), *flags]) == 0
    assert elsewhere in capsys.readouterr().out
    assert "RUNTIME_DIFFERS" in (tmp_path / "log").read_text()


def test_equal_bits_are_promised_for_equal_versions(monkeypatch):
    contract = Contract(determinism="strict")
    artifact = build(plus_one, [X], make_options(contract=contract))
    assert Program(artifact, SYNC).stats().contract["determinism"].code == ""
    monkeypatch.setattr("pyc_mlir.runtime.executable.runtime_version", lambda: "99.0")
    reported = Program(artifact, SYNC).stats().contract["determinism"]
    assert reported.code == "RUNTIME_DIFFERS" and str(reported.evidence[-1]).endswith(
        "this is 99.0"
    )


def test_the_same_release_is_not_told(made):
    program = Program(made, SYNC)
    assert program.stats().other_runtime == ""
    assert not [d for d in program.log() if d.site.op_id == "release"]


def test_versions_of_manifests():
    here = other_runtime({})
    assert here.startswith("compiled for iree-base-runtime unknown, this is ")
    release = here.rpartition(" ")[2]
    assert other_runtime({"iree-base-compiler": release}) == ""
    assert other_runtime({"iree-base-compiler": "1", "iree-base-runtime": release}) == ""
    for odd in (None, [], ["x" * 999], {}, 1 << 70, float("nan")):
        assert len(other_runtime({"iree-base-runtime": odd})) < 120


def test_an_artifact_of_another_schema(made, tmp_path):
    (tmp_path / "x.vmfb").write_bytes(with_manifest(to_bytes(made), {"schema": 3}))
    with pytest.raises(PycError, match=r"manifest.schema: expected 8, got 3; compile") as caught:
        pyc_mlir.load(tmp_path / "x.vmfb")
    assert caught.value.code is ReasonCode.BAD_ARTIFACT
