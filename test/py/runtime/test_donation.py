"""Inputs that give their memory to a result: proven, never wrong, and refused where not proven."""

from itertools import combinations
from random import Random

import numpy as np
import pytest
from conftest import FULL

from pyc_mlir import nn
from pyc_mlir.api import compile
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.array import import_dlpack, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.outputs import matched

RANDOM = np.random.default_rng(2)
SYNC = Device("local-sync")


def array(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


WEIGHT = array(256, 256) / 16
# Programs, and the inputs whose memory the result may take.
PROGRAMS = {
    "read before": (lambda x, y: nn.softmax(x @ WEIGHT + y) + y, {(0, 0)}),
    "number by number": (lambda x, y: x * 2 + y, {(0, 0), (1, 0)}),
    "rows of a product": (lambda x, y: x + np.tanh(x @ WEIGHT) + y, {(1, 0)}),
    "transposed": (lambda x, y: x.T @ x, set()),
    "handed back": (lambda x, y: (x * 2, x), set()),
}


def donations(program):
    """What the compiled program says: pairs (input, result)."""
    return set(program._plans.current.arena.facts.donations)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(5)
def test_what_is_proven(name):
    function, expected = PROGRAMS[name]
    program = compile(function, [array(256, 256), array(256, 256)], device=SYNC)
    assert donations(program) == expected


def test_as_many_inputs_as_possible_get_a_result():
    # First come, first served would give result 1 to input 2, and none to input 3.
    assert matched((2, 3), [(2, 1), (2, 2), (3, 1)]) == {2: 2, 3: 1}
    assert matched((3, 2), [(2, 1), (3, 1)]) == {3: 1}
    assert matched((0,), []) == {}


@pytest.mark.parametrize("mode", ["latency_first", "balanced", "memory_first"])
@pytest.mark.sampled(2)
def test_what_a_program_names_can_be_donated_together(mode):
    arguments = [array(256, 256) for _ in range(3)]
    program = compile(
        lambda x, y, z: (x + 1, z * 2, nn.softmax(x @ WEIGHT + y)),
        arguments,
        device=SYNC,
        planner_mode=mode,
    )
    donate = program.donatable((0, 1, 2))
    assert len(donate) >= 2
    want = program(*arguments)
    got = program(*[to_device(a, SYNC) for a in arguments], donate=donate)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)


def test_a_result_may_be_read_once_it_was_written():
    def function(cache, row):
        new = cache * 2 + row
        return new, nn.softmax(new @ WEIGHT)

    arguments = [array(256, 256), array(256)]
    program = compile(function, arguments, device=SYNC)
    assert (0, 0) in donations(program)
    want = program(*arguments)
    got = program(*[to_device(a, SYNC) for a in arguments], donate=(0,))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)


@pytest.mark.parametrize("name", [n for n, (_, pairs) in PROGRAMS.items() if pairs])
def test_the_result_lies_where_the_input_was(name):
    function, pairs = PROGRAMS[name]
    arguments = [array(256, 256), array(256, 256)]
    program = compile(function, arguments, device=SYNC)
    want = program(*arguments)
    for number, _ in pairs:
        given = [to_device(a, SYNC) for a in arguments]
        before = SYNC.memory().allocated_bytes
        got = program(*given, donate=(number,))
        assert SYNC.memory().allocated_bytes == before
        np.testing.assert_array_equal(got.numpy(), want)
        refused(ReasonCode.DONATED_ARRAY, given[number].numpy)
        refused(ReasonCode.DONATED_ARRAY, program, *given)
        assert "donated" in repr(given[number]) and given[number].shape == (256, 256)
        np.testing.assert_array_equal(given[1 - number].numpy(), arguments[1 - number])
        # Numpy arrays are copied to the device, and that copy is what is given away.
        np.testing.assert_array_equal(program(*arguments, donate=(number,)), want)


