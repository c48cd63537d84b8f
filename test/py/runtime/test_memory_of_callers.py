""""""

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compiled import add_function
from conftest import FULL
from modules import add_program, ramp

from pyc_mlir import nn
from pyc_mlir.api import compile
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import Array, import_dlpack, overlap, to_device
from pyc_mlir.runtime.device import KINDS, Device
from pyc_mlir.runtime.outputs import matched
from pyc_mlir.runtime.program import serving


@pytest.fixture(scope="module")
def device() -> Device:
    return Device("local-sync")


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_round_trip(device, dtype, shape):
    source = ramp(*shape, dtype=dtype)
    array = to_device(source, device)
    assert (array.shape, array.dtype, array.nbytes) == (shape, source.dtype, source.nbytes)
    for back in (array.numpy(), np.asarray(array), device.download(array.view, array.dtype)):
        assert back.dtype == source.dtype and back.shape == shape
        np.testing.assert_array_equal(back, source)


@pytest.mark.parametrize(
    "source",
    [
        ramp(4, 6).T,
        ramp(4, 6)[::2, ::-3],
        np.asfortranarray(ramp(3, 4, 5)),
        np.broadcast_to(ramp(3), (4, 3)),
        ramp(4).astype(">f4").astype("<f4"),
    ],
)
def test_any_layout(device, source):
    np.testing.assert_array_equal(to_device(source, device).numpy(), source)


def test_read_only_sources(device):
    source = ramp(4)
    source.flags.writeable = False
    np.testing.assert_array_equal(to_device(source, device).numpy(), source)


