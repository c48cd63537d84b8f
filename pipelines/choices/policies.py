"""Policies that answer the choices: presets of the planner's modes, and third parties'.

A policy prefers among legal alternatives (`choices.Policy`). A policy that affects memory names
in `planner_modes` the plans that it wants to be offered at the sites of pass ``plan-memory``; each
alternative there carries its predicted seconds and its bytes. A third party registers a class
without arguments under the entry point group ``pyc_mlir.policies``; its name is what users type.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.choices import Alternative, FirstIsBest, Policy, Site
from pyc_mlir.pipelines.choices.fastest import Fastest

GROUP = "pyc_mlir.policies"
# The modes of the memory planner (pipelines/memory/planner/planner.py), by name.
PLANNER_MODES = ("latency_first", "balanced", "memory_first")
DEFAULT_MODE = "balanced"
# The policy of compiles that name none, and the name that people try for it.
DEFAULT, _TRIED = FirstIsBest().name, "default"


@dataclass(frozen=True)
class Preset:
    """A mode of the planner as a policy: its own plan first, else what passes list first."""

    name: str
    planner_modes: tuple[str, ...]

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the first alternative's name: adapters list the preset's own plan first."""
        return alternatives[0].name


BUILT_IN: dict[str, Policy] = {
    DEFAULT: FirstIsBest(),
    "fastest": Fastest(),
    **{mode: Preset(mode, (mode,)) for mode in PLANNER_MODES},
}


def planner_modes(policy: Policy) -> tuple[str, ...]:
    """Return the modes whose plans `policy` is offered; the default one if it names none.

    Raises PycError (BAD_ARGUMENT) for a mode that does not exist, and for an attribute that is no
    list of names.
    """
    wanted = getattr(policy, "planner_modes", (DEFAULT_MODE,))
    listed = isinstance(wanted, tuple | list) and len(wanted) > 0
    unknown = [m for m in wanted if m not in PLANNER_MODES] if listed else [wanted]
    if unknown:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"policy `{policy.name}`: expected planner modes of {sorted(PLANNER_MODES)}, "
            f"got {unknown[0]!r}",
        )
    return tuple(wanted)


def load_policy(name: str) -> Policy:
    """Load the policy of that name: a built-in one, or one that an installed package registers.

    Raises PycError (BAD_ARGUMENT) with all names, or with the reason why loading failed.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    from importlib.metadata import entry_points  # 20 ms that most runs need not pay

    registered = {point.name: point for point in entry_points(group=GROUP)}
    if name not in registered:
        hint = did_you_mean(DEFAULT if name == _TRIED else name, (*BUILT_IN, *registered))
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"policy: expected one of {', '.join(sorted({*BUILT_IN, *registered}))}, got {name!r}"
            f"{hint}",
        )
    return _made(registered[name])


def _made(point: Any) -> Policy:
    """Make an entry point's policy. Any error of a plugin is reported under its name."""
    try:
        policy = point.load()()
    except Exception as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"policy `{point.name}` ({point.value}): expected a class that can be made without "
            f"arguments, got {type(error).__name__}: {error}",
        ) from error
    if not isinstance(getattr(policy, "name", None), str) or not callable(
        getattr(policy, "prefer", None)
    ):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"policy `{point.name}` ({point.value}): expected `name` and `prefer(site, "
            f"alternatives)`, got {type(policy).__name__}",
        )
    return policy
