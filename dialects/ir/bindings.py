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

    onnx_importer: Any
    stablehlo: Any
    torch_dialect: Any

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
    "onnx_importer",
    "passmanager",
    "register_dialect_package",
    "rewrite",
    "scf",
    "stablehlo",
    "tensor",
    "torch_dialect",
]

_TOP_LEVEL = frozenset({"execution_engine", "passmanager", "rewrite"})
# Those that lie elsewhere. Of StableHLO the wheel has attributes and a reader of portable
# artifacts, no Python module of op classes. `onnx_importer` and `torch_dialect` lower one ONNX node
# to linalg (islands.py).
_ELSEWHERE = {
    "stablehlo": "torch_mlir._mlir_libs._stablehlo",
    "onnx_importer": "torch_mlir.extras.onnx_importer",
    "torch_dialect": "torch_mlir.dialects.torch",
}


def __getattr__(name: str) -> Any:
    """Import a part of the bindings on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    default = f"torch_mlir.{name}" if name in _TOP_LEVEL else f"torch_mlir.dialects.{name}"
    module = import_module(_ELSEWHERE.get(name, default))
    globals()[name] = module
    return module


def register_dialect_package(package: str) -> None:
    """Tell the bindings where Python-defined dialects live.

    Without it each access to an op retries a failing import (10-30x slower).
    """
    _cext.globals.append_dialect_search_prefix(package)
