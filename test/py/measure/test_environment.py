"""The three hashes of an environment: what moves each, and what moves none."""

from dataclasses import replace
from pathlib import Path

import pytest

from pyc_mlir.measure import environment, hardware
from pyc_mlir.measure.environment import COMPILING_PACKAGES, Environments, current_place
from pyc_mlir.measure.hardware import Gpu, machine_id, parse_nvidia, parse_vulkan, sniff
from pyc_mlir.pipelines.kernels import registry
from pyc_mlir.util.checksum import canonical, digest
from pyc_mlir.util.versions import installed_version

CPUINFO = """processor\t: 0
model name\t: Some CPU
cpu family\t: 6
model\t: 85
flags\t\t: fpu avx2 fma avx512f hypervisor

"""
FILES = {
    "proc/cpuinfo": CPUINFO,
    "proc/meminfo": "MemTotal:       16000000 kB\n",
    "sys/class/dmi/id/sys_vendor": "ACME\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu0/cache/index0/level": "1\n",
    "sys/devices/system/cpu/cpu0/cache/index0/type": "Data\n",
    "sys/devices/system/cpu/cpu0/cache/index0/size": "32K\n",
    "sys/devices/system/cpu/cpu0/cache/index2/level": "2\n",
    "sys/devices/system/cpu/cpu0/cache/index2/type": "Unified\n",
    "sys/devices/system/cpu/cpu0/cache/index2/size": "1024K\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "etc/machine-id": "0123456789abcdef\n",
}


@pytest.fixture
def machine(tmp_path):
    """A machine as files; calling it with a name and a text makes another one."""
    made = 0

    def with_file(name: str = "", text: str = "") -> Path:
        nonlocal made
        made += 1
        root = tmp_path / str(made)
        for path, content in {**FILES, **({name: text} if name else {})}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        return root

    return with_file


def test_a_machine_is_read(machine):
    found = sniff(machine())
    assert found.cpu == "Some CPU 6 85" and found.features == ("avx2", "avx512f", "fma")
    assert found.caches == ("L1 Data 32 KiB", "L2 1024 KiB")
    assert (found.memory_gib, found.hypervisor, found.governor) == (15, "ACME", "powersave")
    place = current_place(root=machine())
    assert place.context_facts["pages"] == "madvise" and place.context_facts["cpu_quota"] == "1.5"


def test_a_machine_that_tells_nothing(tmp_path):
    found = sniff(tmp_path)
    assert found == replace(
        found, cpu="", features=(), caches=(), memory_gib=0, hypervisor="", governor=""
    )
    assert current_place(root=tmp_path).id


MOVED = {
    "hardware": [
        ("proc/cpuinfo", CPUINFO.replace("Some", "Other")),
        ("proc/cpuinfo", CPUINFO.replace("avx512f ", "")),
        ("proc/cpuinfo", CPUINFO.replace(" hypervisor", "")),
        ("proc/meminfo", "MemTotal:       32000000 kB\n"),
        ("sys/class/dmi/id/sys_vendor", "Other\n"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
        ("sys/devices/system/cpu/cpu0/cache/index2/size", "2048K\n"),
    ],
    "context": [
        ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
        ("sys/fs/cgroup/cpu.max", "max 100000\n"),
    ],
    "machine": [("etc/machine-id", "other\n")],
}
CASES = [(part, *change) for part, changes in MOVED.items() for change in changes]


@pytest.mark.parametrize(("part", "name", "text"), CASES)
def test_a_fact_moves_its_own_hash_only(part, name, text, machine):
    before, after = current_place(root=machine()), current_place(root=machine(name, text))
    parts = ("hardware", "toolchain", "context", "machine")
    assert [p for p in parts if getattr(before, p) != getattr(after, p)] == [part]
    assert before.id != after.id
    if part != "machine":
        assert [d.partition(".")[0] for d in before.differences(after)] == [part]


def test_how_a_program_runs_is_context(machine):
    root = machine()
    base = current_place(root=root)
    for other in (
        current_place(threads=2, root=root),
        current_place(device="local-task", root=root),
        current_place(allocator="caching", root=root),
    ):
        assert other.context != base.context
        assert (other.hardware, other.toolchain) == (base.hardware, base.toolchain)
    assert current_place(flags=("-O3",), root=root).toolchain != base.toolchain


def of_package(monkeypatch, package: str) -> None:
    """Have another version of a package be installed."""
    real = installed_version
    monkeypatch.setattr(
        environment, "installed_version", lambda name: "99" if name == package else real(name)
    )


@pytest.mark.parametrize("package", ["onnx", "torch", "jax", "openvino", "numpy"])
def test_packages_that_make_no_code_move_nothing(package, machine, monkeypatch):
    before = current_place(root=machine())
    of_package(monkeypatch, package)
    assert current_place(root=machine()).id == before.id


@pytest.mark.parametrize("package", COMPILING_PACKAGES)
def test_packages_that_make_code_move_the_toolchain(package, machine, monkeypatch):
    before = current_place(root=machine())
    of_package(monkeypatch, package)
    after = current_place(root=machine())
    assert after.toolchain != before.toolchain and after.hardware == before.hardware


def test_the_source_of_kernels_is_in_the_toolchain_and_this_folder_is_not(tmp_path, monkeypatch):
    names = {name for name, _, _ in environment._compiling()}
    assert any(name.endswith("kernels/families/gemm.py") for name in names)
    for folder in ("evidence", "tune", "tools"):
        assert not any(f"/{folder}/" in name for name in names)


def test_the_group_of_kernel_families_is_the_registry_s():
    assert environment.FAMILIES_GROUP == registry.ENTRY_POINT_GROUP


def test_facts_travel_as_json(machine):
    place = current_place(root=machine())
    again = Environments.from_facts(place.facts(), place.machine)
    assert again.id == place.id and again.differences(place) == []
    assert canonical({"b": 1, "a": (2.5,)}) == '{"a":[2.5],"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(float("nan"))


def test_machine_ids_are_salted(machine, tmp_path):
    found = machine_id(machine())
    assert len(found) == 16 and found not in FILES["etc/machine-id"]
    assert machine_id(machine()) == found
    assert machine_id(tmp_path, "a") != machine_id(tmp_path, "b")


def test_gpus_by_the_tools_of_their_makers():
    assert parse_nvidia("NVIDIA H200, 143771 MiB, 570.86\nodd line\n") == (
        Gpu("NVIDIA H200", "570.86", 143771),
    )
    reported = """Devices:
========
GPU0:
\tapiVersion         = 1.3.255
\tdeviceType         = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
\tdeviceName         = AMD Radeon
\tdriverName         = radv
\tdriverInfo         = Mesa 23.1
GPU1:
\tdeviceType         = PHYSICAL_DEVICE_TYPE_CPU
\tdeviceName         = llvmpipe
"""
    assert parse_vulkan(reported) == (Gpu("AMD Radeon", "radv Mesa 23.1"),)


def test_gpus_count_for_devices_that_are_no_cpu(machine, monkeypatch):
    monkeypatch.setattr(hardware, "_said", lambda command: "H200, 100 MiB, 1\n")
    root = machine()
    cpu, gpu = current_place(root=root), current_place(device="cuda", root=root)
    assert cpu.hardware_facts["gpus"] == []
    assert [g["name"] for g in gpu.hardware_facts["gpus"]] == ["H200"]
    assert cpu.hardware != gpu.hardware
