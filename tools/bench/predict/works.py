"""The suite `works`: rows of the benchmark database for the CPU workloads and their kernels' works.

    pyc-bench works --db sqlite:///pyc.db --budget 2h --constants warm,cold

What predictions are tested with: every workload as a whole, and each work of its kernel groups by
itself, with every choice. It goes on where an earlier run ended. `--quick` takes tiny sizes of the
first workload.
"""

import os
from collections.abc import Sequence

from pyc_mlir.tools.bench.workloads import cpu
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli.common import default_url
from pyc_mlir.tools.tune import profile

SUITE = "works"


def run(arguments: Sequence[str]) -> int:
    """Time the CPU workloads and each of their kernels' works, into the database."""
    parser = cli.Parser(f"pyc-bench {SUITE}", run.__doc__ or "")
    for names, options in profile.ARGUMENTS:
        parser.add_argument(*names, **options)
    parser.add_argument(
        "--quick", action="store_true", help="only tiny sizes of the first workload"
    )
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", choices=cpu.ROWS, help="only these workloads"
    )
    flags = parser.parse_args(arguments)
    flags.whole = True
    chosen = flags.only or (list(cpu.ROWS)[:1] if flags.quick else list(cpu.ROWS))
    # The database's package is optional, and the list of suites is shown without it.
    from pyc_mlir.lab.evidence.database.store import EvidenceStore
    from pyc_mlir.lab.sessions.local import LocalMeasurer
    from pyc_mlir.lab.tune.survey import Surveyed

    made = ((name, cpu.make(name, flags.quick)) for name in chosen)
    programs = [Surveyed(name, load.source, load.specs) for name, load in made]
    with EvidenceStore.open(getattr(flags, "db", None) or default_url(os.environ)) as store:
        return profile.survey(store, flags, programs, LocalMeasurer(f"pyc-bench {SUITE}"))
