"""`pyc-reduce`: shrink a failing module to a small one that still fails.

Candidates are tried in processes of their own, so that a crash is an answer like any other.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import read_file, require_writable, write_file
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.util.children import run as run_child
from pyc_mlir.util.children import temporary_folder

TOOL = "pyc-reduce"
_EPILOG = """\
MODULE is MLIR text of the pyc dialect or of linalg; `pyc-compile MODEL --emit pyc -o module.mlir`
writes it for other models. One of these checks decides whether a module still fails:

  --check COMMAND   a shell command, {} is the module: it fails if the exit status is not 0 and
                    the same as for MODULE
  --code CODE       it fails if pyc-compile ends with this reason code
  --mismatch        it fails if the program differs from its reference by more than rounding

Arguments after -- are passed to pyc-compile.

examples:
  pyc-reduce bad.mlir --code TARGET_COMPILE_FAILED -o small.mlir -- --target vulkan
  pyc-reduce bad.mlir --mismatch -o small.mlir
  pyc-reduce bad.mlir --check 'pyc-opt {} --pyc-fuse -o /dev/null' -o small.mlir
"""
_CODE = re.compile(r"\[([A-Z_]+)\]")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused, 2 usage, 70 a fault of ours)."""
    return cli.run_tool(TOOL, lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(argv: list[str]) -> int:
    cut = argv.index("--") if "--" in argv else len(argv)
    flags = make_parser().parse_args(argv[:cut])
    fails = make_check(flags, argv[cut + 1 :])
    if flags.output != "-":
        # A reduction takes long: report an output that cannot be written before it.
        require_writable(flags.output)
    from pyc_mlir.debug.reduce import reduce_module

    # What is no UTF-8 does not parse either, and that error names the place.
    is_piped = flags.module == "-"
    text = sys.stdin.read() if is_piped else read_file(flags.module).decode(errors="replace")
    tell = partial(print, file=sys.stderr, flush=True)
    found = reduce_module(text, fails, tell, flags.module)
    head = f"{found.ops} of {found.before} ops are left; {found.tries} modules were tried"
    if flags.output == "-":
        print(found.text)
    else:
        write_file(flags.output, f"{found.text}\n".encode())
    print(head, file=sys.stderr)
    return cli.OK


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    parser = cli.Parser(TOOL, "Shrink a failing module to a small one that still fails.", _EPILOG)
    parser.usage = "%(prog)s MODULE.mlir CHECK [-o FILE] [-- FLAGS]"
    parser.add_argument("module", metavar="MODULE", help="the failing module; - is standard input")
    parser.add_argument(
        "-o",
        "--output",
        default="-",
        metavar="FILE",
        help="the file to write; default: -, standard output",
    )
    check = parser.add_mutually_exclusive_group(required=True)
    check.add_argument("--check", metavar="COMMAND", help="fails if this command does; see below")
    check.add_argument("--code", metavar="CODE", help="fails if pyc-compile ends with this code")
    check.add_argument(
        "--mismatch", action="store_true", help="fails if results differ from the reference"
    )
    return parser


def make_check(flags: argparse.Namespace, more: Sequence[str]) -> Callable[[str], bool]:
    """Return the flags' check of whether a module fails. Raises PycError (BAD_ARGUMENT)."""
    if flags.check is not None:
        if "{}" not in flags.check or more:
            got = repr(flags.check) if not more else f"flags for pyc-compile, {shlex.join(more)}"
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"--check: expected a command with {{}} for the module and no more, got {got}",
            )
        return _by_status(flags.check)
    if flags.mismatch:
        return _by_code(ReasonCode.WRONG_RESULT, ["--max-error", "rounding", *more])
    if flags.code not in ReasonCode.__members__:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--code: expected a reason code, got {flags.code!r}; see docs/errors.md"
            f"{did_you_mean(flags.code.upper(), ReasonCode.__members__)}",
        )
    return _by_code(ReasonCode[flags.code], more)


def _by_status(command: str) -> Callable[[str], bool]:
    """Make a check by status: a module fails with that of the first one, which is not 0."""
    first: list[int] = []

    def fails(text: str) -> bool:
        with temporary_folder() as folder:
            path = _written(folder, text)
            line = command.replace("{}", shlex.quote(str(path)))
            status = run_child(line).returncode
        first.append(status)
        return status == first[0] != 0

    return fails


def _by_code(code: ReasonCode, more: Sequence[str]) -> Callable[[str], bool]:
    """Make a check by code: a module fails if pyc-compile ends with the code."""

    def fails(text: str) -> bool:
        with temporary_folder() as folder:
            # Each candidate is compiled, and none of them is kept.
            tool = [sys.executable, "-m", "pyc_mlir.tools.pyc_compile", "--no-cache"]
            line = [*tool, str(_written(folder, text)), "-o", str(folder / "out"), *more]
            done = run_child(line)
        return done.returncode != 0 and code.name in _CODE.findall(done.stderr)

    return fails


def _written(folder: Path, text: str) -> Path:
    path = folder / "module.mlir"
    write_file(path, text.encode())
    return path


if __name__ == "__main__":
    sys.exit(main())
