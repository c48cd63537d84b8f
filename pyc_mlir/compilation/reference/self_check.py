"""Every compile checks its own program: the references first, then the program, then the outcome.

    expectation(module, entry, signature) -> Expectation   before any pass, within a budget of work
    self_check(artifact, expected, device) -> SelfCheck    the comparison of `max_error = rounding`

The budget counts what the references compute and never reads a clock, so that equal programs are
checked equally. It grows with the program, as the seconds of its compile do;
docs/design-notes/self-check.md says how it was set.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import (
    EDGES,
    FINITE_EDGES,
    ExpectedResult,
    Sample,
    Samples,
    compare,
    make_inputs,
)
from pyc_mlir.artifact.verification import Expectation, SelfCheck, Unchecked
from pyc_mlir.compilation.reference.blas import one_blas_thread
from pyc_mlir.compilation.reference.oracles import PycOracle, expected_of, samples_of
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import definition_of, params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.numerics.uncertain import OverBudget, ReferenceBudget
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.ops.contraction import any_order
from pyc_mlir.pipelines.choices.contract import ROUNDING
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.plans import Serving
from pyc_mlir.runtime.program import Program

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
    budget = ReferenceBudget(work, MOST_BYTES)
    oracle = _Metered(module, entry, budget)
    found: list[Sample] = []
    unchecked, why = Unchecked.OVER_BUDGET, ""
    try:
        _require_affordable(block, ReferenceBudget(work, MOST_BYTES))
        for sample in samples_of(oracle, signature, _seeds(block)):
            found.append(sample)
            if budget.spent + budget.spent // len(found) > comfortable:
                break
    except (OverBudget, MemoryError) as error:
        why = str(error)
    except PycError as error:
        unchecked, why = Unchecked.NO_REFERENCE, error.message
    if found and not _compares(found):
        unchecked, why = Unchecked.NO_REFERENCE, "rounding decides every element of a result"
        found = []
    if not found:
        return Expectation(work=budget.spent, unchecked=unchecked, why=why[:_WHY_CHARACTERS])
    return Expectation(Samples(tuple(found)), oracle.name, budget.spent)


def _seeds(block: ir.Block) -> tuple[int, ...]:
    """Return the seeds of samples; the last has edge values that stay the same when compiled."""
    found = (definition_of(op.operation) for op in block.operations)
    finite = any(op.has(Trait.FINITE_OPERANDS) for op in found if op is not None)
    return (0, 1, FINITE_EDGES if finite else EDGES)


def _require_affordable(block: ir.Block, budget: ReferenceBudget) -> None:
    """Raise OverBudget for what is so by its static sizes, before anything is computed."""
    for op in block.operations:
        definition = definition_of(op.operation)
        operands = [from_mlir(v.type) for v in op.operation.operands]
        if definition is not None and all(t.is_static for t in operands):
            budget.take(definition, operands, definition.bind(params_of(definition, op.operation)))


def _compares(found: Sequence[Sample]) -> bool:
    """Return whether some element of every result is compared."""
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
