"""pyc-doctor: each check on machines that have and lack what it asks for, and on this one."""

import json
import sys
from dataclasses import replace

import pytest

from pyc_mlir.iree import inventory
from pyc_mlir.iree.inventory import Driver, compiler_targets, query, reason, runtime_drivers
from pyc_mlir.measure.environment import Environment, Environments
from pyc_mlir.tools import pyc_doctor
from pyc_mlir.tools.doctor.checks import (
    CHECKS,
    CheckFinding,
    diagnose,
    is_healthy,
    to_json,
    to_text,
)
from pyc_mlir.tools.doctor.machine import TARGETS, Machine, examine, read_pins
from pyc_mlir.util import children

ENVIRONMENT = Environment(
    cpu="Test CPU",
    cores=8,
    features=("avx", "avx2"),
    memory_gib=16,
    accelerators=("NVIDIA H200, driver 570.1",),
    system="Linux x86_64",
    python="CPython 3.11.7",
    packages={},
    version="0.1.0",
    commit=None,
    modified=False,
)
HARDWARE = {
    "cores": 8,
    "caches": ["L2 1024 KiB"],
    "hypervisor": "ACME",
    "governor": "powersave",
    "gpus": [{"name": "NVIDIA H200", "driver": "570.1", "memory_mib": 143771}],
}
PLACE = Environments(HARDWARE, {"source": "0"}, {"threads": 1}, "0123456789abcdef")
PINS = {"iree-base-runtime": "2", "numpy": "3"}
EXTRA_PINS = {"torch-mlir": "1", "iree-base-compiler": "2", "onnx": "4"}
VERSIONS = {**PINS, **EXTRA_PINS}
DRIVERS = (
    Driver("cuda", ("NVIDIA H200",)),
    Driver("local-sync", ("default",)),
    Driver("local-task", ("default",)),
    Driver("vulkan", ("NVIDIA H200",)),
)
FULL = Machine(
    environment=ENVIRONMENT,
    place=PLACE,
    pins=PINS,
    extra_pins=EXTRA_PINS,
    versions=VERSIONS,
    targets=("cuda", "llvm-cpu", "vulkan-spirv"),
    drivers=DRIVERS,
    free_bytes=50 << 30,
)


def without(*names: str) -> dict[str, str]:
    return {n: v for n, v in FULL.versions.items() if n not in names}


def with_driver(driver: Driver) -> tuple[Driver, ...]:
    return tuple(driver if d.name == driver.name else d for d in DRIVERS)


def finding(machine: Machine, name: str) -> CheckFinding:
    return next(f for f in diagnose(machine) if f.name == name)


def test_a_full_machine_has_nothing_to_fix():
    findings = diagnose(FULL)
    assert [f.status for f in findings] == ["ok"] * len(CHECKS)
    assert is_healthy(findings)
    assert FULL.compiles_for == FULL.runs == ["cpu", "cuda", "vulkan"]


BROKEN = [
    ("installation", "fail", {"pins": {}}, "pip install ."),
    ("runtime packages", "fail", {"versions": without("numpy")}, "pip install numpy==3"),
    ("runtime packages", "fail", {"versions": {**VERSIONS, "numpy": "9"}}, "pip install numpy==3"),
    ("compiler packages", "fail", {"versions": {**VERSIONS, "torch-mlir": "9"}}, "torch-mlir==1"),
    ("compiler", "warn", {"versions": without("torch-mlir")}, "pip install torch-mlir==1"),
    ("compiler", "warn", {"targets": ("llvm-cpu",)}, "cuda, vulkan-spirv"),
    ("optional packages", "warn", {"versions": {**VERSIONS, "onnx": "9"}}, "pip install onnx==4"),
    ("onnx", "warn", {"versions": without("onnx")}, "pip install '.[onnx]' in PyC's checkout"),
    ("disk", "warn", {"free_bytes": 1 << 20}, "TMPDIR"),
    ("cpu devices", "fail", {"drivers": with_driver(Driver("local-task"))}, "iree-base-runtime"),
    ("cpu devices", "fail", {"drivers": ()}, "iree-base-runtime==2"),
    ("cuda device", "warn", {"drivers": with_driver(Driver("cuda", (), "no"))}, "libcuda.so"),
    ("vulkan device", "warn", {"drivers": with_driver(Driver("vulkan"))}, "make lavapipe"),
    ("system", "warn", {"environment": replace(ENVIRONMENT, system="Darwin arm64")}, "Linux"),
    ("cores", "warn", {"environment": replace(ENVIRONMENT, cores=1)}, "second core"),
    ("threads", "warn", {"asked": "two"}, "unset PYC_THREADS"),
    ("threads", "warn", {"asked": "9"}, "a number from 1 to 8"),
    ("vector width", "warn", {"environment": replace(ENVIRONMENT, features=())}, "AVX2"),
    ("memory", "warn", {"environment": replace(ENVIRONMENT, memory_gib=2)}, "4 GiB"),
]


