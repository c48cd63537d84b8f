"""`jit` with PyC's compiler behind it: a decorator for functions in numpy style.

@jit
def model(x: Tensor["f32", "batch", 784]):
    return nn.relu(x @ weights + bias)

y = model(images)
"""

import inspect
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, overload

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.signature import Ranges
from pyc_mlir.artifact.verification import Evidence
from pyc_mlir.cache.cache import Cache, choose
from pyc_mlir.cache.lookup import compiled
from pyc_mlir.cache.verdicts import Verdicts, noted
from pyc_mlir.compilation.build import Stage, build_here, untold
from pyc_mlir.compilation.contract_check import tried
from pyc_mlir.compilation.options import ALL_KERNELS, Options, make_options
from pyc_mlir.compilation.own_function import numpy_call, said
from pyc_mlir.frontends.python import jit as frontend
from pyc_mlir.frontends.python.jit import JitFunction
from pyc_mlir.frontends.python.trace import Traced
from pyc_mlir.frontends.sources import holds_bytecode
from pyc_mlir.pipelines.choices.choices import (
    Policy,
    Recipe,
)
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.worker.front import in_workers
from pyc_mlir.worker.job import in_time


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


def compile(
    source: Any,
    inputs: Sequence[Any] | None = None,
    *,
    target: str | Target = "cpu",
    contract: Contract | None = None,
    policy: Policy | str | None = None,
    recipe: Recipe | str | Path | None = None,
    device: Device | None = None,
    iree_flags: Sequence[str] = (),
    dump_phases: str | Path | None = None,
    planner_mode: str = "",
    also_modes: Sequence[str] = (),
    kernels: str = ALL_KERNELS,
    calibration: Calibration | str | Path | None = None,
    dims: Ranges | None = None,
    cache: Cache | bool | str | Path | None = None,
    untrusted: bool = False,
) -> Program:
    """Compile `source` and load it on a device.

    source: a Python function or its trace, an ``.onnx`` or ``.mlir`` file, an ONNX model, MLIR
        text, a module.
    inputs: for functions the arguments' specs or example arrays; for other sources shapes (or
        arrays) that refine dynamic dimensions.
    target: a name of `pyc_mlir.pipelines.target.target.TARGETS`, or a Target.
    contract: clauses that must be kept; those that cannot be are refused.
    policy, recipe: who answers the choices: a policy or its name (`load_policy`), and the log of
        an earlier compile, which comes first.
    iree_flags, dump_phases: passed to IREE; a folder that gets the IR of each of its phases.
    planner_mode: ``latency_first``, ``balanced`` or ``memory_first``: how memory is planned, kept
        wherever that is smaller than IREE's plan; ``iree`` leaves it to IREE. Empty asks the
        policy, which has a say if it names `planner_modes`; else it is ``balanced``.
    also_modes: further modes whose plans the artifact holds too: `Program.use_mode` takes them.
    kernels: families of generated kernels that may be chosen, joined by ``+``; ``iree`` leaves all
        code to IREE.
    calibration: figures of this CPU by `pyc-doctor --calibrate`, for choices to go by in place of
        the target's published ones; log and manifest name them.
    dims: for dynamic dimensions the smallest and the largest size, ``{"batch": (1, 64)}``; one
        without a name goes by its place, ``"x[0]"``. Calls outside are refused, and a memory
        budget is kept up to the largest sizes.
    cache: a folder whose programs are not compiled again, True for the user's own, or a `Cache`;
        `Program.stats().cache` says what it did. Without it nothing is looked up or kept.
    untrusted: `source` is read and compiled in a worker process, whose crash is an error. MLIR
        bytecode always is, and what has a limit of seconds.

    Raises PycError with the reason's code.
    """
    decided = (planner_mode, also_modes, kernels, calibration, dims)
    options = make_options(target, contract, policy, recipe, iree_flags, dump_phases, *decided)
    chosen = choose(cache, os.environ)
    made = build(source, inputs, options, cache=chosen, untrusted=untrusted)
    return Program(made, device)


def build(
    source: Any,
    inputs: Sequence[Any] | None,
    options: Options,
    stage: Stage = untold,
    cache: Cache | None = None,
    untrusted: bool = False,
) -> Artifact:
    """Compile to an artifact; no device is needed. Raises as `compile`.

    A function's samples are compared with what numpy makes of the function itself.

    stage: a context manager around each step, called with what the step does.
    cache: is asked first, and keeps what is compiled.
    untrusted: as for `compile`.
    """
    began = time.monotonic()
    call = numpy_call(source, inputs) if options.contract.compares else None
    source = source.module if isinstance(source, Traced) else source
    made = _build(source, inputs, options, stage, cache, untrusted)
    if call is None:
        return made
    made = replace(made, evidence=replace(made.evidence or Evidence(), function=said(call, made)))
    return in_time(made, options.contract, time.monotonic() - began)


def _build(
    source: Any,
    inputs: Sequence[Any] | None,
    options: Options,
    stage: Stage = untold,
    cache: Cache | None = None,
    untrusted: bool = False,
) -> Artifact:
    """As `build`, without the function itself."""
    untrusted = untrusted or holds_bytecode(source)
    if untrusted or options.contract.max_compile_seconds is not None:
        return in_workers(source, inputs, options, stage, cache, untrusted, _build)
    if cache is None:
        return build_here(source, inputs, options, stage)
    found = compiled(cache, source, inputs, options, lambda s, i: build_here(s, i, options, stage))
    verdicts = Verdicts.of(cache, found.cached)
    if found.evidence is not None:
        return noted(found, verdicts)
    # What was compiled elsewhere is tried here.
    again = partial(_build, source, inputs, stage=stage, cache=cache)
    return tried(found, options, again, verdicts)
