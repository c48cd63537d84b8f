"""The commands of `pyc-tune` on the database: what it holds, which recipes are in use, upkeep.

`run_NAME(store, flags)` carries out a command and returns its exit status.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.lab.evidence.database.exchange import (
    Measured,
    export_wisdom,
    import_wisdom,
    measured,
)
from pyc_mlir.lab.evidence.database.store import STATES, EvidenceStore, collect, problems
from pyc_mlir.lab.evidence.rows import (
    EXPERIMENTAL,
    LANES,
    STABLE,
    Graph,
    Implementation,
    Scope,
    Session,
    State,
    Study,
    Trace,
    Verdict,
)
from pyc_mlir.lab.lanes.baselines import freeze, rows_of, versions
from pyc_mlir.lab.lanes.promotion import (
    NEW_DEFAULT,
    SWAP,
    PromotionStatus,
    Wanted,
    promote,
    promotion_status,
)
from pyc_mlir.measure.environment import Environments, current_place
from pyc_mlir.measure.records import Report
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.util.units import quantity

_SHORT = 16
_KINDS = (Graph, Implementation, Study, Session, Trace, Verdict)
BY = "pyc-tune"


def run_ls(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Print the counts of all tables, then the studies, then graphs with their measurements."""
    counts = store.counts()
    print(store.url)
    for name, count in counts.items():
        if count:
            print(f"  {name:17} {count}")
    for study in store.find(Study):
        states = [trial.state for trial in store.trials(study.id)]
        told = ", ".join(f"{states.count(s)} {s}" for s in STATES if s in states) or "no trials"
        print(f"study {study.id[:_SHORT]}  {study.strategy}, seed {study.seed}: {told}")
    by_graph: dict[str, list[Measured]] = {}
    for one in measured(store):
        by_graph.setdefault(one.graph_id, []).append(one)
    for graph in store.find(Graph):
        rows = by_graph.get(graph.graph_id, [])
        ways, sessions = ({getattr(r, n) for r in rows} for n in ("impl_id", "session_id"))
        print(
            f"{graph.kind:7} {graph.graph_id[:_SHORT]}  {graph.ops} ops, {len(ways)} "
            f"implementations measured in {len(sessions)} sessions"
        )
    return cli.OK


