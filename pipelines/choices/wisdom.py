"""Wisdom: measured seconds of choices as a file, which compiles read in place of a database.

Comes in: what `pyc-tune export` wrote. Goes out: a frozen `Wisdom`, whose content hash stands in
the decision log and in the cache key of every program that was compiled by it. The name and the use
are FFTW's (Frigo and Johnson, 2005); unlike there, every row names the hardware and the toolchain
that it was measured with, and a file that was changed is refused.

A file is JSON whose hash covers the bytes of its `content`: a compile checks them without writing
them again, and creates rows only for the few requested subjects.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.pipelines.choices.choices import (
    Alternative,
    Decision,
    Measurements,
    Policy,
    Recipe,
    Site,
)
from pyc_mlir.pipelines.choices.evidence import ContentHash
from pyc_mlir.pipelines.target.calibration import Calibration

SCHEMA_VERSION = 2
KIND = "pyc-wisdom"
SITE = Site("wisdom", "module")
# The pass of rows about recipes of whole programs, and the choice of those that went by none.
WHOLE, NO_RECIPE = "recipe", "heuristic"
_HEAD = re.compile(rb'\{"kind":"([^"]*)","schema":(\d+),"sha256":"([^"]*)",\n"content":')
# What `work_id` (pipelines/target/work.py) makes.
_WORK = re.compile(r"w\d+-[0-9a-f]{64}")
_REMEDY = "export it again with `pyc-tune export FILE`"


@dataclass(frozen=True, order=True)
class WisdomRow:
    """One choice as it was measured.

    subject: a work id, or the id of a program (exact, or with constants by type). pass_name,
    choice: whose choice, and the alternative's name; `WHOLE` and a key of `Wisdom.recipes`, or
    `NO_RECIPE`, for a whole program. hardware, toolchain, context: hashes of the
    environment (`pyc_mlir/measure/environment.py`). constants: ``warm`` or ``cold``. clock:
    whose seconds, ``cpu`` or ``wall``. seconds: the median over processes of their medians; lo, hi:
    its interval. sessions, processes: how many there were.
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
        """Check the numbers. Raises ValueError for those that no measurement gives."""
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
class WisdomSubject:
    """The subject of rows: ``work`` or ``program``, its canonical text, the number of its ops."""

    kind: str
    structure_id: str
    text: str
    ops: int
    normalizer: int


