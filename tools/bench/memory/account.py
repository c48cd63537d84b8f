"""The suite `account`: what a program needs in all, constants included, beside plain IREE's.

    pyc-bench account
    pyc-bench account --only "u-net" --models resnet50.onnx

Each workload of the suites `memory` and `co-selection`, and each model that is named, is compiled
by plain IREE at O3 and by PyC in the modes `balanced` and `memory_first`. Nothing runs: the bytes
are those of each program's account. Records of one workload, one for each of the three:

    total          constants + inputs + outputs + transients + workspace of one call, in bytes
    account        the parts, by name
    larger         for PyC: the decisions that keep constants in a larger form than the model's
    larger_bytes   the bytes that these forms have beside the model's
    saves          the seconds that they are predicted to save

and for each of `RATES`, by prediction, before the memory plan:

    predicted      seconds of a call; `held` are the bytes of its constants and of its values
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import structure_of_parts
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.choices.evidence import LargerConstant
from pyc_mlir.pipelines.pyc.constants import ExchangeRate, PricedGroup, Way, prices
from pyc_mlir.tools.bench.peers.candidates import plain_options
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.bench.workloads.memory import PRESSED, WORKLOADS
from pyc_mlir.tools.cli.common import Parser

SUITE = "account"
MODES = ("balanced", "memory_first")
# What the modes' own rates are compared with; the first has no price.
RATES = (
    ExchangeRate(),
    *(ExchangeRate(worth, 0.02) for worth in (0.1, 0.2, 0.3, 0.5, 1.0)),
    *(ExchangeRate(worth, 1.0) for worth in (0.1, 0.3)),
)
# Names of both suites' workloads: one of them has two of the name `u-net`.
ENTRIES = {**{f"{name}, pressed": entry for name, entry in PRESSED.items()}, **WORKLOADS}


def run(arguments: Sequence[str]) -> int:
    """Count what programs need in all, constants included, against plain IREE."""
    parser = Parser(SUITE)
    parser.add_argument("--only", nargs="+", choices=ENTRIES, metavar="NAME", help="workloads")
    parser.add_argument("--models", nargs="+", default=(), metavar="MODEL", help="models beside")
    bench, known = parse(SUITE, run.__doc__ or "", 1, arguments, parser)
    names = [n for n in reversed(ENTRIES) if known.only is None or n in known.only]
    records: list[Record] = []
    for name in names[:1] if bench.quick else names:
        entry = ENTRIES[name]
        case = (entry.tiny if bench.quick else entry.full)().named(name)
        records += counted(name, case.source, case.specs)
        bench.store(records)
    for model in known.models:
        records += counted(model.rpartition("/")[2], model, None)
        bench.store(records)
    return 0


def counted(name: str, source: Any, specs: Any) -> Iterator[Record]:
    """Yield the records of one workload. Raises PycError as `build`."""
    wanted: Mapping[str, Options] = {
        "iree": plain_options(),
        **{mode: make_options(planner_mode=mode, check=False) for mode in MODES},
    }
    yield from predicted(name, Job.of(source, specs, wanted["balanced"]))
    for system, options in wanted.items():
        artifact = build(source, specs, options)
        total = artifact.account.total() or 0
        note(f"{name}: {system}: {artifact.account}")
        parts = to_data(artifact.account)
        yield record(name, system, "total", "B", total, account=parts, **_larger(artifact))


def predicted(name: str, job: Job) -> Iterator[Record]:
    """Yield the records of other exchange rates; none for a program whose sites cannot be read."""
    try:
        sites = structure_of_parts(job).sites
    except PycError as error:
        note(f"{name}: no rates are compared: {error.message}")
        return
    groups = [
        PricedGroup(
            {c.name: Way(c.seconds, c.reads) for c in site.candidates}, site.candidates[0].reads
        )
        for site in sites.sites
    ]
    for rate in RATES:
        taken = prices(groups, max(sites.live, default=0), rate).taken
        choice = [
            next(i for i, c in enumerate(site.candidates) if c.name == way)
            for site, way in zip(sites.sites, taken, strict=True)
        ]
        at = f"rate {rate.worth:g}, slack {rate.slack:g}"
        held = sites.bytes(choice)
        yield record(name, at, "predicted", "s", sites.seconds(choice), held=held)


def _larger(artifact: Artifact) -> dict[str, Any]:
    """Return the larger constants that decisions name, each once."""
    found = [
        (e, d.chosen)
        for d in artifact.decisions
        for e in d.evidence
        if isinstance(e, LargerConstant) and e.alternative == d.chosen
    ]
    forms = {e.constants: e.nbytes - e.own_bytes for e, _ in found}
    return {
        "larger": len(found),
        "larger_bytes": sum(forms.values()),
        "saves": sum(e.saves for e, _ in found),
    }
