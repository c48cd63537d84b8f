"""The only door to the MLIR bindings: the rest of PyC imports MLIR from here.

The bindings come from the `torch-mlir` wheel (upstream MLIR under another package name);
swapping the wheel means editing this file alone.
"""

from torch_mlir import ir, passmanager, rewrite
from torch_mlir.dialects import arith, bufferization, cf, ext, func, linalg, math, scf, tensor
from torch_mlir.dialects._ods_common import _cext

__all__ = [
    "arith",
    "bufferization",
    "cf",
    "ext",
    "func",
    "ir",
    "linalg",
    "math",
    "passmanager",
    "register_dialect_package",
    "rewrite",
    "scf",
    "tensor",
]


def register_dialect_package(package: str) -> None:
    """Tell the bindings where Python-defined dialects live.

    Without it each access to an op retries a failing import (10-30x slower).
    """
    _cext.globals.append_dialect_search_prefix(package)