def test_arrays_are_immutable_copies(device):
    source = ramp(4)
    array = to_device(source, device)
    source[0] = 100
    assert array.numpy()[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        array.numpy()[0] = 1
    np.array(array)[0] = 1
    assert array.numpy()[0] == 0
    assert np.asarray(array, dtype=np.float64).dtype == np.float64


def test_len_and_repr(device):
    assert repr(to_device(ramp(2, 3), device)) == "Array(2x3 f32 on local-sync)"
    assert repr(to_device(ramp(dtype="bf16"), device)) == "Array(scalar bf16 on local-sync)"
    assert len(to_device(ramp(2, 3), device)) == 2
    with pytest.raises(TypeError):
        len(to_device(ramp(), device))


@pytest.mark.full
def test_views_of_temporaries_keep_their_memory(device):
    program = add_program((16, 64), device=device)
    a = to_device(ramp(16, 64), device)
    expected = (2 * ramp(16, 64))[:, :10]
    for round_ in range(2000):
        view = program(a, a).numpy()[:, :10]
        program(a, a)
        if round_ % 500 == 0:
            gc.collect()
        assert np.array_equal(view, expected)


@pytest.mark.full
def test_results_outlive_program_and_device():
    def make() -> np.ndarray:
        here = Device("local-sync")
        a = to_device(ramp(16, 64), here)
        return add_program((16, 64), device=here)(a, a).numpy()[1:, :10]

    kept = [make() for _ in range(5)]
    gc.collect()
    for view in kept:
        np.testing.assert_array_equal(view, (2 * ramp(16, 64))[1:, :10])


def test_arrays_in_cycles_that_outlive_their_device():
    """A collector gives no order: memory must not be freed after IREE's device."""
    code = """
import gc, numpy as np
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
for kind in ("local-sync", "local-task"):
    for allocator in (None, "caching"):
        device = Device(kind, allocator=allocator)
        cycle = [device, to_device(np.zeros(1 << 16, "f4"), device)]
        cycle.append(cycle)
        last = to_device(np.ones(4, "f4"), device)
        del cycle, device
        gc.collect()
        assert last.numpy().sum() == 4
        del last
print("alive")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "alive\n"


@pytest.mark.full
def test_dlpack_out(device):
    array = to_device(ramp(2, 3), device)
    assert array.__dlpack_device__() == (1, 0)
    shared = np.from_dlpack(array)
    del array
    gc.collect()
    np.testing.assert_array_equal(shared, ramp(2, 3))
    with pytest.raises(BufferError):
        to_device(ramp(2), device).__dlpack__(dl_device=(2, 0))


def test_dlpack_in(device):
    class Foreign:
        def __init__(self, array) -> None:
            self.array = array

        def __dlpack__(self, **_):
            return self.array.__dlpack__()

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    foreign = Foreign(ramp(2, 3))
    np.testing.assert_array_equal(to_device(foreign, device).numpy(), ramp(2, 3))
    halves = to_device(ramp(64, dtype="bf16"), device)
    shared = import_dlpack(Foreign(halves), device)
    assert shared.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(shared.numpy(), ramp(64, dtype="bf16"))
    np.testing.assert_array_equal(
        to_device(Foreign(halves), Device("local-sync")).numpy(), ramp(64, dtype="bf16")
    )


def test_moves_between_devices(device):
    there = to_device(ramp(4), Device("local-task"))
    here = to_device(there, device)
    assert here.device is device and to_device(here, device) is here
    np.testing.assert_array_equal(here.numpy(), ramp(4))


@pytest.mark.parametrize("source", [3.0, [1.0, 2.0], None, "text"])
def test_things_that_are_no_arrays(device, source):
    with pytest.raises(PycError, match="expected a numpy array") as caught:
        to_device(source, device)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_unknown_element_types(device):
    with pytest.raises(PycError) as caught:
        to_device(np.array(["a"]), device)
    assert caught.value.code is ReasonCode.UNSUPPORTED_DTYPE


@pytest.mark.full
def test_memory_statistics_are_the_devices_own():
    one, two = Device("local-sync"), Device("local-sync")
    array = to_device(ramp(1000), one)
    assert one.memory().live_bytes == one.memory().peak_bytes == 4000
    assert two.memory().peak_bytes == 0
    del array
    gc.collect()
    assert one.memory().live_bytes == 0 and one.memory().peak_bytes == 4000


def test_threads_of_local_task():
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted through /proc")

    def grown_by(threads: int) -> int:
        before = len(os.listdir("/proc/self/task"))
        device = Device("local-task", threads=threads)
        grown = len(os.listdir("/proc/self/task")) - before
        del device
        return grown

    assert grown_by(3) - grown_by(1) == 2


def test_caching_allocator_runs():
    device = Device("local-sync", allocator="caching")
    np.testing.assert_array_equal(add_program(device=device)(ramp(4), ramp(4)), 2 * ramp(4))


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "tpu"},
        {"kind": "local-sync", "threads": 2},
        {"kind": "local-task", "threads": 0},
        {"allocator": "slab"},
    ],
)
def test_bad_devices(arguments):
    with pytest.raises(PycError, match="expected") as caught:
        Device(**arguments)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.parametrize("kind", [k for k in KINDS if not k.startswith("local")])
def test_gpu_devices_exist_or_say_what_to_do(kind):
    try:
        device = Device(kind)
    except PycError as error:
        assert error.code is ReasonCode.DEVICE_UNAVAILABLE
        assert "install" in str(error) and "on `local`" in str(error)
    else:
        np.testing.assert_array_equal(to_device(ramp(4), device).numpy(), ramp(4))


def test_little_work_stays_on_the_callers_thread_where_workers_are_woken():
    assert Device.cpu_kind(cores=2) == "local-task"
    assert Device.cpu_kind(cores=2, seconds=1.0) == "local-task"
    assert Device.cpu_kind(cores=2, seconds=1e-6) == "local-sync"
    assert Device.cpu_kind(cores=1, seconds=1.0) == "local-sync"


def test_a_recycling_device_keeps_four_pieces_at_most():
    device = Device("local-sync", allocator="recycling")
    pieces = [device.allocate((n + 1) << 20) for n in range(8)]
    del pieces
    assert device.memory().live_bytes <= (5 + 6 + 7 + 8) << 20
    before = device.memory().allocated_bytes
    for _ in range(3):
        device.allocate(8 << 20)
    assert device.memory().allocated_bytes <= before + (8 << 20)


def test_default_device_is_shared():
    assert Device.default_for("local") is Device.default_for(Target.named("cpu"))
    assert Device.default_for("local").is_cpu


def test_a_default_gpu_is_closed_after_its_last_use():
    """IREE's threads of an open Vulkan device poll on Mesa's software driver: two cores' worth."""
    try:
        device = Device.default_for("vulkan")
    except PycError as error:
        pytest.skip(f"no vulkan device: {error.message}")
    assert Device.default_for("vulkan") is device
    used = weakref.ref(device)
    program = compile(lambda x: x + 1, [np.zeros(4, np.float32)], target="vulkan", device=device)
    assert np.array_equal(np.asarray(program(np.zeros(4, np.float32))), np.ones(4, np.float32))
    del device, program
    gc.collect()
    assert used() is None


@pytest.mark.full
def test_programs_with_a_budget_run_where_nothing_is_kept():
    budget = Contract(memory_budget_bytes=1 << 20)
    with_budget = compile(lambda x: x + 1, [np.zeros(4, np.float32)], contract=budget)
    without = compile(lambda x: x + 1, [np.zeros(4, np.float32)])
    assert (with_budget.device.allocator, without.device.allocator) == (None, "recycling")


@pytest.mark.full
def test_array_slots_free_memory_before_the_device():
    assert sorted(s for s in Array.__slots__ if not s.startswith("__")) == [
        "_address",
        "_buffer",
        "_hal",
        "spec",
    ]


# Inputs that give their memory to a result: proven, never wrong, and refused where not proven.
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
    """The compiled program's answer: pairs (input, result)."""
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


# A call leaves its arguments as they are, whatever the program writes in place.
Write = Callable[[Any], Any]
ROWS = np.array([1, -1, 9, 1])
STARTS = np.array([2, 1])
# What every call takes besides the arguments that it writes a part of.
BEHIND = 3


@dataclass(frozen=True)
class Writer:
    """Builds programs out of one op that writes a part of its first operand."""

    b: IRBuilder
    op: str
    rest: tuple[Any, ...]
    params: dict[str, str]

    def write(self, x: Any) -> Any:
        return self.b.build(OPS[self.op], x, *self.rest, **self.params)

    def forms(self) -> list[Write]:
        """The op alone, again and again, with others in front of it and behind."""
        build, write = self.b.build, self.write

        def read_between(x: Any) -> Any:
            first = write(x)
            return build(OPS["add"], write(build(OPS["abs"], first)), write(first))

        once: list[Write] = [
            write,
            lambda x: build(OPS["relu"], write(x)),
            lambda x: build(OPS["add"], write(x), x),
            lambda x: write(build(OPS["abs"], x)),
        ]
        # IREE has no code for two scatters of unknown sizes in a row.
        known = self.op != "scatter" or self.b.type_of(self.rest[1]).dtype != np.float32
        return [*once, lambda x: write(write(x)), read_between] if known else once


def results(
    b: IRBuilder, op: str, arguments: Sequence[Any], update: Any, starts: Any, rows: Any
) -> Iterator[Any]:
    """Each form of an op, on an argument of its own."""
    given = iter(arguments)
    part = b.build(OPS["slice"], update, starts=(0, 0), stops=(2, 2), steps=(1, 1))
    rest = {"update_slice": (part, starts), "scatter": (rows, update)}[op]
    for form in Writer(b, op, rest, {}).forms():
        yield form(next(given))
    x = next(given)
    yield from (Writer(b, op, rest, {}).write(x), x)
    for reduction in ("add", "mul", "min", "max") if op == "scatter" else ():
        yield Writer(b, op, rest, {"reduction": reduction}).write(next(given))


# How many arguments that takes at most.
WRITTEN = 11


def source(op: str, x: TensorType, update: TensorType) -> str:
    i64 = np.dtype(np.int64)
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [*[x] * WRITTEN, update, TensorType((2,), i64), TensorType((4,), i64)]
        add_function(
            module, "main", types, lambda b, *v: list(results(b, op, v[:-BEHIND], *v[-BEHIND:]))
        )
        return str(module)


def arrays_of(dtype: np.dtype) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    xs = [rng.integers(-4, 5, (8, 4)).astype(dtype) for _ in range(WRITTEN)]
    return [*xs, rng.integers(-4, 5, (4, 4)).astype(dtype), STARTS, ROWS]


class OnlyDlpack:
    """An array that tells nothing but its DLPack memory."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


# bf16 where sizes are static: numpy cannot read its DLPack memory, so that it is shared.
CASES = {
    "static": (TensorType((8, 4), np.dtype(ml_dtypes.bfloat16)), {}),
    "dynamic": (TensorType((None, 4), np.dtype(np.float32)), {}),
    "by IREE alone": (TensorType((8, 4), np.dtype(np.float32)), {"planner_mode": "iree"}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", ["update_slice", "scatter"])
@pytest.mark.parametrize("case", CASES)
def test_arguments_keep_their_bits(case, op):
    x, options = CASES[case]
    text = source(op, x, TensorType((4, 4), x.dtype))
    program = compile(text, device=Device("local-sync"), cache=False, **options)
    given = arrays_of(x.dtype)
    with new_context():
        expected = interpret(ir.Module.parse(text), given)
    on_device = [to_device(a, program.device) for a in given]
    calls: dict[str, Callable[[], Any]] = {
        "main": lambda: serving(program).run(on_device),
        "device arrays": lambda: program(*on_device),
        "DLPack": lambda: program(*map(OnlyDlpack, on_device)),
        "numpy": lambda: program(*given),
    }
    arena = program._plans.current.arena
    # What is written in place has its place in memory of the caller.
    assert case != "static" or (arena is not None and 0 in arena.facts.buffers)
    if arena is not None:
        outputs = [to_device(np.zeros_like(e), program.device) for e in expected]
        calls["arena"] = lambda: arena.call(on_device, arena.needs(on_device))
        calls["out"] = lambda: program(*on_device, out=outputs)
    for name, call in calls.items():
        for number, (got, want) in enumerate(zip(call(), expected, strict=True)):
            np.testing.assert_array_equal(np.asarray(got), want, f"{name}: result {number}")
        for number, (array, want) in enumerate(zip(on_device, arrays_of(x.dtype), strict=True)):
            assert array.numpy().tobytes() == want.tobytes(), f"{name}: argument {number}"
            assert given[number].tobytes() == want.tobytes(), f"{name}: argument {number}"


# Results have memory of their own, in every entry, whatever value numbering made of them.
WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)
FOREIGN = """func.func @main(%x: tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>,
    tensor<?x4xf32>, tensor<?x4xf32>) {
  %y = stablehlo.tanh %x : tensor<?x4xf32>
  return %x, %y, %y, %x : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>
}"""


def own_results(x: Any) -> Any:
    """The same value, zeros, an argument, a constant: each twice or more, also in other shapes."""
    y = x + 1
    zeros = np.zeros((3, 4), np.float32)
    same = y, x + 1, y.reshape(12), np.copy(y), zeros, np.zeros_like(zeros)
    return *same, x, x, x.reshape(4, 3), WEIGHTS, WEIGHTS.reshape(12), y[1:], x[1:]


def dynamic(x: Any) -> Any:
    return x, np.tanh(x), x, np.tanh(x), np.tanh(x).reshape(-1, 2)


OWN_CASES = {
    "planned": (own_results, [TensorSpec("f32", 3, 4)], {}),
    "by IREE alone": (own_results, [TensorSpec("f32", 3, 4)], {"planner_mode": "iree"}),
    "arguments alone": (lambda x: (x, x), [TensorSpec("f32", 3, 4)], {}),
    "dynamic": (dynamic, [TensorSpec("f32", "n", 4)], {}),
    "entering at IREE": (FOREIGN, None, {}),
}


@pytest.mark.parametrize("case", OWN_CASES)
def test_no_result_has_memory_of_another_one_or_of_an_argument(case):
    source, specs, options = OWN_CASES[case]
    program = compile(source, specs, device=Device("local-sync"), cache=False, **options)
    x = to_device(WEIGHTS + 7, program.device)
    arena = program._plans.current.arena
    assert arena is not None
    for values in (serving(program).run([x]), arena.call([x], arena.needs([x])), program(x)):
        for one, other in combinations([x, *values], 2):
            assert not overlap(one, other)
        want = [v.numpy().copy() for v in values]
        for value in values:
            value.host().fill(9)
        assert (x.numpy() == WEIGHTS + 7).all()
    for value, expected in zip(program(x), want, strict=True):
        np.testing.assert_array_equal(value.numpy(), expected)
