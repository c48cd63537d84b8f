"""The parts of a request that a compile could not fulfil, as events of its log with codes.

Comes in: a finished artifact and its options. Goes out: an `Event` for each option that had no
effect, and for operations that take much of a call and that no kernel of PyC's covers.
"""

import math
from collections.abc import Iterator

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.compile_options import ALL_KERNELS
from pyc_mlir.compilation.options import Options
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.names import op_name
from pyc_mlir.iree.memory.arena_choice import SITE as ARENA_SITE
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.evidence import (
    Computes,
    EstimatedSeconds,
    MeasuredRecipe,
    MeasuredRow,
    Reason,
)
from pyc_mlir.pipelines.choices.log import COMPILE, Event
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT

LEFT_OUT = "left out"
# Uncovered operations are worth a word from this share of the predicted time of a call on, and
# from so many seconds on.
_SHARE, _SECONDS = 0.25, 1e-3
_NODES = 2


def notices(made: Artifact, options: Options) -> tuple[Event, ...]:
    """Return what was left out; equal programs of equal options have equal ones."""
    return (*_modes(made, options), *_wisdom(made, options), *_uncovered(made, options))


def _notice(name: str, code: ReasonCode, message: str, before: str = "") -> Event:
    return Event(COMPILE, name, LEFT_OUT, before, (Reason.of(code, message),))


def _modes(made: Artifact, options: Options) -> Iterator[Event]:
    there = {entry.mode for entry in made.manifest.entries.values()}
    missing = [mode for mode in options.also_modes if mode not in there]
    if not missing:
        return
    names = ", ".join(missing)
    why = [
        fact.message
        for d in made.decisions
        if d.site.pass_name == ARENA_SITE
        for fact in d.facts
        if isinstance(fact, Reason) and fact.code == ReasonCode.NO_ARENA_ENTRY.name
    ]
    yield _notice(
        "also_modes",
        ReasonCode.NO_ARENA_ENTRY,
        f"also_modes: expected a program that can have plans for {names}, got one without an entry "
        f"for them{f' ({why[0]})' if why else ''}; it has one plan, leave the option out",
        "+".join(missing),
    )


def _wisdom(made: Artifact, options: Options) -> Iterator[Event]:
    wisdom = options.policy.wisdom
    if wisdom is None or not wisdom.rows:
        return
    facts = [fact for d in made.decisions for fact in d.facts]
    estimates = (f.measured for f in facts if isinstance(f, EstimatedSeconds))
    if any(isinstance(f, MeasuredRow | MeasuredRecipe) for f in facts) or any(estimates):
        return
    rows = len(wisdom.rows)
    yield _notice(
        "wisdom",
        ReasonCode.NO_EVIDENCE,
        f"wisdom: expected a row for one of the program's choices, measured on this machine, got "
        f"{rows} row{'s' * (rows > 1)} of other works or machines; all choices are predicted: "
        "measure this program with `pyc-tune`",
        wisdom.label,
    )


def _uncovered(made: Artifact, options: Options) -> Iterator[Event]:
    if options.kernels != ALL_KERNELS:
        return
    seconds: dict[str, float] = {}
    bare: list[Decision] = []
    for d in (d for d in made.decisions if d.site.pass_name == SELECT):
        costs = {a.name: a.cost.seconds for a in d.alternatives if a.cost is not None}
        seconds[d.site.key] = costs.get(d.chosen, 0.0)
        if len(d.alternatives) == 1:  # the code that IREE generates
            bare.append(d)
    total, theirs = math.fsum(seconds.values()), math.fsum(seconds[d.site.key] for d in bare)
    if theirs < _SECONDS or theirs < _SHARE * total:
        return
    worst = max(bare, key=lambda d: seconds[d.site.key])
    where = f" at {', '.join(worst.site.nodes[:_NODES])}" if worst.site.nodes else ""
    several = f" in {len(bare)} places, the longest" if len(bare) > 1 else ""
    yield _notice(
        "kernels",
        ReasonCode.NO_KERNEL,
        f"kernels: no kernel of PyC's covers {theirs / total:.0%} of the predicted time of a call"
        f"{several}: {_computes(worst)}{where}, {seconds[worst.site.key] / total:.0%}; IREE's "
        "generated code computes it, which may be slower",
    )


def _computes(decision: Decision) -> str:
    ops = next((f.ops for f in decision.facts if isinstance(f, Computes)), ())
    return "+".join(op_name(op) for op in ops) or decision.site.op_id
