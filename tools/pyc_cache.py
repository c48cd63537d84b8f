"""`pyc-cache`: list, verify and bound the compile cache, and explain a miss.

    pyc-cache ls                     list the entries, the most recently used first
    pyc-cache why [ENTRY [OTHER]]    compare the key of ENTRY with that of OTHER, or of the entry
                                     with the most similar key
    pyc-cache verify [--drop]        check every byte; exit status 1 if an entry is damaged
    pyc-cache gc [--max-size SIZE]   remove the least recently used entries beyond SIZE, and files
                                     that killed processes left

ENTRY is the beginning of a key, as `pyc-compile -v` and `ls` print it; the default of `why` is the
entry that was used last.
"""

import argparse
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyc_mlir.cache.store import (
    DEFAULT_BYTES,
    NAMES,
    CacheStore,
    Listed,
    default_folder,
    flat,
    nearest,
    parse_key,
)
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.util.files import file_error
from pyc_mlir.pipelines.choices.log import NodeNames
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli.contract_flags import size
from pyc_mlir.util.units import quantity

TOOL = "pyc-cache"
_SHORT = 16
_VALUE = 60


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused or something is damaged)."""
    return cli.run_tool(TOOL, lambda: _run(argv))


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    assert __doc__ is not None
    parser = cli.Parser(
        TOOL, "List, check and clean the compile cache.", __doc__.split("\n\n", 1)[1]
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help="the cache's folder; default: the user's own, below $XDG_CACHE_HOME or ~/.cache",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Command)
    commands.add_parser("ls", help="list the entries")
    why = commands.add_parser("why", help="show why a program was not found: compare two keys")
    why.add_argument("entries", nargs="*", metavar="ENTRY", help="the beginnings of two keys")
    verify = commands.add_parser("verify", help="check every byte of every entry")
    verify.add_argument("--drop", action="store_true", help="remove damaged entries")
    gc = commands.add_parser("gc", help="remove the least recently used entries")
    gc.add_argument(
        "--max-size", metavar="SIZE", help="the most bytes to keep, e.g. 512MiB; 0 clears the cache"
    )
    return parser


class _Command(cli.Parser):
    """The command line of one command, as `add_subparsers` makes it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, "")


def _run(argv: Sequence[str] | None) -> int:
    flags = make_parser().parse_args(argv)
    folder = default_folder(os.environ) if flags.dir is None else Path(flags.dir)
    if folder.exists() and not folder.is_dir():
        raise file_error(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), "a folder", folder)
    store = CacheStore(folder)
    if flags.command == "ls":
        print(listing(store), end="")
    elif flags.command == "why":
        print(why_text(store, flags.entries), end="")
    elif flags.command == "verify":
        return _verify(store, flags.drop)
    elif flags.command == "gc":
        print(_collected(store, flags.max_size))
    else:
        raise cli.usage_error(TOOL, "expected ls, why, verify or gc, got none")
    return cli.OK


def listing(store: CacheStore) -> str:
    """Write one line an entry: its name, size, seconds since its last use, and its program."""
    entries = store.entries()
    total = quantity(sum(e.bytes for e in entries), "B")
    lines = [f"{store.folder}: {len(entries)} entries, {total}\n"]
    for entry in entries:
        parts = _parts(store, entry.name)
        about = _about(store, entry.name, flat(parts)) if parts else "damaged: see pyc-cache verify"
        age = _age(store.clock() - entry.used) if entry.used else "long ago"
        size_text = quantity(entry.bytes, "B")
        lines.append(f"{entry.name[:_SHORT]}  {size_text:>9}  {age:>10}  {about}\n")
    return "".join(lines)


def _about(store: CacheStore, name: str, parts: Mapping[str, Any]) -> str:
    """Describe a program: its models by name, else the text of its graph; and its target."""
    known = (NodeNames.from_bytes(data).model for data in store.sides(name, NAMES))
    models = ", ".join(dict.fromkeys(map(one_line, filter(None, known))))
    # Not the graph id of a program, which is that of the graph after its first passes.
    text = str(parts.get("program.graph", ""))[:_SHORT]
    return f"{models or f'text {text}'} for {parts.get('options.target.name', '?')}"


def _age(seconds: float) -> str:
    """Return how long ago an entry was used, in the largest unit of which it was one."""
    units = ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"))
    size, unit = next((u for u in units if seconds >= u[0]), units[-1])
    return f"{max(0.0, seconds / size):.0f} {unit} ago"


def why_text(store: CacheStore, queried: Sequence[str]) -> str:
    """Write the parts of two keys that differ, with both values; of the latest readable one.

    Raises PycError: BAD_ARGUMENT, CACHE_DAMAGED for an entry whose key cannot be read.
    """
    entries = store.entries()
    if not entries or len(queried) > 2:
        got = "an empty cache" if not entries else f"{len(queried)} names"
        raise cli.usage_error(TOOL, f"expected at most two entries of {store.folder}, got {got}")
    whole = (e.name for e in entries if _parts(store, e.name))
    names = [_named(entries, n) for n in queried] or [next(whole, entries[0].name)]
    mine = _parts(store, names[0])
    others = names[1:] or [e.name for e in entries if e.name != names[0]]
    known = [(name, parts) for name in others if (parts := _parts(store, name))]
    if not mine:
        raise PycError(
            ReasonCode.CACHE_DAMAGED,
            f"{names[0][:_SHORT]}: expected an entry with its key, got none that can be read; see "
            "`pyc-cache verify`",
        )
    if not known:
        return f"{names[0][:_SHORT]}: no other entry to compare with\n"
    other, odd = nearest(mine, known)
    left, right = flat(mine), flat(dict(known)[other])
    lines = [f"{names[0][:_SHORT]} differs from {other[:_SHORT]} in {len(odd)} parts of the key\n"]
    for part in odd:
        values = " / ".join(repr(side.get(part, "(none)"))[:_VALUE] for side in (left, right))
        lines.append(f"  {part}: {values}\n")
    return "".join(lines)


def _named(entries: Sequence[Listed], name: str) -> str:
    found = [e.name for e in entries if name and e.name.startswith(name)]
    if len(found) != 1:
        raise cli.usage_error(
            TOOL,
            f"expected the beginning of one entry's name, got {name!r}, which {len(found)} have; "
            "`pyc-cache ls` lists them",
        )
    return found[0]


def _parts(store: CacheStore, name: str) -> Mapping[str, Any]:
    text = store.key_of(name)
    return {} if text is None else parse_key(text)


def _verify(store: CacheStore, drop: bool) -> int:
    entries, damaged = store.entries(), 0
    for entry in entries:
        problem = store.check(entry.name)
        if not problem:
            continue
        damaged += 1
        dropped = ", dropped" if drop and store.drop(entry.name) else ""
        code = ReasonCode.CACHE_DAMAGED.name
        print(f"{entry.name[:_SHORT]}: {problem}{dropped} [{code}]", file=sys.stderr)
    print(f"{store.folder}: {len(entries)} entries, {damaged} damaged")
    return cli.REFUSED if damaged else cli.OK


def _collected(store: CacheStore, limit: str | None) -> str:
    try:
        most = DEFAULT_BYTES if limit is None else size(limit)
    except ValueError as error:
        raise cli.usage_error(TOOL, f"--max-size: expected {error}, got {limit!r}") from None
    gone = store.evict(most)
    left = store.entries()
    return f"{store.folder}: removed {gone}, kept {len(left)}: {sum(e.bytes for e in left)} bytes"


if __name__ == "__main__":
    sys.exit(main())
