"""Checks of what this machine can compile for and run on, with a remedy for each problem.

`CHECKS` is a table of named questions about a `Machine`; `diagnose` answers them in order. A
check is ``ok``, ``warn`` (something optional is missing) or ``fail`` (PyC does not work); every
answer but ``ok`` comes with its fix. The same machine gives the same answers. No C compiler or
linker is asked for: PyC needs none.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.measure.environment import PROJECT, Environments
from pyc_mlir.pipelines.target.target import CpuInfo
from pyc_mlir.runtime.pool import usable_threads
from pyc_mlir.tools.doctor.machine import TARGETS, Machine

SCHEMA_VERSION = 1
GIB = 2**30
COMPILE_PACKAGES = ("torch-mlir", "iree-base-compiler")
LEAST_MEMORY_GIB = 4


@dataclass(frozen=True)
class CheckResult:
    """The finding of a check; `fix` is the remedy, empty when nothing is wrong."""

    found: str
    fix: str = ""


@dataclass(frozen=True)
class CheckFinding:
    """The answer to one check."""

    name: str
    status: str
    found: str
    fix: str


Ask = Callable[[Machine], CheckResult]
# By name: whether PyC does not work where it finds a problem, and how it is found.
CHECKS: dict[str, tuple[bool, Ask]] = {}


def check(name: str, required: bool = False) -> Callable[[Ask], Ask]:
    """Enter a question into the table; they are asked in the order of this file."""
    return lambda ask: CHECKS.setdefault(name, (required, ask))[1]


def diagnose(machine: Machine) -> list[CheckFinding]:
    """Run every check of the table, in its order."""
    findings = []
    for name, (required, ask) in CHECKS.items():
        answer = ask(machine)
        status = "ok" if not answer.fix else "fail" if required else "warn"
        findings.append(CheckFinding(name, status, answer.found, answer.fix))
    return findings


def is_healthy(findings: list[CheckFinding]) -> bool:
    """Return whether no required check failed."""
    return all(f.status != "fail" for f in findings)


def to_json(machine: Machine, findings: list[CheckFinding]) -> dict[str, Any]:
    """Return findings and facts as plain JSON data."""
    return {
        "schema": SCHEMA_VERSION,
        "healthy": is_healthy(findings),
        "compiles_for": machine.compiles_for,
        "runs": machine.runs,
        "checks": [asdict(f) for f in findings],
        "environment": to_data(machine.environment),
        "evidence": {
            "keys": {part: getattr(machine.place, part) for part in PARTS},
            **machine.place.facts(),
        },
    }


def to_text(machine: Machine, findings: list[CheckFinding]) -> str:
    """Write findings as aligned lines, fixes below the problems, a summary last."""
    width = max(len(f.name) for f in findings)
    lines = []
    for f in findings:
        lines.append(f"{f.status:4}  {f.name:{width}}  {f.found}")
        if f.fix:
            lines.append(f"{'':4}  {'':{width}}  fix: {f.fix}")
    lines.append("")
    lines.append(f"compiles for: {', '.join(machine.compiles_for) or 'nothing'}")
    lines.append(f"runs:         {', '.join(machine.runs) or 'nothing'}")
    lines += ["", "evidence is keyed by", *_evidence_lines(machine.place)]
    return "\n".join(lines) + "\n"


PARTS = ("hardware", "toolchain", "context", "machine")
_SHOWN = 16


def _evidence_lines(place: Environments) -> list[str]:
    """Return the hashes, and what the hardware is made of."""
    facts = place.hardware_facts
    gpus = [f"{g['name']} {g['memory_mib']} MiB, driver {g['driver']}" for g in facts["gpus"]]
    virtual = f"virtual ({facts['hypervisor']})" if facts["hypervisor"] else ""
    governor = f"governor {facts['governor']}" if facts["governor"] else ""
    facts_text = [f"{facts['cores']} cores", *facts["caches"], virtual, governor, *gpus]
    lines = [f"  {part:10} {getattr(place, part)[:_SHOWN]}" for part in PARTS]
    lines[0] += f"  {', '.join(filter(None, facts_text))}"
    return lines


@check("system")
def _system(machine: Machine) -> CheckResult:
    system = machine.environment.system
    supported = system == "Linux x86_64"
    return CheckResult(system, "" if supported else "use Linux on x86-64, where PyC is tested")


@check("installation", required=True)
def _installation(machine: Machine) -> CheckResult:
    if machine.pins:
        return CheckResult(f"{PROJECT} {machine.environment.version}")
    return CheckResult(f"{PROJECT} is not installed", "pip install .")


def _versions_answer(machine: Machine, pins: Mapping[str, str]) -> CheckResult:
    present = {n: machine.versions[n] for n in pins if n in machine.versions}
    found = ", ".join(f"{n} {v}" for n, v in present.items()) or "none installed"
    # torch's builds differ behind the "+": 2.13.0+cpu is 2.13.0.
    bare = {n: v.partition("+")[0] for n, v in present.items()}
    wrong = [f"{n}=={pin}" for n, pin in pins.items() if bare.get(n, pin) != pin]
    return CheckResult(found, f"pip install {' '.join(wrong)}" if wrong else "")


@check("runtime packages", required=True)
def _runtime_packages(machine: Machine) -> CheckResult:
    pins = machine.pins
    missing = [f"{n}=={v}" for n, v in pins.items() if n not in machine.versions]
    if missing:
        return CheckResult(f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return _versions_answer(machine, pins)


def _compiler_pins(machine: Machine) -> dict[str, str]:
    return {n: v for n, v in machine.extra_pins.items() if n in COMPILE_PACKAGES}


@check("compiler packages", required=True)
def _compiler_versions(machine: Machine) -> CheckResult:
    return _versions_answer(machine, _compiler_pins(machine))


@check("compiler")
def _compiler(machine: Machine) -> CheckResult:
    pins = _compiler_pins(machine)
    wanted = [f"{n}=={v}" for n, v in pins.items() if n not in machine.versions]
    if wanted:
        return CheckResult(
            "not installed: programs run here, models do not compile",
            f"pip install {' '.join(wanted)}",
        )
    lacking = [end for end, _ in TARGETS.values() if end not in machine.targets]
    fix = f"install an IREE compiler with {', '.join(lacking)}" if lacking else ""
    return CheckResult(f"back ends {', '.join(machine.targets)}", fix)


@check("optional packages")
def _optional_packages(machine: Machine) -> CheckResult:
    pins = {n: v for n, v in machine.extra_pins.items() if n not in COMPILE_PACKAGES}
    return _versions_answer(machine, pins)


@check("onnx")
def _onnx(machine: Machine) -> CheckResult:
    version = machine.versions.get("onnx")
    fix = "" if version else "pip install '.[onnx]' in PyC's checkout"
    return CheckResult(version or "not installed: .onnx files cannot be read", fix)


@check("cores")
def _cores(machine: Machine) -> CheckResult:
    cores = machine.environment.cores
    one = "give the process a second core for calls with two threads"
    return CheckResult(f"{cores} on {machine.environment.cpu}", "" if cores > 1 else one)


@check("threads")
def _threads(machine: Machine) -> CheckResult:
    cores, quota = machine.environment.cores, machine.place.context_facts.get("cpu_quota", "")
    most, asked = usable_threads({}, cores, quota or str(cores)), machine.asked
    why = f"affinity to {cores} cores, CPU quota {quota or 'none'}, PYC_THREADS {asked or 'unset'}"
    fix = f"unset PYC_THREADS, or set it to a number from 1 to {most}"
    is_right = asked in ("", *map(str, range(1, most + 1)))
    return CheckResult(f"{asked or most} a call: {why}", "" if is_right else fix)


@check("vector width")
def _vectors(machine: Machine) -> CheckResult:
    env = machine.environment
    width = 8 * CpuInfo(frozenset(env.features), env.cores).vector_bytes
    known = "asimd" in env.features or width > 128
    fix = "use a CPU with AVX2: PyC's kernels are written for it" if not known else ""
    return CheckResult(f"{width} bits ({' '.join(env.features) or 'no known feature'})", fix)


@check("memory")
def _memory(machine: Machine) -> CheckResult:
    gib = machine.environment.memory_gib
    fix = f"use a machine with {LEAST_MEMORY_GIB} GiB or more to compile larger models"
    return CheckResult(f"{gib} GiB", "" if gib >= LEAST_MEMORY_GIB else fix)


@check("disk")
def _disk(machine: Machine) -> CheckResult:
    gib = machine.free_bytes // GIB
    fix = "free 1 GiB in the folder for temporary files, or set TMPDIR to another"
    return CheckResult(f"{gib} GiB free for temporary files", "" if gib else fix)


@check("cpu devices", required=True)
def _cpu_devices(machine: Machine) -> CheckResult:
    drivers = [machine.driver(kind) for kind in TARGETS["cpu"][1]]
    bad = [f"{d.name}: {d.problem}" for d in drivers if not d.devices]
    found = "; ".join(bad) or ", ".join(d.name for d in drivers)
    pin = machine.pins.get("iree-base-runtime", "")
    fix = f"pip install --force-reinstall iree-base-runtime=={pin}" if bad else ""
    return CheckResult(found, fix)


@check("cuda device")
def _cuda_device(machine: Machine) -> CheckResult:
    driver, gpus = machine.driver("cuda"), machine.environment.accelerators
    if driver.devices:
        return CheckResult(", ".join(driver.devices))
    if gpus:
        return CheckResult(
            f"{', '.join(gpus)}, but: {driver.problem}",
            "make the NVIDIA driver's libcuda.so visible to the dynamic linker",
        )
    return CheckResult(
        driver.problem,
        "to run CUDA programs, use a machine with an NVIDIA GPU and driver "
        "(compiling them needs neither)",
    )


@check("vulkan device")
def _vulkan_device(machine: Machine) -> CheckResult:
    driver = machine.driver("vulkan")
    fix = "install the GPU's Vulkan driver, or a software device by `make lavapipe`"
    return CheckResult(", ".join(driver.devices) or driver.problem, "" if driver.devices else fix)
