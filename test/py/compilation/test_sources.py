"""Under `max_error` a traced function is compared with itself, run by numpy."""

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import sample
from onnx_cases import cases, tensors
from torch_mlir import ir
from torch_mlir.extras import onnx_importer
from torch_mlir.passmanager import PassManager

import pyc_mlir
from pyc_mlir import Contract, nn
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir import divisions
from pyc_mlir.dialects.types import DTYPES, is_integer
from pyc_mlir.frontends.python.numpy_protocol import UFUNCS
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.frontends.python.trace import trace

COMPARED = Contract(max_error="rounding")
AGREES = "the function itself, run by numpy, agrees with 2 of 2 samples"
X = spec("f32", ("n", 4))


def output_text(function: Any, *specs: Any, contract: Contract = COMPARED, **options: Any) -> str:
    """What the report says of the function itself."""
    program = pyc_mlir.compile(function, specs, contract=contract, **options)
    report = program.stats().contract
    assert report is not None
    return next(str(e) for e in report["max_error"].evidence if "by numpy" in str(e))


def refused(function: Any, *specs: Any, **options: Any) -> str:
    with pytest.raises(PycError) as caught:
        pyc_mlir.compile(function, specs, contract=COMPARED, **options)
    assert caught.value.code is ReasonCode.TRACE_MISMATCH
    return caught.value.message


def two_faced(x: Any) -> Any:
    return x + 1 if isinstance(x, np.ndarray) else x


def test_a_function_agrees_with_itself():
    def model(x: Any, scale: Any) -> Any:
        return {"a": nn.softmax(x * scale), "b": [x.mean(0), x.shape[0], x.sum() > 0]}

    assert output_text(model, X, spec("f32", ())) == AGREES


