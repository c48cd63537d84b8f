"""Measured figures of one machine's CPU: a named file that a compile may use as evidence.

Comes in: figures that `pyc-doctor --calibrate` measured (pyc_mlir/calibrate.py). Goes
out: the same as a frozen `Calibration`, whose content hash stands in the decision log and the
manifest of every program that was compiled with it. Without one, a target's published figures hold.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import Form, to_data
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.json_input import read_record

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def _require(holds: bool, expected: str, got: Any) -> None:
    if not holds:
        raise ValueError(f"expected {expected}, got {got!r:.80}")


def _pairs(data: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    _require(isinstance(data, Mapping), "versions by name", data)
    return tuple(sorted(data.items()))


@dataclass(frozen=True)
class Figure:
    """A measured value, of how many rounds, and (slowest - quickest) / median of those."""

    complete: ClassVar[bool] = True
    value: float
    rounds: int
    spread: float

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot have been measured. Whole numbers become floats."""
        _require(0 <= self.value < math.inf, "a finite value of 0 or more", self.value)
        _require(self.rounds >= 1, "1 round or more", self.rounds)
        _require(0 <= self.spread < math.inf, "a finite spread of 0 or more", self.spread)
        for name in ("value", "spread"):
            object.__setattr__(self, name, float(getattr(self, name)))


@dataclass(frozen=True)
class Figures:
    """FLOP/s of f32, bytes/s read and written, seconds.

    `core_flops` is of one core, `flops` of all together; `bandwidth` is main memory's for all
    cores, those of caches are one core's (None: no such cache). A dispatch on ``local-sync`` costs
    `dispatch_seconds` besides its work; a call on ``local-task`` takes `wake_seconds` longer than
    on ``local-sync`` (0 where it does not).
    """

    complete: ClassVar[bool] = True
    core_flops: Figure
    flops: Figure
    bandwidth: Figure
    dispatch_seconds: Figure
    wake_seconds: Figure
    l2_bandwidth: Figure | None = None
    l3_bandwidth: Figure | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a speed of 0."""
        for name in (f.name for f in fields(self) if not f.name.endswith("_seconds")):
            figure = getattr(self, name)
            _require(figure is None or figure.value > 0, f"a positive `{name}`", figure)


@dataclass(frozen=True)
class MeasuredMachine:
    """The machine that was measured: `CpuInfo.model`, its features, the cores that took part.

    `features` are sorted and of the names that targets use; `fingerprint` is that of the whole
    environment; `packages` are (name, version), sorted.
    """

    complete: ClassVar[bool] = True
    cpu: str
    features: tuple[str, ...]
    cores: int
    fingerprint: str
    packages: Annotated[tuple[tuple[str, str], ...], Form(dict, _pairs)] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for text of several lines or with lone surrogates, as JSON may hold."""
        words = (self.cpu, self.fingerprint, *self.features, *(w for p in self.packages for w in p))
        for text in words:
            _require(isinstance(text, str) and text.isprintable(), "lines of text", text)
        _require(self.cores >= 1, "1 core or more", self.cores)
        ordered = tuple(sorted(set(self.features)))
        _require(self.features == ordered, "sorted, different features", self.features)


@dataclass(frozen=True)
class Calibration:
    """Figures of one machine under a name. Equal contents have equal bytes, thus equal hashes."""

    schema: ClassVar[int] = 1
    complete: ClassVar[bool] = True
    name: str
    machine: MeasuredMachine
    figures: Figures

    def __post_init__(self) -> None:
        """Raise ValueError for a name that does not fit in a line of a log."""
        _require(_NAME.fullmatch(self.name) is not None, "letters, digits and ._+-", self.name)

    @property
    def hash(self) -> str:
        """SHA-256 of `to_bytes`, in hex: neither spaces nor the order of keys in a file matter."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def label(self) -> str:
        """The name that decisions use: the calibration's and the hash's first 16 digits."""
        return f"{self.name}@{self.hash[:16]}"

    def to_bytes(self) -> bytes:
        """Write the file: JSON, keys in a fixed order."""
        return f"{json.dumps(to_data(self), indent=1, ensure_ascii=False)}\n".encode()

    @staticmethod
    def from_bytes(data: bytes, where: str = "calibration") -> "Calibration":
        """Read what `to_bytes` wrote. Raises PycError (BAD_ARGUMENT), with `where` first."""
        remedy = "measure again with `pyc-doctor --calibrate FILE`"
        return read_record(Calibration, data, where, "a calibration of schema 1", remedy)

    @staticmethod
    def load(path: str | Path) -> "Calibration":
        """Read a file. Raises PycError: FILE_ACCESS, and BAD_ARGUMENT for a damaged one."""
        return Calibration.from_bytes(read_file(path, "a calibration"), str(path))


def check_name(name: str) -> str:
    """Return the name itself. Raises PycError (BAD_ARGUMENT) unless it fits in a line of a log."""
    if _NAME.fullmatch(name):
        return name
    raise PycError(
        ReasonCode.BAD_ARGUMENT,
        "calibration's name: expected at most 64 letters, digits and `._+-`, a letter or digit "
        f"first, got {name!r}; give another with --name",
    )
