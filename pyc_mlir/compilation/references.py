"""Right answers of a program: the references, the function it was traced from, the self-check.

    expectation(module, entry, signature) -> Expectation   before any pass, within a budget of work
    self_check(artifact, expected, device) -> SelfCheck    the comparison of `max_error = rounding`
    make_samples(oracle, signature) -> Samples             the test vectors of an artifact
    agreement(function, signature, samples) -> str         the function itself, run by numpy

All come before or after the passes, never between them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from itertools import cycle, islice
from threading import Lock
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import (
    EDGES,
    FINITE_EDGES,
    MOST_TRIES,
    SIZES,
    ExpectedResult,
    Sample,
    Samples,
    candidate_sizes,
    compare,
    make_inputs,
)
from pyc_mlir.artifact.verification import Expectation, Oracle, SelfCheck, Unchecked
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import definition_of, params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.numerics.rounding import LAMBDA, NUMPY_RULES, Uncertain, roundoff
from pyc_mlir.dialects.numerics.uncertain import OverBudget, ReferenceBudget, interpret_uncertain
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.ops.contraction import any_order
from pyc_mlir.dialects.types import DTYPES, accumulator, is_float
from pyc_mlir.frontends.python.recording import Effects
from pyc_mlir.frontends.python.trace import NumpyCall, bind, by_numpy
from pyc_mlir.frontends.signatures import refine, shapes_at
from pyc_mlir.frontends.sources import Function, Inputs, Loaded, Source, Trace, copied
from pyc_mlir.iree.foreign import interpreted, summed_terms
from pyc_mlir.pipelines.choices.contract import ROUNDING
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Entry, ResultType
from pyc_mlir.runtime.plans import Serving
from pyc_mlir.runtime.program import Program

# Oracles: reference answers for every kind of source, and the test vectors made of them.
#
# A pyc program has the numpy references (`PycOracle`); any other input that IREE accepts is
# compiled a second time for IREE's reference back end, vmvx, an interpreter that shares no code
# generator with a target's (`ForeignOracle`). An oracle is asked about the program as it came in,
# before any pass.

SAMPLES = 2


@dataclass(frozen=True)
class PycOracle:
    """The numpy references of a pyc module, given as bytecode."""

    code: bytes
    entry: str = "main"
    name: str = "the numpy references"

    def expect(self, inputs: Sequence[np.ndarray]) -> list[ExpectedResult]:
        """Return results, with the tolerances of dialects/numerics/rounding.py.

        What approximate products are in is judged by `max_error` alone: equal rows, or columns of
        weights, have equal errors, whose sum is beyond a tolerance for independent ones.
        """
        with new_context() as context, ir.Location.unknown():
            module = ir.Module.parse(self.code, context)
            found = _interpreted(module, self.entry, inputs)
        return [_expected(u, bounded=u.approximate) for u in found]


def expected_of(
    module: ir.Module,
    entry: str,
    inputs: Sequence[np.ndarray],
    budget: ReferenceBudget | None = None,
) -> list[ExpectedResult]:
    """Run the numpy references of a pyc module, with tolerances, in the current context.

    Raises PycError (DIMENSION_MISMATCH) for sizes that do not fit, OverBudget.
    """
    return [_expected(u) for u in _interpreted(module, entry, inputs, budget)]


def _interpreted(
    module: ir.Module,
    entry: str,
    inputs: Sequence[np.ndarray],
    budget: ReferenceBudget | None = None,
) -> list[Uncertain]:
    try:
        return interpret_uncertain(module, inputs, function=entry, budget=budget)
    except (ValueError, IndexError) as error:
        # Dynamic sizes that no reference can work with, such as those of a reshape.
        raise PycError(
            ReasonCode.DIMENSION_MISMATCH,
            f"{entry}: expected dynamic dimensions that fit together, got: {error}",
        ) from None


def _expected(found: Uncertain, bounded: bool = False) -> ExpectedResult:
    """Return what is expected; bounded: floats that are compared have no tolerance of their own."""
    tolerance = _single(found.tolerance)
    if bounded and is_float(found.value.dtype):
        tolerance = np.where(np.isfinite(tolerance), np.finfo(np.float32).max, tolerance)
    return ExpectedResult(found.value, tolerance)


def _single(tolerance: np.ndarray) -> np.ndarray:
    """Return tolerances as f32, rounded up."""
    with np.errstate(over="ignore"):
        single = tolerance.astype(np.float32)
    return np.where(single < tolerance, np.nextafter(single, np.float32(np.inf)), single)


@dataclass(frozen=True)
class ForeignOracle:
    """A program that enters at IREE, as IREE's interpreter vmvx computes it.

    Of its ops only sizes are known, so a tolerance is one number for a result: `LAMBDA` sqrt(N) u
    times its greatest element, N being the sum of all ops' reduction lengths (`summed_terms`).
    """

    code: bytes
    entry: str
    signature: Signature
    name: str = "IREE's interpreter vmvx"

    @cached_property
    def _entry(self) -> Entry:
        results = [ResultType(o.dtype, o.static_shape) for o in self.signature.outputs]
        return interpreted(self.code).entry(self.entry, results)

    @cached_property
    def _terms(self) -> int:
        return summed_terms(self.code)

    def expect(self, inputs: Sequence[np.ndarray]) -> list[ExpectedResult]:
        """Return the results of vmvx. Raises PycError (NO_ORACLE) if it cannot compile."""
        entry = self._entry
        found = [a.numpy() for a in entry([to_device(a, entry.device) for a in inputs])]
        return [ExpectedResult(v, _normwise(v, self._terms)) for v in found]


def _normwise(value: np.ndarray, count: int) -> np.ndarray:
    if not is_float(value.dtype):
        return np.zeros(value.shape, np.float32)
    sizes = np.abs(value.astype(np.float64))
    u = roundoff(value.dtype) + roundoff(accumulator(value.dtype)) * math.sqrt(count)
    greatest = sizes.max(where=np.isfinite(sizes), initial=0.0)
    return _single(np.full(value.shape, LAMBDA * math.sqrt(2) * u * greatest))


def samples_of(
    oracle: Oracle, signature: Signature, seeds: Sequence[int], small: bool = False
) -> Iterator[Sample]:
    """Yield the oracle's answers to inputs of the seeds, with different dynamic sizes.

    small: sizes of two, or near it, come first.
    Raises what `expect` raises but for sizes that it refuses: the next ones are tried then.
    Raises PycError (NO_ORACLE) if no sizes fit together.
    """
    found = 0
    refused: PycError | None = None
    for sizes in islice(cycle(_sizes(signature, small)), MOST_TRIES):
        try:
            inputs = make_inputs(signature, seeds[found], sizes)
            outputs = oracle.expect(inputs)
        except PycError as error:
            if error.code in (ReasonCode.NO_ORACLE, ReasonCode.UNSUPPORTED_OP):
                raise
            refused = error
            continue
        yield Sample(seeds[found], sizes, tuple(outputs))
        found += 1
        if found == len(seeds):
            return
    if not found:
        raise PycError(
            ReasonCode.NO_ORACLE,
            "contract clause `max_error`: expected sizes of dynamic dimensions that the program "
            f"takes, found none near {SIZES}: {refused.message if refused else 'no sizes'}; "
            "compile with static shapes, or drop the clause",
        )


def _sizes(signature: Signature, small: bool) -> list[Mapping[str, int]]:
    found = candidate_sizes(signature)
    return sorted(found, key=lambda s: abs(max(s.values(), default=2) - 2)) if small else found


def make_samples(oracle: Oracle, signature: Signature, count: int = SAMPLES) -> Samples:
    """Make so many samples, by the first seeds.

    Raises PycError (NO_ORACLE) if there is nothing to compare: no sizes that fit together, values
    that no memory holds, or results that rounding decides.
    """
    try:
        found = list(samples_of(oracle, signature, range(count)))
    except MemoryError as error:
        raise PycError(
            ReasonCode.NO_ORACLE,
            "contract clause `max_error`: expected a program whose values a memory holds, got "
            f"{error or 'one that needs more'}; drop the clause",
        ) from None
    _require_compared(found)
    return Samples(tuple(found))


def _require_compared(samples: Sequence[Sample]) -> None:
    for i in range(len(samples[0].outputs)):
        results = [s.outputs[i] for s in samples]
        if any(r.value.size for r in results) and not any(r.compared.any() for r in results):
            raise PycError(
                ReasonCode.NO_ORACLE,
                f"contract clause `max_error`: expected a result {i} that rounding does not decide "
                "in every element, got one that it does; drop the clause",
            )


# One BLAS thread for the references of a self-check.
#
# Their products are small: a second thread saves no time, and spins between them.

_LOCK = Lock()
# For each compile that is within, what undoes the limit that they share.
_WITHIN: list[Any] = []


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Have BLAS use one thread within; when nobody is within any more, as many as before.

    Without threadpoolctl, which the extra `compile` installs, nothing changes.
    """
    with _LOCK:
        _WITHIN.append(_WITHIN[0] if _WITHIN else _limit())
    try:
        yield
    finally:
        with _LOCK:
            limit = _WITHIN.pop()
            if limit is not None and not _WITHIN:
                limit.restore_original_limits()


