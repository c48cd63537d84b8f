"""`python -m pyc_mlir`: list PyC's commands, or run one.

    python -m pyc_mlir                     the commands
    python -m pyc_mlir compile model.onnx  as `pyc-compile model.onnx`
    python -m pyc_mlir completion          a script that lets bash and zsh complete the commands

The commands are the ``pyc-*`` scripts that the installed package declares.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, distribution
from importlib.util import find_spec

from pyc_mlir.dialects.errors import missing_compiler
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.suggestions import did_you_mean

_PREFIX = "pyc-"
_COMPLETION = "completion"


def commands() -> Mapping[str, EntryPoint]:
    """Return the scripts of the package, by their names without ``pyc-``."""
    points = distribution("pyc-mlir").entry_points.select(group="console_scripts")
    return {p.name.removeprefix(_PREFIX): p for p in points if p.name.startswith(_PREFIX)}


def help_text() -> str:
    """Write a line for each command, with the first sentence of its module."""
    lines = [f"  {name:9} {_summary(point)}\n" for name, point in sorted(commands().items())]
    return (
        "usage: python -m pyc_mlir COMMAND ...\n\n"
        f"commands, each also a script (`{_PREFIX}compile`); COMMAND --help says more:\n"
        f"{''.join(lines)}"
        f"\n{_COMPLETION} prints a script for bash and zsh: "
        f'eval "$(python -m pyc_mlir {_COMPLETION})"\n'
    )


def completion() -> str:
    """Write a script for bash (and zsh after ``bashcompinit``): options and names; else files."""
    lines = []
    for name, point in sorted(commands().items()):
        try:
            module = import_module(point.module)
        except ModuleNotFoundError as error:
            # A machine that only runs programs lacks the compiler, and with it some commands.
            if missing_compiler(error) is None:
                raise
            continue
        words = module.words() if hasattr(module, "words") else module.make_parser().words()
        lines.append(f"complete -o default -W {shlex.quote(' '.join(words))} {_PREFIX}{name}\n")
    return "".join(lines)


def _summary(point: EntryPoint) -> str:
    """Return the first line of a module's docstring, without the command; nothing is run."""
    import ast

    spec = find_spec(point.module)
    assert spec is not None and spec.origin is not None, "the package has its own modules"
    text = ast.get_docstring(ast.parse(read_file(spec.origin))) or ""
    return text.partition("\n")[0].partition(": ")[2]


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; 2 for one that does not exist, else its exit status."""
    argv = sys.argv[1:] if words is None else words
    if not argv or argv[0] in ("-h", "--help"):
        print(help_text(), end="")
        return 0
    if argv[0] == "--version":
        print(f"pyc_mlir {distribution('pyc-mlir').version}")
        return 0
    if argv[0] == _COMPLETION:
        print(completion(), end="")
        return 0
    known = commands()
    name = argv[0].removeprefix(_PREFIX)
    if name not in known:
        print(
            f"python -m pyc_mlir: error: expected a command of {', '.join(sorted(known))}, got "
            f"{name!r}{did_you_mean(name, [*known, _COMPLETION])} [BAD_ARGUMENT]",
            file=sys.stderr,
        )
        return 2
    command = known[name].load()
    if words is not None:
        return command(list(argv[1:]))
    # As the script: without arguments, so that a limit counts from the start of the process.
    sys.argv = [f"{_PREFIX}{name}", *argv[1:]]
    return command()


if __name__ == "__main__":
    sys.exit(main())
