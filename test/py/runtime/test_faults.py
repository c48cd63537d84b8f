"""Programs under `detect_faults`: answers, refusals, statistics, and clauses that do not fit."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.program import Program, serving

VALUES = np.random.default_rng(1)
FIRST = VALUES.normal(size=(64, 80)).astype(np.float32)
SECOND = VALUES.normal(size=(80, 20)).astype(np.float32)
X = VALUES.normal(size=(8, 64)).astype(np.float32)


def layers(x):
    return np.maximum(x @ FIRST, 0) @ SECOND


def counts(program):
    faults = program.stats().faults
    assert faults is not None
    return faults


@pytest.fixture(scope="module")
def program():
    return pyc_mlir.compile(layers, [X], contract=Contract(detect_faults=True))


def test_answers_are_those_of_the_program_without_checks(program):
    plain = pyc_mlir.compile(layers, [X])
    assert np.array_equal(program(X), plain(X))
    into = np.empty((8, 20), np.float32)
    assert program(X, out=into) is into and np.array_equal(into, plain(X))
    faults = counts(program)
    assert (faults.repaired, faults.lasting) == (0, 0)
    assert "faults: 0 tiles repaired" in repr(program.stats())
    assert plain.stats().faults is None


def test_the_contract_says_what_is_covered(program):
    clause = program.stats().contract["detect_faults"]
    assert "2 products carry checksums, 99" in str(clause) or "100.0 %" in str(clause)


def test_a_program_with_dynamic_sizes_and_both_modes_is_checked():
    given = pyc_mlir.compile(
        layers,
        [pyc_mlir.TensorSpec("f32", "batch", 64)],
        dims={"batch": (1, 16)},
        also_modes=("memory_first",),
        contract=Contract(detect_faults=True),
    )
    for mode in given.modes:
        given.use_mode(mode)
        assert np.allclose(given(X[:5]), layers(X[:5]), atol=1e-4)


def test_a_saved_program_is_checked_too(program, tmp_path):
    program.save(tmp_path / "p.vmfb")
    loaded = pyc_mlir.load(tmp_path / "p.vmfb")
    assert np.array_equal(loaded(X), program(X)) and loaded.stats().faults is not None


def damaged(program):
    """The program with a bit of its first packed weights flipped."""
    data = bytearray(program.artifact.vmfb)
    place = data.find(FIRST[0, :16].tobytes())
    assert place > 0, "the packed weights begin with the first row of the first panel"
    data[place + 3] ^= 0x40
    return Program(replace(program.artifact, vmfb=bytes(data)))


def test_damaged_weights_end_the_call_with_a_code(program):
    wrong = damaged(program)
    with pytest.raises(PycError) as raised:
        wrong(X)
    assert raised.value.code is ReasonCode.FAULT_DETECTED
    assert "use another machine" in raised.value.message
    assert counts(wrong).lasting > 0 and wrong.stats().calls == 0
    assert any("FAULT_DETECTED" in str(event) for event in wrong.log())
    assert wrong.stats().guard_failures == 0


def test_many_threads_report_without_loss(program):
    wrong, failures = damaged(program), []

    def work():
        for _ in range(20):
            try:
                wrong(X)
            except PycError as error:
                failures.append(error.code)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [ReasonCode.FAULT_DETECTED] * 80
    once = damaged(program)
    with pytest.raises(PycError):
        once(X)
    assert counts(wrong).lasting == 80 * counts(once).lasting


@pytest.mark.parametrize("fallback", ["iree", "numpy"])
def test_fallbacks_that_detect_nothing_are_refused(fallback):
    with pytest.raises(PycError, match="detect_faults"):
        Contract(detect_faults=True, max_error="rounding", fallbacks=(fallback,))


@pytest.mark.parametrize(
    "source", [lambda x: np.maximum(x, 0), lambda x: x @ x.T], ids=["no product", "no constant"]
)
def test_a_program_without_products_of_weights_is_refused(source):
    with pytest.raises(PycError) as raised:
        pyc_mlir.compile(source, [X], contract=Contract(detect_faults=True))
    assert raised.value.code is ReasonCode.UNCHECKABLE_CLAUSE


def test_a_program_without_kernels_of_pyc_is_refused():
    with pytest.raises(PycError) as raised:
        pyc_mlir.compile(layers, [X], kernels="iree", contract=Contract(detect_faults=True))
    assert raised.value.code is ReasonCode.UNCHECKABLE_CLAUSE


def test_the_clause_is_true_or_false():
    with pytest.raises(PycError, match="detect_faults"):
        Contract(detect_faults="yes")  # pyright: ignore[reportArgumentType]


def test_memory_that_changes_after_the_load_refuses_all_calls(program):
    wrong = Program(program.artifact)
    wrong.check_memory()
    memory = np.frombuffer(serving(wrong).executable.memory, np.uint8)
    memory[len(memory) // 2] ^= 4
    with pytest.raises(PycError, match="as they were loaded"):
        wrong.check_memory()
    with pytest.raises(PycError, match="as they were loaded"):
        wrong(X)
    memory[len(memory) // 2] ^= 4
    with pytest.raises(PycError, match="as they were loaded"):
        wrong(X)


def test_memory_is_checked_by_a_timer(program):
    wrong = Program(program.artifact)
    wrong.check_memory(every=0.01)
    memory = np.frombuffer(serving(wrong).executable.memory, np.uint8)
    memory[-1] ^= 1
    end = time.monotonic() + 20
    while not any("FAULT_DETECTED" in str(event) for event in wrong.log()):
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(PycError, match="as they were loaded"):
        wrong(X)


@pytest.mark.parametrize("every", [0, -1, float("nan"), "1"])
def test_seconds_between_checks_are_above_zero(program, every):
    with pytest.raises(PycError, match="seconds above 0"):
        program.check_memory(every=every)


def test_memory_is_checked_under_the_clause_only():
    plain = pyc_mlir.compile(layers, [X])
    with pytest.raises(PycError) as raised:
        plain.check_memory()
    assert raised.value.code is ReasonCode.UNCHECKABLE_CLAUSE