def _limit() -> Any:
    try:
        return import_module("threadpoolctl").threadpool_limits(1, "blas")
    except ImportError:
        return None


# The budget counts what the references compute and never reads a clock, so that equal programs are
# checked equally. It grows with the program, as the seconds of its compile do;
# docs/design-notes/self-check.md says how it was set.

# Work in units of `OpDef.evaluation_work` (0.1 ns), times the root of the number of ops, as seconds
# of compiles grow: what the first sample may take, and all samples together may not exceed to have
# another one. The first is a quarter of a compile's seconds, the other a tenth.
FIRST_WORK, MORE_WORK = 1_500_000_000, 400_000_000
# Operands and result of one op.
MOST_BYTES = 64 << 20
# How many of the tolerances of `max_error` a difference may have. A refusal of a correct program is
# worse than a fault of the size of a few roundings that is not seen; faults of code are larger.
SLACK = 4.0
_WHY_CHARACTERS = 200


@dataclass(frozen=True)
class _Metered:
    """The numpy references of a module within a budget, as an oracle for this process."""

    module: ir.Module
    entry: str
    budget: ReferenceBudget
    name: str = PycOracle.name

    def expect(self, inputs: Sequence[np.ndarray]) -> list[ExpectedResult]:
        """Return results as `PycOracle` does. Raises OverBudget."""
        with any_order(), one_blas_thread():
            found = expected_of(self.module, self.entry, inputs, self.budget)
        return [replace(e, tolerance=np.float32(SLACK) * e.tolerance) for e in found]


