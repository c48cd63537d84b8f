"""`jit` with PyC's compiler behind it: a decorator for functions in numpy style.

@jit
def model(x: Tensor["f32", "batch", 784]):
    return nn.relu(x @ weights + bias)

y = model(images)
"""

import inspect
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import Checks
from pyc_mlir.cache.cache import Cache, Verifications, choose, compiled, noted, recalled
from pyc_mlir.compilation.attempts import build_here
from pyc_mlir.compilation.contract_check import check_cached
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import (
    ALL_KERNELS,
    CompileOptions,
    CompileOverrides,
    Options,
    documentation,
    resolve,
)
from pyc_mlir.compilation.references import OwnFunction, agreement, own_function
from pyc_mlir.dialects.errors import PycError, ReasonCode, memory_errors
from pyc_mlir.dialects.names import op_name
from pyc_mlir.frontends.python import jit as frontend
from pyc_mlir.frontends.python.jit import JitFunction
from pyc_mlir.iree.memory.arena_entry import SITE as ARENA_SITE
from pyc_mlir.pipelines.choices.choices import FALLBACK, Decision
from pyc_mlir.pipelines.choices.evidence import (
    Computes,
    EstimatedSeconds,
    MeasuredRecipe,
    MeasuredRow,
    Reason,
)
from pyc_mlir.pipelines.choices.log import Event
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.util.logs import COMPILE, DECISIONS, Stage, logged, logger, warn
from pyc_mlir.worker.compile import in_time, in_workers

F = TypeVar("F", bound=Callable[..., Any])


def _documented(function: F) -> F:
    """Show each option in the signature and the documentation of a function that takes them."""
    own = inspect.signature(function).parameters.values()
    options = inspect.signature(CompileOptions).parameters.values()
    shown = [*(p for p in own if p.kind is not p.VAR_KEYWORD), *options]
    function.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    function.__doc__ = f"{function.__doc__}\n{documentation()}\n"
    return function


@overload
def jit(decorated: Callable[..., Any], /) -> JitFunction: ...
@overload
def jit(
    *,
    options: CompileOptions | None = None,
    device: Device | None = None,
    cache: Cache | bool | str | Path | None = None,
    untrusted: bool = False,
    audit: int = 0,
    **overrides: Unpack[CompileOverrides],
) -> Callable[[Callable[..., Any]], JitFunction]: ...
@_documented
def jit(
    decorated: Callable[..., Any] | None = None,
    /,
    *,
    options: CompileOptions | None = None,
    device: Device | None = None,
    cache: Cache | bool | str | Path | None = None,
    untrusted: bool = False,
    audit: int = 0,
    **overrides: Unpack[CompileOverrides],
) -> Any:
    """Compile `decorated` at its first call for each kind of arguments, and run it.

    As ``@jit`` or with what `pyc_mlir.compile` takes: ``@jit(target="cpu-avx2")``. Programs
    are kept by dtypes and shapes of the arrays and by the values of other arguments; annotate an
    argument with `Tensor[...]` to share one program between the sizes of a named dimension.

    Raises TypeError for an unknown option, PycError for an option of another type, and at the call
    that cannot be traced or compiled, or whose arrays do not fit.

    device, cache, untrusted, options: as for `compile`.
    audit: n has every n-th call trace again, and raises PycError (STALE_CAPTURES) if the program
        is not the one that was compiled; 0 for none. Calls compare what docs/frontends.md lists of
        the captured values; an audit finds changes of others.
    """
    return frontend.jit(
        decorated,
        compile=compile,
        audit=audit,
        options=CompileOptions.given(options, overrides),
        device=device,
        cache=cache,
        untrusted=untrusted,
    )


@_documented
@memory_errors()
def compile(
    source: Any,
    inputs: Sequence[Any] | None = None,
    options: CompileOptions | None = None,
    *,
    device: Device | None = None,
    cache: Cache | bool | str | Path | None = None,
    untrusted: bool = False,
    **overrides: Unpack[CompileOverrides],
) -> Program:
    """Compile `source` and load it on a device.

    source: a Python function or its trace, an ``.onnx`` or ``.mlir`` file, an ONNX model, MLIR
        text, a module.
    inputs: for functions the arguments' specs or example arrays; for other sources shapes (or
        arrays) that refine dynamic dimensions.
    options: how to compile; single options beside it override its own.
    device: where to run; None is the process's own device for the target.
    cache: a folder whose programs are not compiled again, or a `Cache`; None is the user's own
        folder unless the variable `PYC_CACHE` is 0, True the same in any case, False no cache.
        `Program.stats().cache` says what it did.
    untrusted: `source` is read and compiled in a worker process, whose crash is an error. MLIR
        bytecode always is, and what has a limit of seconds.

    Raises PycError with the reason's code, OUT_OF_MEMORY where memory ends; TypeError for an
    unknown option.

    The options:
    """
    resolved = resolve(CompileOptions.given(options, overrides))
    if device is None:
        _require_device(resolved)
    made = build(source, inputs, resolved, cache=choose(cache, os.environ), untrusted=untrusted)
    return Program(made, device)


