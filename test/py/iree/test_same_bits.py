"""A value of a program has the same bits in every place where it is computed.

IREE computes a cheap value again next to each op that reads it: in several dispatches, in several
loops of one dispatch, in the vector loop and in the scalar rest of a loop. Each program here
returns a value `y`, and what it makes of `y` by ops that round nothing or once. numpy, given the
returned `y`, must find the same bits. Contracting a product and a sum in one of the places breaks
that.
"""

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import sample
from kernel_runs import any_target, targets
from ml_dtypes import bfloat16

import pyc_mlir
from pyc_mlir import Tensor, nn
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.iree.rewrites import AFTER
from pyc_mlir.pipelines.target.target import Target

# Rows, and columns that no vector divides.
ROWS, COLUMNS = 24, 1003
DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": bfloat16}
# Standard deviations of the inputs; f16 ends at 65504.
SCALES = {
    "f32": (1.0, 1e3, 1e27),
    "f64": (1.0, 1e3, 1e290),
    "f16": (1.0, 1e3),
    "bf16": (1.0, 1e3, 1e27),
}
# From x [ROWS, COLUMNS] and w [COLUMNS] to y [ROWS, COLUMNS].
VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "scaled": lambda x, w: x * 0.3,
    "product": lambda x, w: x * w,
    "affine": lambda x, w: x * 0.3 + w,
    "tanh": lambda x, w: np.tanh(x * 0.3) * 3.3,
    "gelu": lambda x, w: nn.gelu(x * 0.3),
    "log": lambda x, w: np.log(np.abs(x) * 0.3 + 1.0) * 1.7,
    "rsqrt": lambda x, w: nn.rsqrt(np.abs(x) + 0.1) * 1.3,
    "sin": lambda x, w: np.sin(x * 0.3) * 1.3,
    "softmax": lambda x, w: nn.softmax(x * 0.3),
    "layernorm": lambda x, w: nn.layernorm(x * 0.3, w, w),
    "centred": lambda x, w: x * 0.3 - np.mean(x * 0.3, axis=1, keepdims=True),
}
OTHERS = ("f64", "f16", "bf16")
# Numbers of the SPIR-V specification: an opcode, a decoration.
OP_DECORATE, NO_CONTRACTION = 71, 42


