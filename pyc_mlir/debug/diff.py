"""Compare two compiles: two programs or logs in, a frozen `ProgramDifference` with reasons out.

Sites are joined by their keys. Where the programs differ, so do the ids of their operations: sites
that are left over are then joined by pass, operation and order.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyc_mlir.artifact.compile_log import CompileLog
from pyc_mlir.pipelines.choices.choices import Alternative, Decision

Values = tuple[str, Any, Any]
_MISSING = "absent"
_HASH = re.compile(r"\b[0-9a-f]{16}\b")


@dataclass(frozen=True)
class ChoiceDifference:
    """One site where the choice differs, or that only one of both has; and what else differs."""

    site: str
    before: Decision | None
    after: Decision | None
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramDifference:
    """All that differs: conditions, choices, sizes in bytes (None where only a call tells).

    same: sites with equal choices; restated: those of them whose costs, evidence or alternatives
    are other ones.
    """

    conditions: tuple[Values, ...]
    changes: tuple[ChoiceDifference, ...]
    same: int
    restated: tuple[ChoiceDifference, ...]
    sizes: tuple[Values, ...]

    @property
    def is_empty(self) -> bool:
        """True if both are equal."""
        return not (self.conditions or self.changes or self.restated)


def diff(a: CompileLog, b: CompileLog) -> ProgramDifference:
    """Return the differences from `a` to `b`."""
    changes, restated, same = [], [], 0
    for before, after in _joined(a, b):
        site = (after or before or _nothing()).site.key
        why = () if before is None or after is None else tuple(_reasons(before, after))
        if before is None or after is None or before.chosen != after.chosen:
            changes.append(ChoiceDifference(site, before, after, why))
            continue
        same += 1
        if why:
            restated.append(ChoiceDifference(site, before, after, why))
    conditions = tuple(_different(_flat(a.conditions), _flat(b.conditions)))
    sizes = tuple(_different(_sizes(a), _sizes(b)))
    return ProgramDifference(conditions, tuple(changes), same, tuple(restated), sizes)


def _nothing() -> Decision:
    raise AssertionError("a pair has one side at least")


def _joined(a: CompileLog, b: CompileLog) -> Iterator[tuple[Decision | None, Decision | None]]:
    """Yield pairs in the order of `b`, then the decisions that only `a` has."""
    before = {d.site.key: d for d in a.decisions}
    left = [d for d in b.decisions if d.site.key not in before]
    taken = {d.site.key for d in b.decisions}
    spare = [d for d in a.decisions if d.site.key not in taken]
    others: dict[str, Decision] = {}
    if a.conditions.get("graph_id") != b.conditions.get("graph_id"):
        others = _in_order(spare, left)
    used = {d.site.key for d in others.values()}
    for decision in b.decisions:
        key = decision.site.key
        yield before.get(key) or others.get(key), decision
    yield from ((d, None) for d in spare if d.site.key not in used)


def _in_order(spare: Sequence[Decision], left: Sequence[Decision]) -> dict[str, Decision]:
    """Return for sites of another program the decision about the same operation and place."""
    queues: defaultdict[str, list[Decision]] = defaultdict(list)
    for decision in spare:
        queues[_HASH.sub("", decision.site.key)].append(decision)
    found = {}
    for decision in left:
        queue = queues[_HASH.sub("", decision.site.key)]
        if queue:
            found[decision.site.key] = queue.pop(0)
    return found


def _reasons(before: Decision, after: Decision) -> Iterator[str]:
    """Yield the differences of two decisions besides the choice."""
    if before.decided_by != after.decided_by:
        yield f"decided by: {before.decided_by} -> {after.decided_by}"
    old, new = _by_name(before), _by_name(after)
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            yield f"{name}: is not offered any more"
        elif name not in old:
            yield f"{name}: was not offered before"
        else:
            yield from _restated(name, old[name], new[name])
    yield from (f"evidence before: {e}" for e in before.facts if e not in after.facts)
    yield from (f"evidence now: {e}" for e in after.facts if e not in before.facts)


def _by_name(decision: Decision) -> dict[str, Alternative]:
    return {a.name: a for a in decision.alternatives}


def _restated(name: str, old: Alternative, new: Alternative) -> Iterator[str]:
    costs = [{} if a.cost is None else vars(a.cost) for a in (old, new)]
    for part, value, now in _different(*costs):
        yield f"{name}: {part} {_number(value)} -> {_number(now)}"
    if old.reason != new.reason:
        yield f"{name}: {old.reason or 'no reason'} -> {new.reason or 'no reason'}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Values]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, _MISSING), after.get(name, _MISSING)
        if old != new:
            yield name, old, new


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested objects as ``contract.max_error``; lists stay whole."""
    flat = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _sizes(recorded: CompileLog) -> dict[str, int | None]:
    """Return the bytes of the program and of one call, if a program was read."""
    artifact = recorded.artifact
    if artifact is None:
        return {}
    return {"program": len(artifact.vmfb), **asdict(artifact.manifest.memory)}
