"""The suite `zoo`: real networks with random weights against the peers of this CPU.

    pyc-bench zoo --threads 1,2 --batch 1,8
    pyc-bench zoo --models resnet18 --systems pyc,onnxruntime --threads 1 --batch 1 --rounds 5

Networks are those of `networks.py`; models that are not in the folder yet are made there by
`export.py`, which needs torch and the packages of `pip install '.[zoo]'`. A row is one network
with one batch size and one number of threads: all systems are prepared in processes of their own
and then timed in interleaved rounds. It gives a record for each system, with the fields of the
suite `latency`, and

    network, batch          what ran; `workload` has both
    call_peak_bytes         as there: by IREE's allocator for `pyc` and `iree`; for `onnxruntime`
                            what its arena had in use at most above what it had before the call
    peak_flops              of FMAs on as many cores, the best of before and after the row

Compile seconds of plain IREE leave out the front end, which PyC's hold. Of threads, a system has
the cores of its row, also to compile.
Finished rows are kept beside OUT as OUT.partial; a run of the same settings in the same environment
goes on from there. A run of a part goes to the models' folder unless `--json` names a file.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyc_mlir.cache.store import default_folder
from pyc_mlir.calibrate import Peaks
from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.measure.records import Record, Report
from pyc_mlir.pipelines.target.target import available_cores
from pyc_mlir.tools.bench.peers.graph import LeastWork, count_work, read_graph
from pyc_mlir.tools.bench.peers.rounds import (
    FAILURE,
    RoundSettings,
    compare,
    counts,
    failure,
    fma_and_copies,
    records_of,
    store_linalg,
)
from pyc_mlir.tools.bench.peers.systems import IREE, PYC
from pyc_mlir.tools.bench.report import zoo_table
from pyc_mlir.tools.bench.report.suite import Partial, SuiteRun, note, parse
from pyc_mlir.tools.bench.zoo.export import OPSET, stem
from pyc_mlir.tools.bench.zoo.networks import NETWORKS
from pyc_mlir.tools.bench.zoo.systems import SYSTEMS
from pyc_mlir.util.children import run as run_child

SUITE = "zoo"
ROUNDS = 11
THREADS, BATCHES = (1, 2), (1, 8)
QUICK = ("mobilenet_v3_small",)
# Where the models are kept, unless `--folder` says so.
VARIABLE = "PYC_ZOO"
# Random weights leave little to cancel; Winograd's algorithms are within.
TOLERANCE = 1e-3
_SYSTEMS = "pyc_mlir.tools.bench.zoo.systems"


@dataclass(frozen=True)
class ZooRow:
    """One network with one batch size on so many threads."""

    network: str
    batch: int
    threads: int

    @property
    def workload(self) -> str:
        """Network and batch size, as records name them."""
        return f"{self.network}, batch {self.batch}"


def run(arguments: Sequence[str]) -> int:
    """Measure real networks with random weights: PyC, plain IREE, onnxruntime, OpenVINO, torch."""
    bench, known = parse(SUITE, run.__doc__ or "", ROUNDS, arguments, _parser(), _part)
    threads = [t for t in known.threads if t <= available_cores()]
    for t in set(known.threads) - set(threads):
        note(f"left out: {t} threads on {available_cores()} cores")
    names = known.models or (QUICK if bench.quick else tuple(NETWORKS))
    batches = known.batch[:1] if bench.quick else known.batch
    folder = _folder(known)
    settings = {"models": list(names), "systems": list(known.systems),
                "threads": threads, "batch": list(batches), "opset": known.opset}  # fmt: skip
    kept = Partial(bench, settings)
    models = Models(folder, known.opset)
    done = {} if known.fresh else complete(kept.load(), known.systems)
    rows = [ZooRow(n, b, t) for n in names for b in batches for t in threads]
    for i, row in enumerate(rows, 1):
        before = " measured before" if row in done else ""
        note(f"{i} of {len(rows)}: {row.workload}, {row.threads} threads:{before}")
        if row not in done:
            done[row] = measured(row, known.systems, bench, models)
            kept.save({str(key): found for key, found in done.items()})
    records = [record for row in rows for record in done[row]]
    bench.store(records, **settings)
    kept.path.unlink(missing_ok=True)
    print(zoo_table.short(Report.load(bench.path)))
    return 1 if any(r["metric"] == FAILURE and r["system"] == PYC for r in records) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=True)
    parser.add_argument("--models", type=lambda text: _some(text, NETWORKS), metavar="NAME,...",
                        help=f"some of {', '.join(NETWORKS)}; default: all")  # fmt: skip
    parser.add_argument("--systems", type=lambda text: _some(text, SYSTEMS), metavar="NAME,...",
                        default=tuple(SYSTEMS),
                        help=f"some of {', '.join(SYSTEMS)}; default: all")  # fmt: skip
    parser.add_argument("--threads", type=counts, default=THREADS, metavar="N,...")
    parser.add_argument("--batch", type=counts, default=BATCHES, metavar="N,...")
    parser.add_argument(
        "--opset", type=int, default=OPSET, help=f"the opset of the models; default: {OPSET}"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR",
                        help=f"default: ${VARIABLE}, else the user's cache")  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="measure finished rows again")
    return parser


def _some(text: str, known: Mapping[str, object]) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(part for part in text.split(",") if part))
    unknown = [name for name in named if name not in known]
    if unknown or not named:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got {text!r}")
    return named


def _folder(known: argparse.Namespace) -> Path:
    """Return the models' folder. Raises PycError (BAD_ARGUMENT) if nothing names one."""
    named = known.folder or os.environ.get(VARIABLE)
    folder = Path(named) if named else default_folder(os.environ) / SUITE
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _part(known: argparse.Namespace) -> Path | None:
    """Return the report's file for a partial run, whose results are not published."""
    whole = (None, tuple(SYSTEMS), THREADS, BATCHES, OPSET)
    given = (known.models, known.systems, known.threads, known.batch, known.opset)
    part = known.quick or known.rounds or given != whole
    return _folder(known) / f"{SUITE}-part.json" if part else None


