"""One model by every road: the same structure after recognition, and torch's numbers."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("onnxscript", reason="onnxscript, which torch's ONNX export needs, is missing")

import numpy as np  # noqa: E402
import roads  # noqa: E402

from pyc_mlir.dialects.ir.ids import structure_of  # noqa: E402
from pyc_mlir.dialects.ir.interpreter import interpret  # noqa: E402
from pyc_mlir.pipelines.driver.base import PassContext  # noqa: E402
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline  # noqa: E402
from pyc_mlir.pipelines.pyc.rewriting import functions_of  # noqa: E402

# A compile's passes up to those that look at the target.
PASSES = (
    "pyc-canonicalize,pyc-infer-shapes,pyc-recognize,pyc-decompose{only=batchnorm},"
    "pyc-canonicalize,pyc-fold-norms,pyc-canonicalize"
)
# linalg has images channels last, and windows are not raised from it.
ROADS = {"encoder": 6, "resnet": 5}


@pytest.mark.parametrize("name", ROADS)
def test_all_roads_give_one_structure(name):
    model = getattr(roads, name)()
    with torch.no_grad():
        want = model.module(torch.from_numpy(model.x)).numpy()
    found = {}
    for road, module in roads.by_road(model, linalg=name == "encoder"):
        run_pipeline(module, PASSES, PassContext())
        found[road] = structure_of(*functions_of(module)).id
        (got,) = interpret(module, [model.x])
        np.testing.assert_allclose(got, want, atol=2e-6 * np.abs(want).max())
    assert len(found) == ROADS[name]
    assert len(set(found.values())) == 1, found