@dataclass(frozen=True, eq=False)
class Wisdom:
    """Rows, sorted, and the texts of their subjects. Wisdom of equal contents is equal.

    recipes: {site, pass:work or pass: choice} of whole programs, by the name that rows call them.
    """

    rows: Sequence[WisdomRow] = ()
    subjects: Mapping[str, WisdomSubject] = field(default_factory=dict)
    recipes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @staticmethod
    def of(
        rows: Iterable[WisdomRow],
        subjects: Mapping[str, WisdomSubject],
        recipes: Iterable[Mapping[str, str]] = (),
    ) -> "Wisdom":
        """Collect rows in any order; subjects and recipes without a row are left out."""
        kept = tuple(sorted(set(rows)))
        used = sorted({row.subject for row in kept} & set(subjects))
        whole = {row.choice for row in kept if row.pass_name == WHOLE}
        named = {recipe_name(r): dict(sorted(r.items())) for r in recipes if r}
        of_rows = {name: named[name] for name in sorted(whole & set(named))}
        return Wisdom(kept, {name: subjects[name] for name in used}, of_rows)

    def joined(self, other: "Wisdom") -> "Wisdom":
        """Return the rows, subjects and recipes of both; the other's of a subject in both."""
        subjects = {**self.subjects, **other.subjects}
        recipes = [*self.recipes.values(), *other.recipes.values()]
        return Wisdom.of([*self.rows, *other.rows], subjects, recipes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wisdom) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content in hex."""
        return hashlib.sha256(self._content()).hexdigest()

    @property
    def label(self) -> str:
        """The name in decisions."""
        return f"wisdom@{self.hash[:16]}"

    def about(self, pass_name: str, *subjects: str) -> tuple[WisdomRow, ...]:
        """Return the rows of the first subject that has any. Raises PycError (BAD_WISDOM)."""
        for subject in filter(None, subjects):
            if found := self._places.get((pass_name, subject)):
                return tuple(self.rows[place] for place in found)
        return ()

    @cached_property
    def _places(self) -> Mapping[tuple[str, str], list[int]]:
        """The places of the rows about a subject."""
        found: dict[tuple[str, str], list[int]] = {}
        rows = self.rows
        made = ((row.pass_name, row.subject) for row in rows if not isinstance(rows, _Rows))
        for place, key in enumerate(rows.keys() if isinstance(rows, _Rows) else made):
            found.setdefault(key, []).append(place)
        return found

    def _content(self) -> bytes:
        """Write one line for a row or subject, so that files can be compared."""
        rows = ",\n".join(map(_canonical, to_data(tuple(self.rows))))
        subjects = ",\n".join(_entries(to_data(self.subjects)))
        recipes = ",\n".join(_entries(to_data(self.recipes)))
        return (
            f'{{"recipes":{{{recipes}}},\n"rows":[\n{rows}],\n"subjects":{{\n{subjects}}}}}'
        ).encode()

    def to_bytes(self) -> bytes:
        """Write the file: JSON with sorted keys, and the hash of its content."""
        head = f'{{"kind":"{KIND}","schema":{SCHEMA_VERSION},"sha256":"{self.hash}",\n"content":'
        return b"".join((head.encode(), self._content(), b"}\n"))

    @staticmethod
    def from_bytes(data: bytes, where: str = "wisdom") -> "Wisdom":
        """Read what `to_bytes` wrote. Raises PycError (BAD_WISDOM), with `where` first.

        Rows are read on access, which may raise this error.
        """
        try:
            content, stored = _checked(data)
            found = parse_json(content)
            rows = _Rows(found["rows"], where)
            subjects = from_data(Mapping[str, WisdomSubject], found["subjects"], "subjects")
            recipes = from_data(Mapping[str, Mapping[str, str]], found["recipes"], "recipes")
        except (ValueError, KeyError, TypeError) as error:
            raise _bad(where, error) from None
        made = Wisdom(rows, subjects, recipes)
        # What was just computed of the same content.
        vars(made)["hash"] = stored
        return made

    @staticmethod
    def load(path: str | Path) -> "Wisdom":
        """Read a file. Raises PycError: FILE_ACCESS, BAD_WISDOM."""
        return Wisdom.from_bytes(read_file(path, "a wisdom file"), str(path))


class _Rows(Sequence[WisdomRow]):
    """The rows of a file, created on access."""

    def __init__(self, data: Any, where: str) -> None:
        """Hold the data. Raises ValueError if they are no rows."""
        if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
            raise ValueError("rows that are no list of objects")
        self._data: list[dict[str, Any]] = data
        self._where = where

    def keys(self) -> Iterator[tuple[str, str]]:
        """Pass and subject of each row."""
        return ((str(r.get("pass_name")), str(r.get("subject"))) for r in self._data)

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, place: int) -> WisdomRow: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[WisdomRow]: ...
    def __getitem__(self, place: int | slice) -> WisdomRow | Sequence[WisdomRow]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        try:
            return _row(self._data[place])
        except (ValueError, KeyError, TypeError) as error:
            raise _bad(self._where, error) from None


def recipe_name(recipe: Mapping[str, str]) -> str:
    """Return the name of a whole program's recipe: ``recipe@`` and a hash, or `NO_RECIPE`."""
    if not recipe:
        return NO_RECIPE
    return f"recipe@{hashlib.sha256(_canonical(dict(recipe)).encode()).hexdigest()[:16]}"


def names_work(key: str) -> bool:
    """Return whether a key names a kernel's work, which other programs may share."""
    return _WORK.fullmatch(key.partition(":")[2]) is not None