@pytest.mark.full
def test_a_fault_of_the_front_end_is_refused(monkeypatch):
    """As if `//` were truncated: the references take it for what was meant."""
    truncated = lambda b, x, y: b.div(x, y)  # noqa: E731
    monkeypatch.setitem(UFUNCS, np.floor_divide, truncated)
    specs = [spec("i32", (50,)), spec("i32", (50,))]
    reported = refused(lambda x, y: x // y, *specs)
    assert "sample 0" in reported and "expected" in reported
    module = trace(lambda x, y: x // y, *specs)
    pyc_mlir.compile(module, contract=COMPARED)  # compared from the module on
    monkeypatch.setitem(UFUNCS, np.floor_divide, divisions.floor_divide)
    assert output_text(lambda x, y: x // y, *specs) == AGREES


def test_other_types_are_refused(monkeypatch):
    monkeypatch.setitem(UFUNCS, np.exp, lambda b, x: b.cast(b.exp(x), dtype=np.dtype("f8")))
    monkeypatch.setattr("pyc_mlir.frontends.python.numpy_protocol._run", _as_it_comes)
    assert "expected float64" in refused(np.exp, X)


def _as_it_comes(tracer: Any, ufunc: Any, handler: Any, inputs: Any) -> Any:
    return handler(tracer, *inputs)


def test_code_that_tells_arrays_apart_is_refused(tmp_path):
    refused(two_faced, X)
    # A program from the cache is one of the module, which is not the function.
    output_text(lambda x: x, X, cache=tmp_path)
    refused(two_faced, X, cache=tmp_path)
    jitted = pyc_mlir.jit(two_faced, contract=COMPARED)  # type: ignore[call-overload]
    with pytest.raises(PycError, match="TRACE_MISMATCH"):
        jitted(np.ones((2, 4), np.float32))


def test_in_a_worker_under_a_limit():
    contract = Contract(max_error="rounding", max_compile_seconds=100)
    assert output_text(lambda x: x * 2, X, contract=contract) == AGREES
    with pytest.raises(PycError, match="TRACE_MISMATCH"):
        pyc_mlir.compile(two_faced, [X], contract=contract)


def test_what_cannot_be_compared_is_told():
    calls = []

    def counting(x: Any) -> Any:
        calls.append(x)
        return x * np.float32(len(calls))

    assert (
        "agrees with 0 of 2" in (reported := output_text(counting, X)) and "differently" in reported
    )

    def only_traced(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            raise LookupError("no\narrays")
        return x * 2

    assert "numpy does not run it (LookupError: no arrays)" in output_text(only_traced, X)
    reported = output_text(lambda x, i: x[i], spec("f32", (5,)), spec("i64", (40,)))
    assert "IndexError" in reported


@pytest.mark.full
def test_inputs_may_be_changed_and_jitted_functions_run_as_written():
    def in_place(x: Any) -> Any:
        x = x + 0
        x += 1
        return x

    assert output_text(in_place, X) == AGREES
    inner = pyc_mlir.jit(lambda x: x * 2)
    assert output_text(lambda x: inner(x) + 1, X) == AGREES
    assert inner.cache_info().size == 0


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.full
def test_sums_of_16_bit_floats(kind):
    """numpy rounds each partial sum of them; what numpy does not know of bf16 is no difference."""

    def model(x: Any) -> Any:
        return x.sum(0), x.mean(0), np.var(x, 0), x @ x.T, x * 0.5 + 2.5

    assert output_text(model, spec(kind, (300, 8))) == AGREES


INTEGERS = [DTYPES[name] for name in sorted(DTYPES) if is_integer(DTYPES[name])]


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@pytest.mark.sampled(1)
def test_conversions_out_of_range_are_the_machines(kind):
    """Of NaN, infinities and numbers that a type cannot hold numpy gives what the machine does."""

    def model(x: Any) -> Any:
        return [(x * 255).astype(dtype) for dtype in INTEGERS]

    program = pyc_mlir.compile(model, [spec(kind, (6, 7))], cache=False, check=True)
    check = program.stats().check
    assert check is not None and "agrees with 3 of 3 samples" in check.function
    assert "conversions out of range" in check.function
    x = np.array([np.nan, np.inf, -np.inf, -1, 6e4, 0.5]).astype(DTYPES[kind])
    for dtype, got in zip(INTEGERS, program(np.tile(x[:, None], 7)), strict=True):
        ends = np.iinfo(dtype)
        least = max(ends.min, -255)
        wanted = [0, ends.max, ends.min, least, got[4, 0], min(127, ends.max)]
        assert got[:, 0].tolist() == wanted and got[4, 0] >= min(ends.max, 15_000_000)


def test_what_follows_from_other_numbers_is_still_compared():
    def odd(x: Any) -> Any:
        return (x * 255 + isinstance(x, np.ndarray)).astype(np.uint8)

    refused(odd, X)
    text = output_text(lambda x: (x.astype(np.uint8), x), X)
    assert "agrees with 2 of 2" in text and "conversions out of range" in text


@pytest.mark.full
def test_without_the_clause_the_function_is_not_run_again():
    calls = []

    def noting(x: Any) -> Any:
        calls.append(x)
        return x * 2

    pyc_mlir.compile(noting, [X])
    assert len(calls) == 1


# Programs that torch-mlir makes of ONNX's node tests: foreign linalg, compiled under PyC's plan.
PIPELINE = (
    "builtin.module(torch-onnx-to-torch-backend-pipeline,"
    "torch-backend-to-linalg-on-tensors-backend-pipeline)"
)
CROPS = [case for case in cases() if "center_crop_pad" in case.name]


def linalg_of(model: onnx.ModelProto) -> str:
    """The model as linalg on tensors, by torch-mlir alone."""
    # Takes 4 seconds of CPU time to import, which every process that collects tests would pay.
    from torch_mlir.dialects import torch as torch_dialect

    with ir.Context() as context:
        torch_dialect.register_dialect(context)
        info = onnx_importer.ModelInfo(onnx.shape_inference.infer_shapes(model))
        module = info.create_module(context=context)
        importer = onnx_importer.NodeImporter.define_function(info.main_graph, module.operation)
        importer.import_all()
        PassManager.parse(PIPELINE).run(module.operation)
        return str(module)


@pytest.mark.parametrize("case", sample(CROPS, 4), ids=lambda case: case.name)
@pytest.mark.sampled(1)
def test_sizes_that_the_program_computes(case) -> None:
    """A plan changes nothing of how another region's size is named."""
    found = tensors(case)
    assert not isinstance(found, str)
    model, inputs, (wanted,) = found
    program = pyc_mlir.compile(linalg_of(model))
    np.testing.assert_array_equal(program(*inputs), wanted)
    plans = [d for d in program.artifact.decisions if d.site.pass_name == "plan-memory"]
    assert plans and {d.decided_by for d in plans} == {"heuristic"}


SCRIPT = """
import numpy as np
import pyc_mlir
from pyc_mlir.pipelines.choices.choices import Recipe

assert False, "this process runs assertions"
x = np.linspace(-2, 2, 4096, dtype=np.float32).reshape(64, 64)
for f in (lambda x: np.maximum(x * 2 + 1, x[0]), lambda x: np.exp(x) @ x + x.sum(0)):
    got, want = pyc_mlir.compile(f, [x], target="cpu-avx2")(x), f(x)
    if not np.allclose(got, want, 1e-4, 1e-3):
        raise SystemExit(f"expected {want}, got {got}")
"""


@pytest.mark.full
def test_programs_are_right_without_assertions() -> None:
    command = [sys.executable, "-O", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
