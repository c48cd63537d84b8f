"""`jit` with PyC's compiler behind it: a decorator for functions in numpy style.

@jit
def model(x: Tensor["f32", "batch", 784]):
    return nn.relu(x @ weights + bias)

y = model(images)
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

from pyc_mlir.artifact.signature import Ranges
from pyc_mlir.compilation.build import compile
from pyc_mlir.frontends.python import jit as frontend
from pyc_mlir.frontends.python.jit import JitFunction
from pyc_mlir.pipelines.choices.choices import Policy, Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device


@overload
def jit(function: Callable[..., Any]) -> JitFunction: ...
@overload
def jit(
    *,
    target: str | Target = "cpu",
    contract: Contract | None = None,
    policy: Policy | None = None,
    recipe: Recipe | str | Path | None = None,
    device: Device | None = None,
    iree_flags: Sequence[str] = (),
    dims: Ranges | None = None,
) -> Callable[[Callable[..., Any]], JitFunction]: ...
def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile `function` at its first call for each kind of arguments, and run it.

    As ``@jit`` or with the options of `pyc_mlir.compile`: ``@jit(target="cpu-avx2")``. Programs
    are kept by dtypes and shapes of the arrays and by the values of other arguments; annotate an
    argument with `Tensor[...]` to share one program between the sizes of a named dimension.

    Raises TypeError for an unknown option, PycError at the call that cannot be traced or compiled,
    or whose arrays do not fit.
    """
    inspect.signature(compile).bind(None, None, **options)
    return frontend.jit(function, compile=compile, **options)
