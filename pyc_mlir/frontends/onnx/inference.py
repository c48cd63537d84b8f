"""Check a model's types and shapes: onnx's shape inference, in strict mode.

onnx takes the product of a size and a scale of a Resize exactly, and onnxruntime in f32, in which
10 * 0.7 is 7. If onnx objects, the sizes of such results are stated and the check is repeated.
"""

import numpy as np
import onnx

from pyc_mlir.frontends.onnx.names import is_default_domain

# What onnx's native code raises at a model: sizes of lists in attributes end as any of these.
NATIVE_ERRORS = (
    onnx.shape_inference.InferenceError,
    IndexError,
    MemoryError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)


def shape_error(model: onnx.ModelProto) -> Exception | None:
    """Return why the nodes' types, attributes and shapes contradict each other; else None.

    Data is not propagated as onnx does, for which a tensor of a terabyte is a list of as many
    sizes.
    """
    error = _strict_error(model)
    if error is None:
        return None
    stated = _with_sizes_of_resizes(model)
    return error if stated is None or _strict_error(stated) is not None else None


def _strict_error(model: onnx.ModelProto) -> Exception | None:
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except NATIVE_ERRORS as error:
        return error
    return None


def _with_sizes_of_resizes(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy with sizes in place of Resize's constant scales; None if none has any."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    scales = {t.name: t for t in made.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    found = False
    for number, node in enumerate(made.graph.node):
        known = scales.get(node.input[2]) if len(node.input) > 2 else None
        if node.op_type == "Resize" and is_default_domain(node) and known is not None:
            sizes = _sizes(made, node, onnx.numpy_helper.to_array(known).reshape(-1))
            if not sizes:
                return None
            name = f"sizes of Resize {number}"
            values = np.array(list(sizes.values()), np.int64)
            made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
            node.input[:] = [node.input[0], node.input[1], "", name]
            kept = [a for a in node.attribute if a.name != "axes"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("axes", list(sizes))])
            found = True
    return made if found else None


def _sizes(model: onnx.ModelProto, node: onnx.NodeProto, scales: np.ndarray) -> dict[int, int]:
    """Return by axis the result of a Resize of known sizes; none of a malformed node."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        graph = onnx.shape_inference.infer_shapes(bare).graph
    except NATIVE_ERRORS:
        return {}
    types = {i.name: i.type.tensor_type for i in (*graph.input, *graph.value_info)}
    dims = types[node.input[0]].shape.dim if node.input[0] in types else ()
    axes = next((list(a.ints) for a in node.attribute if a.name == "axes"), range(len(dims)))
    legal = len(axes) == len(scales) and all(-len(dims) <= a < len(dims) for a in axes)
    if not legal or not (np.isfinite(scales) & (scales > 0)).all():
        return {}
    pairs = zip(axes, scales, strict=True)
    known = [(a, s, dims[a].dim_value) for a, s in pairs if dims[a].HasField("dim_value")]
    return {a: int(np.float32(size) * s) for a, s, size in known}