def complete(
    found: Mapping[str, Sequence[Record]], systems: Sequence[str]
) -> dict[ZooRow, list[Record]]:
    """Return the rows in which every system has a record; `Partial` forgets those of failures."""
    rows: dict[ZooRow, list[Record]] = {}
    for records in found.values():
        for record in records:
            row = ZooRow(record["network"], record["batch"], record["threads"])
            rows.setdefault(row, []).append(record)
    return {row: rs for row, rs in rows.items() if {r["system"] for r in rs} >= set(systems)}


def measured(
    row: ZooRow, systems: Sequence[str], bench: SuiteRun, models: "Models"
) -> list[Record]:
    """Measure the records of one row; if that is impossible, the failure of each system."""
    kind = NETWORKS[row.network].kind
    how = RoundSettings(bench.rounds, bench.min_seconds, row.threads, bench.quick, dict(os.environ),
              systems=_SYSTEMS)  # fmt: skip
    try:
        model = models.path(row.network, row.batch)
        before = fma_and_copies(row.threads, bench)
        with tempfile.TemporaryDirectory(prefix="pyc-bench-") as name:
            work = store(model, Path(name), lowered=IREE in systems)
            found = compare(row.network, Path(name), systems, how, TOLERANCE)
        after = fma_and_copies(row.threads, bench)
        peaks = Peaks(max(before.flops, after.flops), max(before.bandwidth, after.bandwidth))
        records = records_of(row.workload, kind, row.threads, work, found, peaks)
    except PycError as error:
        reason = f"{error.code.name}: {error.message}"
        note(f"{row.workload}: {reason}")
        failures = (failure(row.workload, system, row.threads, reason) for system in systems)
        records = [record | {"class": kind} for record in failures]
    return [record | {"network": row.network, "batch": row.batch} for record in records]


@dataclass(frozen=True)
class Models:
    """The models of one opset, in a folder."""

    folder: Path
    opset: int = OPSET

    def path(self, network: str, batch: int) -> Path:
        """Return the model's file, exported first if it is missing.

        Raises PycError (MISSING_DEPENDENCY) if that fails; its reason is on stderr.
        """
        path = self.folder / f"{stem(network, batch, self.opset)}.onnx"
        if path.is_file() and path.with_suffix(".npz").is_file():
            return path
        note(f"{network}, batch {batch}: exporting")
        command = [sys.executable, "-m", "pyc_mlir.tools.bench.zoo.export", f"--models={network}"]
        command += [f"--batch={batch}", f"--opset={self.opset}", f"--folder={self.folder}"]
        done = run_child(command, stdout=None, stderr=None)
        if done.returncode != 0:
            raise PycError(
                ReasonCode.MISSING_DEPENDENCY,
                f"zoo: expected {path.name} in {self.folder}, and its export ended with status "
                f"{done.returncode}; its message stands above; {install('zoo')}",
            )
        return path


def store(model: Path, folder: Path, lowered: bool) -> LeastWork:
    """Write what the processes are given; what the network does at least.

    The linalg for plain IREE only where `lowered` says so. Raises PycError where the model is
    refused.
    """
    with np.load(model.with_suffix(".npz"), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    inputs = [a for name, a in arrays.items() if name.startswith("input_")]
    expected = [a for name, a in arrays.items() if name.startswith("float64_")]
    np.savez(folder / "inputs.npz", *inputs)
    np.savez(folder / "expected.npz", *expected)
    (folder / "model.onnx").symlink_to(model.resolve())
    if lowered:
        store_linalg(model, inputs, folder)
    return count_work(read_graph(model, inputs), inputs)
