"""The only door to the MLIR bindings: the rest of PyC imports MLIR from here.

The bindings come from the `torch-mlir` wheel (upstream MLIR under another package name);
swapping the wheel means editing this file alone. Dialect modules are imported when first asked
for: together they cost more than a small `pyc-opt` run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch_mlir import ir
from torch_mlir.dialects._ods_common import _cext

if TYPE_CHECKING:
    from torch_mlir import execution_engine, passmanager, rewrite
    from torch_mlir.dialects import (
        arith,
        bufferization,
        cf,
        ext,
        func,
        linalg,
        math,
        scf,
        tensor,
    )

    stablehlo: Any

__all__ = [
    "arith",
    "bufferization",
    "cf",
    "execution_engine",
    "ext",
    "func",
    "ir",
    "linalg",
    "math",
    "passmanager",
    "register_dialect_package",
    "rewrite",
    "scf",
    "stablehlo",
    "tensor",
]

_TOP_LEVEL = frozenset({"execution_engine", "passmanager", "rewrite"})
# StableHLO's attributes and its reader of portable artifacts; the wheel has no Python module of
# op classes for it.
_NATIVE = {"stablehlo": "torch_mlir._mlir_libs._stablehlo"}


def __getattr__(name: str) -> Any:
    """Import a part of the bindings on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    default = f"torch_mlir.{name}" if name in _TOP_LEVEL else f"torch_mlir.dialects.{name}"
    module = import_module(_NATIVE.get(name, default))
    globals()[name] = module
    return module


def register_dialect_package(package: str) -> None:
    """Tell the bindings where Python-defined dialects live.

    Without it each access to an op retries a failing import (10-30x slower).
    """
    _cext.globals.append_dialect_search_prefix(package)