def _require_device(options: Options) -> None:
    name, device = options.target.name, options.target.device
    if device == "local":
        return
    try:
        Device.default_for(device, recycles=options.contract.memory_budget_bytes is None)
    except PycError as error:
        raise PycError(
            error.code,
            f"{error.message}; to compile without the device, use `pyc-compile MODEL --target "
            f"{name} -o FILE`, or `pyc_mlir.api.build` with `make_options(target={name!r})`",
        ) from None


def build(
    source: Any,
    inputs: Sequence[Any] | None,
    options: Options,
    stage: Stage = logged,
    cache: Cache | None = None,
    untrusted: bool = False,
    spent: float = 0.0,
) -> Artifact:
    """Compile to an artifact; no device is needed. Raises as `compile`.

    What the references answer to samples is compared with what numpy makes of a function itself.

    stage: a context manager around each step, called with what the step does.
    cache: is asked first, and keeps what is compiled.
    untrusted: as for `compile`.
    spent: seconds of a limit of the contract that are over already.
    """
    began = time.monotonic() - spent
    compares = options.contract.compares
    job = Job.of(source, inputs, options)
    function = own_function(job.source, inputs) if compares or options.check else None
    made = _build(job, stage, cache, untrusted, spent)
    _log(made, options, time.monotonic() - began)
    made = _with_function(made, function, compares)
    return made if function is None else in_time(made, options.contract, time.monotonic() - began)


def _with_function(made: Artifact, function: OwnFunction | None, compares: bool) -> Artifact:
    """Compare the function itself, and return the artifact without what that needed.

    Raises PycError (TRACE_MISMATCH).
    """
    checks = made.checks or Checks()
    if function is not None and compares:
        samples = Samples.from_bytes(made.samples, made.signature).samples
        found = agreement(function, made.signature, samples)
        return made.with_checks(function=found)
    expected, check = checks.expected, checks.check
    if expected is None or check is None:
        return made
    if function is not None and check.unchecked is None:
        effects = function.effects()
        found = (
            f"the function itself was not called, since it {effects}"
            if effects
            else agreement(function, made.signature, expected.samples.samples)
        )
        check = replace(check, function=found)
    return made.with_checks(expected=None, check=check)


def _log(made: Artifact, options: Options, seconds: float) -> None:
    for d in made.decisions:
        names = f" ({', '.join(d.site.nodes)})" if d.site.location else ""
        logger(DECISIONS).debug("%s%s: %s, by %s", d.site.key, names, d.chosen, d.decided_by)
    size, target = len(made.vmfb), made.manifest.target
    for reason in (reason for event in notices(made, options) for reason in event.reasons):
        warn(COMPILE, reason.code, reason.message)
    logger(COMPILE).info("%d bytes of code for %s: %.3f s in all", size, target, seconds)


def _build(
    job: Job,
    stage: Stage = logged,
    cache: Cache | None = None,
    untrusted: bool = False,
    spent: float = 0.0,
) -> Artifact:
    """Compile a job as `build` does, but compare nothing with the function itself."""
    untrusted = untrusted or job.source.is_bytecode
    if untrusted or job.options.contract.max_compile_seconds is not None:
        return in_workers(job, stage, cache, untrusted, _build, spent)
    if job.options.policy.prepares:
        job = job.under(job.options.policy.prepare(job, stage))
    if cache is None:
        return build_here(job, stage)
    found = compiled(cache, job, lambda loaded: build_here(loaded, stage))
    records = Verifications.of(cache, found.cached)
    if found.checks is not None:
        return noted(found, records)
    # What was compiled elsewhere is tried here.

    def again(options: Options) -> Artifact:
        return _build(job.under(options), stage, cache)

    return recalled(check_cached(found, job.options, again, records), records)


