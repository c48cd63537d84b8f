"""ONNX's own node tests, as models and arrays: what the importer and whole compiles are tested by.

Two changes make more of the cases usable: inputs that only say how (axes, shapes) become constants
of the model, and a case of a newer opset is tried as opset 23 when onnx's checker takes it for one.
"""

import warnings
from functools import cache

import numpy as np
import onnx

from pyc_mlir.frontends.onnx.importer import UnsupportedModel, import_onnx
from pyc_mlir.frontends.onnx.model import NEWEST

# The oracle rounds once; onnx's references round 16-bit floats after each step.
COARSE = {"float16": (2**-9, 2**-11), "bfloat16": (2**-6, 2**-8)}


@cache
def cases() -> list:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return collect_testcases(None)


def as_readable_opset(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy, of opset 23 if it is newer; None if it is no legal model of opset 23."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    newer = [o for o in copy.opset_import if o.domain == "" and o.version > NEWEST]
    for opset in newer:
        opset.version = NEWEST
    if newer:
        copy.ir_version = min(copy.ir_version, 11)
        try:
            onnx.checker.check_model(copy, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            return None
    return copy


def freeze_small(model: onnx.ModelProto, inputs: list) -> list:
    """Make constants of the inputs of rank 0 and 1; the inputs that are left."""
    named = list(zip(list(model.graph.input), inputs, strict=True))
    kept = [(info, value) for info, value in named if value.ndim > 1]
    for info, value in named:
        if value.ndim <= 1:
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, info.name))
    del model.graph.input[:]
    model.graph.input.extend(info for info, _ in kept)
    return [value for _, value in kept]


def import_case(model: onnx.ModelProto, inputs: list, context) -> tuple:
    try:
        return import_onnx(model, context=context), inputs
    except UnsupportedModel as error:
        if not any("when the model runs" in f.why for f in error.findings):
            raise
    rest = freeze_small(model, inputs)
    return import_onnx(model, context=context), rest


def with_dynamic_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose inputs have dynamic sizes but for 1, equal ones by one name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in copy.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value != 1:
                dim.dim_param = f"n{dim.dim_value}"
    for info in (*copy.graph.output, *copy.graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            dim.Clear()
    return copy


def array(value) -> np.ndarray:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def close(found: np.ndarray, wanted: np.ndarray, case) -> bool:
    relative, absolute = COARSE.get(wanted.dtype.name, (case.rtol, case.atol))
    if case.name.startswith("test_dft") and wanted.size:
        # numpy computes these transforms in f32: where terms cancel, it leaves roundings of them.
        absolute = max(absolute, 2**-23 * float(np.abs(wanted).max()))
    return (
        found.dtype == wanted.dtype
        and found.shape == wanted.shape
        and np.allclose(
            found.astype(np.float64),
            wanted.astype(np.float64),
            max(relative, case.rtol),
            max(absolute, case.atol),
            equal_nan=True,
        )
    )


def counted(module, found: list[np.ndarray]) -> list[np.ndarray]:
    """The results, without the rows of buffers that do not count and without the counts."""
    function = module.body.operations[0]
    names = [str(a["pyc.name"].value) for a in function.attributes["res_attrs"]]
    by_name = dict(zip(names, found, strict=True))
    plain = [name for name in names if not name.endswith(".count")]
    out = []
    for name in plain:
        count = by_name.get(f"{name}.count")
        out.append(by_name[name] if count is None else by_name[name][: int(count)])
    return out


# onnx's reference takes size * scale = 2.4 for the length of the result; PyC, as onnxruntime and
# torch, takes 2, the result's (test/py/frameworks/test_resize_frameworks.py).
AS_ONNXRUNTIME = frozenset(
    f"test_resize_downsample_scales_{mode}_align_corners" for mode in ("linear", "cubic")
)


def tensors(case) -> tuple[onnx.ModelProto, list[np.ndarray], list[np.ndarray]] | str:
    """The model of a case, its inputs and what it answers; why not, for a case that is not used."""
    if case.name in AS_ONNXRUNTIME:
        return "read as onnxruntime does"
    model = as_readable_opset(case.model)
    if model is None:
        return "newer"
    (inputs, wanted), *_ = case.data_sets
    if any(isinstance(v, (list, type(None))) for v in (*inputs, *wanted)):
        return "not tensors"
    return model, [array(v) for v in inputs], [array(v) for v in wanted]
