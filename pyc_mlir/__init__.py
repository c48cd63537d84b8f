"""PyC: a machine-learning compiler in Python on MLIR and IREE. The public names.

    program = pyc_mlir.compile(function_or_file, inputs=..., target="cpu")
    result = program(array)

Importing this package imports nothing else: each name brings its module when it is first asked
for, so that programs run where no compiler is installed.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyc_mlir import nn
    from pyc_mlir.api import compile, jit
    from pyc_mlir.compilation.options import CompileOptions
    from pyc_mlir.dialects.errors import PycError, ReasonCode
    from pyc_mlir.dialects.ir.interpreter import interpret
    from pyc_mlir.equivalence import Counterexample, Proof, Relation, Unknown, equivalent
    from pyc_mlir.frontends.python.specs import Tensor, TensorSpec, spec
    from pyc_mlir.frontends.python.trace import trace
    from pyc_mlir.lab.simulation.simulator import simulate
    from pyc_mlir.patterns import Pattern, pattern
    from pyc_mlir.pipelines.choices.choices import Recipe
    from pyc_mlir.pipelines.choices.contract import Contract
    from pyc_mlir.pipelines.target.target import Target
    from pyc_mlir.runtime.array import Array
    from pyc_mlir.runtime.device import Device
    from pyc_mlir.runtime.load import load
    from pyc_mlir.runtime.program import Program
    from pyc_mlir.runtime.selection.selector import Selector
    from pyc_mlir.service.service import Service
    from pyc_mlir.service.shadow import Shadow
    from pyc_mlir.service.targets import Targets
    from pyc_mlir.util.logs import trace_spans

    __version__: str

__all__ = [
    "Array",
    "CompileOptions",
    "Contract",
    "Counterexample",
    "Device",
    "Pattern",
    "Program",
    "Proof",
    "PycError",
    "ReasonCode",
    "Recipe",
    "Relation",
    "Selector",
    "Service",
    "Shadow",
    "Target",
    "Targets",
    "Tensor",
    "TensorSpec",
    "Unknown",
    "__version__",
    "compile",
    "equivalent",
    "interpret",
    "jit",
    "load",
    "nn",
    "pattern",
    "simulate",
    "spec",
    "trace",
    "trace_spans",
]

# A checkout keeps the other three layers beside this folder; an installed package has them inside.
if not os.path.isdir(os.path.join(__path__[0], "dialects")):
    __path__.append(os.path.dirname(__path__[0]))

# Where each name is defined.
_HOMES = {
    "Array": "pyc_mlir.runtime.array",
    "CompileOptions": "pyc_mlir.compilation.options",
    "Contract": "pyc_mlir.pipelines.choices.contract",
    "Counterexample": "pyc_mlir.equivalence",
    "Device": "pyc_mlir.runtime.device",
    "Program": "pyc_mlir.runtime.program",
    "Pattern": "pyc_mlir.patterns",
    "Proof": "pyc_mlir.equivalence",
    "PycError": "pyc_mlir.dialects.errors",
    "ReasonCode": "pyc_mlir.dialects.errors",
    "Recipe": "pyc_mlir.pipelines.choices.choices",
    "Relation": "pyc_mlir.equivalence",
    "Selector": "pyc_mlir.runtime.selection.selector",
    "Service": "pyc_mlir.service.service",
    "Shadow": "pyc_mlir.service.shadow",
    "Target": "pyc_mlir.pipelines.target.target",
    "Targets": "pyc_mlir.service.targets",
    "Tensor": "pyc_mlir.frontends.python.specs",
    "TensorSpec": "pyc_mlir.frontends.python.specs",
    "Unknown": "pyc_mlir.equivalence",
    "compile": "pyc_mlir.api",
    "equivalent": "pyc_mlir.equivalence",
    "interpret": "pyc_mlir.dialects.ir.interpreter",
    "jit": "pyc_mlir.api",
    "load": "pyc_mlir.runtime.load",
    "pattern": "pyc_mlir.patterns",
    "simulate": "pyc_mlir.lab.simulation.simulator",
    "spec": "pyc_mlir.frontends.python.specs",
    "trace": "pyc_mlir.frontends.python.trace",
    "trace_spans": "pyc_mlir.util.logs",
}


def __getattr__(name: str) -> Any:
    """Import what a public name stands for, once.

    Raises PycError: MISSING_DEPENDENCY for a name that needs a compiler where none is installed,
    BAD_ARGUMENT for a variable `PYC_LOG` that names no level.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any
    if name == "__version__":
        from importlib.metadata import version

        value = version("pyc-mlir")
    else:
        from pyc_mlir.util.logs import configure

        configure(os.environ)
        value = _imported(name)
    globals()[name] = value
    return value


def _imported(name: str) -> Any:
    try:
        if name == "nn":
            return import_module("pyc_mlir.nn")
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from pyc_mlir.dialects.errors import missing_compiler

        raise missing_compiler(error) or error from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
