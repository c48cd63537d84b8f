"""Run a crashed worker's request again, in this process: `python -m pyc_mlir.worker FILE`."""

import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.frontends.sources import allow_bytecode
from pyc_mlir.worker.messages import ARTIFACT, REFUSED, error_of, unpacked
from pyc_mlir.worker.process import Channel, Frame, read_frame
from pyc_mlir.worker.serve import Server


class WorkerOutput(Channel):
    """Shows what a worker would tell its parent."""

    def send(self, frame: Frame) -> None:
        """Print the beginnings of steps; a policy of the parent is not here to be asked."""
        if frame.header["kind"] in ("variants", "prefer"):
            raise ConnectionError(
                "the request needs a policy that only its own process had; choose a recipe"
            )
        if frame.header.get("begins"):
            print(frame.header["title"], file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    """Return the exit status: 0 it compiles, 1 it is refused, 70 a fault of ours; or crash."""
    if len(arguments) != 1:
        print("usage: python -m pyc_mlir.worker FILE.request", file=sys.stderr)
        return 2
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryDirectory() as folder:
        try:
            request = unpacked(read_frame(read_file(arguments[0], "a request")), Path(folder))
            allow_bytecode()
            answer = Server(WorkerOutput(ours, blocking=True)).answer(request)
        except (OSError, PycError) as error:
            print(f"{arguments[0]}: {error}", file=sys.stderr)
            return 1
    if answer.header["kind"] == ARTIFACT:
        print(f"compiled: {len(answer.blobs[0])} bytes")
        return 0
    if answer.header["kind"] == REFUSED:
        print(error_of(answer), file=sys.stderr)
        return 1
    print(answer.header["traceback"], file=sys.stderr)
    return 70


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
