"""Large memory: copied whole, alive as long as its program, on large pages where there are any."""

import gc
import re
from pathlib import Path

import numpy as np
import pytest

from pyc_mlir import compile
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.util.pages import LARGE_BYTES, in_own_memory

DEVICE = Device("local-sync")
RANDOM = np.random.default_rng(11)
ADVISED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 4097])
def test_contents_are_copied_whole(size):
    content = RANDOM.bytes(size)
    memory = in_own_memory(content)
    assert bytes(memory) == content
    assert memory is not content
    assert size == 0 or np.frombuffer(memory, np.uint8).ctypes.data % 64 == 0


def test_copies_are_private():
    """Shared mappings are on small pages on most systems."""
    memory = in_own_memory(bytes(LARGE_BYTES))
    address = np.frombuffer(memory, np.uint8).ctypes.data
    mappings = (line.split()[:2] for line in Path("/proc/self/maps").read_text().splitlines())
    spans = [(*(int(end, 16) for end in span.split("-")), mode) for span, mode in mappings]
    assert [mode for first, last, mode in spans if first <= address < last] == ["rw-p"]


def large_page_bytes(array):
    """Bytes on large pages of the mapping that the middle of an array lies in."""
    address, inside = array.ctypes.data + array.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    return 0


@pytest.mark.skipif(
    not ADVISED.exists() or "[never]" in ADVISED.read_text(), reason="no large pages here"
)
@pytest.mark.full
def test_arrays_and_results_lie_on_large_pages():
    # Above what malloc ever takes from memory that was used before.
    x = np.ones((40 << 20) // 4, np.float32)
    program = compile(lambda x: x + 1.0, [x], device=DEVICE)
    array = to_device(x, DEVICE)
    assert np.array_equal(array.numpy(), x)
    assert large_page_bytes(array.numpy()) >= LARGE_BYTES
    assert large_page_bytes(program(array).numpy()) >= LARGE_BYTES


@pytest.mark.full
def test_constants_live_as_long_as_the_program():
    weight = RANDOM.normal(size=(1024, 1024)).astype(np.float32)
    program = compile(lambda x: x @ weight, [weight[:3]], device=DEVICE)
    run = program._serving.entry
    array = to_device(weight[:3], DEVICE)
    del program
    gc.collect()
    assert np.allclose(run([array])[0].numpy(), weight[:3] @ weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_arguments_of_any_layout(order):
    x = np.asarray(RANDOM.normal(size=(1024, 1024)).astype(np.float32), order=order)
    assert np.array_equal(to_device(x, DEVICE).numpy(), x)
    assert np.array_equal(to_device(x[::2, ::-1], DEVICE).numpy(), x[::2, ::-1])
