"""`pyc-tune profile`: measure what the database lacks of some models' works."""

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.rows import COLD, CONSTANTS, WARM
from pyc_mlir.tools.cli import common as cli

if TYPE_CHECKING:
    from pyc_mlir.lab.evidence.database.store import EvidenceStore
    from pyc_mlir.lab.sessions.session import Measurer, SessionPlan
    from pyc_mlir.lab.tune.survey import Surveyed

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
# What `add_argument` of a parser takes.
Argument = tuple[tuple[str, ...], dict[str, Any]]


def argument(*names: str, **options: Any) -> Argument:
    """Return an argument of a command."""
    return names, options


# Those of everything that surveys programs.
ARGUMENTS = (
    argument("--db", metavar="URL", default=argparse.SUPPRESS, help="the database"),
    argument("--budget", metavar="TIME",
             help="start no session after this time, such as 90s, 10min or 2h"),
    argument("--constants", metavar="STATES", default=WARM,
             help=f"{WARM}, {COLD} (caches flushed before each call) or both, joined by a comma; "
             f"default: {WARM}"),
    argument("--threads", metavar="N", type=int, default=1, help="threads of a call; default: 1"),
    argument("--rounds", metavar="N", type=int, default=15,
             help="rounds of each process; default: 15"),
    argument("--processes", metavar="N", type=int, default=3,
             help="processes of each session; default: 3"),
    argument("--whole", action="store_true", help="measure the whole programs too"),
    argument("--quiet-only", action="store_true",
             help="refuse to measure beside other load; else such sessions are kept but decide "
             "nothing"),
)  # fmt: skip


def run_profile(store: "EvidenceStore", flags: argparse.Namespace) -> int:
    """Measure the works of the models; a line for each session."""
    from pyc_mlir.lab.sessions.local import LocalMeasurer
    from pyc_mlir.lab.tune.survey import Surveyed

    programs = [Surveyed(model, model) for model in flags.models]
    return survey(store, flags, programs, LocalMeasurer("pyc-tune profile"))


def survey(
    store: "EvidenceStore",
    flags: argparse.Namespace,
    programs: Sequence["Surveyed"],
    measurer: "Measurer",
) -> int:
    """Survey programs as the flags request. Status 1 where not one program could be surveyed."""
    from pyc_mlir.lab.tune.survey import Survey

    made = Survey(store, measurer, plan_of(flags), constants_of(flags.constants), whole=flags.whole)
    for line in made.run(programs, seconds_of(flags.budget)):
        print(line, flush=True)
    return cli.REFUSED if all(p.name in made.skipped for p in programs) else cli.OK


def plan_of(flags: argparse.Namespace) -> "SessionPlan":
    """Return the plan of each session. Raises PycError (BAD_ARGUMENT)."""
    from pyc_mlir.lab.sessions.session import SessionPlan

    return SessionPlan(flags.rounds, flags.processes, threads=flags.threads, quiet=flags.quiet_only)


def constants_of(text: str) -> tuple[str, ...]:
    """``warm,cold`` as states. Raises PycError (BAD_ARGUMENT)."""
    states = tuple(text.split(","))
    if not set(states) <= set(CONSTANTS):
        raise _wrong("--constants", f"{WARM}, {COLD} or {WARM},{COLD}", text)
    return states


def seconds_of(text: str | None) -> float | None:
    """``10min`` in seconds; a number alone is seconds. Raises PycError (BAD_ARGUMENT)."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)?", text)
    if found is None:
        raise _wrong("--budget", "a time such as 90s, 10min or 2h", text)
    return float(found[1]) * _SECONDS[found[2] or "s"]


def _wrong(option: str, expected: str, got: str) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT, f"command line: `{option}`: expected {expected}, got {got!r}"
    )
