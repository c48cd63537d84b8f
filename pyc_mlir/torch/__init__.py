"""PyC for PyTorch: compile modules, stand behind `torch.compile`, compare with eager.

    model = pyc_mlir.torch.compile(module, (TensorSpec("f32", "batch", 784),))
    result = model(images)                                  # a torch tensor

    fast = torch.compile(module, backend="pyc")
    print(pyc_mlir.torch.stats())

    print(pyc_mlir.torch.compare(module, (images,)))

torch is imported when one of these names is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyc_mlir.frontends.torch.export import TorchModel, from_torch
    from pyc_mlir.torch.backend import TorchStats, backend, reset_stats, stats
    from pyc_mlir.torch.program import (
        Comparison,
        Difference,
        TorchProgram,
        compare,
        compile,
    )

__all__ = [
    "Comparison",
    "Difference",
    "TorchModel",
    "TorchProgram",
    "TorchStats",
    "backend",
    "compare",
    "compile",
    "from_torch",
    "reset_stats",
    "stats",
]

# Where each name is defined.
_NAMES = {
    "pyc_mlir.torch.program": ("Comparison", "Difference", "TorchProgram", "compare", "compile"),
    "pyc_mlir.torch.backend": ("TorchStats", "backend", "reset_stats", "stats"),
    "pyc_mlir.frontends.torch.export": ("TorchModel", "from_torch"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what a public name stands for. Raises PycError (MISSING_DEPENDENCY) without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        from pyc_mlir.dialects.errors import PycError, ReasonCode, install

        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"PyTorch models: expected the package `torch`, found none; {install('torch')}",
        )
    home = import_module(_HOMES[name])
    # All names of the module: `backend` is the function, also after its module was imported.
    globals().update({n: getattr(home, n) for n in _NAMES[home.__name__]})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
