"""Programs that torch-mlir makes of ONNX's node tests: foreign linalg, compiled under PyC's plan.

Sizes in them are computed by the program itself and read back from memory by the host.
"""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from conftest import sample
from onnx_cases import cases, tensors
from torch_mlir import ir
from torch_mlir.extras import onnx_importer
from torch_mlir.passmanager import PassManager

import pyc_mlir

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
    """What one region's plan changes is no part of how another region's size is named."""
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
