"""docs/commands.md: the command lines with their flags, from the parsers themselves."""

import argparse
import importlib
from collections.abc import Iterable, Iterator
from dataclasses import Field, fields

from pyc_mlir.tools.cli.opt_flags import OptFlags

_TOOLS = (
    "compile",
    "run",
    "explain",
    "opt",
    "reduce",
    "equiv",
    "find",
    "cache",
    "doctor",
    "tune",
    "serve",
    "bench",
)
_HEAD = f"""\
# Command lines

Each command with its flags, as `--help` prints them. All have `--help` and `--version`. The exit
status is 0 where all is done, 1 where something was refused (the message ends in its reason code),
2 where the command line cannot be read, 70 where PyC is at fault, and 130 after an interrupt. A
command with other states of its own (`pyc-equiv`) lists them.

{" · ".join(f"[pyc-{name}](#pyc-{name})" for name in _TOOLS)}
"""


def page() -> str:
    """Return docs/commands.md."""
    parts = [_HEAD]
    for name in _TOOLS:
        parts += [f"## pyc-{name}", *(_opt() if name == "opt" else _tool(name))]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _tool(name: str) -> Iterator[str]:
    module = importlib.import_module(f"pyc_mlir.tools.pyc_{name}")
    parser = module.make_parser()
    yield parser.description
    yield from _tables(parser)
    if parser.epilog:
        yield f"```\n{parser.epilog.strip(chr(10)).rstrip()}\n```"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {c.dest: c.help for c in action._choices_actions}
            for command, below in action.choices.items():
                yield f"### pyc-{name} {command}"
                yield _sentence(summaries.get(command) or below.description or "") + "."
                yield from _tables(below)
    if suites := getattr(module, "SUITES", ()):
        names = ", ".join(f"`{suite}`" for suite in suites)
        yield f"Suites, each with flags of its own (`pyc-bench SUITE --help`): {names}."


def _tables(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Write a table for each group of flags; positional arguments stand with the first."""
    first, second, *others = parser._action_groups
    rows = [*_rows(first), *_rows(second)]
    if rows:
        yield _table(rows)
    for group in others:
        yield f"**{group.title}**" + (f": {group.description}." if group.description else "")
        yield _table(_rows(group))


def _rows(group: argparse._ArgumentGroup) -> list[str]:
    """Write the flags of a group, without those that all commands have."""
    return [
        _row(_shown(action), (action.help or "").replace("%(default)s", str(action.default)))
        for action in group._group_actions
        if not {"-h", "--version"}.intersection(action.option_strings)
        and action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._SubParsersAction)
    ]


def _table(rows: Iterable[str]) -> str:
    return "\n".join(["| flag | meaning |", "|---|---|", *rows])


def _shown(action: argparse.Action) -> str:
    """Return a flag with its value: ``-o, --output FILE``."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    metavar = action.metavar
    if metavar is None and action.choices is not None:
        metavar = "{" + ",".join(map(str, action.choices)) + "}"
    values = "" if action.nargs == 0 else metavar or action.dest.upper()
    values = " ".join(values) if isinstance(values, tuple) else values
    return f"{', '.join(action.option_strings)} {values}".strip()


def _opt() -> Iterator[str]:
    """Write the flags of pyc-opt, which are the fields of a dataclass; passes are flags too."""
    yield (
        "Run passes on a module of MLIR. Each [pass](passes.md) is a flag too: `--pyc-fuse`, "
        "`--canonicalize='max-iterations=3'`."
    )
    yield _table(_row(_field(f), f.metadata["help"]) for f in fields(OptFlags) if f.metadata)


def _field(flag: Field) -> str:
    name = flag.metadata["name"] or flag.name.replace("_", "-")
    value = flag.metadata["metavar"]
    between = f"[={value}]" if flag.metadata["bare"] is not None else f"={value}" * bool(value)
    return f"-{name} {value}" if len(name) == 1 else f"--{name}{between}"


def _row(flag: str, meaning: str) -> str:
    cells = (f"`{flag}`", _sentence(" ".join(meaning.replace("%%", "%").split())))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _sentence(text: str) -> str:
    """Return a text that begins with a capital, free of what Markdown would read."""
    return text[:1].upper() + text[1:].replace("*", "\\*").replace("<", "&lt;")
