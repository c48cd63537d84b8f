"""Resize where a size times a scale is not whole, against onnxruntime, torch and a formula.

onnx's reference evaluator takes the product for the length of the result.
"""

from itertools import product

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from onnx_models import node_model  # noqa: E402

from pyc_mlir.dialects.ir.interpreter import interpret  # noqa: E402
from pyc_mlir.dialects.ops.resize import COORDINATES  # noqa: E402
from pyc_mlir.frontends.onnx.importer import import_onnx  # noqa: E402

X = np.random.default_rng(0).normal(size=(1, 2, 3, 7)).astype(np.float32)
PAIRS = ((1.5, 0.5), (0.4, 0.35), (0.5, 1.4))


def _resized(scales: tuple[float, float], how: str, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """PyC's answer and onnxruntime's."""
    attributes = {"coordinate_transformation_mode": how, "mode": mode}
    given = [None, np.array([1, 1, *scales], np.float32)]
    proto = node_model("Resize", [X], given, attributes, opset=19)
    session = ort.InferenceSession(proto.SerializeToString())
    (mine,) = interpret(import_onnx(proto), [X])
    return np.asarray(mine), session.run(None, {"x0": X})[0]


@pytest.mark.parametrize("how", COORDINATES)
def test_equals_onnxruntime(how: str) -> None:
    for scales, mode in product(PAIRS, ("nearest", "linear", "cubic")):
        mine, theirs = _resized(scales, how, mode)
        np.testing.assert_allclose(mine, theirs, 1e-5, 1e-5, err_msg=f"{scales} {mode}")


@pytest.mark.parametrize("how", ["align_corners", "pytorch_half_pixel"])
def test_equals_torch(how: str) -> None:
    for scales in PAIRS:
        mine, _ = _resized(scales, how, "linear")
        aligned = how == "align_corners"
        theirs = torch.nn.functional.interpolate(
            torch.from_numpy(X), scale_factor=scales, mode="bilinear", align_corners=aligned,
            recompute_scale_factor=False,
        )  # fmt: skip
        if aligned or 1 not in mine.shape[2:]:
            np.testing.assert_allclose(mine, theirs.numpy(), 1e-5, 1e-5, err_msg=str(scales))
