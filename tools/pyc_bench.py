"""pyc-bench: run a benchmark suite, or show what one stored.

    pyc-bench model.onnx             one's own model under PyC and the peers that are installed
    pyc-bench env                    this machine's fingerprint
    pyc-bench table REPORT.json      a stored report as Markdown
    pyc-bench compile --quick        a suite, only to see that it works
    pyc-bench --compare BASELINE     the suite of a report or baseline again, compared with it

A suite is one row of `SUITES`: name -> "module:function", where the function takes the remaining
arguments and returns the exit status; its docstring is the help. Suites store `Report`s. The first
four rows are installed with the package; the others need a checkout, those of `suites.` its folder
test/suites/.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pyc_mlir.dialects.errors import PycError, ReasonCode, missing_compiler
from pyc_mlir.tools.cli import common as cli

TOOL = "pyc-bench"
# Of a checkout; the folder of an installed package has none beside it.
_TESTS = str(Path(__file__).resolve().parents[1] / "test")
_CHECKOUT = ("suites", "pyc_mlir.tools.bench")
_INSTALLED = 4
SUITES: dict[str, str] = {
    "model": "pyc_mlir.tools.bench.model.suite:run",
    "env": "pyc_mlir.tools.bench.report.show:show_environment",
    "table": "pyc_mlir.tools.bench.report.show:show_table",
    "compare": "pyc_mlir.tools.bench.report.compare:run",
    "tooling": "pyc_mlir.tools.bench.suites.compile:tooling",
    "compile": "pyc_mlir.tools.bench.suites.compile:compile_time",
    "self-check": "pyc_mlir.tools.bench.suites.compile:self_check",
    "latency": "pyc_mlir.tools.bench.suites.latency:run",
    "gemm": "pyc_mlir.tools.bench.suites.rates:gemm",
    "layers": "pyc_mlir.tools.bench.suites.rates:layers",
    "overhead": "pyc_mlir.tools.bench.suites.calls:overhead",
    "dynamic": "pyc_mlir.tools.bench.suites.adaptation:dynamic",
    "selector": "suites.selector:run",
    "tail": "pyc_mlir.tools.bench.suites.adaptation:tail",
    "checksums": "suites.checksums:run",
    "approximate": "suites.approximate:run",
    "pack": "suites.pack:run",
    "pack-orders": "suites.pack:run_orders",
    "iopddl": "suites.iopddl:run",
    "memory": "pyc_mlir.tools.bench.suites.memory:run",
    "account": "pyc_mlir.tools.bench.suites.account:account",
    "co-selection": "pyc_mlir.tools.bench.suites.account:co_selection",
    "replay": "suites.replay:run",
    "evidence": "suites.evidence:run",
    "works": "suites.predict:works",
    "strategies": "suites.strategies:run_suite",
    "tune-workers": "suites.tune_workers:run",
    "policies": "suites.predict:policies",
    "predict": "suites.predict:predict",
    "start": "pyc_mlir.tools.bench.suites.calls:start",
    "serve": "pyc_mlir.tools.bench.suites.serve:run",
    "soak": "suites.soak:run",
    "faults": "suites.faults:run",
    "gates": "suites.gates:run",
    "zoo": "pyc_mlir.tools.bench.suites.zoo:run",
    "dynamic-zoo": "pyc_mlir.tools.bench.suites.zoo:dynamic_zoo",
    "architectures-torch": "suites.architectures_torch:run",
    "architectures-jax": "suites.architectures_jax:architectures",
    "transients-jax": "suites.architectures_jax:transients",
    "gpu": "suites.gpu:run",
}


def load(entry: str) -> Callable[[Sequence[str]], int]:
    """Import the function that a row of `SUITES` names.

    Raises PycError (MISSING_DEPENDENCY) where that needs a compiler and none is installed, or a
    checkout and this is an installed package.
    """
    module, _, function = entry.partition(":")
    if module.startswith("suites.") and _TESTS not in sys.path:
        sys.path.append(_TESTS)
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(_CHECKOUT):
            raise PycError(
                ReasonCode.MISSING_DEPENDENCY,
                where=TOOL,
                expected=f"the module {module}, which belongs to a checkout",
                got="an installed package, which holds "
                f"{', '.join(list(SUITES)[:_INSTALLED])} alone",
                remedy="clone the sources of PyC and run `make bench-env` there",
            ) from None
        raise missing_compiler(error) or error from None


def help_text() -> str:
    """Write one line per suite that is here, from the functions' docstrings."""
    here = list(SUITES)[: None if Path(_TESTS, "suites").is_dir() else _INSTALLED]
    lines = [f"  {name:20} {_first_line(SUITES[name])}" for name in here]
    return "\n".join(["suites (`pyc-bench SUITE --help` lists their options):", *lines])


def _first_line(entry: str) -> str:
    """Return the first line of a suite's docstring, or the error of its import."""
    try:
        return "".join((load(entry).__doc__ or "").strip().splitlines()[:1])
    except PycError as error:
        return f"({error})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one suite; return the exit status (0 done, 1 refused, 2 usage, 70 a fault of ours)."""
    return cli.run_tool(TOOL, lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--compare"] and len(arguments) > 1:
        from pyc_mlir.tools.bench.report.compare import load_baseline

        again = ["--compare", arguments[1]]
        rest = list(arguments[2:])
        named = rest and not rest[0].startswith("-")
        suite = rest.pop(0) if named else load_baseline(arguments[1])[0].suite
        arguments = [suite, *again, *rest]
    if arguments and is_model(arguments[0]):
        arguments = ["model", *arguments]
    known = make_parser(with_suites=arguments[:1] in (["-h"], ["--help"])).parse_args(arguments)
    # What is measured is compiled; suites that measure the cache have folders of their own.
    os.environ["PYC_CACHE"] = "0"
    return load(SUITES[known.suite])(known.arguments)


def is_model(word: str) -> bool:
    """Return whether a word of the command line names a model, not a suite."""
    return word not in SUITES and (word.endswith((".onnx", ".mlir")) or ".py:" in word)


def make_parser(with_suites: bool = False) -> argparse.ArgumentParser:
    """Make the command line; `with_suites`: its help imports each suite for its docstring."""
    parser = cli.Parser(
        TOOL, "Run benchmarks of PyC, and print stored reports.", help_text() if with_suites else ""
    )
    parser.add_argument("suite", choices=SUITES, metavar="SUITE", help="one of the suites below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
