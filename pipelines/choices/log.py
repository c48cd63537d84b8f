"""Records of compiles and runs as files: logs, recipes, the names of a model's nodes.

A log is JSON lines, each a tagged record of one of three types; a recipe repeats decisions only.

    {"kind": "conditions", ...}  `Conditions`: what was compiled, with which options; comes first
    {"kind": "decision", ...}    `Decision` (choices.py): one choice
    {"kind": "event", ...}       `Event`: a refusal, what the cache did, what happened in a run
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.dialects.util.json_input import parse_json, read_record
from pyc_mlir.pipelines.choices.choices import (
    SCHEMA_VERSION,
    Alternative,
    Decision,
    Recipe,
    Site,
)
from pyc_mlir.pipelines.choices.evidence import Evidence, Reason

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


# A recipe as a file: choices of one program with their grounds and what they are expected to take.
#
#     {"kind": "pyc-recipe", "schema": 2, "graph": "871a6d93a65e091e",
#      "choices": {"pyc-fuse:matmul.069bab9f29d9eac9": "keep", ...}, "works": {...},
#      "by": "explore", "grounds": {"pyc-fuse:...": [{"kind": "estimated-seconds", ...}]},
#      "estimate": {"seconds": 8.9e-06, "lo": ..., "hi": ..., "bytes": 65536, "exact": true},
#      "evidence": "wisdom@4f1c..."}

_BEGINNING = b'"kind": "pyc-recipe"'


@dataclass(frozen=True)
class ExpectedCall:
    """The expected cost of a program by the recipe: seconds of a call with an interval, bytes.

    measured: the part of the seconds that rests on measured rows. exact: whether a compile will
    state these bytes.
    """

    seconds: float
    lo: float
    hi: float
    measured: float = 0.0
    bytes: int | None = None
    exact: bool = False


@dataclass(frozen=True)
class RecipeFile:
    """Choices by site (``pass:op``) for the program `graph`, and by work for programs like it.

    by: who chose. grounds: by site, on what evidence. evidence: the label of the wisdom, or empty.
    """

    kind: ClassVar[str] = "pyc-recipe"
    schema: ClassVar[int] = 2
    graph: str
    choices: Mapping[str, str]
    works: Mapping[str, str] = field(default_factory=dict)
    by: str = "recipe"
    grounds: Mapping[str, tuple[Evidence, ...]] = field(default_factory=dict)
    estimate: ExpectedCall | None = None
    evidence: str = ""

    @property
    def recipe(self) -> Recipe:
        """The recipe for a compile, whose log will repeat who decided and on what grounds."""
        origins = {key: (self.by, self.grounds.get(key, ())) for key in self.choices}
        return Recipe(dict(self.choices), origins, made_for=self.graph, works=dict(self.works))

    def to_bytes(self) -> bytes:
        """Write the file: JSON with sorted keys, one fact a line."""
        data = to_data(self)
        return f"{json.dumps(data, indent=1, sort_keys=True, ensure_ascii=True)}\n".encode()

    @staticmethod
    def from_bytes(data: bytes, where: str = "recipe") -> "RecipeFile":
        """Read what `to_bytes` wrote. Raises PycError (BAD_ARGUMENT), with `where` first."""
        return read_record(RecipeFile, data, where, "a recipe", "make it again")

    @staticmethod
    def load(path: str | Path) -> "RecipeFile":
        """Read a file. Raises PycError: FILE_ACCESS, BAD_ARGUMENT."""
        return RecipeFile.from_bytes(read_file(path, "a recipe"), str(path))


def is_recipe(data: bytes) -> bool:
    """Return whether bytes are such a file, and no log or program."""
    return data.lstrip().startswith(b"{") and _BEGINNING in data


# Names of a model's nodes for the decisions of its program, beside the program.
#
# Equal programs have equal bytes, so an artifact holds no names. They lie in a file of their own,
# ``model.vmfb.names.json`` beside ``model.vmfb``, and beside an entry of the cache. They are for
# people: a program without them, or with those of another program, is read without names.

_SUFFIX = ".names.json"


@dataclass(frozen=True)
class NodeNames:
    """The names of nodes by the site of a decision (``pass:op-id``), of one program.

    They are written as `Site.without_paths` has them. model: the name of the model, if it is known.
    """

    graph_id: str
    sites: Mapping[str, str]
    model: str = ""

    @staticmethod
    def of(graph_id: str | None, decisions: Iterable[Decision]) -> "NodeNames":
        """Collect the names that decisions have."""
        plain = (d.site.without_paths for d in decisions if d.site.location)
        return NodeNames(graph_id or "", {s.key: s.location for s in plain if s.location})

    def given(self, graph_id: str | None, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
        """Return the decisions with these names, unless they are those of another program."""
        if self.graph_id != (graph_id or ""):
            return tuple(decisions)
        return tuple(
            replace(d, site=replace(d.site, location=d.site.location or self.sites[d.site.key]))
            if d.site.key in self.sites
            else d
            for d in decisions
        )

    def to_bytes(self) -> bytes:
        """Return the names as JSON."""
        return f"{json.dumps(to_data(self, 'names'), ensure_ascii=False, indent=0)}\n".encode()

    @staticmethod
    def from_bytes(data: bytes | None) -> "NodeNames":
        """Read what `to_bytes` made; no names in what is none."""
        try:
            return from_data(NodeNames, parse_json(data or b""), "names")
        except ValueError:
            return NodeNames("", {})


def beside(path: str | Path) -> Path:
    """Return the file of the names of the program at `path`."""
    return Path(f"{path}{_SUFFIX}")


def read_beside(path: str | Path) -> NodeNames:
    """Read the names beside a program; none where there is no such file."""
    try:
        return NodeNames.from_bytes(bytes(read_file(beside(path), "names")))
    except PycError:
        return NodeNames("", {})


def write_beside(path: str | Path, names: NodeNames) -> None:
    """Write the names beside the file of a program, if there are any.

    Raises PycError (FILE_ACCESS).
    """
    if names.sites and Path(path).is_file():
        write_file(beside(path), names.to_bytes(), "a file for the names of the model's nodes")
