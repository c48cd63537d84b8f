"""Memory that ends in the library's own calls is told by a code too, as the tools tell it."""

import numpy as np
import pytest
from refusals import refused

import pyc_mlir
from pyc_mlir import Device, PycError, ReasonCode
from pyc_mlir.dialects.errors import memory_errors

SYNC = Device("local-sync")
X = np.ones((4, 8), np.float32)


class Huge:
    """What no memory holds, once numpy asks for it."""

    shape, dtype = X.shape, X.dtype

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return np.empty(1 << 60, np.float32)


def test_a_compile() -> None:
    refused(
        ReasonCode.OUT_OF_MEMORY,
        lambda: pyc_mlir.compile(lambda x: x + np.ones(1 << 60, np.float32), [X], device=SYNC),
    )


def test_a_traced_call() -> None:
    refused(
        ReasonCode.OUT_OF_MEMORY,
        lambda: pyc_mlir.jit(lambda x: x + np.ones(1 << 60, np.float32))(X),
    )


def test_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    program = pyc_mlir.compile(lambda x: x + 1, [X], device=SYNC)
    monkeypatch.setattr("pyc_mlir.runtime.program.readable", lambda a, d: np.asarray(Huge()))
    refused(ReasonCode.OUT_OF_MEMORY, program, X)
    assert any("OUT_OF_MEMORY" in str(d) for d in program.log())


def test_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyc_mlir.artifact.artifact.read", lambda path: np.asarray(Huge()))
    refused(ReasonCode.OUT_OF_MEMORY, pyc_mlir.load, "p.vmfb", SYNC)


def test_other_errors_stay_as_they_are() -> None:
    cause = KeyError("why")
    with pytest.raises(ValueError) as caught, memory_errors():
        raise ValueError("another thing") from cause
    assert caught.value.__cause__ is cause
    with pytest.raises(PycError, match="given") as refused, memory_errors():
        raise PycError(ReasonCode.BAD_ARGUMENT, "out of memory is what was given")
    assert refused.value.code is ReasonCode.BAD_ARGUMENT
