"""Wisdom: measured seconds of choices as a file, which compiles read in place of a database.

Comes in: what `pyc-tune export` wrote. Goes out: a frozen `Wisdom`, whose content hash stands in
the decision log and in the cache key of every program that was compiled by it. The name and the use
are FFTW's (Frigo and Johnson, 2005); unlike there, every row names the hardware and the toolchain
that it was measured with, and a file that was changed is refused.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Recipe, Site

SCHEMA_VERSION = 1
KIND = "pyc-wisdom"
SITE = Site("wisdom", "module")
_HASH = "sha256"
_REMEDY = "export it again with `pyc-tune export FILE`"


@dataclass(frozen=True, order=True)
class WisdomRow:
    """One choice as it was measured.

    subject: a work id, or the id of a program (exact, or with constants by type). pass_name,
    choice: whose choice, and the alternative's name. hardware, toolchain, context: hashes of the
    environment (`pyc_mlir/evidence/environment.py`). constants: ``warm`` or ``cold``. clock: whose
    seconds, ``cpu`` or ``wall``. seconds: the median over processes of their medians; lo, hi: its
    interval. sessions, processes: how many there were.
    """

    subject: str
    pass_name: str
    choice: str
    hardware: str
    toolchain: str
    context: str
    constants: str
    clock: str
    seconds: float
    lo: float
    hi: float
    sessions: int
    processes: int

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that no measurement gives."""
        numbers = (self.seconds, self.lo, self.hi, self.sessions, self.processes)
        if not all(isinstance(n, int | float) for n in numbers):
            raise ValueError(f"expected numbers, got {numbers!r:.80}")
        ordered = 0 < self.lo <= self.seconds <= self.hi and math.isfinite(self.hi)
        if not ordered or self.sessions < 1 or self.processes < 1:
            raise ValueError(
                f"expected 0 < lo <= seconds <= hi, a session and a process, got {self.lo!r}, "
                f"{self.seconds!r}, {self.hi!r}, {self.sessions}, {self.processes}"
            )


@dataclass(frozen=True)
class Subject:
    """What rows are about: ``work`` or ``program``, its canonical text, how many ops it has."""

    kind: str
    structure_id: str
    text: str
    ops: int
    normalizer: int


@dataclass(frozen=True)
class Wisdom:
    """Rows, sorted, and the texts of their subjects. Equal contents have equal hashes."""

    rows: tuple[WisdomRow, ...] = ()
    subjects: Mapping[str, Subject] = field(default_factory=dict)

    @staticmethod
    def of(rows: Iterable[WisdomRow], subjects: Mapping[str, Subject]) -> "Wisdom":
        """Rows in any order; subjects without a row are left out."""
        kept = tuple(sorted(set(rows)))
        used = sorted({row.subject for row in kept} & set(subjects))
        return Wisdom(kept, {name: subjects[name] for name in used})

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content in hex; spaces and the order of keys in a file do not matter."""
        return _hash(self._data())

    @property
    def label(self) -> str:
        """What decisions call it."""
        return f"wisdom@{self.hash[:16]}"

    def about(self, pass_name: str, *subjects: str) -> tuple[WisdomRow, ...]:
        """The rows of the first of the subjects that has any."""
        for subject in filter(None, subjects):
            if found := self._by_subject.get((pass_name, subject)):
                return found
        return ()

    @cached_property
    def _by_subject(self) -> Mapping[tuple[str, str], tuple[WisdomRow, ...]]:
        found: dict[tuple[str, str], list[WisdomRow]] = {}
        for row in self.rows:
            found.setdefault((row.pass_name, row.subject), []).append(row)
        return {key: tuple(rows) for key, rows in found.items()}

    def _data(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "kind": KIND,
            "rows": to_data(self.rows),
            "subjects": to_data(self.subjects),
        }

    def to_bytes(self) -> bytes:
        """The file: JSON with sorted keys, one fact a line, and the hash of the rest."""
        data = {**self._data(), _HASH: self.hash}
        return f"{json.dumps(data, indent=1, sort_keys=True, ensure_ascii=True)}\n".encode()

    @staticmethod
    def from_bytes(data: bytes, where: str = "wisdom") -> "Wisdom":
        """Read what `to_bytes` wrote. Raises PycError (BAD_WISDOM), with `where` first."""
        try:
            found = parse_json(data)
            if not isinstance(found, dict) or found.get("kind") != KIND:
                raise ValueError(f"something else than {KIND}")
            if found.get("schema") != SCHEMA_VERSION:
                raise ValueError(f"schema {found.get('schema')!r} where {SCHEMA_VERSION} is known")
            stored = found.pop(_HASH, None)
            if stored != _hash(found):
                raise ValueError("a content that its hash does not name: it was changed or cut off")
            rows = tuple(_row(row) for row in found["rows"])
            subjects = from_data(Mapping[str, Subject], found["subjects"], "subjects")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PycError(
                ReasonCode.BAD_WISDOM, f"{where}: expected wisdom, got {error}; {_REMEDY}"
            ) from None
        made = Wisdom(rows, subjects)
        # What was just computed of the same content.
        vars(made)["hash"] = stored
        return made

    @staticmethod
    def load(path: str | Path) -> "Wisdom":
        """Read a file. Raises PycError: FILE_ACCESS, BAD_WISDOM."""
        return Wisdom.from_bytes(read_file(path, "a wisdom file"), str(path))


_TYPES: dict[str, Any] = {
    f.name: (float, int) if f.type is float else f.type for f in fields(WisdomRow)
}


def _row(data: Mapping[str, Any]) -> WisdomRow:
    """A row as `from_data` would read it, ten times as fast: a compile waits for a file's rows."""
    row = WisdomRow(**data)
    for name, kind in _TYPES.items():
        value = data[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"rows: {name} is {value!r:.80}")
    return row


def _hash(data: Any) -> str:
    """SHA-256 of JSON data in one canonical form."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def record_wisdom(wisdom: Wisdom | None, recipe: Recipe | None) -> tuple[Decision, ...]:
    """The decision at `SITE` that names the wisdom; none without one.

    A recipe that was made by wisdom repeats that, with its hash: its choices are that wisdom's.
    Raises PycError (RECIPE_MISMATCH) for a recipe that was made by another one.
    """
    made_by = None if recipe is None else recipe.choices.get(SITE.key)
    label = None if wisdom is None or not wisdom.rows else wisdom.label
    if None not in (made_by, label) and made_by != label:
        raise PycError(
            ReasonCode.RECIPE_MISMATCH,
            f"{SITE.key}: expected `{made_by}`, by which the recipe was made, got `{label}`; leave "
            "the wisdom out, or make the recipe again",
        )
    if made_by is not None and recipe is not None:
        by, evidence = recipe.origins.get(SITE.key, ("caller", ()))
        return (Decision(SITE, made_by, (Alternative(made_by),), by, evidence),)
    if wisdom is None or label is None:
        return ()
    evidence = (f"sha256:{wisdom.hash}",)
    return (Decision(SITE, label, (Alternative(label),), "caller", evidence),)
