"""The calls of captured graphs: each compiles its graph and runs it on torch's tensors.

`FrozenCalls` are those of a graph with frozen weights; `call_of` is any other graph.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
    _disable_current_modes,
)

import pyc_mlir.api as api
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.frontends.sources import Loaded
from pyc_mlir.frontends.torch.compiled import CompiledGraph, import_compiled
from pyc_mlir.runtime.array import Array
from pyc_mlir.torch.counts import count
from pyc_mlir.torch.tensors import tensor_of
from pyc_mlir.torch.weights import Arguments, Watch
from pyc_mlir.util.logs import COMPILE, logger

# What becomes of a refusal.
ERROR, EAGER = "error", "eager"
_NAME = "graph"
_NOTHING: Mapping[int, Any] = MappingProxyType({})
# A frozen parameter that changed so often is an argument from then on. A buffer, or a plain tensor
# of a module, is one after its first change: state that each call replaces would compile each time.
_PARAMETER_CHANGES = 8
Call = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True)
class Settings:
    """The arguments of `torch.compile`."""

    freeze: bool
    fallback: str
    compile: Mapping[str, Any]


def leave_to_torch(error: PycError, settings: Settings) -> None:
    """Count a refusal; raise it again unless torch is to run what PyC refuses."""
    count("refused")
    if settings.fallback != EAGER:
        raise error
    count("fallbacks")
    logger(COMPILE).warning("left to torch, as asked: %s", error)


class FrozenCalls:
    """The calls of one graph whose weights are constants, compiled again when one has changed.

    static: the tensors of the module, weights: those that the graph does not write; both by number.
    """

    def __init__(
        self, gm: Any, static: Mapping[int, Any], weights: Mapping[int, Any], settings: Settings
    ) -> None:
        self._gm, self._static, self._settings = gm, tuple(static), settings
        # How often each weight may still change before it becomes an argument.
        self._left = {
            i: _PARAMETER_CHANGES if isinstance(t, torch.nn.Parameter) else 1
            for i, t in weights.items()
        }
        self._freeze(weights)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Return the graph's results. Raises PycError if it cannot be compiled, or a call fails."""
        changed = self._watch.changed(args)
        for i in changed:
            self._left[i] -= 1
        if changed:
            count("refrozen")
            try:
                self._freeze(args)
            except PycError as error:
                leave_to_torch(error, self._settings)
                self._watch, self._call = Watch({}), lambda args: list(self._gm(*args))
        return self._call(args)

    def _freeze(self, args: Mapping[int, Any] | Sequence[Any]) -> None:
        """Compile the weights of a call in."""
        weights = {i: args[i] for i, left in self._left.items() if left > 0}
        with _disable_current_modes():
            # Looked at first: what is written while the compile works is seen at the next call.
            watch = Watch(weights)
        call = call_of(imported(self._gm, weights), self._static, self._settings)
        self._watch, self._call = watch, call


def imported(gm: Any, frozen: Mapping[int, Any] = _NOTHING) -> CompiledGraph:
    """Import the graph as a pyc module; `frozen` placeholders are constants.

    Raises UnsupportedModel.
    """
    # AOTAutograd compiles under its fake tensors; weights are real.
    with _disable_current_modes():
        return import_compiled(gm, _NAME, frozen)


def call_of(made: CompiledGraph, static: Iterable[int], settings: Settings) -> Call:
    """Compile a graph; the callable takes and gives lists of tensors and sizes.

    static: the arguments that are tensors of the module. Raises as `pyc_mlir.compile`.
    """
    results = made.results
    if all(callable(r) for r in results):
        return lambda args: [r(args) for r in results if callable(r)]
    with _disable_current_modes():
        program = api.compile(Loaded(made.module, name=_NAME), **settings.compile)
    arguments = Arguments(made.arguments, static, program.device)

    def call(args: Sequence[Any]) -> list[Any]:
        arrays = arguments(args)
        out = program(*arrays)
        several = out if isinstance(out, tuple) else (out,)
        tensors = [tensor_of(o.host() if isinstance(o, Array) else o) for o in several]
        return [r(args) if callable(r) else tensors[r] for r in results]

    return call
