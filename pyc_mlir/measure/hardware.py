"""The hardware of a machine, as Linux reports it: processor, caches, memory, GPUs, and vendor.

Comes in: /proc and /sys below a root, and two tools for GPUs. Goes out: `Hardware`, the facts that
decide how fast a program runs, and a machine id that distinguishes machines with equal hardware.
What a machine does not report is empty, never an error.
"""

import functools
import hashlib
import hmac
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.util import children

_SALT = b"pyc-mlir evidence"
_TOOL_SECONDS = 20
_NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_VULKAN = ("vulkaninfo", "--summary")
# The features that change the code that is generated or how fast it runs (x86-64, then AArch64).
FEATURES = frozenset(
    (
        "sse4_2", "avx", "avx2", "fma", "f16c", "bmi2", "avx_vnni", "avx512f", "avx512bw",
        "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8",
        "amx_bf16",
        "asimd", "asimddp", "asimdhp", "fphp", "i8mm", "bf16", "sve", "sve2", "sme",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """A GPU: its name, its driver's version, and MiB of its own memory (0 if unknown)."""

    name: str
    driver: str
    memory_mib: int = 0


@dataclass(frozen=True)
class Hardware:
    """The facts of a machine, without its name.

    caches: ``L2 1024 KiB``, those of the first core by level. memory_gib: rounded. hypervisor: the
    vendor's name, ``unknown`` for a virtual machine without one, empty without one.
    governor: of the first core's frequency; empty where the system does not scale it.
    """

    cpu: str
    features: tuple[str, ...]
    cores: int
    caches: tuple[str, ...]
    memory_gib: int
    hypervisor: str
    governor: str
    gpus: tuple[Gpu, ...] = ()


def sniff(root: Path = Path("/"), with_gpus: bool = False) -> Hardware:
    """Return the hardware of this machine; querying GPUs takes up to a second."""
    cpuinfo = read(root / "proc/cpuinfo")
    model, features = parse_cpuinfo(cpuinfo)
    system = root / "sys/devices/system/cpu/cpu0"
    return Hardware(
        model,
        features,
        available_cores(),
        read_caches(system / "cache"),
        round(memory_bytes(read(root / "proc/meminfo")) / 2**30),
        hypervisor_of(cpuinfo, root),
        read(system / "cpufreq/scaling_governor").strip(),
        gpus(root) if with_gpus else (),
    )


def read_caches(folder: Path) -> tuple[str, ...]:
    """``L1 Data 32 KiB`` for each cache of a core, by level."""
    found = []
    for index in sorted(folder.glob("index*")):
        level, kind, size = (read(index / name).strip() for name in ("level", "type", "size"))
        kind = "" if kind == "Unified" else f" {kind}"
        if level and size:
            found.append(f"L{level}{kind} {size.removesuffix('K')} KiB")
    return tuple(sorted(found))


def hypervisor_of(cpuinfo: str, root: Path) -> str:
    """Who runs the virtual machine; empty on a machine of one's own."""
    named = read(root / "sys/hypervisor/type").strip()
    vendor = read(root / "sys/class/dmi/id/sys_vendor").strip()
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if "hypervisor" not in (flags[1].split() if flags else ()):
        return named
    return named or vendor or "unknown"


def gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return the GPUs, by NVIDIA's tool, else by the kernel's driver, else by Vulkan's tool."""
    if text := _said(_NVIDIA):
        return parse_nvidia(text)
    if named := nvidia_gpus(root):
        pairs = (name.partition(", driver ") for name in named)
        return tuple(Gpu(name, driver) for name, _, driver in pairs)
    return parse_vulkan(_said(_VULKAN))


def parse_nvidia(text: str) -> tuple[Gpu, ...]:
    """Return the lines ``name, 143771 MiB, 570.1`` of `nvidia-smi`."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 2)]
        if len(fields) == 3:
            memory = re.match(r"\d+", fields[1])
            found.append(Gpu(fields[0], fields[2], int(memory[0]) if memory else 0))
    return tuple(found)


def parse_vulkan(text: str) -> tuple[Gpu, ...]:
    """Return the devices of ``vulkaninfo --summary``; devices in software are left out."""
    found = []
    for part in re.split(r"^GPU\d+:$", text, flags=re.MULTILINE)[1:]:
        rows = dict(re.findall(r"^\s*(\w+)\s*=\s*(.+?)\s*$", part, re.MULTILINE))
        if "CPU" not in rows.get("deviceType", "") and "deviceName" in rows:
            driver = " ".join(rows[k] for k in ("driverName", "driverInfo") if k in rows)
            found.append(Gpu(rows["deviceName"], driver))
    return tuple(found)


def parse_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """Model and known features (sorted) of the first processor in /proc/cpuinfo's text.

    Family and model number follow the name, which virtual machines shorten; AArch64 names no
    model at all, and implementer and part stand for it.
    """
    rows = dict(re.findall(r"^([^\t:\n]+?)\s*:[ \t]*(.*)$", text.split("\n\n")[0], re.MULTILINE))
    keys = ("model name", "cpu family", "model", "CPU implementer", "CPU part")
    flags = rows.get("flags", rows.get("Features", "")).split()
    model = " ".join(rows[k] for k in keys if k in rows)
    return model, tuple(sorted(FEATURES.intersection(flags)))


def memory_bytes(text: str) -> int:
    """Total memory in /proc/meminfo's text; 0 if it has none."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def nvidia_gpus(root: Path) -> tuple[str, ...]:
    """``model, driver version`` of each NVIDIA GPU, as the kernel driver reports them."""
    driver = re.search(
        r"NVRM version:.*?\s(\d+\.[\d.]+)\s", read(root / "proc/driver/nvidia/version")
    )
    reports = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    models = [re.search(r"^Model:\s+(.+)$", read(p), re.MULTILINE) for p in reports]
    suffix = f", driver {driver[1]}" if driver else ""
    return tuple(f"{m[1].strip()}{suffix}" for m in models if m)


def machine_id(root: Path = Path("/"), host: str = "") -> str:
    """16 hex digits that stay with a machine and do not give its own id away (HMAC-SHA-256).

    Of /etc/machine-id; where there is none of the host's name.
    """
    own = read(root / "etc/machine-id").strip() or host or socket.gethostname()
    return hmac.new(_SALT, own.encode(), hashlib.sha256).hexdigest()[:16]


def page_policy(root: Path = Path("/")) -> str:
    """Return the word in brackets: ``always [madvise] never``; empty without large pages."""
    text = read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen[1] if chosen else ""


def cpu_quota(root: Path = Path("/")) -> str:
    """CPUs that the control group allows, ``1.5``; empty where it sets no limit.

    Reads control groups of version 2, then of version 1.
    """
    words = read(root / "sys/fs/cgroup/cpu.max").split()
    if not words:
        old = root / "sys/fs/cgroup/cpu"
        words = [read(old / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(re.fullmatch(r"[1-9]\d*", word) for word in words):
        return ""
    return f"{int(words[0]) / int(words[1]):g}"


@functools.cache
def _said(command: tuple[str, ...]) -> str:
    """Return the output of a tool; empty where it is not installed or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = children.run(command, timeout=_TOOL_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def read(path: Path) -> str:
    """Return a file's text; nothing where the system has no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
