"""The subcommands of pyc-bench that need no benchmark: show the environment, render a report."""

import json
from collections.abc import Sequence

from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Report
from pyc_mlir.tools.bench.report.show import markdown
from pyc_mlir.tools.cli.common import Parser


def show_environment(arguments: Sequence[str]) -> int:
    """Print this machine's environment and fingerprint as JSON."""
    Parser("pyc-bench env", show_environment.__doc__ or "").parse_args(arguments)
    environment = probe()
    print(json.dumps({"fingerprint": environment.fingerprint, **to_data(environment)}, indent=1))
    return 0


def show_table(arguments: Sequence[str]) -> int:
    """Print stored reports as Markdown tables."""
    parser = Parser("pyc-bench table", show_table.__doc__ or "")
    parser.add_argument("reports", nargs="+", metavar="FILE.json")
    print("\n".join(markdown(Report.load(path)) for path in parser.parse_args(arguments).reports))
    return 0