@pytest.mark.parametrize(("name", "status", "change", "fix"), BROKEN)
def test_each_problem_has_its_fix(name, status, change, fix):
    machine = replace(FULL, **change)
    found = finding(machine, name)
    assert found.status == status and fix in found.fix
    assert is_healthy(diagnose(machine)) == (status != "fail")


def test_every_check_is_shown_failing():
    assert set(CHECKS) == {name for name, *_ in BROKEN}


@pytest.mark.parametrize(
    ("asked", "quota", "threads"), [("", "", 8), ("3", "", 3), ("", "2.5", 2), ("", "0.5", 1)]
)
def test_threads_have_their_reason(asked, quota, threads):
    place = replace(PLACE, context_facts={"cpu_quota": quota})
    found = finding(replace(FULL, asked=asked, place=place), "threads")
    assert found.found == (
        f"{threads} a call: affinity to 8 cores, CPU quota {quota or 'none'}, "
        f"PYC_THREADS {asked or 'unset'}"
    )


def test_a_machine_without_gpu_is_told_that_compiling_still_works():
    machine = replace(
        FULL,
        environment=replace(ENVIRONMENT, accelerators=()),
        drivers=with_driver(Driver("cuda", (), "no libcuda")),
    )
    found = finding(machine, "cuda device")
    assert found.found == "no libcuda" and "compiling them needs neither" in found.fix
    assert machine.runs == ["cpu", "vulkan"] and "cuda" in machine.compiles_for


def test_a_deployment_without_compilers_is_healthy():
    machine = replace(FULL, versions=without("torch-mlir", "iree-base-compiler"), targets=())
    assert is_healthy(diagnose(machine))
    assert machine.compiles_for == [] and machine.runs == list(TARGETS)


def test_text_and_json_say_the_same():
    machine = replace(FULL, versions=without("onnx"))
    findings = diagnose(machine)
    text, data = to_text(machine, findings), to_json(machine, findings)
    assert json.loads(json.dumps(data)) == data and data["healthy"]
    assert "fix: pip install '.[onnx]'" in text
    assert "runs:         cpu, cuda, vulkan\n" in text
    assert [c["name"] for c in data["checks"]] == list(CHECKS)


def test_this_machine(capsys):
    assert pyc_doctor.main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["compiles_for"] == ["cpu", "cuda", "vulkan"] and "cpu" in data["runs"]
    assert all(bool(c["fix"]) == (c["status"] != "ok") for c in data["checks"])


def test_pins_come_from_the_installed_metadata():
    pins, extra_pins = read_pins()
    assert set(pins) == {"iree-base-runtime"}
    assert {"torch-mlir", "iree-base-compiler", "onnx"} <= set(extra_pins)
    assert not {"pytest", "numpy"} & set(extra_pins)


def test_a_local_build_of_the_pinned_version_is_that_version():
    machine = replace(FULL, versions={**VERSIONS, "onnx": "4+cpu"})
    assert finding(machine, "optional packages").status == "ok"


def test_the_installed_compilers_are_found():
    found = finding(examine(), "compiler packages")
    assert "torch-mlir" in found.found and "iree-base-compiler" in found.found


def test_inventory_of_this_machine():
    assert {end for end, _ in TARGETS.values()} <= set(compiler_targets())
    drivers = {d.name: d for d in runtime_drivers()}
    assert {"local-sync", "local-task", "cuda", "vulkan"} <= set(drivers)
    assert drivers["local-sync"] == query("local-sync")
    assert all(bool(d.devices) != bool(d.problem) for d in drivers.values())


def test_a_driver_that_crashes_or_hangs_is_an_answer(monkeypatch):
    program = "import os; os.abort()"
    real_run = children.run
    monkeypatch.setattr(
        children, "run", lambda _, **limits: real_run([sys.executable, "-c", program], **limits)
    )
    assert "ended its process (status -6)" in inventory.ask("cuda").problem
    program = "import time; time.sleep(60)"
    monkeypatch.setattr(inventory, "QUERY_SECONDS", 0.2)
    assert "did not answer" in inventory.ask("cuda").problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Error creating driver: a/b.c:66: UNAVAILABLE; no libcuda; please install", "no libcuda"),
        ("x.c:1: UNAVAILABLE; HIP not here: please ensure\n  Tried: a", "HIP not here"),
        ("one line", "one line"),
        ("", "no reason given"),
    ],
)
def test_reasons_are_readable(text, expected):
    assert reason(text) == expected


def test_what_evidence_is_keyed_by_is_shown():
    text = to_text(FULL, diagnose(FULL))
    shown = text[text.index("evidence is keyed by") :].splitlines()[1:]
    assert [line.split()[0] for line in shown] == ["hardware", "toolchain", "context", "machine"]
    assert shown[0].endswith(
        "8 cores, L2 1024 KiB, virtual (ACME), governor powersave, "
        "NVIDIA H200 143771 MiB, driver 570.1"
    )
    assert to_json(FULL, [])["evidence"]["toolchain"] == {"source": "0"}
    assert to_json(FULL, [])["evidence"]["keys"]["machine"] == PLACE.machine
