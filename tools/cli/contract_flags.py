"""The clauses of a contract as command-line flags and as a TOML file.

    memory_budget_bytes = "64MiB"      # or 67108864
    allowed_targets = ["cpu"]

Keys of the file are the fields of `Contract`; flags win over the file.
"""

import argparse
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.quantities import duration, size
from pyc_mlir.pipelines.choices.contract import FALLBACKS, ROUNDING, STRICT, Contract


def _number(text: str, expected: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(expected) from None


def _error(text: str) -> float | str:
    return text if text == ROUNDING else _number(text, f"a number, or {ROUNDING}")


def _strictness(text: str) -> str:
    if text != STRICT:
        raise ValueError(STRICT)
    return text


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


@dataclass(frozen=True)
class Clause:
    """One clause: its flag, how its text is read, the types that TOML may give it, its help."""

    flag: str
    parse: Callable[[str], Any]
    types: tuple[type, ...]
    metavar: str
    help: str


CLAUSES: Mapping[str, Clause] = {
    "memory_budget_bytes": Clause(
        "--memory-budget", size, (int,), "SIZE", "the most device memory of one call, e.g. 64MiB"
    ),
    "max_concurrency": Clause(
        "--max-concurrency",
        _count,
        (int,),
        "N",
        "the number of overlapping calls for which the contract holds",
    ),
    "max_compile_seconds": Clause(
        "--max-compile-time",
        duration,
        (int, float),
        "TIME",
        "the most time for the compile, counted from the start of this process",
    ),
    "determinism": Clause(
        "--determinism",
        _strictness,
        (),
        STRICT,
        "require equal artifacts, and equal bits of results",
    ),
    "max_error": Clause(
        "--max-error",
        _error,
        (int, float),
        f"X|{ROUNDING}",
        "compare with the reference: the greatest error as a share of the greatest element, or "
        "rounding",
    ),
    "latency_goal_seconds": Clause(
        "--latency-goal", duration, (int, float), "TIME", "the most time of a median call, e.g. 5ms"
    ),
    "latency_binding": Clause(
        "--latency-binding",
        _yes_or_no,
        (bool,),
        "true|false",
        "refuse a program that misses --latency-goal",
    ),
    "allowed_targets": Clause(
        "--allowed-targets", _names, (list,), "A,B", "refuse targets other than these"
    ),
    "detect_faults": Clause(
        "--detect-faults",
        _yes_or_no,
        (bool,),
        "true|false",
        "checksums in products: repair passing faults of cores and memory, refuse lasting ones",
    ),
    "fallbacks": Clause(
        "--fallbacks",
        _names,
        (list,),
        "A,B",
        f"what may replace a program with wrong results: {', '.join(FALLBACKS)}",
    ),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add --contract and a flag per clause."""
    group = parser.add_argument_group(
        "contract", "requirements on the program; a clause that cannot be met is an error"
    )
    group.add_argument(
        "--contract", metavar="FILE.toml", help="a TOML file of clauses; flags override it"
    )
    for name, clause in CLAUSES.items():
        group.add_argument(clause.flag, dest=name, metavar=clause.metavar, help=clause.help)


def read_contract(arguments: argparse.Namespace) -> Contract:
    """Return the contract that the flags and the file give.

    Raises PycError: BAD_ARGUMENT for malformed values, UNSUPPORTED_CLAUSE for unknown clauses,
    FILE_ACCESS for a file that cannot be read.
    """
    given = {} if arguments.contract is None else _read_file(Path(arguments.contract))
    for name, clause in CLAUSES.items():
        text = getattr(arguments, name)
        if text is not None:
            given[name] = _parsed(clause, text, clause.flag)
    return Contract.of(given)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(read_file(path, "a TOML file of clauses").decode())
    # A UnicodeDecodeError is a ValueError, and nesting without end is no file of clauses either.
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"{path}: expected a TOML file of clauses, got: {error}"
        ) from None
    return {name: _typed(name, value, path) for name, value in data.items()}


def _typed(name: str, value: Any, path: Path) -> Any:
    clause = CLAUSES.get(name)
    if clause is None:
        return value  # `Contract` refuses it by name
    if isinstance(value, str):
        return _parsed(clause, value, f"{path}: {name}")
    if type(value) not in clause.types or (
        isinstance(value, list) and not all(isinstance(v, str) for v in value)
    ):
        kinds = " or ".join([t.__name__ for t in clause.types] or ["str"])
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{path}: {name}: expected {kinds} ({clause.help}), got {value!r}",
        )
    return value


def _parsed(clause: Clause, text: str, where: str) -> Any:
    try:
        return clause.parse(text)
    except ValueError as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"{where}: expected {error}, got {text!r}"
        ) from None
