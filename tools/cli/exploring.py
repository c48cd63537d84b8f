"""`pyc-compile --explore-budget`: measure what is unknown, before a compile by `explore`.

Comes in: a program and how it is compiled. Goes out: the options with the wisdom of what was known
and of what was measured. The compile itself measures nothing: it is a function of that wisdom.
"""

import argparse
import os
from dataclasses import replace
from typing import Any

from pyc_mlir.compilation.options import CompileOptions, Options
from pyc_mlir.lab.explore.policy import Explore
from pyc_mlir.measure.environment import current_place
from pyc_mlir.tools.cli.common import DATABASE, Parser, Progress, default_url, usage_error


def add_flags(parser: Parser) -> None:
    """Add the flags of a command line."""
    group = parser.add_argument_group("explore", "for --policy explore")
    group.add_argument(
        "--explore-budget",
        metavar="SECONDS",
        type=float,
        help="before the compile, measure works that the database lacks for this long; default: "
        "measure nothing",
    )
    group.add_argument(
        "--explore-db",
        metavar="URL",
        help=f"the database of measurements; default: ${DATABASE}, else the user's own",
    )


def check(flags: argparse.Namespace) -> None:
    """Raise PycError (BAD_ARGUMENT) for flags that lack each other."""
    if flags.explore_budget is None:
        if flags.explore_db is not None:
            raise usage_error(
                "pyc-compile", "expected --explore-budget with --explore-db, got none"
            )
        return
    if flags.policy != Explore.name or flags.explore_budget <= 0:
        raise usage_error(
            "pyc-compile", "expected --policy explore and seconds above 0 with --explore-budget"
        )


def with_measured(
    flags: argparse.Namespace,
    source: Any,
    inputs: Any,
    given: CompileOptions,
    options: Options,
    progress: Progress,
) -> Options:
    """Return the options with fresh measurements; the same without a budget.

    Raises PycError as the database and a survey do.
    """
    if flags.explore_budget is None:
        return options
    # SQLAlchemy and the measuring library are needed here alone.
    from pyc_mlir.lab.evidence.database.exchange import export_wisdom
    from pyc_mlir.lab.evidence.database.store import EvidenceStore
    from pyc_mlir.lab.sessions.local import LocalMeasurer
    from pyc_mlir.lab.tune.survey import Survey, Surveyed

    policy = options.policy
    assert isinstance(policy, Explore), "checked with the flags"
    here = current_place()
    program = Surveyed(flags.model, source, inputs, replace(given, policy=None, wisdom=None))
    with EvidenceStore.open(flags.explore_db or default_url(os.environ)) as store:
        survey = Survey(store, LocalMeasurer("pyc-compile"))
        for line in survey.run([program], flags.explore_budget):
            with progress.stage(line):
                pass
        found = export_wisdom(store, here.hardware, here.toolchain)
    informed = replace(
        policy,
        wisdom=policy.wisdom.joined(found),
        hardware=here.hardware,
        toolchain=here.toolchain,
    )
    return replace(options, policy=informed)
