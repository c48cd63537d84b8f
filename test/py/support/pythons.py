"""Python in a process of its own."""

import subprocess
import sys
from typing import Any

_WITHOUT_COMPILERS = """
import sys
for name in ("torch_mlir", "iree.compiler", "onnx"):
    sys.modules[name] = None
from pyc_mlir.tools.{} import main
sys.exit(main(sys.argv[1:]))
"""


def python(*command: object, **more: Any) -> "subprocess.CompletedProcess[str]":
    """Run a new interpreter with these arguments; what it writes is text."""
    line = [sys.executable, *map(str, command)]
    return subprocess.run(line, capture_output=True, text=True, **{"timeout": 300, **more})


def without_compilers(tool: str, *arguments: object) -> str:
    """Run a tool as `pip install pyc-mlir` without extras leaves a machine: what it prints."""
    done = python("-c", _WITHOUT_COMPILERS.format(tool), *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
