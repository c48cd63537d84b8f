"""The backend of `torch.compile(model, backend="pyc")`.

torch captures a function's graph; AOTAutograd makes it functional and, where gradients are asked
for, splits it into a forward and a backward graph. Each graph becomes a `Program`. Without
gradients, parameters and buffers are compiled in as constants; a call finds out when one was
written since (by torch's version counters, which assignments to `.data` go past) and compiles
again.

    torch.compile(model, backend="pyc", options={"target": "cpu-avx2", "fallback": "eager"})

Options are those of `pyc_mlir.compile`, and `freeze` (True) and `fallback` ("error", or "eager":
what PyC refuses runs in torch). Nothing falls back otherwise: a refusal is the error of the call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
    _disable_current_modes,
)

import pyc_mlir.api as api
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.sources import Source
from pyc_mlir.frontends.torch.compiled import import_compiled
from pyc_mlir.frontends.torch.frame.handler import HANDLERS
from pyc_mlir.torch.counts import count
from pyc_mlir.torch.tensors import array_of, tensor_of
from pyc_mlir.util.logs import COMPILE, logger

_ERROR, _EAGER = "error", "eager"
_version = attrgetter("_version")


@dataclass(frozen=True)
class _Options:
    """What the user gave `torch.compile`."""

    freeze: bool
    fallback: str
    compile: Mapping[str, Any]


def backend(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What `torch.compile` calls with a captured graph. Returns a callable of its arguments.

    Raises PycError (BAD_ARGUMENT) for an unknown option; UnsupportedModel, with all nodes that
    PyC lacks, unless `fallback` is "eager".
    """
    from torch._dynamo.backends.common import (  # pyright: ignore[reportMissingImports]
        aot_autograd,
    )

    settings = _settings(options, mode)
    _count_frame()
    static = [i for i, t in enumerate(example_inputs) if _is_static(t)]
    weights = {i: example_inputs[i] for i in static}
    compiler = _Compiler(settings, weights, len(example_inputs))
    wrapped = aot_autograd(
        fw_compiler=compiler.forward,
        bw_compiler=compiler.backward,
        inference_compiler=compiler.inference,
        decompositions=_table(),
    )
    try:
        return wrapped(gm, example_inputs)
    except PycError as error:
        count("refused")
        if settings.fallback != _EAGER:
            raise
        count("fallbacks")
        logger(COMPILE).warning("left to torch, as asked: %s", error)
        return gm.forward


def _settings(options: Mapping[str, Any] | None, mode: str | None) -> _Options:
    given = dict(options or {})
    if mode not in (None, "default"):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"mode: expected none, got {mode!r}, which is of torch's own compiler; give options "
            "of `pyc_mlir.compile`",
        )
    fallback = given.pop("fallback", _ERROR)
    if fallback not in (_ERROR, _EAGER):
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"fallback: expected 'error' or 'eager', got {fallback!r}"
        )
    return _Options(bool(given.pop("freeze", True)), fallback, given)


def _count_frame() -> None:
    """Count a frame that torch compiles again."""
    current = torch._guards.CompileContext.current_compile_id()
    if current is not None and (current.frame_compile_id or 0) > 0:
        count("recompiled")


def _is_static(value: Any) -> bool:
    """Whether an example is a parameter or a buffer of a module."""
    parameter = isinstance(value, torch.nn.Parameter)
    return parameter or hasattr(value, "_dynamo_static_input_type")


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of operators that have no handler."""
    from torch._decomp import (  # pyright: ignore[reportMissingImports]
        core_aten_decompositions,
        global_decomposition_table,
    )

    known = {**global_decomposition_table["post_autograd"], **core_aten_decompositions()}
    return {op: function for op, function in known.items() if str(op) not in HANDLERS}


class _Compiler:
    """Makes programs of the graphs of one captured function."""

    def __init__(self, settings: _Options, weights: Mapping[int, Any], count: int) -> None:
        self.settings, self.weights, self.count = settings, weights, count

    def inference(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """A graph without gradients, its weights frozen."""
        count("inference")
        # AOTAutograd keeps the order of arguments unless it adds some of its own.
        frozen = self.weights if self.settings.freeze and len(example_inputs) == self.count else {}
        return _boxed(_Frozen(gm, frozen, self.settings) if frozen else self._call(gm))

    def forward(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The forward graph of training: its results, and what the backward graph needs."""
        count("forward")
        return _boxed(self._call(gm))

    def backward(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The backward graph of training."""
        count("backward")
        return _boxed(self._call(gm))

    def _call(self, gm: Any) -> Callable[[Sequence[Any]], list[Any]]:
        return call_of(gm, {}, self.settings)


def _boxed(call: Callable[[Sequence[Any]], list[Any]]) -> Callable[..., Any]:
    """`call` marked as one that takes a list, which it empties: arguments may be freed."""

    def boxed(args: list[Any]) -> list[Any]:
        out = call(args)
        args.clear()
        return out

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


class _Frozen:
    """A call whose weights are constants, compiled again when one of them was written."""

    def __init__(self, gm: Any, weights: Mapping[int, Any], settings: _Options) -> None:
        self.gm, self.weights, self.settings = gm, weights, settings
        self.numbers = tuple(weights)
        self._freeze()

    def _freeze(self) -> None:
        self.tensors = list(self.weights.values())
        self.versions = list(map(_version, self.tensors))
        self.call = call_of(self.gm, self.weights, self.settings)

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        if list(map(_version, self.tensors)) != self.versions:
            count("refrozen")
            self.weights = {i: args[i] for i in self.numbers}
            self._freeze()
        return self.call(args)


def call_of(
    gm: Any, frozen: Mapping[int, Any], settings: _Options
) -> Callable[[Sequence[Any]], list[Any]]:
    """Compile a graph; the callable takes and gives lists of tensors and sizes.

    Raises UnsupportedModel and what `pyc_mlir.compile` raises.
    """
    name = getattr(gm, "_pyc_name", "graph")
    # AOTAutograd compiles under its fake tensors; weights are real.
    with _disable_current_modes():
        made = import_compiled(gm, name, frozen)
    if not made.results or all(callable(r) for r in made.results):
        results = made.results
        return lambda args: [r(args) for r in results if callable(r)]
    program = api.compile(Source(made.module, name=name), **settings.compile)
    numbers = made.arguments
    if all(r == i for i, r in enumerate(made.results)):
        single = len(made.results) == 1

        def plain(args: Sequence[Any]) -> list[Any]:
            out = program(*[array_of(args[i]) for i in numbers])
            return [tensor_of(out)] if single else [tensor_of(o) for o in out]

        return plain
    tensors = sum(not callable(r) for r in made.results)

    def mixed(args: Sequence[Any]) -> list[Any]:
        out = program(*[array_of(args[i]) for i in numbers])
        arrays = (out,) if tensors == 1 else out
        return [r(args) if callable(r) else tensor_of(arrays[r]) for r in made.results]  # type: ignore[index]

    return mixed