def run_show(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Print a row as its fields, and for a graph or implementation its measurements."""
    row = named(store, flags.id)
    print(row.table)
    for name, value in vars(row).items():
        text = f"{len(value)} samples" if name in ("wall", "cpu") else str(value)
        print(f"  {name:15} {text.rstrip()}".replace("\n  ", "\n" + " " * 4))
    if isinstance(row, Trace):
        for name, value in row.figures.items():
            print(f"  {name:15} {value}")
    if isinstance(row, Graph | Implementation):
        traces = measured(store, (row.graph_id,))
        _print_times([t for t in traces if isinstance(row, Graph) or t.impl_id == row.id])
    if isinstance(row, Study):
        for t in store.trials(row.id):
            told = f"{t.state:8} attempt {t.attempt}  {dict(t.config)} {t.reason}"
            print(f"  trial {t.number:4} {told}")
    return cli.OK


def _print_times(traces: Sequence[Measured]) -> None:
    groups: dict[tuple[str, ...], list[Measured]] = {}
    for t in traces:
        key = (t.impl_id, t.hardware, t.toolchain, t.context, t.constants)
        groups.setdefault(key, []).append(t)
    for key, rows in sorted(groups.items()):
        seconds = sorted(row.p50 for row in rows)
        choice = ", ".join(rows[0].recipe.values())
        print(
            f"  {key[0][:_SHORT]} {choice[:40]:40} {quantity(seconds[0], 's')} to "
            f"{quantity(seconds[-1], 's')} in {len(rows)} processes of "
            f"{len({row.session_id for row in rows})} sessions, constants {key[4]}, "
            f"{' '.join(part[:11] for part in key[1:4])}"
        )


def run_why(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Print every transition of a recipe, the verdicts on it, and the conditions of next states."""
    row = _implementation(store, flags.id)
    choices = ", ".join(f"{k}: {v}" for k, v in row.recipe.items())
    print(f"{row.id[:_SHORT]}  {choices}, by {row.origin or 'nobody named'}")
    history = store.history(row.id)
    for s in history:
        print(
            f"  {s.at[:19]} {s.lane:12} {s.state:11} by {s.decided_by or '-'}: "
            f"{s.reason or '-'} ({_place(s.scope)})"
        )
    verdicts = (*store.find(Verdict, candidate=row.id), *store.find(Verdict, incumbent=row.id))
    for verdict in verdicts:
        ours = verdict.candidate == row.id
        role = "against" if ours else "as incumbent of"
        other = verdict.incumbent if ours else verdict.candidate
        print(
            f"  verdict {verdict.answer}: {verdict.ratio:.3f} ({verdict.lo:.3f} to "
            f"{verdict.hi:.3f}) of the time {role} {other[:_SHORT]}, {verdict.rule}, "
            f"{len(verdict.sessions)} sessions"
        )
    if not history and not verdicts:
        print("  no transitions and no verdicts")
    here = current_place()
    places = [*store.places().values()]
    for where in [p for p in places if p.id == here.id] or places[-1:]:
        for lane in (EXPERIMENTAL, STABLE):
            _print_outlook(store, row, where, lane)
    return cli.OK


def _print_outlook(
    store: EvidenceStore, candidate: Implementation, where: Environments, lane: str
) -> None:
    """Print the obstacles between a recipe and the end of a lane."""
    try:
        now = promotion_status(store, candidate, where, Wanted(lane))
    except PycError as error:
        print(f"  {lane}: {error.message}")
        return
    print(
        f"  lane {lane}, {where.hardware[:11]} {where.toolchain[:11]}: {now.state or 'no state'}, "
        f"against {now.case.incumbent.id[:_SHORT]}, look {now.case.looks + 1} at an error of "
        f"{now.case.alpha:.2g}"
    )
    for line in _conditions(now):
        print(f"  {line}")


def _conditions(now: PromotionStatus) -> Iterator[str]:
    """Yield each step of a lane with its conditions, one a line."""
    for assessment in now.assessments:
        yield f"  {assessment.state}: {'met' if assessment.met else 'not met'}"
        yield from (f"    {finding}" for finding in assessment.findings)


def run_export(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Write measured choices as wisdom."""
    require_writable(flags.file, "a file for the wisdom")
    here = current_place() if flags.here else None
    keep = (here.hardware, here.toolchain) if here else ("", "")
    wisdom = export_wisdom(store, *keep, flags.least_sessions, flags.lane)
    write_file(flags.file, wisdom.to_bytes())
    print(f"{flags.file}: {len(wisdom.rows)} rows, {wisdom.label}")
    return cli.OK


def run_import(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Read wisdom as candidates."""
    wisdom = Wisdom.load(flags.file)
    new = import_wisdom(store, wisdom)
    print(f"{flags.file}: {len(wisdom.rows)} rows, {new} new candidates")
    return cli.OK


def run_verify(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Check every row."""
    damaged = 0
    for problem in problems(store):
        damaged += 1
        print(f"{problem} [{ReasonCode.EVIDENCE_CONFLICT.name}]", file=sys.stderr)
    print(f"{store.url}: {sum(store.counts().values())} rows, {damaged} damaged")
    return cli.REFUSED if damaged else cli.OK


def run_gc(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Remove traces of older toolchains on which nothing rests."""
    if flags.keep_toolchains < 0:
        raise cli.usage_error(BY, f"expected a number of toolchains, got {flags.keep_toolchains}")
    gone = collect(store, flags.keep_toolchains, flags.dry_run)
    done = "would remove" if flags.dry_run else "removed"
    print(f"{store.url}: {done} {gone.traces} traces of {len(gone.toolchains)} toolchains")
    return cli.OK


def run_promote(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Take a recipe as far as its measurements allow. Raises PycError (NOT_PROMOTED)."""
    candidate = _implementation(store, flags.id)
    limits = (flags.arena_bytes, flags.compile_seconds)
    against = _implementation(store, flags.incumbent) if flags.incumbent else None
    least = NEW_DEFAULT if flags.new_default else SWAP
    wanted = Wanted(flags.lane, least, flags.cluster, *limits, against)
    place = current_place()
    if flags.env:
        found = [p for name, p in store.places().items() if name.startswith(flags.env)]
        if len(found) != 1:
            raise _unknown(
                f"the beginning of one environment's id, got {flags.env!r}, which {len(found)} have"
            )
        place = found[0]
    done = promote(store, candidate, place, wanted, BY)
    print(f"{candidate.id[:_SHORT]}: {done.state} in lane {done.lane}")
    print("\n".join(_conditions(done)))
    return cli.OK


def run_rollback(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Reverse the last transition of a recipe in a lane, in the one scope that has one."""
    candidate = _implementation(store, flags.id)
    states = [
        s
        for s in store.states(impl_id=candidate.id, lane=flags.lane)
        if s.state != State.QUARANTINED and s.scope.toolchain.startswith(flags.toolchain or "")
    ]
    if len(states) != 1:
        found = ", ".join(_place(s.scope) for s in states) or "none"
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"recipe {candidate.id[:12]}: expected a state in one scope of lane {flags.lane!r}, "
            f"got {found}; --toolchain picks one",
        )
    state = store.rollback(candidate.id, states[0].scope, flags.lane, BY)
    print(f"{candidate.id[:_SHORT]}: {state.state or 'no state'} in lane {flags.lane}")
    return cli.OK


def run_lanes(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Print the recipes of each lane and their states."""
    states = store.states()
    for lane in LANES:
        mine = [s for s in states if s.lane == lane]
        print(f"{lane}: {len(mine)} states")
        for state in sorted(mine, key=lambda s: (s.scope.structure, s.seq)):
            print(
                f"  {state.impl_id[:_SHORT]} {state.state:11} {state.at[:10]}  "
                f"{_place(state.scope)}: {state.reason[:100] or '-'}"
            )
    return cli.OK


def run_baseline(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Freeze reports, else the recipes in use, as the next version of a name."""
    reports = [Report.load(path) for path in flags.reports]
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    version = freeze(store, flags.name, reports, moment)
    count = len(rows_of(store, f"{flags.name}@{version}"))
    print(f"{flags.name}@{version}: {count} rows")
    return cli.OK


def run_baselines(store: EvidenceStore, flags: argparse.Namespace) -> int:
    """Print the names and versions of baselines, or the rows of one."""
    if not flags.name:
        for name, known in versions(store).items():
            print(f"{name}: {', '.join(f'{name}@{version}' for version in known)}")
        return cli.OK
    for row in rows_of(store, flags.name):
        made = store.get(Implementation, row.impl_id)
        choices = ", ".join(f"{k}: {v}" for k, v in made.recipe.items()) if made else "gone"
        numbers = ", ".join(f"{k} {v:.6g}" for k, v in row.numbers.items())
        print(f"{row.impl_id[:_SHORT]} {choices[:60]}, workload {row.workload_id[:8]}: {numbers}")
    return cli.OK


def named(store: EvidenceStore, beginning: str) -> Any:
    """Return the one row whose id begins so. Raises PycError (BAD_ARGUMENT)."""
    found = [row for kind in _KINDS for row in store.beginning_with(kind, beginning)]
    if len(found) != 1:
        raise _unknown(
            f"the beginning of one row's id, got {beginning!r}, which {len(found)} have; "
            "`pyc-tune ls` lists them"
        )
    return found[0]


def _implementation(store: EvidenceStore, beginning: str) -> Implementation:
    row = named(store, beginning)
    if not isinstance(row, Implementation):
        raise _unknown(f"the id of an implementation, got an id of table {row.table}")
    return row


def _place(scope: Scope) -> str:
    """Write a scope in words."""
    return ", ".join(f"{k} {v[:_SHORT]}" for k, v in vars(scope).items() if v) or "everywhere"


def _unknown(expected: str) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"command line: expected {expected}")
