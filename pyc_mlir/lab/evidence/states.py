"""The life of a recipe: its states, and which may follow which.

    candidate -> verified -> measured -> shadow -> promoted -> suspended -> retired

`quarantined` may follow any. Whether a condition for a step is met is decided elsewhere, with a
verdict; the database only refuses steps that are none. Scopes name a toolchain: under another one
a recipe starts again, as `suspended` if it was in use under the one before.
"""

from collections.abc import Mapping
from dataclasses import dataclass

NEW = ""
CANDIDATE, VERIFIED, MEASURED, SHADOW = "candidate", "verified", "measured", "shadow"
PROMOTED, SUSPENDED, RETIRED, QUARANTINED = "promoted", "suspended", "retired", "quarantined"
STABLE, EXPERIMENTAL = "stable", "experimental"
LANES = (STABLE, EXPERIMENTAL)
# A suspended recipe comes back through measurements; a new toolchain lifts a quarantine by having
# another scope, and suspends there what another toolchain's scope has in use.
FOLLOWERS: Mapping[str, tuple[str, ...]] = {
    NEW: (CANDIDATE, SUSPENDED),
    CANDIDATE: (VERIFIED, RETIRED),
    VERIFIED: (MEASURED, RETIRED),
    MEASURED: (SHADOW, PROMOTED, RETIRED),
    SHADOW: (PROMOTED, SUSPENDED, RETIRED),
    PROMOTED: (SUSPENDED, RETIRED),
    SUSPENDED: (MEASURED, PROMOTED, RETIRED),
    RETIRED: (CANDIDATE,),
    QUARANTINED: (),
}


@dataclass(frozen=True)
class Scope:
    """The range of a state: program structure, cluster of workloads, hardware and toolchain.

    Empty parts stand for all.
    """

    structure: str = ""
    cluster: str = ""
    hardware: str = ""
    toolchain: str = ""


@dataclass(frozen=True)
class StateStep:
    """A state to come, and why."""

    state: str
    reason: str
    verdict_id: str | None = None


@dataclass(frozen=True)
class RecipeState:
    """The state of a recipe in a scope and lane, and the last transition that made it so."""

    impl_id: str
    scope: Scope
    lane: str
    state: str
    reason: str
    decided_by: str
    at: str
    seq: int


def may_follow(before: str, after: str) -> bool:
    """Return whether `after` may follow `before`."""
    return after in FOLLOWERS.get(before, ()) or (after == QUARANTINED and before != QUARANTINED)