def expectation(module: ir.Module, entry: str, signature: Signature) -> Expectation:
    """Return what the references of a pyc module expect, for as many samples as the budget allows.

    The module is in the current context.
    """
    block = entry_function(module, entry).regions[0].blocks[0]
    root = math.isqrt(len(block.operations))
    work, comfortable = FIRST_WORK * root, MORE_WORK * root
    limits = (comfortable, work) if any(a.dynamic for a in signature.inputs) else (work,)
    for limit in limits:
        # Five images may take as long as the rest of a compile: two do then.
        budget, small = ReferenceBudget(limit, MOST_BYTES), limit is not limits[0]
        oracle = _Metered(module, entry, budget)
        found: list[Sample] = []
        unchecked, why = Unchecked.OVER_BUDGET, ""
        try:
            first = _sizes(signature, small)[0]
            _require_affordable(module, entry, shapes_at(signature, first), limit)
            ops = [d for o in block.operations if (d := definition_of(o.operation)) is not None]
            finite = any(op.has(Trait.FINITE_OPERANDS) for op in ops)
            # The last one has edge values that stay the same when compiled, and are no lengths.
            lengths = any(op.name == "range" for op in ops)
            seeds = (0, 1, FINITE_EDGES if finite else EDGES)[: 2 if lengths else 3]
            for sample in samples_of(oracle, signature, seeds, small):
                found.append(sample)
                if budget.spent + budget.spent // len(found) > comfortable:
                    break
        except (OverBudget, MemoryError) as error:
            why = str(error)
        except PycError as error:
            unchecked, why = Unchecked.NO_REFERENCE, error.message
        if found or unchecked is Unchecked.NO_REFERENCE:
            break
    if found and not _compares(found):
        unchecked, why = Unchecked.NO_REFERENCE, "rounding decides every element of a result"
        found = []
    if not found:
        return Expectation(work=budget.spent, unchecked=unchecked, why=why[:_WHY_CHARACTERS])
    return Expectation(Samples(tuple(found)), oracle.name, budget.spent)


