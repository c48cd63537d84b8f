"""The output of `pyc-tune ls`, `show` and `why`."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.exchange import Measured, measured
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.database.trials import STATES
from pyc_mlir.lab.evidence.rows import Graph, Implementation, Session, Study, Trace, Verdict
from pyc_mlir.util.units import quantity

_SHORT = 16
_KINDS = (Graph, Implementation, Study, Session, Trace, Verdict)


def listing(store: EvidenceStore) -> str:
    """Write the counts of all tables, then the studies, then graphs with their measurements."""
    counts = store.counts()
    lines = [f"{store.url}\n", *(f"  {n:17} {counts[n]}\n" for n in counts if counts[n])]
    for study in store.find(Study):
        states = [trial.state for trial in store.trials(study.id)]
        state_counts = (
            ", ".join(f"{states.count(s)} {s}" for s in STATES if s in states) or "no trials"
        )
        lines.append(
            f"study {study.id[:_SHORT]}  {study.strategy}, seed {study.seed}: {state_counts}\n"
        )
    by_graph: dict[str, list[Measured]] = {}
    for one in measured(store):
        by_graph.setdefault(one.graph_id, []).append(one)
    for graph in store.find(Graph):
        rows = by_graph.get(graph.graph_id, [])
        ways = len({row.impl_id for row in rows})
        lines.append(
            f"{graph.kind:7} {graph.graph_id[:_SHORT]}  {graph.ops} ops, {ways} implementations "
            f"measured in {len({row.session_id for row in rows})} sessions\n"
        )
    return "".join(lines)


def shown(store: EvidenceStore, beginning: str) -> str:
    """Write a row as its fields, and for a graph or implementation its measurements."""
    row = named(store, beginning)
    lines = [f"{row.table}\n"]
    for name, value in vars(row).items():
        text = f"{len(value)} samples" if name in ("wall", "cpu") else str(value)
        lines.append(f"  {name:15} {text.rstrip()}\n".replace("\n  ", "\n" + " " * 4))
    if isinstance(row, Trace):
        lines += [f"  {name:15} {value}\n" for name, value in row.figures.items()]
    if isinstance(row, Graph | Implementation):
        traces = measured(store, (row.graph_id,))
        mine = [t for t in traces if isinstance(row, Graph) or t.impl_id == row.id]
        lines += _times(mine)
    if isinstance(row, Study):
        lines += (
            f"  trial {t.number:4} {t.state:8} attempt {t.attempt}  {dict(t.config)} {t.reason}\n"
            for t in store.trials(row.id)
        )
    return "".join(lines)


def _times(traces: Sequence[Measured]) -> Iterator[str]:
    groups: dict[tuple[str, ...], list[Measured]] = {}
    for t in traces:
        key = (t.impl_id, t.hardware, t.toolchain, t.context, t.constants)
        groups.setdefault(key, []).append(t)
    for key, rows in sorted(groups.items()):
        seconds = sorted(row.p50 for row in rows)
        choice = ", ".join(rows[0].recipe.values())
        yield (
            f"  {key[0][:_SHORT]} {choice[:40]:40} {quantity(seconds[0], 's')} to "
            f"{quantity(seconds[-1], 's')} in {len(rows)} processes of "
            f"{len({row.session_id for row in rows})} sessions, constants {key[4]}, "
            f"{' '.join(part[:11] for part in key[1:4])}\n"
        )


def reasons(store: EvidenceStore, beginning: str) -> str:
    """Write the history of a recipe's states: every transition, and the verdicts on it."""
    row = named(store, beginning)
    if not isinstance(row, Implementation):
        raise _unknown(f"the id of an implementation, got one of {row.table}")
    choices = ", ".join(f"{k}: {v}" for k, v in row.recipe.items())
    lines = [f"{row.id[:_SHORT]}  {choices}, by {row.origin or 'nobody named'}\n"]
    for state in store.history(row.id):
        there = ", ".join(f"{k} {v[:_SHORT]}" for k, v in vars(state.scope).items() if v)
        lines.append(
            f"  {state.at[:19]} {state.lane:12} {state.state:11} by {state.decided_by or '-'}: "
            f"{state.reason or '-'} ({there or 'everywhere'})\n"
        )
    for verdict in (
        *store.find(Verdict, candidate=row.id),
        *store.find(Verdict, incumbent=row.id),
    ):
        role = "against" if verdict.candidate == row.id else "as incumbent of"
        other = verdict.incumbent if verdict.candidate == row.id else verdict.candidate
        lines.append(
            f"  verdict {verdict.answer}: {verdict.ratio:.3f} ({verdict.lo:.3f} to "
            f"{verdict.hi:.3f}) of the time {role} {other[:_SHORT]}, {verdict.rule}, "
            f"{len(verdict.sessions)} sessions\n"
        )
    if len(lines) == 1:
        lines.append("  no transitions and no verdicts\n")
    return "".join(lines)


def named(store: EvidenceStore, beginning: str) -> Any:
    """Return the one row whose id begins so. Raises PycError (BAD_ARGUMENT)."""
    found = [row for kind in _KINDS for row in store.beginning_with(kind, beginning)]
    if len(found) != 1:
        raise _unknown(
            f"the beginning of one row's id, got {beginning!r}, which {len(found)} have; "
            "`pyc-tune ls` lists them"
        )
    return found[0]


def _unknown(expected: str) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"command line: expected {expected}")
