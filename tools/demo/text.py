"""The demo's findings as plain text, at most 100 columns wide."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyc_mlir.measure.environment import Environment
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.tools.cli.compile_driver import traffic_saved
from pyc_mlir.tools.demo.compare import DemoComparison, DemoRow
from pyc_mlir.tools.demo.digits import DigitImages
from pyc_mlir.util.units import quantity

WIDTH = 100
_LONGEST = 16
_LATENCY_LEGEND = """
  PyC, IREE   time of IREE's bare invoke of the program that each compiled; device local-sync,
              one thread, arrays on the device. PyC/IREE below 1: PyC's program is faster.
  IREE        is plain IREE: the same model lowered op by op, without PyC's passes, compiled by
              the same IREE with the same flags (its O3 defaults, this host's CPU).
  guarded     a call through PyC's Program: checks of the arguments and statistics included.
  peak        device memory of one call on a fresh device; transients: the part of it that is
              neither input nor result.
"""
_DECISIONS_LEGEND = """
  saved: predicted bytes of intermediate results that are neither written nor read again, against
  the costliest alternative. (IREE also fuses by itself, where it sees fit.)
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Write columns two blanks apart; the first `left` flush left, the others flush right."""
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [
            text.ljust(width) if i < left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"  {'  '.join(parts)}".rstrip() + "\n"

    return "".join(map(line, cells))


def heading(environment: Environment, iree: str) -> str:
    """Write what this is and where it runs."""
    return (
        "Handwritten digits: two trained models, compiled by PyC and by plain IREE\n"
        f"{environment.cpu}, {environment.cores} cores; PyC {environment.version}, IREE {iree}\n"
    )


def accuracy(found: Mapping[str, DemoComparison], images: DigitImages) -> str:
    """Count right answers of PyC's programs beside those of onnx's reference evaluator."""
    rows = []
    for name, c in found.items():
        shares = [f"{100 * images.accuracy(scores):.2f}%" for scores in (c.scores, c.reference)]
        same = f"{c.agreeing} of {len(c.scores)}"
        rows.append((name, *shares, same, f"{c.max_error:.1e}"))
    header = ("model", "PyC", "onnx reference", "same answers", "largest error of a score")
    title = f"ACCURACY on the {len(images.labels)} images held out of the training\n"
    return title + table(header, rows, left=1)


def latency_and_memory(found: Mapping[str, DemoComparison], rounds: int) -> str:
    """Write one row per model and batch size, and what the columns mean."""
    rows = [_row(name, row) for name, c in found.items() for row in c.rows]
    header = ("model", "images", "PyC", "IREE", "PyC/IREE", "guarded")
    memory = ("peak PyC", "IREE", "transients PyC", "IREE")
    title = f"LATENCY AND MEMORY of one call (medians of {rounds} interleaved rounds)\n"
    return title + table((*header, *memory), rows, left=1) + _LATENCY_LEGEND


def _row(name: str, row: DemoRow) -> tuple[str, ...]:
    seconds = (row.pyc.seconds.median, row.plain.seconds.median)
    peaks = (row.pyc.memory.peak_bytes, row.plain.memory.peak_bytes)
    transients = (row.pyc.memory.transient_bytes, row.plain.memory.transient_bytes)
    return (
        name,
        str(row.batch),
        *(quantity(s, "s") for s in seconds),
        f"{row.ratio.median:.2f}",
        quantity(row.guarded.median, "s"),
        *(quantity(b, "B") for b in (*peaks, *transients)),
    )


def decisions(found: Mapping[str, DemoComparison]) -> str:
    """Show what was chosen where, and what was turned down; equal choices stand once."""
    rows = Counter(
        (name, _cut(", ".join(d.site.nodes)) or "all", _choice(d))
        for name, comparison in found.items()
        for d in comparison.decisions
        if len(d.alternatives) > 1
    )
    batch = max(row.batch for c in found.values() for row in c.rows)
    header = ("model", "op", "decided in", "chosen", "turned down", "saved")
    title = f"DECISIONS for {batch} images a call\n"
    lines = [
        (name, f"{times} x {where}" if times > 1 else where, *choice)
        for (name, where, choice), times in rows.items()
    ]
    return title + table(header, lines, left=5) + _DECISIONS_LEGEND


def _choice(d: Decision) -> tuple[str, ...]:
    """Return the pass, what was chosen and what was turned down, and the traffic that it saves."""
    first, *more = [a.name for a in d.alternatives if a.name != d.chosen]
    others = f"{_cut(first)}, {len(more)} more" if more else _cut(first)
    saved = traffic_saved(d)
    decided_in = d.site.pass_name.removeprefix("pyc-")
    return decided_in, _cut(d.chosen), others, quantity(saved, "B") if saved else "-"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def how_to_see_all(model: Path, shape: Sequence[int]) -> str:
    """Write the command that shows every decision with its place, costs and reasons."""
    path = model.relative_to(Path.cwd()) if model.is_relative_to(Path.cwd()) else model
    dims = "x".join(map(str, shape))
    return (
        "See all of a compile's decisions, with places, costs and reasons:\n"
        f"  pyc-compile {path} --input {dims} -o digits.vmfb -v --log decisions.jsonl\n"
    )
