"""Comparisons beside other calls of the same program."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from contract_program import TEXT, W, X, reference
from refusals import refused

from pyc_mlir import Contract, Device, Program, PycError, ReasonCode
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.test_vectors import ExpectedResult
from pyc_mlir.compilation.options import make_options
from pyc_mlir.pipelines.choices.contract import ROUNDING
from pyc_mlir.runtime.plans import Serving


@pytest.fixture(scope="module")
def honest() -> Artifact:
    """The program under `max_error`; each `Program` of it counts for itself."""
    return build(TEXT, None, make_options(contract=Contract(max_error=ROUNDING)))


def test_several_threads_compare_once_each_shape(honest):
    program = Program(honest, Device("local-sync"))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: program(X, W), range(16)))
    assert all((r == results[0]).all() for r in results)
    assert program.stats().comparisons == 1


def test_calls_that_are_not_compared_wait_for_no_reference(honest):
    program = Program(honest, Device("local-sync"))
    program(X, W)
    monitor, checks, requested, go_on = program._monitor, honest.checks, Event(), Event()
    assert monitor is not None and checks is not None
    oracle = checks.oracle
    assert oracle is not None

    class Slow:
        name = oracle.name

        def expect(self, inputs: Sequence[np.ndarray]) -> list[ExpectedResult]:
            requested.set()
            assert go_on.wait(60)
            return oracle.expect(inputs)

    monitor._checks = replace(checks, oracle=Slow())
    with ThreadPoolExecutor(1) as pool:
        compared = pool.submit(program, X[:2], W)
        assert requested.wait(60)
        np.testing.assert_allclose(program(X, W), reference(X, W), atol=1e-5)
        assert program.stats().comparisons == 1 and not compared.done()
        go_on.set()
        np.testing.assert_allclose(compared.result(), reference(X[:2], W), atol=1e-5)
    assert program.stats().comparisons == 2


def test_what_cannot_be_computed_is_no_wrong_result(honest, monkeypatch):
    """A device without memory, say, when the samples are compared at load."""

    def refuses(*_: object) -> list:
        raise PycError(ReasonCode.RUNTIME_FAILED, "device: expected 64 bytes of memory, got: none")

    monkeypatch.setattr(Serving, "_answer", refuses)
    bare = replace(honest, checks=None)
    refused(
        ReasonCode.RUNTIME_FAILED,
        lambda: Program(bare, Device("local-sync")),
        match="64 bytes of memory",
    )
