"""Targets of the installed IREE wheels, and the devices that the runtime finds here.

Nothing raises: a wheel that is not installed, a driver that cannot start and one that ends the
process are answers too. Drivers load vendors' libraries, so each is asked in a process of its own
(``python -m pyc_mlir.iree.inventory DRIVER`` prints the answer as JSON).
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from pyc_mlir.util import children

QUERY_SECONDS = 60


@dataclass(frozen=True)
class Driver:
    """A driver that the runtime was built with: its devices here, or why there are none."""

    name: str
    devices: tuple[str, ...] = ()
    problem: str = ""


def compiler_targets() -> tuple[str, ...]:
    """Return the back ends of the installed IREE compiler, sorted; empty if it is missing."""
    if not _is_installed("iree.compiler"):
        return ()
    from iree.compiler import query_available_targets

    return tuple(sorted(query_available_targets()))


def runtime_drivers() -> tuple[Driver, ...]:
    """Return the drivers of the installed IREE runtime, sorted; empty if it is missing."""
    if not _is_installed("iree.runtime"):
        return ()
    from iree.runtime import query_available_drivers

    return tuple(ask(name) for name in sorted(query_available_drivers()))


def ask(name: str) -> Driver:
    """Query one driver in a process of its own."""
    command = [sys.executable, "-m", "pyc_mlir.iree.inventory", name]
    try:
        done = children.run(command, timeout=QUERY_SECONDS)
    except subprocess.TimeoutExpired:
        return Driver(name, problem=f"the driver did not answer within {QUERY_SECONDS} s")
    if done.returncode != 0:
        return Driver(name, problem=f"the driver ended its process (status {done.returncode})")
    data = json.loads(done.stdout.splitlines()[-1])
    return Driver(data["name"], tuple(data["devices"]), data["problem"])


def query(name: str) -> Driver:
    """Query one driver in this process."""
    from iree.runtime import get_driver

    try:
        devices = get_driver(name).query_available_devices()
    except (RuntimeError, ValueError) as error:
        return Driver(name, problem=reason(str(error)))
    names = tuple(d["name"] or d["path"] or name for d in devices)
    return Driver(name, names, "" if names else "the driver starts but finds no device")


def reason(text: str) -> str:
    """Return IREE's reason, without the line of its sources before it and the advice behind it."""
    line = text.strip().partition("\n")[0]
    _, has_place, rest = line.partition("; ")
    return re.split(r"; |: please", rest if has_place else line)[0] or "no reason given"


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def main(arguments: Sequence[str]) -> int:
    """Print what `query` says of the driver that the one argument names."""
    (name,) = arguments
    print(json.dumps(asdict(query(name))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
