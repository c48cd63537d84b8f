"""The backend of `torch.compile(model, backend="pyc")`.

torch captures a function's graph; AOTAutograd makes it functional and, where gradients are asked
for, splits it into a forward and a backward graph. Each graph becomes a `Program`. Parameters and
buffers are its arguments, shared with the program, so that a call computes with what the module
holds then. They are compiled in as constants where that is asked for; a call then compares them
with what they were, as weights.py says, and compiles again if it sees a change.

    torch.compile(model, backend="pyc", options={"target": "cpu-avx2", "fallback": "eager"})

Options are those of `pyc_mlir.compile`, and `freeze` (False) and `fallback` ("error", or "eager":
what PyC refuses runs in torch). Nothing falls back otherwise: a refusal is the error of the call.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch._guards import (  # pyright: ignore[reportMissingImports]
    CompileContext,
    TracingContext,
)
from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
    _disable_current_modes,
)

import pyc_mlir.api as api
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.sources import Loaded
from pyc_mlir.frontends.torch.compiled import CompiledGraph, import_compiled
from pyc_mlir.frontends.torch.ops.handler import HANDLERS
from pyc_mlir.runtime.array import Array
from pyc_mlir.torch.tensors import Arguments, Watch, tensor_of
from pyc_mlir.util.logs import COMPILE, logger

_LOCK = threading.Lock()
# What becomes of a refusal.
ERROR, EAGER = "error", "eager"
_NAME = "graph"
_NOTHING: Mapping[int, Any] = MappingProxyType({})
# A frozen parameter that changed so often is an argument from then on. A buffer, or a plain tensor
# of a module, is one after its first change: state that each call replaces would compile each time.
_PARAMETER_CHANGES = 8
Call = Callable[[Sequence[Any]], list[Any]]


@dataclass
class TorchStats:
    """Counts since the process began, or since `reset_stats`.

    graphs: compiled, by kind: `inference`, `forward` and `backward`.
    recompiled: of them those for a frame that was compiled before, since a guard of torch failed:
        another size, element type or value. Size 1 always is a case of its own.
    refrozen: compiled again since a frozen weight was replaced or written.
    refused: graphs that PyC could not compile. `fallbacks` of them were left to torch, as
        ``options={"fallback": "eager"}`` asks.
    graph_breaks: places where torch itself cut a function, by its own count.
    """

    inference: int = 0
    forward: int = 0
    backward: int = 0
    recompiled: int = 0
    refrozen: int = 0
    refused: int = 0
    fallbacks: int = 0
    graph_breaks: int = 0

    @property
    def graphs(self) -> int:
        """All graphs that were compiled."""
        return self.inference + self.forward + self.backward


_STATS = TorchStats()


def count(name: str) -> None:
    """Add one to a count."""
    with _LOCK:
        setattr(_STATS, name, getattr(_STATS, name) + 1)


def stats() -> TorchStats:
    """Return the current counts."""
    from torch._dynamo.utils import counters  # pyright: ignore[reportMissingImports]

    with _LOCK:
        values = {f.name: getattr(_STATS, f.name) for f in fields(TorchStats)}
    values["graph_breaks"] = sum(counters["graph_break"].values())
    return TorchStats(**values)


def reset_stats() -> None:
    """Start counting anew; torch's own counters too."""
    from torch._dynamo.utils import counters  # pyright: ignore[reportMissingImports]

    with _LOCK:
        for field in fields(TorchStats):
            setattr(_STATS, field.name, 0)
    counters["graph_break"].clear()


@dataclass(frozen=True)
class Settings:
    """The arguments of `torch.compile`."""

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
    """Compile a captured graph for `torch.compile`; return a callable of its arguments.

    Raises PycError (BAD_ARGUMENT) for an unknown option; UnsupportedModel, with all nodes that PyC
    lacks, unless `fallback` is "eager".
    """
    from torch._dynamo.backends.common import (  # pyright: ignore[reportMissingImports]
        aot_autograd,
    )

    settings = _settings(options, mode)
    current = CompileContext.current_compile_id()
    if current is not None and (current.frame_compile_id or 0) > 0:
        count("recompiled")
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
        leave_to_torch(error, settings)
        return gm.forward


def _settings(options: Mapping[str, Any] | None, mode: str | None) -> Settings:
    given = dict(options or {})
    if mode not in (None, "default"):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"mode: expected none, got {mode!r}, which is of torch's own compiler; give options "
            "of `pyc_mlir.compile`",
        )
    fallback = given.pop("fallback", ERROR)
    if fallback not in (ERROR, EAGER):
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"fallback: expected 'error' or 'eager', got {fallback!r}"
        )
    freeze = given.pop("freeze", False)
    if not isinstance(freeze, bool):
        raise PycError(ReasonCode.BAD_ARGUMENT, f"freeze: expected True or False, got {freeze!r}")
    return Settings(freeze, fallback, given)


def _is_static(value: Any) -> bool:
    """Return whether an example is a parameter or a buffer of a module."""
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
    """Makes programs of the graphs of one captured function.

    weights: parameters and buffers by their numbers among its arguments; count: of arguments.
    """

    def __init__(self, settings: Settings, weights: Mapping[int, Any], count: int) -> None:
        self.settings, self.weights, self.count = settings, weights, count

    def inference(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph without gradients, its weights as constants if that is asked for."""
        count("inference")
        weights = self._weights(example_inputs)
        if not self.settings.freeze:
            return _boxed(call_of(imported(gm), weights, self.settings))
        context = TracingContext.try_get()
        facts = context and context.fw_metadata
        written = facts.mutated_inp_runtime_indices if facts else weights
        frozen = {i: t for i, t in weights.items() if i not in written}
        return _boxed(FrozenCalls(gm, weights, frozen, self.settings))

    def _weights(self, example_inputs: Sequence[Any]) -> Mapping[int, Any]:
        """Return the weights of fixed sizes.

        None if AOTAutograd added arguments, and so may have moved others.
        """
        if len(example_inputs) != self.count:
            return {}
        shapes = {i: example_inputs[i].shape for i in self.weights}
        return {i: t for i, t in self.weights.items() if all(isinstance(d, int) for d in shapes[i])}

    def forward(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile the forward graph of training: its results, and the backward graph's inputs."""
        count("forward")
        return _boxed(call_of(imported(gm), self._weights(example_inputs), self.settings))

    def backward(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile the backward graph of training."""
        count("backward")
        return _boxed(call_of(imported(gm), (), self.settings))


def _boxed(call: Call) -> Callable[..., Any]:
    """`call` marked as one that takes a list, which it empties: arguments may be freed."""

    def boxed(args: list[Any]) -> list[Any]:
        out = call(args)
        args.clear()
        return out

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


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
