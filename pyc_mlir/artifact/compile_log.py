"""The options and decisions of a compile, read from a program or from a log.

An artifact's manifest says under which conditions it was compiled. A log that `pyc-compile --log`
writes has them as its first line, a record of the pass ``compile`` with one ``name=JSON`` for each
condition, and the hash of the program. So a log and a program tell the same. Needs no compiler.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.artifact import CALIBRATION, Artifact, from_bytes
from pyc_mlir.artifact.contract_status import Counts, current_report, refusal_report
from pyc_mlir.artifact.manifest import check_conditions
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.pipelines.choices.choices import (
    COMPILE,
    Alternative,
    Decision,
    Recipe,
    Site,
    parse_log,
)
from pyc_mlir.pipelines.choices.contract import Contract

# What the manifest says of the way to a program, and how the record names the program's hash.
CONDITIONS = (
    "target",
    "features",
    "graph_id",
    "signature",
    "contract",
    "options",
    CALIBRATION,
    "versions",
)
_HASH = "sha256"
# What a compile without a program chose, and over what.
REFUSED, MADE = "refused", "made"
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True)
class CompileLog:
    """One compile: its conditions (empty where a log has none), its choices, the program's hash.

    `decisions` are choices only, without records; `artifact` is there where a program was read,
    `others` are what else a log told: of the cache, of runs.
    """

    name: str
    conditions: Mapping[str, Any]
    decisions: tuple[Decision, ...]
    digest: str = ""
    artifact: Artifact | None = None
    others: tuple[Decision, ...] = ()

    @property
    def recipe(self) -> Recipe:
        """All choices, for this program alone if it is known."""
        made = Recipe.from_log(self.decisions)
        return Recipe(made.choices, made.origins, str(self.conditions.get("graph_id", "")))

    @property
    def signature(self) -> Signature | None:
        """What the program takes and gives."""
        known = self.conditions.get("signature")
        return None if known is None else Signature.from_json(known)


def conditions_of(artifact: Artifact) -> dict[str, Any]:
    """What an artifact was compiled with, as JSON data."""
    return {name: artifact.manifest.get(name) for name in CONDITIONS}


def head_of(artifact: Artifact, data: bytes) -> Decision:
    """The first line of a log: the conditions, and the hash of the program's bytes.

    In `measured` stand clauses that trials of the compile found broken.
    """
    known = conditions_of(artifact)
    pairs = (f"{n}={json.dumps(v, sort_keys=True, ensure_ascii=False)}" for n, v in known.items())
    site = Site(COMPILE, artifact.manifest["graph_id"] or "module")
    target = artifact.manifest["target"]
    evidence = (*pairs, f'{_HASH}="{hashlib.sha256(data).hexdigest()}"')
    broken = current_report(artifact, Counts()).broken
    return Decision(site, target, (Alternative(target),), "caller", evidence, broken)


def refusal_of(error: PycError, contract: Contract) -> Decision:
    """The only line of the log of a compile that was refused: why, and each clause of it."""
    evidence = (
        f"{error.code.name}: {error.message}",
        *map(str, refusal_report(contract, error).clauses),
    )
    offered = (Alternative(REFUSED), Alternative(MADE))
    return Decision(Site(COMPILE, REFUSED), REFUSED, offered, "compiler", evidence)


def read_compile_log(path: str | Path) -> CompileLog:
    """What a program (.vmfb) or a log tells.

    Raises PycError: FILE_ACCESS, BAD_ARGUMENT for a malformed log, BAD_ARTIFACT for a damaged
    program.
    """
    data = read_file(path, "a program or a log")
    if data.startswith(_ZIP):
        artifact = from_bytes(data, str(path))
        known, digest = conditions_of(artifact), hashlib.sha256(data).hexdigest()
        return CompileLog(str(path), known, tuple(artifact.decisions), digest, artifact)
    return _of_log(str(path), parse_log(data, str(path)))


def _of_log(name: str, log: Sequence[Decision]) -> CompileLog:
    heads = [d for d in log if d.site.pass_name == COMPILE and d.chosen != REFUSED]
    known = _conditions(heads[0], name) if heads else {}
    digest = known.pop(_HASH, "")
    made = tuple(d for d in log if d.is_choice)
    # Of the conditions' record only what was measured is told besides.
    measured = (replace(d, evidence=()) for d in heads if d.measured)
    others = (*measured, *(d for d in log if not d.is_choice and d not in heads))
    return CompileLog(name, known, made, digest, None, others)


def _conditions(head: Decision, name: str) -> dict[str, Any]:
    try:
        pairs = [text.split("=", 1) for text in head.evidence]
        known = {key: parse_json(value) for key, value in pairs}
        missing = {*CONDITIONS, _HASH} - set(known)
        if missing:
            raise ValueError(f"without {', '.join(sorted(missing))}")
        check_conditions({name: known[name] for name in CONDITIONS})
        return known
    except ValueError as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{name}: expected conditions as name=JSON in the record of pass `{COMPILE}`, got "
            f"{error}; write the log again",
        ) from None


def recipe_at(path: str | Path) -> Recipe:
    """The choices of a program or a log, for use with any program; raises as `read_compile_log`."""
    log = read_compile_log(path)
    return Recipe.from_log(log.decisions, str(log.conditions.get("graph_id", "")))
