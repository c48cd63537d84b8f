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
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.json_input import parse_json

SCHEMA_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_REMEDY = "measure again with `pyc-doctor --calibrate FILE`"
_KEYS = ("schema", "name", "machine", "figures")


@dataclass(frozen=True)
class Figure:
    """A measured value, of how many rounds, and (slowest - quickest) / median of those."""

    value: float
    rounds: int
    spread: float


@dataclass(frozen=True)
class Figures:
    """FLOP/s of f32, bytes/s read and written, seconds.

    `core_flops` is of one core, `flops` of all together; `bandwidth` is main memory's for all
    cores, those of caches are one core's (None: no such cache). A dispatch on ``local-sync`` costs
    `dispatch_seconds` besides its work; a call on ``local-task`` takes `wake_seconds` longer than
    on ``local-sync`` (0 where it does not).
    """

    core_flops: Figure
    flops: Figure
    bandwidth: Figure
    dispatch_seconds: Figure
    wake_seconds: Figure
    l2_bandwidth: Figure | None = None
    l3_bandwidth: Figure | None = None


@dataclass(frozen=True)
class MeasuredMachine:
    """The machine that was measured: `CpuInfo.model`, its features, the cores that took part.

    `features` are sorted and of the names that targets use; `fingerprint` is that of the whole
    environment; `packages` are (name, version), sorted.
    """

    cpu: str
    features: tuple[str, ...]
    cores: int
    fingerprint: str
    packages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Calibration:
    """Figures of one machine under a name. Equal contents have equal bytes, thus equal hashes."""

    name: str
    machine: MeasuredMachine
    figures: Figures

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
        machine = {f.name: getattr(self.machine, f.name) for f in fields(MeasuredMachine)}
        figures = {f.name: getattr(self.figures, f.name) for f in fields(Figures)}
        data = {
            "schema": SCHEMA_VERSION,
            "name": self.name,
            "machine": {**machine, "packages": dict(self.machine.packages)},
            "figures": {k: None if v is None else vars(v) for k, v in figures.items()},
        }
        return f"{json.dumps(data, indent=1, ensure_ascii=False)}\n".encode()

    @staticmethod
    def from_bytes(data: bytes, where: str = "calibration") -> "Calibration":
        """Read what `to_bytes` wrote. Raises PycError (BAD_ARGUMENT), with `where` first."""
        try:
            found = parse_json(data)
        except ValueError as error:
            raise _bad(where, "JSON", str(error)) from None
        return _Reader(where).calibration(found)

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


@dataclass(frozen=True)
class _Reader:
    """The check of each part of a parsed file, which names the wrong one."""

    where: str

    def calibration(self, data: Any) -> Calibration:
        if isinstance(data, dict) and data.get("schema") != SCHEMA_VERSION:
            raise _bad(self.where, f"schema {SCHEMA_VERSION}", repr(data.get("schema"))[:40])
        found = self.parts(data, "the file", _KEYS)
        if not isinstance(found["name"], str) or not _NAME.fullmatch(found["name"]):
            raise _bad(self.where, "a `name` of letters, digits and ._+-", repr(found["name"])[:80])
        machine = self.machine(found["machine"])
        return Calibration(found["name"], machine, self.figures(found["figures"]))

    def machine(self, data: Any) -> MeasuredMachine:
        found = self.parts(data, "`machine`", tuple(f.name for f in fields(MeasuredMachine)))
        features, packages = found["features"], found["packages"]
        for key in ("cpu", "fingerprint"):
            self.require(_is_text(found[key]), f"`machine.{key}` as a line of text", found[key])
        self.require(_is_texts(features), "`machine.features` as a list of text", features)
        self.require(
            features == sorted(set(features)), "sorted, different `machine.features`", features
        )
        self.require(_is_count(found["cores"]), "`machine.cores` of 1 or more", found["cores"])
        self.require(
            isinstance(packages, dict) and _is_texts([*packages, *packages.values()]),
            "`machine.packages` as versions by name",
            packages,
        )
        pairs = {"features": tuple(features), "packages": tuple(sorted(packages.items()))}
        return MeasuredMachine(**{**found, **pairs})

    def figures(self, data: Any) -> Figures:
        found = self.parts(data, "`figures`", tuple(f.name for f in fields(Figures)))
        optional = {f.name for f in fields(Figures) if f.default is None}
        read: dict[str, Any] = {
            name: None if value is None and name in optional else self.figure(name, value)
            for name, value in found.items()
        }
        return Figures(**read)

    def figure(self, name: str, data: Any) -> Figure:
        place = f"`figures.{name}`"
        found = self.parts(data, place, tuple(f.name for f in fields(Figure)))
        value, spread = _number(found["value"]), _number(found["spread"])
        may_be_zero = name.endswith("_seconds")
        self.require(
            value is not None and (value > 0 or (may_be_zero and value == 0)),
            f"a {'finite' if may_be_zero else 'positive, finite'} {place}",
            found["value"],
        )
        self.require(_is_count(found["rounds"]), f"{place} of 1 round or more", found["rounds"])
        self.require(spread is not None and spread >= 0, f"a spread of {place}", found["spread"])
        return Figure(value or 0.0, found["rounds"], spread or 0.0)

    def parts(self, data: Any, what: str, names: tuple[str, ...]) -> Mapping[str, Any]:
        self.require(isinstance(data, dict), f"{what} as a JSON object", data)
        if odd := sorted(set(names) ^ set(data)):
            raise _bad(
                self.where, f"{what} with {', '.join(names)}", f"a difference in {odd}"[:200]
            )
        return data

    def require(self, holds: bool, expected: str, got: Any) -> None:
        if not holds:
            raise _bad(self.where, expected, repr(got)[:80])


def _is_text(value: Any) -> bool:
    """Return whether a value is text of one line, without lone surrogates, which JSON may hold."""
    return isinstance(value, str) and value.isprintable()


def _is_texts(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_text, values))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _number(value: Any) -> float | None:
    """Return a finite number; None for anything else, also for a whole number beyond floats."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _bad(where: str, expected: str, got: str) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"{where}: expected {expected}, got {got}; {_REMEDY}")
