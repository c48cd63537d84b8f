"""The flags of `pyc-compile` as the fields of `CompileOptions` describe them."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from pyc_mlir.artifact.signature import Range
from pyc_mlir.compilation.options import CompileOptions, texts
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract


def read_range(text: str) -> tuple[str, Range]:
    """Read a dimension and its range from ``NAME=LOW:HIGH``. Raises PycError (BAD_ARGUMENT)."""
    name, _, ends = text.rpartition("=")
    match = re.fullmatch(r"(\d+):(\d+)", ends, re.ASCII)
    if not name or match is None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--dim {text}: expected NAME=LOW:HIGH, such as batch=1:64 or x[0]=1:64",
        )
    return name, (int(match[1]), int(match[2]))


def named_values(given: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the values of ``--outputs``."""
    return tuple(name for text in given for name in text.split(",") if name)


# Options whose value is not the text of the flag.
_READ: Mapping[str, Callable[[Any], Any]] = {
    "dims": lambda given: dict(read_range(text) for text in given) or None,
    "outputs": named_values,
}


# Options that are on or off, and neither by default.
_SWITCHES = ("check", "guard_indices")


def flags_of_options() -> dict[str, str]:
    """Return the flag of each option that has one, by the option's name."""
    return {name: option.flag for name, option in texts().items() if option.flag}


def add_option_flags(parser: argparse.ArgumentParser) -> dict[str, argparse._ArgumentGroup]:
    """Add a flag for each option; return the groups of `--help` by their headlines."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    defaults = {f.name: f.default for f in fields(CompileOptions)}
    for name, option in texts().items():
        if not option.flag:
            continue
        if option.group and option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        group = groups[option.group] if option.group else parser
        if defaults[name] is None and name in _SWITCHES:
            group.add_argument(
                option.flag,
                dest=name,
                action=argparse.BooleanOptionalAction,
                default=None,
                help=option.text,
            )
            continue
        if defaults[name] is False:
            group.add_argument(option.flag, dest=name, action="store_true", help=option.text)
            continue
        default = [] if option.once_each else defaults[name]
        shown = f"; default: {default}" if default else ""
        group.add_argument(
            option.flag,
            dest=name,
            action="append" if option.once_each else "store",
            default=default,
            metavar=option.metavar,
            help=f"{option.text}{'; may be repeated' if option.once_each else ''}{shown}",
        )
    return groups


def read_options(arguments: argparse.Namespace, contract: Contract) -> CompileOptions:
    """Read the options from the flags. Raises PycError for malformed ones."""
    given = {name: getattr(arguments, name) for name in flags_of_options()}
    given |= {name: read(given[name]) for name, read in _READ.items()}
    return CompileOptions(contract=contract, **given)
