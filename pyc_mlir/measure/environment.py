"""The environment of a measurement, and the check that two measurements may be compared.

`probe` reads Linux's /proc, the installed packages and the project's git state. Two measurements
are comparable when their `fingerprint`s are equal: processor, cores, vector features, memory,
accelerators, operating system, Python and package versions. The project's own version and commit
stand beside it: comparing commits is what measurements are for. (pyperf's metadata that must agree
between runs is the model.)
"""

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.target.target import available_cores

PROJECT = "pyc-mlir"
PACKAGES = (
    "torch-mlir",
    "iree-base-compiler",
    "iree-base-runtime",
    "numpy",
    "ml_dtypes",
    "onnx",
    "onnxruntime",
    "openvino",
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "onnxscript",
    "jax",
)
# The features that change the code that is generated or how fast it runs (x86-64, then AArch64).
FEATURES = frozenset(
    (
        "sse4_2", "avx", "avx2", "fma", "f16c", "bmi2", "avx_vnni", "avx512f", "avx512bw",
        "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8",
        "amx_bf16",
        "asimd", "asimddp", "asimdhp", "fphp", "i8mm", "bf16", "sve", "sve2", "sme",
    )
)  # fmt: skip
_NOT_COMPARED = ("version", "commit", "modified")


@dataclass(frozen=True)
class Environment:
    """Everything that a measurement depends on, without the machine's name or any path.

    `memory_gib` is rounded to whole GiB, `commit` is None outside a git checkout, `modified`
    tells that the checkout had changes that were not committed.
    """

    cpu: str
    cores: int
    features: tuple[str, ...]
    memory_gib: int
    accelerators: tuple[str, ...]
    system: str
    python: str
    packages: Mapping[str, str]
    version: str
    commit: str | None
    modified: bool

    @property
    def fingerprint(self) -> str:
        """16 hex digits; equal exactly when measurements may be compared."""
        compared = {k: v for k, v in self.to_json().items() if k not in _NOT_COMPARED}
        text = json.dumps(compared, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: "Environment") -> list[str]:
        """What keeps two environments from being compared: ``cores: 2 / 8``; empty when equal."""
        mine, theirs = self.to_json(), other.to_json()
        return [
            f"{key}: {mine[key]} / {theirs[key]}"
            for key in mine
            if key not in _NOT_COMPARED and mine[key] != theirs[key]
        ]

    def to_json(self) -> dict[str, Any]:
        """The environment as plain JSON data."""
        data = asdict(self)
        return data | {
            "features": list(self.features),
            "accelerators": list(self.accelerators),
            "packages": dict(sorted(self.packages.items())),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Environment":
        """Read what `to_json` wrote. Raises PycError when a field is missing or unknown."""
        names = {f.name for f in fields(Environment)}
        if set(data) != names:
            odd = sorted(names ^ set(data))
            raise PycError(ReasonCode.BAD_ARGUMENT, f"environment: missing or unknown fields {odd}")
        sequences = {k: tuple(data[k]) for k in ("features", "accelerators")}
        return Environment(**{**data, **sequences})


def probe(root: Path = Path("/"), source: Path = Path(__file__)) -> Environment:
    """The environment of this process. `root` holds ``proc``; `source` may lie in a checkout."""
    cpu, features = parse_cpuinfo(_read(root / "proc/cpuinfo"))
    commit, modified = git_state(source)
    return Environment(
        cpu=cpu or platform.machine(),
        cores=available_cores(),
        features=features,
        memory_gib=round(memory_bytes(_read(root / "proc/meminfo")) / 2**30),
        accelerators=nvidia_gpus(root),
        system=f"{platform.system()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages=installed(PACKAGES),
        version=installed((PROJECT,)).get(PROJECT, "not installed"),
        commit=commit,
        modified=modified,
    )


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
        r"NVRM version:.*?\s(\d+\.[\d.]+)\s", _read(root / "proc/driver/nvidia/version")
    )
    reports = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    models = [re.search(r"^Model:\s+(.+)$", _read(p), re.MULTILINE) for p in reports]
    suffix = f", driver {driver[1]}" if driver else ""
    return tuple(f"{m[1].strip()}{suffix}" for m in models if m)


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those of the named packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_state(source: Path) -> tuple[str | None, bool]:
    """Commit of the checkout that holds `source`, and whether tracked files were changed since.

    (None, False) outside a checkout, for a file that git does not track, or without git.
    """
    folder = str(source.resolve().parent)
    try:
        run = [_git(folder, "ls-files", "--error-unmatch", source.name)]
        run += [_git(folder, "rev-parse", "HEAD")]
        run += [_git(folder, "status", "--porcelain", "--untracked-files=no")]
    except (OSError, subprocess.SubprocessError):
        return None, False
    return run[1], bool(run[2])


def _git(folder: str, *arguments: str) -> str:
    command = ["git", "-C", folder, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def _read(path: Path) -> str:
    """A file's text; nothing where the system has no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
