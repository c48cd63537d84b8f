import gc
import os
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from modules import add_program, ramp

from pyc_mlir.api import compile
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import Array, import_dlpack, to_device
from pyc_mlir.runtime.device import KINDS, Device


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
        assert "install" in str(error) and "local-task" in str(error)
    else:
        np.testing.assert_array_equal(to_device(ramp(4), device).numpy(), ramp(4))


def test_little_work_stays_on_the_callers_thread():
    assert Device.cpu_kind(cores=2) == "local-task"
    assert Device.cpu_kind(cores=2, seconds=1.0) == "local-task"
    assert Device.cpu_kind(cores=2, seconds=1e-6) == "local-sync"
    assert Device.cpu_kind(cores=1, seconds=1.0) == "local-sync"
    assert Device.default_for("local", 1e-6) is Device.default_for("local", 2e-6)
    assert Device.default_for("local", 1e-6).kind == "local-sync"


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