def _require_affordable(module: ir.Module, entry: str, shapes: list[Any], limit: int) -> None:
    """Raise OverBudget for what is so at sizes that the program takes, before it is computed."""
    at, budget = copied(module), ReferenceBudget(limit, MOST_BYTES)
    with suppress(PycError):
        refine(at, shapes, PassContext())
    for op in entry_function(at, entry).regions[0].blocks[0].operations:
        definition = definition_of(op.operation)
        operands = [from_mlir(v.type) for v in op.operation.operands]
        if definition is not None and all(t.is_static for t in operands):
            budget.take(definition, operands, definition.bind(params_of(definition, op.operation)))


def _compares(found: Sequence[Sample]) -> bool:
    results = zip(*(s.outputs for s in found), strict=True)
    return all(
        any(r.compared.any() for r in of) or not any(r.value.size for r in of) for of in results
    )


def self_check(artifact: Artifact, expected: Expectation, device: Device | None) -> SelfCheck:
    """Run a program on its samples, by every way that calls may take, and compare.

    Raises PycError: WRONG_RESULT, and the failure's own code for a program that does not run.
    """
    if expected.unchecked is not None:
        return SelfCheck(work=expected.work, unchecked=expected.unchecked, why=expected.why)
    if device is None:
        return SelfCheck.without(Unchecked.NO_DEVICE, artifact.manifest.target)
    contract = replace(artifact.manifest.contract, max_error=ROUNDING)
    trial = replace(
        artifact.noted(contract=contract),
        samples=expected.samples.to_bytes(),
        checks=None,
    )
    found = Program(trial, device).verification
    assert found is not None, "a contract with `max_error` compares"
    sizes = tuple(s.sizes for s in expected.samples.samples)
    return SelfCheck(expected.name, found.done, found.worst, sizes, expected.work)


def check_plans(
    serving: Serving, of_plans: Sequence[tuple[Signature, Expectation]], limit: float | None
) -> int:
    """Run plans for certain shapes on their samples, and compare; return how many agree.

    limit: of `max_error`. Raises PycError (WRONG_RESULT), and the failure's own code for a plan
    that does not run.
    """
    done = 0
    for signature, expected in of_plans:
        for sample in expected.samples.samples:
            inputs = make_inputs(signature, sample.seed, sample.sizes)
            for (_, entry), run in serving.ways(inputs).items():
                if wrong := compare(run(inputs), sample.outputs, limit).wrong:
                    raise PycError(
                        ReasonCode.WRONG_RESULT,
                        f"program: expected the results of its reference, got {wrong} of {entry}, "
                        "a plan for certain shapes; compile without `plans`",
                    )
        done += bool(expected.samples.samples)
    return done


# The references judge a program from the pyc module on: a front end that records something else
# than the function computes is right by them. So a compile gives the inputs of its samples to the
# function itself too, and compares within the tolerances of dialects/numerics/rounding.py; integers
# and booleans must be equal. What follows from floats that an integer type does not hold is left
# out: numpy leaves it to the machine. The function runs once for each sample, and a second time
# where it disagrees: one that does not repeat itself is no reference. What it does besides happens
# as often under `max_error`; a self-check leaves out a function with such effects.

_BF16 = DTYPES["bf16"]
_MESSAGE_CHARACTERS = 200


@dataclass(frozen=True)
class OwnFunction:
    """A function of arrays that a program is made of: how numpy runs it, how to trace it.

    effects: gives, once it was traced, what a run does beside computing results; '' for nothing.
    """

    call: NumpyCall
    effects: Callable[[], str]
    load: Callable[[ir.Context], Loaded]


def own_function(source: Source, inputs: Inputs) -> OwnFunction | None:
    """Return the function that is a source of `compile`; None for any other kind of source."""
    if not isinstance(source, Trace | Function):
        return None
    load = partial(source.load, inputs)
    if isinstance(source, Trace):
        traced = source.traced
        return OwnFunction(traced.call, lambda: traced.effects, load)
    function = source.function
    call = by_numpy(function, bind(function, tuple(inputs or ()), {}))
    return OwnFunction(call, Effects(function).found, load)


