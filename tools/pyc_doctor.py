"""`pyc-doctor`: what this machine can compile for and run on, with a remedy for each problem.

    pyc-doctor                        the findings
    pyc-doctor --calibrate lab.json   measures the CPU; compiles may take the file as evidence

Exit status: 0 when PyC works here (or the file was written), 1 when a required check fails (or the
measurement was refused), 2 for a fault of ours.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pyc_mlir.dialects.util.files import require_writable, write_file
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.doctor.checks import diagnose, is_healthy, to_json, to_text
from pyc_mlir.tools.doctor.machine import examine

TOOL = "pyc-doctor"


def main(argv: Sequence[str] | None = None) -> int:
    """Examine this machine and print the findings, or calibrate it."""
    return cli.run_tool(TOOL, lambda: _run(argv))


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    parser = cli.Parser(TOOL, "Report what this machine can compile for and run on.")
    parser.add_argument(
        "--json", action="store_true", help="print findings and machine facts as JSON"
    )
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        help="measure the CPU in about 20 seconds, and write FILE for `pyc-compile --calibration`",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="for --calibrate: the name in logs; default: that of FILE"
    )
    return parser


def _run(argv: Sequence[str] | None) -> int:
    flags = make_parser().parse_args(argv)
    if flags.calibrate is not None:
        if flags.json:
            raise cli.usage_error(TOOL, "expected --json or --calibrate, got both")
        return _calibrate(Path(flags.calibrate), flags.name)
    if flags.name is not None:
        raise cli.usage_error(TOOL, "expected --calibrate with --name, got --name alone")
    machine = examine()
    findings = diagnose(machine)
    if flags.json:
        print(json.dumps(to_json(machine, findings), indent=1))
    else:
        print(to_text(machine, findings), end="")
    return cli.OK if is_healthy(findings) else cli.REFUSED


def _calibrate(path: Path, name: str | None) -> int:
    """Measure, write the file and print its figures."""
    from pyc_mlir.pipelines.target.calibration import check_name

    name = check_name(path.stem if name is None else name)
    require_writable(path, "a file for the calibration")
    # What measures needs MLIR and a compiler, which a machine that only runs programs lacks.
    from pyc_mlir import calibrate
    from pyc_mlir.measure.environment import probe
    from pyc_mlir.runtime.device import host_cpu

    cpu = calibrate.require_cpu(host_cpu())
    with cli.Progress(sys.stderr) as progress:
        made = calibrate.calibrate(name, cpu, probe(), stage=progress.stage)
    write_file(path, made.to_bytes())
    print(calibrate.table(made), end="")
    print(f"wrote {path}: pyc-compile MODEL --calibration {path} -o FILE")
    return cli.OK


if __name__ == "__main__":
    sys.exit(main())
