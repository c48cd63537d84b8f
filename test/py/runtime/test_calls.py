"""Calls as users make them: trees, names, numbers, memory of numpy; and what a program shows."""

import gc
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from modules import ramp

from pyc_mlir.api import compile
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.util.pages import LARGE_BYTES, in_own_memory

SYNC = Device("local-sync")
X, W, B = ramp(2, 3), ramp(3, 4), ramp(4)
WANT = X @ W * 2 + B


@pytest.fixture(scope="module")
def layered() -> Program:
    def model(x, params):
        (w, scale), b = params["linear"], params["b"]
        return x @ w * scale + b

    params = {"linear": (W, np.float32(2)), "b": B}
    return compile(model, [X, params], device=SYNC)


def refused(code, call, *args, **named) -> str:
    with pytest.raises(PycError) as caught:
        call(*args, **named)
    assert caught.value.code is code
    return caught.value.message


def test_the_tree_that_was_compiled_is_called(layered):
    two = np.float32(2)
    for params in (
        {"linear": (W, two), "b": B},
        {"b": B, "linear": [W, 2]},
        {"b": B.tolist(), "linear": (W.tolist(), 2.0)},
        {"b": to_device(B, SYNC), "linear": (W, two)},
    ):
        np.testing.assert_array_equal(layered(X, params), WANT)
        np.testing.assert_array_equal(layered(X, params=params), WANT)
        np.testing.assert_array_equal(layered(params=params, x=X.tolist()), WANT)
    np.testing.assert_array_equal(layered(X, W, two, B), WANT)
    np.testing.assert_array_equal(layered(X, W, 2, B.tolist()), WANT)
    named = {"params.linear.0": W, "params.linear.1": 2, "params.b": B}
    np.testing.assert_array_equal(layered(X, **named), WANT)


def test_trees_that_do_not_fit(layered):
    good = {"linear": (W, 2), "b": B}
    text = refused(ReasonCode.ARGUMENT_COUNT, layered, X, {"linear": (W, 2)})
    assert "expected an array for `params.b`" in text
    text = refused(ReasonCode.BAD_ARGUMENT, layered, X, {**good, "c": B})
    assert "got `params.c`" in text and "compiled in" in text
    refused(ReasonCode.BAD_ARGUMENT, layered, X, good, params=good)
    refused(ReasonCode.BAD_ARGUMENT, layered, X, good, other=1)
    refused(ReasonCode.BAD_ARGUMENT, layered, [X, "?"], good)
    refused(ReasonCode.BAD_ARGUMENT, layered, [[1, 2], [3]], good)
    assert "tuple, list or dict" in refused(ReasonCode.BAD_ARGUMENT, layered, X, params=W)
    refused(ReasonCode.ARGUMENT_SHAPE, layered, 1.0, good)
    refused(ReasonCode.ARGUMENT_COUNT, layered, X, good, 3)
    assert layered.stats().guard_failures >= 9


def test_numbers_become_what_the_input_is():
    p = compile(lambda n, b: (n + 1, ~b), [TensorSpec("i8", 2), TensorSpec("i1")], device=SYNC)
    n, b = p([1, True], False)
    np.testing.assert_array_equal(n, np.array([2, 2], np.int8))
    assert b
    refused(ReasonCode.ARGUMENT_DTYPE, p, [1.5, 2], False)
    refused(ReasonCode.ARGUMENT_DTYPE, p, [1, 2], 1)
    refused(ReasonCode.BAD_ARGUMENT, p, [1, 300], False)
    half = compile(lambda x: x * 2, [TensorSpec("bf16", 2)], device=SYNC)
    assert half([1, 2.5]).tolist() == [2, 5]


