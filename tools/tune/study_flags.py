"""The flags of `pyc-tune MODEL`, `pyc-tune resume` and `pyc-tune worker`."""

import argparse
from collections.abc import Sequence
from typing import Any

# The command that a model's name stands for.
TUNE = "tune"


def add_study_commands(commands: Any) -> None:
    """Add the parsers of `tune`, `resume` and `worker`."""
    study = commands.add_parser("tune", help="tune a model; `pyc-tune MODEL` is the same")
    study.add_argument("model", metavar="MODEL", help="an .onnx or .mlir file, or file.py:function")
    study.add_argument(
        "--budget",
        metavar="TIME",
        help="a time such as 10min, 90s or 2h, or a number of evaluations",
    )
    study.add_argument(
        "--effort",
        default="patient",
        metavar="EFFORT",
        help="estimate, measure, patient or exhaustive; default: patient",
    )
    study.add_argument(
        "--dim", action="append", default=[], metavar="NAME=LOW:HIGH",
        help="the range of a dynamic dimension, measured at its upper end; may be repeated",
    )  # fmt: skip
    study.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the seed of the search; default: 0"
    )
    study.add_argument(
        "--target", default="cpu", metavar="TARGET", help="the target to compile for; default: cpu"
    )
    _add_workers(study)
    resume = commands.add_parser("resume", help="continue a study")
    resume.add_argument("id", metavar="STUDY", help="the beginning of its id")
    resume.add_argument("--budget", metavar="TIME", help="another limit; default: the study's")
    _add_workers(resume)
    worker = commands.add_parser("worker", help="measure the open trials of studies")
    worker.add_argument(
        "--idle", type=float, default=0.0, metavar="SECONDS",
        help="end after this time without a trial; default: 0, which waits for ever",
    )  # fmt: skip


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--executor", default="processes", metavar="WHERE",
        help="processes, or dask://HOST:PORT; default: processes",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N",
        help="concurrent trials; 0 leaves all of them to `pyc-tune worker`; default: 1",
    )  # fmt: skip


def with_command(arguments: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Insert the command `tune` if the arguments begin with no command: `pyc-tune MODEL`."""
    database = next(iter(arguments), "")
    start = 2 if database == "--db" else int(database.startswith("--db="))
    first = next(iter(arguments[start:]), "-h")
    known = first in commands or first in ("-h", "--help", "--version")
    return list(arguments) if known else [*arguments[:start], TUNE, *arguments[start:]]
