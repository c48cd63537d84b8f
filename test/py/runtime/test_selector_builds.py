"""Other builds of a program as arms of a selector: threads, comparison, faults, and refusals."""

import numpy as np
import pytest
from clocked import Clocked
from modules import two_plans

import pyc_mlir
from pyc_mlir import Contract, Device, TensorSpec
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.program import Program

SYNC = Device("local-sync")
X = np.ones((8, 64), np.float32)


def fresh() -> Program:
    return Program(two_plans().artifact, SYNC)


def doubled(factor: float = 2.0, low: int = 1, high: int = 64, device: Device = SYNC) -> Program:
    return pyc_mlir.compile(
        lambda x: x * factor, [TensorSpec("f32", "n")], dims={"n": (low, high)}, device=device
    )


def refused(program: Program, build: Program) -> ReasonCode:
    with pytest.raises(PycError) as caught:
        program.adapt(Clocked({}), builds={"other": build})
    return caught.value.code


def test_the_same_program_on_two_threads_comes_to_serve():
    program, want = fresh(), fresh()(X)
    threads = Program(program.artifact, Device("local-task", threads=2))
    seconds = {"balanced": 1.0, "memory_first": 1.0, "two threads": 0.5}
    selector = Clocked(seconds)
    program.adapt(selector, builds={"two threads": threads})
    placed = to_device(X, SYNC)
    for number in range(600):
        given = placed if number % 2 else X
        for got, expected in zip(program(given), want, strict=True):
            assert isinstance(got, Array if number % 2 else np.ndarray)
            found = got.numpy() if isinstance(got, Array) else got
            assert found.tobytes() == expected.tobytes()
            assert not isinstance(got, Array) or got.device is SYNC
    (route,) = program.stats().routes
    (serving,) = route.serving.values()
    assert serving.startswith("two threads@")
    assert program.stats().served[serving] > 300
    assert sum(program.stats().served.values()) == 600
    assert threads.stats().calls == 0, "the program answers, by another's code"


def test_a_build_takes_calls_of_its_own_ranges_only():
    program, narrow = doubled(), doubled(low=1, high=8)
    selector = Clocked({"": 1.0, "balanced": 1.0, "narrow": 0.5})
    program.adapt(selector, builds={"narrow": narrow})
    for n in (4, 32):
        x = np.arange(n, dtype=np.float32)
        for _ in range(200):
            assert (program(x) == 2 * x).all()
    few, many = program.stats().routes
    assert any(arm.startswith("narrow@") for arm in few.calls)
    assert not any(arm.startswith("narrow@") for arm in many.calls)


def test_only_builds_of_the_same_program_are_taken():
    program = doubled()
    assert refused(program, fresh()) is ReasonCode.BAD_ARGUMENT
    assert refused(program, doubled(3.0)) is ReasonCode.WRONG_RESULT
    strict = pyc_mlir.compile(
        lambda x: x * 2,
        [TensorSpec("f32", "n")],
        dims={"n": (1, 64)},
        device=SYNC,
        contract=Contract(determinism="strict"),
    )
    assert refused(program, strict) is ReasonCode.CONTRACT_CONFLICT
    free = pyc_mlir.compile(lambda x: x * 2, [TensorSpec("f32", "n")], device=SYNC)
    assert refused(free, free) is ReasonCode.BAD_ARGUMENT
    assert program.stats().routes == ()


def test_a_build_that_fails_after_it_was_promoted_is_left():
    program, other = doubled(), doubled()
    selector = Clocked({"": 1.0, "balanced": 1.0, "other": 0.5})
    program.adapt(selector, builds={"other": other})
    x = np.arange(8, dtype=np.float32)
    for _ in range(300):
        program(x)
    assert [e.kind for e in selector.events()] == ["promoted"]

    def fail(*_):
        raise PycError(ReasonCode.RUNTIME_FAILED, "device: expected an answer, got none")

    (build,) = program._adaptive._builds.values()  # pyright: ignore
    plan = build.serving.plans.current
    plan.run, plan.by_arena = fail, False
    for _ in range(50):
        assert (program(x) == 2 * x).all(), "also in calls that are not timed"
    assert [e.kind for e in selector.events()] == ["promoted", "quarantined"]
