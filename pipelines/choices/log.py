"""Logs of compiles and runs: JSON lines, each a tagged record of one of three types.

    {"kind": "conditions", ...}  `Conditions`: what was compiled, with which options; comes first
    {"kind": "decision", ...}    `Decision` (choices.py): one choice
    {"kind": "event", ...}       `Event`: a refusal, what the cache did, what happened in a run

A recipe repeats decisions only.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.dialects.util.json_input import read_record
from pyc_mlir.pipelines.choices.choices import (
    SCHEMA_VERSION,
    Alternative,
    Decision,
    Recipe,
    Site,
)
from pyc_mlir.pipelines.choices.evidence import Reason

# The parts of PyC that events are of.
COMPILE, CACHE, RUN = "compile", "cache", "run"
PARTS = (COMPILE, CACHE, RUN)


@dataclass(frozen=True)
class Conditions:
    """The request of a compile: values by name, as JSON data.

    digest: SHA-256 of the program's bytes, in hex. broken: the measurements of the compile's
    trials, by the reason code of each broken clause; only this may differ between two equal
    compiles.
    """

    kind: ClassVar[str] = "conditions"
    schema: ClassVar[int] = SCHEMA_VERSION
    values: Mapping[str, Any]
    digest: str
    broken: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """Something that happened and was no choice.

    part: one of `PARTS`; name: what happened there, or to what; outcome: how it ended, or what was
    taken, and `before` what it took the place of. measured: numbers that another run may change;
    broken: those of broken clauses of the contract, by reason code.
    """

    kind: ClassVar[str] = "event"
    schema: ClassVar[int] = SCHEMA_VERSION
    part: str
    name: str
    outcome: str
    before: str = ""
    reasons: tuple[Reason, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    broken: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError for a part that is none."""
        if self.part not in PARTS:
            raise ValueError(f"expected a part of {', '.join(PARTS)}, got {self.part!r:.80}")

    def __str__(self) -> str:
        """Write the event in words, as in ``mode: full in place of lean; CODE: why``."""
        text = f"{self.name}: {self.outcome}"
        text += f" in place of {self.before}" if self.before else ""
        numbers = ", ".join(f"{name} {value:g}" for name, value in self.measured.items())
        return "; ".join([text, *map(str, self.reasons), *([numbers] if numbers else [])])

    # The same view as of a decision, for lists of both.

    @property
    def site(self) -> Site:
        """The part and the name."""
        return Site(self.part, self.name)

    @property
    def chosen(self) -> str:
        """The outcome."""
        return self.outcome

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The outcome and what it took the place of."""
        return tuple(Alternative(name) for name in (self.outcome, self.before) if name)

    @property
    def decided_by(self) -> str:
        """The part."""
        return self.part

    @property
    def facts(self) -> tuple[Reason, ...]:
        """The reasons."""
        return self.reasons


Record = Decision | Conditions | Event
# What lists show in one form.
Listed = Decision | Event
# To type checkers a union is no type.
_RECORD: Any = Record


def write_log(records: Iterable[Record], path: str | Path) -> None:
    """Write records as JSON lines, in order. Raises PycError (FILE_ACCESS)."""
    lines = (json.dumps(to_data(r), ensure_ascii=False) for r in records)
    write_file(path, "".join(f"{line}\n" for line in lines).encode())


def read_log(path: str | Path) -> list[Record]:
    """Read a JSON-lines log.

    Raises PycError: FILE_ACCESS, and BAD_ARGUMENT with the line for malformed input.
    """
    return parse_log(read_file(path, "a log of decisions"), str(path))


def parse_log(data: bytes, path: str) -> list[Record]:
    """Read the records of a log; `path` is for messages. Raises as `read_log`."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"{one_line(path)}: expected a log of decisions, got: {error}"
        ) from None
    records = []
    # Not `splitlines`: what else it takes for the end of a line may stand in a string.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        records.append(
            read_record(
                _RECORD,
                line,
                f"{one_line(path)}:{number}",
                f"one record of schema {SCHEMA_VERSION} as JSON",
                "compile the program again with this version of PyC, whose log has the same facts",
            )
        )
    return records


def decisions_of(records: Iterable[Record]) -> tuple[Decision, ...]:
    """Return the choices among records."""
    return tuple(r for r in records if isinstance(r, Decision))


def events_of(records: Iterable[Record]) -> tuple[Event, ...]:
    """Return the events among records."""
    return tuple(r for r in records if isinstance(r, Event))


def load_recipe(path: str | Path) -> Recipe:
    """Read the recipe of a log. Raises PycError for a malformed file."""
    return Recipe.from_log(decisions_of(read_log(path)))
