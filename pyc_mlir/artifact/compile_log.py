"""The options and decisions of a compile, read from a program or from a log.

An artifact's manifest says under which conditions it was compiled. A log that `pyc-compile --log`
writes has them as its first line, with the hash of the program (`pipelines/choices/log.py`). So a
log and a program have the same data. Needs no compiler.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.artifact import Artifact, from_bytes
from pyc_mlir.artifact.contract_status import Counts, current_report, refusal_report
from pyc_mlir.artifact.manifest import Origin, read_origin
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.pipelines.choices.choices import Decision, Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.pipelines.choices.log import (
    COMPILE,
    Conditions,
    Event,
    RecipeFile,
    decisions_of,
    events_of,
    is_recipe,
    parse_log,
    read_beside,
)

# What a compile without a program chose, and over what.
REFUSED, MADE = "refused", "made"
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class CompileLog:
    """One compile: its conditions (empty where a log has none), its choices, the program's hash.

    `artifact` is there where a program was read; `events` are those of the log: of the cache, of
    runs; `broken` is what trials of the compile found of broken clauses.
    """

    name: str
    conditions: Mapping[str, Any]
    decisions: tuple[Decision, ...]
    digest: str = ""
    artifact: Artifact | None = None
    events: tuple[Event, ...] = ()
    broken: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        """All choices, for this program alone if it is known."""
        made = Recipe.from_log(self.decisions)
        return Recipe(made.choices, made.origins, str(self.conditions.get("graph_id", "")))

    @property
    def signature(self) -> Signature | None:
        """The inputs and results of the program."""
        known = self.conditions.get("signature")
        return None if known is None else from_data(Signature, known)

    @property
    def reading(self) -> tuple[bool, str, tuple[str, ...]]:
        """The options `islands`, `function` and `outputs`, by which the model was read."""
        found = self.conditions.get("options") or {}
        outputs = tuple(map(str, found.get("outputs", ())))
        return bool(found.get("islands")), str(found.get("function", "")), outputs


def conditions_of(artifact: Artifact) -> dict[str, Any]:
    """Return the options and facts that an artifact was compiled with, as JSON data."""
    return to_data(artifact.manifest.origin)


def head_of(artifact: Artifact, data: bytes) -> Conditions:
    """Return a log's first record: the conditions and the hash of the program's bytes `data`."""
    broken = current_report(artifact, Counts()).broken
    return Conditions(conditions_of(artifact), hashlib.sha256(data).hexdigest(), broken)


def refusal_of(error: PycError, contract: Contract) -> Event:
    """Return the only record of a refused compile: why, and each clause of the contract."""
    clauses = (Reason("", str(c)) for c in refusal_report(contract, error).clauses)
    return Event(
        COMPILE, REFUSED, REFUSED, MADE, (Reason(error.code.name, error.message), *clauses)
    )


def read_compile_log(path: str | Path) -> CompileLog:
    """Read the log of a program (.vmfb), or a log's file.

    Raises PycError: FILE_ACCESS, BAD_ARGUMENT for a malformed log, BAD_ARTIFACT for a damaged
    program.
    """
    data = read_file(path, "a program or a log")
    if data.startswith(_ZIP):
        artifact = from_bytes(data, str(path)).named(read_beside(path))
        known, digest = conditions_of(artifact), hashlib.sha256(data).hexdigest()
        return CompileLog(str(path), known, tuple(artifact.decisions), digest, artifact)
    name = str(path)
    log = parse_log(data, str(path))
    head = next((r for r in log if isinstance(r, Conditions)), Conditions({}, ""))
    if head.values:
        origin_in(head.values, name)
    made, events = decisions_of(log), events_of(log)
    return CompileLog(name, head.values, made, head.digest, None, events, head.broken)


def origin_in(conditions: Mapping[str, Any], name: str) -> Origin:
    """Return the conditions of a log. Raises PycError (BAD_ARGUMENT) for those of no compile."""
    try:
        return read_origin(conditions)
    except ValueError as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{name}: expected conditions of a compile in its record `conditions`, got {error}; "
            "write the log again",
        ) from None


def recipe_at(path: str | Path) -> Recipe:
    """Return the choices of a program, a log or a recipe's file, for use with any program.

    Raises as `read_compile_log`, and PycError (BAD_ARGUMENT) for a malformed recipe.
    """
    data = read_file(path, "a program, a log or a recipe")
    if is_recipe(data):
        return RecipeFile.from_bytes(data, str(path)).recipe
    log = read_compile_log(path)
    return Recipe.from_log(log.decisions, str(log.conditions.get("graph_id", "")))
