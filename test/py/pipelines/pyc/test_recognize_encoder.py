"""An encoder that is written out becomes the encoder that names its composites."""

from collections import Counter

import numpy as np
import pytest
from encoders import WIDTH, legacy, named
from op_modules import ops_of

from pyc_mlir.api import compile
from pyc_mlir.compilation.options import HIGH_LEVEL
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.python.trace import trace
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline

LAYERS = 4
BEFORE = "pyc-canonicalize,pyc-infer-shapes"
AFTER = f"{BEFORE},pyc-recognize,pyc-canonicalize"


@pytest.fixture(autouse=True)
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


def counted(module: ir.Module) -> Counter[str]:
    return Counter(op.name.removeprefix("pyc.") for op in ops_of(module))


def after(module: ir.Module, passes: str = AFTER) -> ir.Module:
    run_pipeline(module, passes, PassContext())
    return module


def imported(batch: int | str, length: int | str) -> ir.Module:
    return import_onnx(legacy(LAYERS, batch, length), context=new_context())


def arguments(batch: int, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    mask = np.ones((batch, 1, 1, length), np.float32)
    mask[0, ..., length // 2 :] = 0
    return [rng.normal(0, 1, (batch, length, WIDTH)).astype(np.float32), mask]


@pytest.mark.full
def test_a_written_out_encoder_has_the_ops_of_the_named_one():
    wanted = counted(after(trace(named(LAYERS), *arguments(2, 6)), BEFORE))
    found = counted(after(imported(2, 6)))
    assert found == wanted
    assert found["attention"] == found["gelu"] == LAYERS and found["layernorm"] == 2 * LAYERS


@pytest.mark.parametrize("sizes", [(1, 3), (3, 8)])
@pytest.mark.sampled(1)
def test_a_dynamic_encoder_is_recognized_and_equal(sizes):
    plain, module = after(imported("batch", "length"), BEFORE), after(imported("batch", "length"))
    assert counted(module) == counted(after(imported(2, 6)))
    given = arguments(*sizes)
    (want,), (got,) = interpret(plain, given), interpret(module, given)
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)


@pytest.mark.full
def test_what_is_left_to_iree_is_less():
    """Groups and lone ops behind the passes of a compile, with and without the pass."""
    written = after(imported(2, 6), HIGH_LEVEL.replace("pyc-recognize,", ""))
    recognized = after(imported(2, 6), HIGH_LEVEL)
    computed = [
        sum(n for name, n in counted(m).items() if name not in ("constant", "reshape"))
        for m in (written, recognized)
    ]
    assert computed[1] < 0.7 * computed[0], computed


@pytest.mark.full
def test_a_recognized_encoder_compiles_and_is_equal():
    """Dynamic, from the ONNX model to results on the CPU."""
    program = compile(legacy(1, "batch", "length"))
    plain = import_onnx(legacy(1, "batch", "length"), context=new_context())
    made = [d.chosen for d in program.artifact.decisions if d.site.pass_name == "pyc-recognize"]
    assert Counter(made) == {"layernorm": 2, "softmax": 1, "attention": 1, "gelu": 1}
    for sizes in ((2, 5), (1, 16)):
        given = arguments(*sizes)
        (want,) = interpret(plain, given)
        np.testing.assert_allclose(program(*given), want, 1e-4, 1e-5)
