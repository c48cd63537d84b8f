"""Random quantized networks with a dynamic batch: every answer is that of the references."""

from collections import Counter

import numpy as np
import pytest
from conftest import FULL
from onnx.reference import ReferenceEvaluator
from random_quantized import network

import pyc_mlir
from pyc_mlir.artifact.test_vectors import compare
from pyc_mlir.compilation.references import expected_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.onnx.importer import import_onnx

FIRST_SEED, BATCH = 70_000, 25 if FULL else 2
# Of the largest result: a value beside a tie may be quantized to the next number, here or there.
QUANTA = 0.08


def check(seed: int) -> None:
    """Raise AssertionError where a batch's answer is wrong, PycError where there is none."""
    model, batches = network(seed)
    program = pyc_mlir.compile(model, check=True)
    with new_context() as context, ir.Location.unknown():
        module = import_onnx(model, context=context)
        for x in batches:
            got = np.asarray(program(x))
            wrong = compare([got], expected_of(module, "main", [x])).wrong
            assert not wrong, f"seed {seed}, {x.shape}: {wrong}"
            (right,) = ReferenceEvaluator(model).run(None, {"x": x})
            assert np.abs(got - right).max() <= QUANTA * max(1.0, np.abs(right).max()), seed


@pytest.mark.parametrize("batch", range(16 if FULL else 1))
@pytest.mark.full
def test_random_quantized_networks(batch: int, record_property) -> None:
    first = FIRST_SEED + batch * BATCH
    for seed in range(first, first + BATCH):
        check(seed)
    record_property("random quantized networks with a dynamic batch", dict(Counter(equal=BATCH)))