LEFT_OUT = "left out"
# Uncovered operations are worth a word from this share of the predicted time of a call on, and
# from so many seconds on.
_SHARE, _SECONDS = 0.25, 1e-4
_NODES, _LISTED = 2, 3


def notices(made: Artifact, options: Options) -> tuple[Event, ...]:
    """Return what was left out; equal programs of equal options have equal ones."""
    return (
        *_modes(made, options),
        *_wisdom(made, options),
        *_uncovered(made, options),
        *_given_up(made),
    )


def _notice(name: str, code: ReasonCode, message: str, before: str = "") -> Event:
    return Event(COMPILE, name, LEFT_OUT, before, (Reason.of(code, message),))


def _modes(made: Artifact, options: Options) -> Iterator[Event]:
    there = {entry.mode for entry in made.manifest.entries.values()}
    missing = [mode for mode in options.also_modes if mode not in there]
    if not missing:
        return
    names = ", ".join(missing)
    why = [
        fact.message
        for d in made.decisions
        if d.site.pass_name == ARENA_SITE
        for fact in d.facts
        if isinstance(fact, Reason) and fact.code == ReasonCode.NO_ARENA_ENTRY.name
    ]
    yield _notice(
        "also_modes",
        ReasonCode.NO_ARENA_ENTRY,
        f"also_modes: expected a program that can have plans for {names}, got one without an entry "
        f"for them{f' ({why[0]})' if why else ''}; it has one plan, leave the option out",
        "+".join(missing),
    )


def _wisdom(made: Artifact, options: Options) -> Iterator[Event]:
    wisdom = options.policy.wisdom
    if wisdom is None or not wisdom.rows:
        return
    facts = [fact for d in made.decisions for fact in d.facts]
    estimates = (f.measured for f in facts if isinstance(f, EstimatedSeconds))
    if any(isinstance(f, MeasuredRow | MeasuredRecipe) for f in facts) or any(estimates):
        return
    rows = len(wisdom.rows)
    yield _notice(
        "wisdom",
        ReasonCode.NO_EVIDENCE,
        f"wisdom: expected a row for one of the program's choices, measured on this machine, got "
        f"{rows} row{'s' * (rows > 1)} of other works or machines; all choices are predicted: "
        "measure this program with `pyc-tune`",
        wisdom.label,
    )


def _uncovered(made: Artifact, options: Options) -> Iterator[Event]:
    if options.kernels != ALL_KERNELS:
        return
    seconds: dict[str, float] = {}
    bare: list[Decision] = []
    for d in (d for d in made.decisions if d.site.pass_name == SELECT):
        costs = {a.name: a.cost.seconds for a in d.alternatives if a.cost is not None}
        seconds[d.site.key] = costs.get(d.chosen, 0.0)
        if len(d.alternatives) == 1:  # the code that IREE generates
            bare.append(d)
    total, theirs = math.fsum(seconds.values()), math.fsum(seconds[d.site.key] for d in bare)
    if theirs < _SECONDS or theirs < _SHARE * total:
        return
    worst = sorted(bare, key=lambda d: seconds[d.site.key], reverse=True)[:_LISTED]
    places = [
        f"{_computes(d)}{' at ' + ', '.join(d.site.nodes[:_NODES]) if d.site.nodes else ''}, "
        f"{seconds[d.site.key] / total:.0%}"
        for d in worst
    ]
    several = f" in {len(bare)} places, the longest" if len(bare) > len(worst) else ""
    yield _notice(
        "kernels",
        ReasonCode.NO_KERNEL,
        f"kernels: no kernel of PyC's covers {theirs / total:.0%} of the predicted time of a call"
        f"{several}: {'; '.join(places)}; IREE's generated code computes it, which may be slower",
    )


def _given_up(made: Artifact) -> Iterator[Event]:
    """Yield the kernels that the self-check found wrong, in whose place IREE's code is."""
    for d in made.decisions:
        if d.site.pass_name == SELECT and d.decided_by == FALLBACK:
            why = "; ".join(map(str, d.grounds))
            yield _notice(
                "kernels",
                ReasonCode.WRONG_RESULT,
                f"kernels: IREE's generated code computes {_computes(d)}, which may be slower: the "
                f"self-check found a kernel wrong ({why}); report it",
                d.site.key,
            )


def _computes(decision: Decision) -> str:
    ops = next((f.ops for f in decision.facts if isinstance(f, Computes)), ())
    return "+".join(op_name(op) for op in ops) or decision.site.op_id
