"""The commands of `pyc-tune` that decide which recipes are in use.

pyc-tune promote ID --lane stable|experimental [--new-default] [--cluster NAME]
pyc-tune rollback ID [--lane LANE]
pyc-tune lanes
"""

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import Implementation
from pyc_mlir.lab.evidence.states import EXPERIMENTAL, LANES, QUARANTINED, STABLE, Scope
from pyc_mlir.lab.lanes.baselines import freeze, rows_of, versions
from pyc_mlir.lab.lanes.conditions import NEW_DEFAULT, SWAP, RecipeLimits
from pyc_mlir.lab.lanes.promotion import Standing, Wanted, promote, standing, state_of
from pyc_mlir.measure.environment import Environments, current_place
from pyc_mlir.measure.records import Report
from pyc_mlir.tools.tune.look import named

_SHORT = 16
BY = "pyc-tune"


def run_promote(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Take a recipe as far as its measurements allow. Raises PycError (NOT_PROMOTED)."""
    candidate = implementation(store, flags.id)
    limits = RecipeLimits(flags.arena_bytes, flags.compile_seconds)
    against = implementation(store, flags.incumbent) if flags.incumbent else None
    least = NEW_DEFAULT if flags.new_default else SWAP
    wanted = Wanted(flags.lane, least, flags.cluster, limits, against)
    place = place_of(store, flags)
    done = promote(store, candidate, place, wanted, BY)
    print(f"{candidate.id[:_SHORT]}: {done.state} in lane {done.lane}")
    print("".join(standing_lines(done)), end="")
    return 0


def run_rollback(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Reverse the last transition of a recipe in a lane, in each scope that has one to reverse."""
    candidate = implementation(store, flags.id)
    states = [
        s
        for s in store.states(impl_id=candidate.id, lane=flags.lane)
        if s.state != QUARANTINED and s.scope.toolchain.startswith(flags.toolchain or "")
    ]
    if len(states) != 1:
        found = ", ".join(place(s.scope) for s in states) or "none"
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"recipe {candidate.id[:12]}: expected a state in one scope of lane {flags.lane!r}, "
            f"got {found}; --toolchain picks one",
        )
    state = store.rollback(candidate.id, states[0].scope, flags.lane, BY)
    print(f"{candidate.id[:_SHORT]}: {state.state or 'no state'} in lane {flags.lane}")
    return 0


def run_lanes(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Print the recipes of each lane and their states."""
    states = store.states()
    for lane in LANES:
        mine = [s for s in states if s.lane == lane]
        print(f"{lane}: {len(mine)} states")
        for state in sorted(mine, key=lambda s: (s.scope.structure, s.seq)):
            print(
                f"  {state.impl_id[:_SHORT]} {state.state:11} {state.at[:10]}  "
                f"{place(state.scope)}: {state.reason[:100] or '-'}"
            )
    return 0


def run_baseline(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Freeze reports, else the recipes in use, as the next version of a name."""
    reports = [Report.load(path) for path in flags.reports]
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    version = freeze(store, flags.name, reports, moment)
    count = len(rows_of(store, f"{flags.name}@{version}"))
    print(f"{flags.name}@{version}: {count} rows")
    return 0


def run_baselines(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Print the names and versions of baselines, or the rows of one."""
    if not flags.name:
        for name, known in versions(store).items():
            print(f"{name}: {', '.join(f'{name}@{version}' for version in known)}")
        return 0
    for row in rows_of(store, flags.name):
        made = store.get(Implementation, row.impl_id)
        choices = ", ".join(f"{k}: {v}" for k, v in made.recipe.items()) if made else "gone"
        numbers = ", ".join(f"{k} {v:.6g}" for k, v in row.numbers.items())
        print(f"{row.impl_id[:_SHORT]} {choices[:60]}, workload {row.workload_id[:8]}: {numbers}")
    return 0


def implementation(store: EvidenceStore, beginning: str) -> Implementation:
    """Return the recipe whose id begins so. Raises PycError (BAD_ARGUMENT)."""
    row = named(store, beginning)
    if not isinstance(row, Implementation):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"command line: expected the id of an implementation, got an id of table {row.table}",
        )
    return row


def place(scope: Scope) -> str:
    """Write a scope in words."""
    return ", ".join(f"{k} {v[:_SHORT]}" for k, v in vars(scope).items() if v) or "everywhere"


def place_of(store: EvidenceStore, flags: argparse.Namespace) -> Environments:
    """Return this machine and toolchain, or the environment that `--env` names.

    The value is the beginning of its id. Raises PycError (BAD_ARGUMENT) unless one environment has
    it.
    """
    if not flags.env:
        return current_place()
    found = [p for name, p in store.places().items() if name.startswith(flags.env)]
    if len(found) != 1:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"command line: expected the beginning of one environment's id, got {flags.env!r}, "
            f"which {len(found)} have",
        )
    return found[0]


def standing_lines(now: Standing) -> Iterator[str]:
    """Yield each step of a lane with its conditions, one a line."""
    for assessment in now.assessments:
        yield f"  {assessment.state}: {'met' if assessment.met else 'not met'}\n"
        yield from (f"    {finding}\n" for finding in assessment.findings)


def outlook(store: EvidenceStore, candidate: Implementation) -> Iterator[str]:
    """Yield the obstacles between a recipe and both lanes, on this machine and toolchain."""
    here = current_place()
    places = [p for p in store.places().values() if p.id == here.id] or list(
        store.places().values()
    )[-1:]
    for where in places:
        for lane in (EXPERIMENTAL, STABLE):
            try:
                now = standing(store, candidate, where, Wanted(lane))
            except PycError as error:
                yield f"  {lane}: {error.message}\n"
                continue
            state = state_of(store, candidate.id, now.case.scope, lane)
            against = now.case.incumbent.id[:_SHORT]
            yield (
                f"  lane {lane}, {where.hardware[:11]} {where.toolchain[:11]}: "
                f"{state or 'no state'}, against {against}, look {now.case.looks + 1} at an "
                f"error of {now.case.alpha:.2g}\n"
            )
            yield from (f"  {line}" for line in standing_lines(now))
