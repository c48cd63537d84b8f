"""Run tools as a user does, each in a process of its own, without paying for imports each time.

The processes are forked from a server that has imported the tools and done nothing else
(`multiprocessing`'s fork server): nothing was compiled there and no program was run.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

# A tool and what it imports only when it works.
PRELOADED = (
    "pyc_mlir.tools.pyc_compile",
    "pyc_mlir.tools.pyc_explain",
    "pyc_mlir.tools.pyc_opt",
    "pyc_mlir.tools.pyc_reduce",
    "pyc_mlir.tools.pyc_run",
    "pyc_mlir.tools.cli.compile_driver",
    "pyc_mlir.frontends.onnx.importer",
    "pyc_mlir.iree.compiler",
)
SECONDS = 120


def run_tool(tool: str, *arguments: str, folder: Path) -> tuple[int, bytes]:
    """The exit status of ``pyc_mlir.tools.<tool>`` and what it wrote to its output and error.

    Raises TimeoutError after `SECONDS`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *PRELOADED])
    with tempfile.NamedTemporaryFile() as written:
        work = (f"pyc_mlir.tools.{tool}", arguments, str(folder), written.name)
        process = context.Process(target=_work, args=work)
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{tool} {arguments}: not done after {SECONDS} s")
        return process.exitcode, written.read()


def _work(module: str, arguments: Sequence[str], folder: str, written: str) -> None:
    """In the process of the tool: its streams go to a file, native code's too."""
    file = os.open(written, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.chdir(folder)
    sys.argv = [module, *arguments]
    sys.exit(import_module(module).main())
