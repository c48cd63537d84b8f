"""For each reason code something that leads to it, done through the doors that users take.

A scenario is a function of `Here` that returns the codes that it was given: those of the error, or
of the decision, event or report where the code is no error's. A new code needs one:

    @provokes(ReasonCode.NEW_CODE)
    def _(here: Here) -> Codes:
        return told(lambda: pyc_mlir.compile(...))

The scenarios stand in reason_calls.py and reason_contracts.py.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import CHECKED
from modules import host_target

import pyc_mlir
from pyc_mlir import Contract, Device
from pyc_mlir.artifact.artifact import Artifact, make_manifest
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.runtime.program import Program

Codes = set[ReasonCode]


@dataclass(frozen=True)
class Here:
    """Where a scenario takes place: a folder of its own, and patches that end with it."""

    folder: Path
    patch: pytest.MonkeyPatch


SCENARIOS: dict[ReasonCode, Callable[[Here], Codes]] = {}


def provokes(code: ReasonCode) -> Callable[[Callable[[Here], Codes]], Callable[[Here], Codes]]:
    """Enter a scenario into the table."""

    def enter(scenario: Callable[[Here], Codes]) -> Callable[[Here], Codes]:
        assert code not in SCENARIOS, f"{code.name} has a scenario already"
        SCENARIOS[code] = scenario
        return scenario

    return enter


def reported(call: Callable[[], object]) -> Codes:
    """The code of the error that a call ends in; none if it does not."""
    try:
        call()
    except PycError as error:
        assert str(error).endswith(f"[{error.code.name}]")
        return {error.code}
    return set()


def fallback_codes(decisions: Iterable[Decision]) -> Codes:
    """Return the codes of fallbacks that were taken."""
    taken = [d for d in decisions if d.decided_by == "fallback"]
    return {ReasonCode[d.grounds[0].codes[0]] for d in taken}


# Programs that scenarios share.

SYNC = Device("local-sync")
X = np.ones((2, 3), np.float32)
FEW_BYTES = Contract(memory_budget_bytes=100)
DOT = """func.func @main(%x: tensor<4x4xf32> {pyc.name = "x"}) -> tensor<4x4xf32> {
  %c = "pyc.constant"() {value = dense<500.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "pyc.minimum"(%x, %c) : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}"""


@cache
def pair() -> Program:
    """relu(a) + b with a common dimension of 1 to 4."""
    spec = pyc_mlir.spec("f32", ("n", 3))
    function = lambda a, b: np.maximum(a, 0) + b  # noqa: E731
    return pyc_mlir.compile(function, [spec, spec], device=SYNC, dims={"n": (1, 4)})


@cache
def checked() -> Program:
    """A program with a check of its own, and with the plain entry only."""
    one = (SignatureEntry("a", np.dtype(np.float32), ("n",)),)
    manifest = make_manifest(host_target(), Signature(one, one), "checked")
    return Program(Artifact(compile_module(CHECKED, host_target()), manifest), SYNC)


def small(x: Any) -> Any:
    return np.tanh(x)


def reduced(x: Any) -> Any:
    return np.tanh(x).sum(axis=1), np.exp(x)