class Tensor:
    """As torch's tensors: an element type of its own, and DLPack."""

    class Kind:
        def __repr__(self) -> str:
            return "torch.float32"

    dtype = Kind()

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape = array, array.shape

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_tensors_of_torch_are_examples_and_arguments():
    p = compile(lambda x: x * 2, [Tensor(X)], device=SYNC)
    np.testing.assert_array_equal(p(Tensor(X)), X * 2)
    np.testing.assert_array_equal(p(x=Tensor(X)), X * 2)


def test_results_are_written_to_arrays_of_numpy():
    p = compile(lambda x: (x + 1, x * 2), [X], device=SYNC)
    one, two = np.empty_like(X), np.empty((3, 2), np.float32).T
    got = p(X, out=(one, two))
    assert got[0] is one and got[1] is two
    np.testing.assert_array_equal(one, X + 1)
    np.testing.assert_array_equal(two, X * 2)
    device = to_device(np.zeros_like(X), SYNC)
    got = p(X, out=[device, one])
    assert got[0] is device and got[1] is one
    np.testing.assert_array_equal(device.numpy(), X + 1)
    np.testing.assert_array_equal(one, X * 2)
    mine = X.copy()
    first, second = p(to_device(mine, SYNC), out=[mine, None])
    assert first is mine and isinstance(second, Array)
    np.testing.assert_array_equal(mine, X + 1)


def test_arrays_of_numpy_that_do_not_fit():
    p = compile(lambda x: (x + 1, x * 2), [X], device=SYNC)
    one = np.empty_like(X)
    refused(ReasonCode.ARGUMENT_COUNT, p, X, out=one)
    refused(ReasonCode.ARGUMENT_DTYPE, p, X, out=[one.astype(np.float64), None])
    refused(ReasonCode.ARGUMENT_SHAPE, p, X, out=[one.T, None])
    refused(ReasonCode.OUTPUT_OVERLAP, p, X, out=[one, one[::-1]])
    one.flags.writeable = False
    refused(ReasonCode.BAD_ARGUMENT, p, X, out=[one, None])
    assert p.stats().guard_failures == 5


def test_an_array_of_numpy_needs_no_entry_and_is_compared():
    plain = compile(lambda x: x * 2, [X], device=SYNC, planner_mode="iree")
    out = np.empty_like(X)
    assert plain(X, out=out) is out
    np.testing.assert_array_equal(out, X * 2)
    p = compile(lambda x: x + 1, [X], device=SYNC, contract=Contract(max_error="rounding"))
    p(X, out=out)
    np.testing.assert_array_equal(out, X + 1)
    assert p.stats().comparisons == 1


def test_a_fallback_without_an_entry_is_named():
    p = compile(lambda x: x * 2, [X], device=SYNC)
    serving(p).take_code("reference", serving(p).run)
    text = refused(ReasonCode.NO_ARENA_ENTRY, p, X, out=to_device(X, SYNC))
    assert "fallback `reference`" in text and "arena-entry" not in text


def test_a_program_shows_what_users_may_call():
    public = {name for name in dir(Program) if not name.startswith("_")}
    assert public == {
        "adapt", "artifact", "check_memory", "compare_every", "device", "donatable", "guards",
        "log", "mode", "modes", "profile", "save", "shape_plans", "signature", "stats",
        "switch_below", "trim", "use_mode", "verification",
    }  # fmt: skip


def test_short_texts(layered):
    layered(X, W, 2, B)
    for shown in (layered, layered.stats(), layered.artifact):
        assert len(repr(shown)) < 400 and "\n" not in repr(shown)
        assert shown._repr_html_().startswith("<table>")
    many = compile(lambda *x: sum(x), [X] * 9, device=SYNC)
    assert "5 more" in repr(many)


def test_a_program_travels_in_a_pickle():
    p = compile(lambda x: x * 2, [X], device=SYNC)
    copy = pickle.loads(pickle.dumps(p))
    assert copy.signature == p.signature and copy.artifact.vmfb == p.artifact.vmfb
    np.testing.assert_array_equal(copy(X), X * 2)


# Large memory: copied whole, alive as long as its program, on large pages where there are any.
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
