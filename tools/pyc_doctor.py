"""pyc-doctor: what this machine can compile for and run on, with a fix for each problem.

Exit status: 0 when PyC works here, 1 when a required check fails.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from pyc_mlir.doctor import diagnose, is_healthy, to_json, to_text
from pyc_mlir.machine import examine


def main(argv: Sequence[str] | None = None) -> int:
    """Examine this machine and print the findings."""
    parser = argparse.ArgumentParser(
        "pyc-doctor", description="Tell what this machine can compile for and run on."
    )
    parser.add_argument("--json", action="store_true", help="print findings and facts as JSON")
    arguments = parser.parse_args(argv)
    machine = examine()
    findings = diagnose(machine)
    if arguments.json:
        print(json.dumps(to_json(machine, findings), indent=1))
    else:
        print(to_text(machine, findings), end="")
    return 0 if is_healthy(findings) else 1


if __name__ == "__main__":
    sys.exit(main())