def observed(value: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The value, and what ops that round at most once make of it."""

    def main(x: Any, w: Any) -> Any:
        y = value(x, w)
        distance = y - np.max(y, axis=1, keepdims=True)
        return y, distance, np.max(y, axis=1), np.min(y, axis=0), y.T

    return main


def expected(y: np.ndarray) -> Sequence[np.ndarray]:
    """What `observed` makes of y, in its order."""
    return y - y.max(1, keepdims=True), y.max(1), y.min(0), y.T


@pytest.mark.parametrize("target", targets(), ids=lambda t: t.name)
@pytest.mark.parametrize("name", sample(list(VALUES), 4))
@pytest.mark.full
def test_every_copy_of_a_value_has_the_same_bits(name, target):
    check_copies(name, "f32", target, "iree")


@pytest.mark.parametrize("name", sample(["affine", "gelu", "softmax", "layernorm"], 2))
@pytest.mark.full
def test_kernels_and_code_of_iree_compute_the_same_bits(name):
    check_copies(name, "f32", any_target(), "all")


@pytest.mark.parametrize(("name", "dtype"), sample(list(product(("product", "gelu"), OTHERS)), 3))
@pytest.mark.full
def test_every_copy_has_the_same_bits_in_other_types(name, dtype):
    check_copies(name, dtype, Target.named("cpu"), "iree")


def zeros(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[np.ndarray]:
    """Arguments that give a traced function its shapes."""
    return [np.zeros(shape, dtype) for shape in shapes]


def check_copies(name: str, dtype: str, target: Target, kernels: str) -> None:
    random, kind = np.random.default_rng(0), DTYPES[dtype]
    examples = zeros((ROWS, COLUMNS), (COLUMNS,), dtype=kind)
    program = pyc_mlir.compile(observed(VALUES[name]), examples, target=target, kernels=kernels)
    compared = 0
    for scale in SCALES[dtype]:
        x = (random.normal(size=(ROWS, COLUMNS)) * scale).astype(kind)
        w = random.normal(size=COLUMNS).astype(kind)
        y, *rest = (np.asarray(result) for result in program(x, w))
        if not np.isfinite(y.astype(np.float64)).all():
            continue  # Squares of the greatest scale overflow.
        compared += 1
        for found, wanted in zip(rest, expected(y), strict=True):
            np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))
    assert compared


@pytest.mark.parametrize("kernels", ["iree", "all"])
@pytest.mark.parametrize("target", targets(), ids=lambda t: t.name)
@pytest.mark.full
def test_softmax_of_huge_values_is_finite(target, kernels):
    def main(x: Any) -> Any:
        return nn.softmax(x * 0.3), nn.log_softmax(x * 0.7)

    program = pyc_mlir.compile(main, zeros((64, 1000)), target=target, kernels=kernels)
    x = np.random.default_rng(0).normal(size=(64, 1000)).astype(np.float32)
    for scale in (1, 1e6, 2e9, 1e12, 1e30, 5e37):
        shares, logs = (np.asarray(result) for result in program(x * np.float32(scale)))
        np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
        assert np.isfinite(logs).all() and (logs.max(1) <= 0).all(), scale
        np.testing.assert_array_equal(shares.argmax(1), x.argmax(1))


@pytest.mark.parametrize("kernels", ["iree", "all"])
@pytest.mark.parametrize("target", targets(), ids=lambda t: t.name)
@pytest.mark.full
def test_equal_inputs_give_equal_bits_wherever_they_stand(target, kernels):
    """The last columns are computed one by one, or in a masked vector."""

    def main(x: Any, w: Any) -> Any:
        return [VALUES[name](x, w) for name in ("affine", "tanh", "gelu", "log", "rsqrt", "sin")]

    examples = zeros((ROWS, COLUMNS), (COLUMNS,))
    program = pyc_mlir.compile(main, examples, target=target, kernels=kernels)
    random = np.random.default_rng(0)
    for scale in SCALES["f32"]:
        x = np.repeat(random.normal(size=(ROWS, 1)) * scale, COLUMNS, axis=1).astype(np.float32)
        for result in program(x, np.full(COLUMNS, 0.7, np.float32)):
            y = np.asarray(result)
            np.testing.assert_array_equal(y, np.repeat(y[:, :1], COLUMNS, axis=1))


@pytest.mark.parametrize("kernels", ["iree", "all"])
@pytest.mark.full
def test_dynamic_rows_have_the_same_bits(kernels):
    def main(x: Tensor["f32", "rows", "columns"]):  # noqa: F821
        y = x * 0.3
        return y, y - np.max(y, axis=1, keepdims=True)

    program = pyc_mlir.compile(main, kernels=kernels)
    for shape in ((3, 1003), (17, 64), (5, 7)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        y, distance = (np.asarray(result) for result in program(x))
        np.testing.assert_array_equal(distance, y - y.max(1, keepdims=True))


@pytest.mark.parametrize("mode", ["iree", "memory_first", "latency_first"])
@pytest.mark.full
def test_kept_and_recomputed_values_have_the_same_bits(mode):
    """Wide values that are read early and late: a mode that saves memory computes them again."""

    def main(x: Any, w: Any) -> Any:
        y = np.tanh(x * 0.3) * 3.3
        late = y - np.max(y, axis=1, keepdims=True)
        return y, late * ((y @ w)[:, :1] * 0.0 + 1.0)

    examples = zeros((256, 1003), (1003, 256))
    program = pyc_mlir.compile(main, examples, kernels="iree", planner_mode=mode)
    x, w = (np.random.default_rng(0).normal(size=e.shape).astype(np.float32) for e in examples)
    y, late = (np.asarray(result) for result in program(x, w))
    np.testing.assert_array_equal(late, y - y.max(1, keepdims=True))


def final_code(source: Any, target: str, *shapes: tuple[int, ...]) -> str:
    """All executables in the dialect of the target's back end, before it takes over."""
    lowered = lower(Job.of(source, zeros(*shapes), make_options(target=target, kernels="iree")))
    return compile_module(lowered.code, Target.named(target), compile_to=AFTER).decode()


def test_no_code_of_a_cpu_may_be_contracted():
    for name in ("cpu", "cpu-avx2", "cpu-neon"):
        text = final_code(observed(VALUES["affine"]), name, (ROWS, COLUMNS), (COLUMNS,))
        assert "llvm.fmul" in text and "llvm.fadd" in text
        assert "contract>" not in text and "fast>" not in text


def test_no_code_for_cuda_may_be_contracted():
    text = final_code(observed(VALUES["affine"]), "cuda", (ROWS, COLUMNS), (COLUMNS,))
    assert "llvm.fmul" in text and "llvm.fadd" in text
    assert "contract" not in text and "llvm.intr.fma" not in text


def test_no_code_for_vulkan_may_be_contracted():
    text = final_code(observed(VALUES["affine"]), "vulkan", (ROWS, COLUMNS), (COLUMNS,))
    lines = [line for line in text.splitlines() if re.search(r"spirv\.F(Mul|Add|Sub) ", line)]
    assert lines and all("no_contraction" in line for line in lines)


def test_the_decoration_reaches_the_spirv_program(tmp_path):
    def main(x: Any, y: Any) -> Any:
        return x * 0.3 + y

    flags = (f"--iree-hal-dump-executable-binaries-to={tmp_path}",)
    lowered = lower(Job.of(main, zeros((4096,), (4096,)), make_options(target="vulkan")))
    compile_module(lowered.code, Target.named("vulkan"), flags)
    (file,) = tmp_path.glob("*.spv")
    words = np.fromfile(file, np.uint32)
    at, decorated = 5, 0  # After the header, each instruction begins with length and opcode.
    while at < len(words):
        length, opcode = int(words[at]) >> 16, int(words[at]) & 0xFFFF
        decorated += opcode == OP_DECORATE and words[at + 2] == NO_CONTRACTION
        at += length
    assert decorated == 2


def test_products_of_matrices_stay_fused():
    def main(a: Any, b: Any, c: Any) -> Any:
        return a @ b, a @ c

    text = final_code(main, "cpu-avx2", (64, 96), (96, 128), (96,))
    assert re.search(r"llvm\.intr\.(fma|fmuladd)\(", text)
    assert "llvm.fmul" not in text
