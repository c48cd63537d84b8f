"""The demo models and an attention block on every target: compiled, and run where a device is."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from compiled import assert_close

from pyc_mlir import nn
from pyc_mlir.api import build
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.frontends.python.trace import trace
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools.demo.digits import MODELS, load_digits

TARGETS = ("cpu", "cuda-sm_80", "cuda-sm_86", "cuda-sm_89", "vulkan")
RUNNABLE = {"cpu": "local-sync", "cuda-sm_80": "cuda", "vulkan": "vulkan"}


def block(x: Any) -> Any:
    """One attention layer with its norm and residual."""
    scores = nn.attention(x, x, x, scale=0.25)
    return nn.layernorm(x + scores, np.ones(16, np.float32), np.zeros(16, np.float32))


SPECS = [TensorSpec("f32", 2, 5, 16)]


@cache
def source(name: str) -> tuple[Any, Any, np.ndarray, np.ndarray]:
    """What to compile, its specs, one input and the reference's result."""
    if name == "block":
        x = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
        module = trace(block, *SPECS)
        return block, SPECS, x, interpret(module, [x])[0]
    images, _ = load_digits()
    module = import_onnx(MODELS[name], context=new_context())
    x = images.pixels[:7]
    return MODELS[name], None, x, interpret(module, [x])[0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*MODELS, "block"])
@pytest.mark.full
def test_compiles(name: str, target: str) -> None:
    model, specs, _, _ = source(name)
    artifact = build(model, specs, make_options(target=target))
    assert artifact.manifest.target == target
    assert len(artifact.vmfb) > 1000


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("name", [*MODELS, "block"])
@pytest.mark.full
def test_runs(name: str, target: str) -> None:
    try:
        device = Device(RUNNABLE[target])
    except PycError as error:
        assert error.code is ReasonCode.DEVICE_UNAVAILABLE
        pytest.skip(f"no {RUNNABLE[target]} device on this machine: {error.message}")
    model, specs, x, expected = source(name)
    program = Program(build(model, specs, make_options(target=target)), device)
    assert_close(program(x), expected, f"{name} on {target}", scale=10)


@pytest.mark.full
def test_a_type_that_the_target_lacks_is_refused() -> None:
    with pytest.raises(PycError, match="f64") as caught:
        build(lambda x: x * 2.0, [TensorSpec("f64", 4)], make_options(target="vulkan"))
    assert caught.value.code is ReasonCode.UNSUPPORTED_DTYPE
