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

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch._guards import (  # pyright: ignore[reportMissingImports]
    CompileContext,
    TracingContext,
)

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.torch.shared.handler import HANDLERS
from pyc_mlir.torch.calls import (
    EAGER,
    ERROR,
    Call,
    FrozenCalls,
    Settings,
    call_of,
    imported,
    leave_to_torch,
)
from pyc_mlir.torch.counts import count


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


def _count_frame() -> None:
    """Count a frame that torch compiles again."""
    current = CompileContext.current_compile_id()
    if current is not None and (current.frame_compile_id or 0) > 0:
        count("recompiled")


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
