"""Oracles: reference answers for every kind of source, and the test vectors made of them.

A pyc program has the numpy references (`PycOracle`); any other input that IREE accepts is compiled
a second time for IREE's reference back end, vmvx, an interpreter that shares no code generator with
a target's (`ForeignOracle`). An oracle is asked about the program as it came in, before any pass.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import (
    MOST_TRIES,
    SIZES,
    ExpectedResult,
    Sample,
    Samples,
    candidate_sizes,
    make_inputs,
)
from pyc_mlir.artifact.verification import Oracle
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.numerics.rounding import LAMBDA, Uncertain, roundoff
from pyc_mlir.dialects.numerics.uncertain import ReferenceBudget, interpret_uncertain
from pyc_mlir.dialects.types import accumulator, is_float
from pyc_mlir.iree.vmvx import interpreted, summed_terms
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.executable import Entry, ResultType

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


def samples_of(oracle: Oracle, signature: Signature, seeds: Sequence[int]) -> Iterator[Sample]:
    """Yield the oracle's answers to inputs of the seeds, with different dynamic sizes.

    Raises what `expect` raises but for sizes that it refuses: the next ones are tried then.
    Raises PycError (NO_ORACLE) if no sizes fit together.
    """
    found = 0
    refused: PycError | None = None
    for sizes in islice(cycle(candidate_sizes(signature)), MOST_TRIES):
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