def _checked(data: bytes) -> tuple[bytes, str]:
    """Return the content of a file and its hash, which is right. Raises ValueError."""
    head = _HEAD.match(data)
    if head is None or head[1].decode() != KIND:
        raise ValueError(f"something else than {KIND}")
    if int(head[2]) != SCHEMA_VERSION:
        raise ValueError(f"schema {int(head[2])} where {SCHEMA_VERSION} is known")
    content, stored = data[head.end() :].rstrip()[:-1], head[3].decode()
    if hashlib.sha256(content).hexdigest() != stored:
        raise ValueError("a content that its hash does not name: it was changed or cut off")
    return content, stored


def _bad(where: str, error: Exception) -> PycError:
    return PycError(ReasonCode.BAD_WISDOM, f"{where}: expected wisdom, got {error}; {_REMEDY}")


_TYPES: dict[str, Any] = {
    f.name: (float, int) if f.type is float else f.type for f in fields(WisdomRow)
}


def _row(data: Mapping[str, Any]) -> WisdomRow:
    """Read a row as `from_data` does, ten times as fast: a compile waits for a file's rows."""
    row = WisdomRow(**data)
    for name, kind in _TYPES.items():
        value = data[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"rows: {name} is {value!r:.80}")
    return row


def _entries(data: Mapping[str, Any]) -> Iterator[str]:
    return (f"{json.dumps(name)}:{_canonical(data[name])}" for name in sorted(data))


def _canonical(data: Any) -> str:
    """Write JSON data in one form."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def for_program(
    policy: Policy, recipe: Recipe | None, graph_id: str, structure_id: str
) -> tuple[Policy, tuple[Decision, ...]]:
    """Return the policy for one program, and the decision whether a recipe answers for all of it.

    A recipe that has the decision repeats it, with its evidence.
    """
    site = Site(WHOLE, graph_id, work=structure_id)
    made = None if recipe is None else recipe.choices.get(site.key)
    if made is not None and recipe is not None:
        by, grounds = recipe.origins.get(site.key, (NO_RECIPE, ()))
        return policy, (Decision(site, made, (Alternative(made),), by, grounds=grounds),)
    return policy.for_program(site)


def record_wisdom(wisdom: Measurements | None, recipe: Recipe | None) -> tuple[Decision, ...]:
    """Return the decision at `SITE` that names the wisdom; none without one.

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
        by, grounds = recipe.origins.get(SITE.key, ("caller", ()))
        return (Decision(SITE, made_by, (Alternative(made_by),), by, grounds=grounds),)
    if wisdom is None or label is None:
        return ()
    grounds = (ContentHash(wisdom.hash),)
    return (Decision(SITE, label, (Alternative(label),), "caller", grounds=grounds),)


# The decision that a compile goes by a calibration, and whether a recipe allows it.
#
# A recipe that was made under a calibration replays under that one only: knobs and grids of kernels
# follow from the target's figures, not from sites of their own, so that the same choices under
# other figures would be another program without a word. A recipe that names no calibration (a part
# of a log, or one made with published figures) may be used under any; the log then names it.

CALIBRATION_SITE = Site("calibration", "module")
PUBLISHED = Alternative("published", reason="the target's published figures")


def record_calibration(
    calibration: Calibration | None, recipe: Recipe | None
) -> tuple[Decision, ...]:
    """Return the decision at `CALIBRATION_SITE`; none if the target's figures are published.

    Raises PycError (RECIPE_MISMATCH) for a recipe that was made under another calibration.
    """
    wanted = None if recipe is None else recipe.choices.get(CALIBRATION_SITE.key)
    label = PUBLISHED.name if calibration is None else calibration.label
    if wanted not in (None, label):
        raise PycError(
            ReasonCode.RECIPE_MISMATCH,
            f"{CALIBRATION_SITE.key}: expected the calibration `{wanted}` that the recipe was "
            f"made under, got `{label}`; compile with that file, or make the recipe again",
        )
    if calibration is None:
        return ()
    measured = Alternative(label, reason=f"measured on {calibration.machine.cpu}")
    grounds = (ContentHash(calibration.hash, calibration.name),)
    # Not a policy's choice: the caller gave the file.
    return (Decision(CALIBRATION_SITE, label, (measured, PUBLISHED), "caller", grounds=grounds),)
