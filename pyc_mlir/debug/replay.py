"""Compile a program again as a log says: the same bytes, or an error that names what differs.

    recorded = read_compile_log("model.vmfb")          # or decisions.jsonl
    artifact = replay("model.onnx", None, recorded)

Target, contract and options come from the log, choices from its decisions. Whatever else decides
is compared: versions, calibration and the target's figures before the compile, the program's graph
as soon as it is known, then every decision with its alternatives, costs and evidence, and at last
the bytes.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import (
    Artifact,
    calibration_name,
    installed_versions,
    to_bytes,
)
from pyc_mlir.artifact.compile_log import CompileLog, conditions_of, origin_in
from pyc_mlir.compilation.options import CompileOptions, Options, resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import TARGETS, Target
from pyc_mlir.util.logs import Stage, logged

_SHOWN = 200


def replay(
    source: Any,
    inputs: Sequence[Any] | None,
    recorded: CompileLog,
    *,
    calibration: Calibration | str | Path | None = None,
    iree_flags: Sequence[str] = (),
    target: Target | None = None,
    stage: Stage = logged,
) -> Artifact:
    """Compile `recorded` again from `source`; the artifact's bytes are the same.

    source, inputs: as for `compile`, those that were compiled. calibration: the file whose name
    and hash the log has. iree_flags: only if a recorded one names a path, which no log keeps.
    target: only if it was a `Target` of the caller's own, of which the log has the name and the
    CPU features.

    Raises PycError: BAD_ARGUMENT as `replay_options`; REPLAY_MISMATCH for another program, version,
    target, calibration or decision; RECIPE_MISMATCH for a choice that is not offered any more, or a
    site that never came up; and the errors of the compile.
    """
    options = replay_options(recorded, calibration, iree_flags, target)
    artifact = build(source, inputs, replace(options, recipe=recorded.recipe), stage)
    require_same(recorded, artifact)
    return artifact


def replay_options(
    recorded: CompileLog,
    calibration: Calibration | str | Path | None = None,
    iree_flags: Sequence[str] = (),
    target: Target | None = None,
) -> Options:
    """Return the options that a program was compiled with, but for its recipe.

    Raises PycError: BAD_ARGUMENT for a log without conditions or one for a target that PyC has not
    and that is not given, REPLAY_MISMATCH for those that this machine, these packages or the
    arguments do not meet, and as `resolve`.
    """
    if not recorded.conditions:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{recorded.name}: expected the log of a program, as `pyc-compile MODEL -o FILE --log "
            "LOG` writes it, or the program itself, got decisions without their compile; use them "
            "with `--recipe`",
        )
    known = origin_in(recorded.conditions, recorded.name)
    if target is None and known.target not in TARGETS:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{recorded.name}: expected the Target `{known.target}` that it was compiled for, "
            "which is none of PyC's own, got none; give it by `replay(..., target=...)`",
        )
    given = CompileOptions(
        target=target or known.target,
        contract=known.contract,
        calibration=calibration,
        iree_flags=iree_flags,
    )
    options = resolve(given, known.options)
    now = replace(
        known,
        target=options.target.name,
        features=tuple(sorted(options.target.needs)),
        options=options.replayed,
        calibration=calibration_name(options.calibration),
        versions=installed_versions(),
    )
    _compare(recorded, to_data(now))
    return options


def require_same(recorded: CompileLog, artifact: Artifact) -> None:
    """Raise PycError (REPLAY_MISMATCH) unless an artifact is the recorded one, byte for byte."""
    _compare(recorded, conditions_of(artifact))
    difference = first_difference(recorded.decisions, artifact.decisions)
    if difference:
        raise _mismatch(difference)
    digest = hashlib.sha256(to_bytes(artifact)).hexdigest()
    if digest != recorded.digest:
        raise _mismatch(
            f"program: expected bytes with sha256 {recorded.digest[:16]}, got {digest[:16]} from "
            "equal decisions: the model, the figures of its target or PyC itself have changed"
        )


def _compare(recorded: CompileLog, now: Mapping[str, Any]) -> None:
    """Raise PycError (REPLAY_MISMATCH) for the first condition that is another one."""
    for name, value in json.loads(json.dumps(dict(now))).items():
        before = recorded.conditions[name]
        if before != value:
            raise _mismatch(f"{name}: expected {_short(before)} as recorded, got {_short(value)}")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def first_difference(before: Sequence[Decision], now: Sequence[Decision]) -> str:
    """Describe the first decision that differs or stands elsewhere; empty if none does.

    Locations, which artifacts do not carry, and measurements are not compared.
    """
    for old, new in zip(before, now, strict=False):
        if _essence(old) != _essence(new):
            return _difference(old, new)
    longer = before if len(before) > len(now) else now
    if len(before) == len(now):
        return ""
    key, chosen = longer[min(len(before), len(now))].site.key, longer is before
    state = "recorded, got none" if chosen else "not recorded, got one"
    return f"{key}: expected the decision {state}"


def _essence(decision: Decision) -> dict[str, Any]:
    same = replace(decision, site=replace(decision.site, location=""), measured={})
    return to_data(same)


def _difference(old: Decision, new: Decision) -> str:
    if old.site.key != new.site.key:
        return f"{old.site.key}: expected this decision as recorded, got one at {new.site.key}"
    offered = ", ".join(a.name for a in new.alternatives)
    if old.chosen != new.chosen:
        return (
            f"{old.site.key}: expected {old.chosen!r} as recorded, got {new.chosen!r} of {offered}"
        )
    before, now = _essence(old), _essence(new)
    name = next(n for n in before if before[n] != now[n])
    return (
        f"{old.site.key}: expected {old.chosen!r} with the recorded {name}, "
        f"{_short(before[name])}, got {_short(now[name])}"
    )


def _mismatch(problem: str) -> PycError:
    return PycError(ReasonCode.REPLAY_MISMATCH, f"replay: {problem}")