def refused(code, program, *arguments, **keywords):
    with pytest.raises(PycError) as caught:
        program(*arguments, **keywords)
    assert caught.value.code is code
    return caught.value.message


def test_what_is_refused():
    program = compile(PROGRAMS["read before"][0], [array(256, 256)] * 2, device=SYNC)
    x, y = (to_device(array(256, 256), SYNC) for _ in range(2))
    assert "got none" in refused(ReasonCode.DONATION_UNSAFE, program, x, y, donate=(1,))
    refused(ReasonCode.BAD_ARGUMENT, program, x, y, donate=(2,))
    for numbers in (("x",), 0, None, {0}, np.array([0]), np.array([0, 1])):
        refused(ReasonCode.BAD_ARGUMENT, program, x, y, donate=numbers)
    text = refused(ReasonCode.DONATION_UNSAFE, program, x, y, donate=(0,), out=to_device(y, SYNC))
    assert "other memory for" in text
    # What is donated must not be another input as well.
    refused(ReasonCode.OUTPUT_OVERLAP, program, x, import_dlpack(x, SYNC), donate=(0,))
    assert program.stats().guard_failures == 10


def test_a_reference_that_reads_the_inputs_afterwards_keeps_them():
    x = array(8, 8)
    program = compile(lambda x: x * 2, [x], device=SYNC, contract=Contract(max_error="rounding"))
    refused(ReasonCode.DONATION_UNSAFE, program, x, donate=(0,))
    np.testing.assert_array_equal(program(x), x * 2)
    assert program.stats().wrong_results == 0


def test_without_a_plan_nothing_is_proven():
    program = compile(lambda x: x * 2, [array(8, 8)], device=SYNC, planner_mode="iree")
    refused(ReasonCode.DONATION_UNSAFE, program, array(8, 8), donate=(0,))


def test_sizes_that_are_not_known_prove_nothing():
    spec = TensorSpec("f32", None, 16)
    program = compile(lambda x: nn.softmax(x * 2), [spec], device=SYNC)
    refused(ReasonCode.DONATION_UNSAFE, program, array(8, 16), donate=(0,))


def random_program(random: Random, size: int):
    """A function of three square matrices with two or three results, drawn op by op."""
    steps = [(random.randrange(7), random.random(), random.random()) for _ in range(8)]
    results = random.randint(2, 3)

    def function(a, b, c):
        values = [a, b, c]
        for kind, first, second in steps:
            # Late values and inputs are read most, so that some inputs are read early and late.
            x, y = (values[int(p * p * len(values))] for p in (first, second))
            values.append(
                {
                    0: lambda x=x, y=y: x + y,
                    1: lambda x=x, y=y: np.maximum(x, y) * 0.5,
                    2: lambda x=x, y=y: (x @ y) / size,
                    3: lambda x=x: nn.softmax(x),
                    4: lambda x=x: x.T * 0.5,
                    5: lambda x=x: np.tanh(x),
                    6: lambda x=x, y=y: y - np.mean(x, axis=0),
                }[kind]()
            )
        return tuple(values[-results:])

    return function


@pytest.mark.parametrize("seed", range(60 if FULL else 4))
@pytest.mark.full
def test_random_programs_keep_their_results(seed):
    random = Random(seed)
    size = random.choice((24, 130))
    arguments = [array(size, size) for _ in range(3)]
    device = Device(random.choice(("local-sync", "local-task")))
    kernels = random.choice(("all", "iree"))
    mode = random.choice(("latency_first", "balanced", "memory_first"))
    program = compile(
        random_program(random, size), arguments, device=device, kernels=kernels, planner_mode=mode
    )
    want = program(*arguments)
    donors = sorted({number for number, _ in donations(program)})
    for donate in [*[(d,) for d in donors], *combinations(donors, 2)]:
        try:
            got = program(*arguments, donate=donate)
        except PycError as error:
            assert error.code is ReasonCode.DONATION_UNSAFE and len(donate) == 2
            continue
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)