def agreement(function: OwnFunction, signature: Signature, samples: Sequence[Sample]) -> str:
    """Return what the comparison with samples of the references found, as a sentence of evidence.

    Raises PycError (TRACE_MISMATCH) where function and trace differ.
    """
    agreed, notes = 0, []
    for sample in samples:
        inputs = make_inputs(signature, sample.seed, sample.sizes)
        found = _judged(function, inputs, sample.outputs)
        if found.wrong:
            sizes = ", ".join(f"{name} = {size}" for name, size in sample.sizes.items())
            raise PycError(
                ReasonCode.TRACE_MISMATCH,
                "the function itself, run by numpy: expected the answers of its trace, got for "
                f"sample {sample.seed}{f' ({sizes})' if sizes else ''}: {found.wrong}; report it, "
                "or compile what `trace` gives, which is compared from there on",
            )
        agreed += found.agrees
        notes += [f"sample {sample.seed}: {found.reason}"] if found.reason else []
    agree = f"agrees with {agreed} of {len(samples)} samples"
    return "; ".join([f"the function itself, run by numpy, {agree}", *notes])


@dataclass(frozen=True)
class _Found:
    """The outcome of one sample: a difference, agreement, or neither; what was not compared."""

    wrong: str = ""
    reason: str = ""
    agrees: bool = False


def _judged(
    function: OwnFunction, inputs: Sequence[np.ndarray], expected: Sequence[ExpectedResult]
) -> _Found:
    """Compare; where that fails, without conversions, then with wide inputs; see if it repeats."""
    call, reason = function.call, ""
    try:
        got = _answer(call, inputs)
        wrong = _difference(got, expected)
        if wrong:
            expected, reason = _without_conversions(function, inputs, expected)
            wrong = _difference(got, expected) if reason else wrong
        if not wrong:
            return _Found(reason=reason, agrees=True)
        if any(a.dtype != accumulator(a.dtype) for a in inputs) and not _difference(
            _answer(call, [a.astype(accumulator(a.dtype)) for a in inputs]), expected, narrow=True
        ):
            # numpy adds 16-bit floats in 16 bits, which is further off than any program.
            return _Found(reason=reason, agrees=True)
        again = _answer(call, inputs)
    except Exception as error:  # noqa: BLE001  (the user's own code; the reason is reported)
        message = f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]
        return _Found(reason=f"numpy does not run it ({' '.join(message.split())})")
    same = len(got) == len(again) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(got, again, strict=True)
    )
    if not same:
        return _Found(reason="not compared, since it answers equal inputs differently")
    return _Found(wrong)


def _without_conversions(
    function: OwnFunction, inputs: Sequence[np.ndarray], expected: Sequence[ExpectedResult]
) -> tuple[list[ExpectedResult], str]:
    """Leave open what follows from floats out of an integer type's range; say how much, if any."""
    with new_context() as context, ir.Location.unknown():
        module = function.load(context).module
        assert module is not None, "a function is traced to a pyc module"
        found = interpret_uncertain(module, inputs, rules=NUMPY_RULES)
    opened, count = [], 0
    for want, own in zip(expected, found, strict=True):
        lost = want.compared & np.isinf(own.deviation)
        opened.append(replace(want, tolerance=np.where(lost, np.float32(np.inf), want.tolerance)))
        count += int(lost.sum())
    reason = f"not compared in {count} elements, which numpy's conversions out of range decide"
    return opened, reason if count else ""


def _answer(call: NumpyCall, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Call the function with copies of the inputs, which it may change."""
    with np.errstate(all="ignore"):
        return call([a.copy() for a in inputs])


def _difference(
    got: Sequence[np.ndarray], expected: Sequence[ExpectedResult], narrow: bool = False
) -> str:
    """Return what differs, if anything.

    narrow: results may be wider than the trace's. bf16 may be anyway, which numpy does not know.
    """
    if len(got) != len(expected):
        return f"expected {len(expected)} results, got {len(got)}"
    fitted = []
    for array, want in zip(got, expected, strict=True):
        dtype = want.value.dtype
        widened = dtype != accumulator(dtype) if narrow else _BF16 in (dtype, array.dtype)
        with np.errstate(all="ignore"):
            fitted.append(array.astype(dtype) if widened else array)
    return compare(fitted, expected).wrong
