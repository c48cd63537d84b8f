"""Resize and Upsample against onnx's reference evaluator; dynamic sizes, older opsets, refusals."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import sample
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import check, model, node_model

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ops.resize import COORDINATES, ROUNDINGS
from pyc_mlir.frontends.onnx.importer import import_onnx

RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(2, 3, 5, 6)).astype(np.float32)
SCALES = ((2.0, 2.0), (3.0, 1.0), (0.6, 1.7), (1.0, 0.5), (0.4, 2.0))
SIZES = ((10, 12), (3, 6), (7, 4), (1, 13))
# Where the size times the scale is not whole, onnx's reference evaluator takes the product for the
# length of the result; PyC is compared with onnxruntime and torch there (test/py/frameworks).
BY_LENGTH = ("align_corners", "pytorch_half_pixel")


def _is_whole(scales: tuple[float, float]) -> bool:
    """True if rows and columns are whole multiples; test_equals_the_reference moves channels."""
    sizes = (6, 3) if scales[0] == 1 else (5, 6)
    return all(size * scale % 1 == 0 for size, scale in zip(sizes, scales, strict=True))


TABLE = [
    (mode, how, rounding, kind, value)
    for mode, how in product(("nearest", "linear"), COORDINATES)
    for rounding in (ROUNDINGS if mode == "nearest" else ("floor",))
    for kind, values in (("scales", SCALES), ("sizes", SIZES))
    for value in values
    if how not in BY_LENGTH or kind == "sizes" or _is_whole(value)
]


def resize_model(x: np.ndarray, *, scales: Any = None, sizes: Any = None, **attributes: Any):
    given = [None, None if scales is None else np.array(scales, np.float32)]
    given += [] if sizes is None else [np.array(sizes, np.int64)]
    return node_model("Resize", [x], given, attributes, opset=19)


@pytest.mark.parametrize("row", sample(TABLE, 120), ids=str)
def test_equals_the_reference(row) -> None:
    mode, how, rounding, kind, (rows, columns) = row
    x = np.transpose(IMAGE, (0, 2, 3, 1)) if rows == 1 else IMAGE
    full = (2, rows, columns, 3) if rows == 1 else (2, 3, rows, columns)
    given = {"scales": (1, 1, rows, columns)} if kind == "scales" else {"sizes": full}
    attributes = {
        "mode": mode, "coordinate_transformation_mode": how, "nearest_mode": rounding
    }  # fmt: skip
    module = check(resize_model(x, **given, **attributes), {"x0": x})
    assert str(module).count("pyc.resize") == 1 and "pyc.transpose" not in str(module)


@pytest.mark.parametrize("shape", [(7,), (5, 6), (2, 3, 7), (1, 2, 3, 4, 5), (3, 4, 2, 2)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_any_axes(shape: tuple[int, ...], mode: str) -> None:
    """One axis after the other, where they are not height and width of images."""
    x = RNG.normal(size=shape).astype(np.float32)
    sizes = [d + 1 + i for i, d in enumerate(shape)]
    check(resize_model(x, sizes=sizes, mode=mode), {"x0": x})
    last = {"axes": [len(shape) - 1], "keep_aspect_ratio_policy": "not_larger"}
    check(resize_model(x, sizes=[11], mode=mode, **last), {"x0": x})


def _declared(x: np.ndarray, sizes: Sequence[int], scales: Any, **attributes: Any) -> Any:
    """A model that states the sizes of its result, which onnxruntime would give it."""
    proto = dynamic_model(x, ["n", *x.shape[1:]], scales=scales, **attributes)
    tensor = proto.graph.output[0].type.tensor_type
    del tensor.shape.dim[:]
    for size in ("n", *sizes):
        dim = tensor.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        else:
            dim.dim_value = size
    return proto


def test_sizes_are_products_in_f32() -> None:
    """10 * 0.7 and 20 * 0.35 fall short of 7 when they are exact."""
    x = RNG.normal(size=(2, 1, 10, 20)).astype(np.float32)
    module = import_onnx(_declared(x, (1, 7, 7), (1, 1, 0.7, 0.35), mode="linear"))
    assert interpret(module, [x])[0].shape == (2, 1, 7, 7)
    with pytest.raises(PycError, match="expected types and shapes that fit"):
        import_onnx(_declared(x, (1, 8, 7), (1, 1, 0.7, 0.35), mode="linear"))


def test_attributes_of_other_modes_change_nothing() -> None:
    every = {"cubic_coeff_a": -0.5, "exclude_outside": 1, "extrapolation_value": 2.0}
    every |= {"nearest_mode": "ceil"}
    for mode in ("nearest", "linear", "cubic"):
        proto = resize_model(IMAGE, scales=(1, 1, 1, 1), mode=mode, **every)
        np.testing.assert_array_equal(interpret(import_onnx(proto), [IMAGE])[0], IMAGE)


def dynamic_model(x: np.ndarray, dims: list[Any], **given: Any):
    proto = resize_model(x, **given)
    for value, dim in zip(proto.graph.input[0].type.tensor_type.shape.dim, dims, strict=True):
        if isinstance(dim, str):
            value.dim_param = dim
    return proto


@pytest.mark.parametrize("how", sorted(set(COORDINATES) - {"align_corners"}))
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_dynamic_images_by_an_integer(mode: str, how: str) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": how}
    scales = (1, 1, 2, 3)
    module = import_onnx(dynamic_model(IMAGE, ["n", 3, "h", "w"], scales=scales, **attributes))
    for shape in ((2, 3, 5, 6), (1, 3, 1, 4)):
        x = RNG.normal(size=shape).astype(np.float32)
        (wanted,) = ReferenceEvaluator(resize_model(x, scales=scales, **attributes)).run(
            None, {"x0": x}
        )
        np.testing.assert_allclose(interpret(module, [x])[0], np.asarray(wanted), 1e-5, 1e-6)


def test_a_dynamic_batch_takes_any_sizes() -> None:
    proto = dynamic_model(IMAGE, ["n", 3, 5, 6], scales=(1, 1, 1.7, 0.5), mode="linear")
    check(proto, {"x0": IMAGE})


def test_sizes_of_another_tensor() -> None:
    """What a decoder does: as large as the skipped connection, whose sizes are twice x's."""
    nodes = [
        helper.make_node("Shape", ["skip"], ["all"]),
        helper.make_node("Resize", ["pooled", "", "", "all"], ["y"], mode="linear"),
        helper.make_node("MaxPool", ["skip"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    skip = RNG.normal(size=(2, 3, 8, 6)).astype(np.float32)
    proto = model([nodes[2], *nodes[:2]], {"skip": (np.float32, skip.shape)}, ["y"], opset=19)
    check(proto, {"skip": skip})


def old_model(opset: int, mode: str, scales: tuple[float, ...]):
    x, factors = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4), np.array(scales, np.float32)
    op = "Resize" if opset == 10 else "Upsample"
    if opset < 9:
        return node_model(op, [x], [], {"mode": mode, "scales": factors.tolist()}, opset=opset), x
    return node_model(op, [x], [factors], {"mode": mode}, opset=opset), x


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_older_opsets_are_asymmetric(opset: int) -> None:
    """The examples of ONNX's definition of opset 9; its own converter leaves half_pixel."""
    proto, x = old_model(opset, "nearest", (1, 1, 2, 3))
    (found,) = interpret(import_onnx(proto), [x])
    np.testing.assert_array_equal(found, x.repeat(2, 2).repeat(3, 3))
    proto, x = old_model(opset, "linear", (1, 1, 1, 2))
    (found,) = interpret(import_onnx(proto), [x])
    np.testing.assert_allclose(found[0, 0, 0], [0, 0.5, 1, 1.5, 2, 2.5, 3, 3])


def test_opset_10_shrinks_by_ceil() -> None:
    """The example of ONNX's definition: rows and columns 0 and ceil(1 / 0.6)."""
    proto, x = old_model(10, "nearest", (1, 1, 0.6, 0.6))
    np.testing.assert_array_equal(interpret(import_onnx(proto), [x])[0], [[[[0, 2]]]])
    proto, x = old_model(10, "nearest", (1, 1, 2, 0.6))
    with pytest.raises(PycError, match="an axis enlarged and another shrunk"):
        import_onnx(proto)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_any_size_of_dynamic_images(mode: str, coordinates: str) -> None:
    """Scales that are no integers, and sizes of another tensor, give what known sizes do."""
    given = {"mode": mode, "coordinate_transformation_mode": coordinates}
    scaled = dynamic_model(IMAGE, ["n", 3, "h", "w"], scales=(1, 1, 1.5, 0.6), **given)
    nodes = [
        helper.make_node("Shape", ["x"], ["front"], end=2),
        helper.make_node("Shape", ["other"], ["back"], start=2),
        helper.make_node("Concat", ["front", "back"], ["all"], axis=0),
        helper.make_node("Resize", ["x", "", "", "all"], ["y"], **given),
    ]
    images = {name: (np.float32, ("n", 3, *dims)) for name, dims in (("x", "hw"), ("other", "pq"))}
    sized = model(nodes, images, ["y"], opset=19)
    for shape, other in (((2, 3, 4, 5), (7, 3)), ((1, 3, 7, 3), (1, 9)), ((1, 3, 1, 10), (5, 4))):
        x = RNG.normal(size=shape).astype(np.float32)
        skip = np.zeros((*shape[:2], *other), np.float32)
        for proto, arrays in ((scaled, [x]), (sized, [x, skip])):
            known = import_onnx(proto, shapes=[v.shape for v in arrays])
            (wanted,), (found,) = (interpret(m, arrays) for m in (known, import_onnx(proto)))
            # Places are computed in f32 where sizes are dynamic, in f64 where they are known.
            np.testing.assert_allclose(found, wanted, 1e-5, 4e-6)


def test_dynamic_refusals() -> None:
    proto = dynamic_model(
        IMAGE, ["n", 3, "h", "w"], scales=(1, 1, 1.5, 1), mode="cubic", antialias=1
    )
    with pytest.raises(PycError, match="a dynamic, empty or too large axis"):
        import_onnx(proto)
