"""The importer against ONNX's own node tests, which the onnx wheel generates.

A case counts as `equal`, `refused` (with a PycError) or `wrong`; none may be wrong. Two changes
make more of the cases usable: inputs that only say how (axes, shapes) become constants of the
model, and a case of a newer opset is tried as opset 23 when onnx's checker takes it for one.
"""

import warnings
from collections import Counter
from functools import cache

import numpy as np
import onnx
from conftest import FULL, sample

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.interpreter import interpret
from pyc_mlir.dialects.pyc import new_context
from pyc_mlir.frontends.onnx_import import UnsupportedModel, import_onnx
from pyc_mlir.frontends.onnx_model import NEWEST

# How many cases must be equal: of all 1,884, and of the sample.
ALL_EQUAL, SAMPLE, SAMPLE_EQUAL = 1092, 500, 281
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


def array(value) -> np.ndarray:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def close(found: np.ndarray, wanted: np.ndarray, case) -> bool:
    relative, absolute = COARSE.get(wanted.dtype.name, (case.rtol, case.atol))
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


def outcome(case, context) -> str:
    model = as_readable_opset(case.model)
    if model is None:
        return "newer"
    (inputs, wanted), *_ = case.data_sets
    if any(isinstance(v, (list, type(None))) for v in (*inputs, *wanted)):
        return "not tensors"
    try:
        module, rest = import_case(model, [array(v) for v in inputs], context)
    except PycError:
        return "refused"
    assert module.operation.verify()
    found = interpret(module, rest)
    pairs = zip(found, map(array, wanted), strict=True)
    return "equal" if all(close(f, w, case) for f, w in pairs) else "wrong"


def test_onnx_node_cases(record_property) -> None:
    chosen = sample(cases(), SAMPLE)
    context = new_context()
    results = {case.name: outcome(case, context) for case in chosen}
    counts = Counter(results.values())
    record_property("onnx node cases", dict(counts))
    assert [name for name, result in results.items() if result == "wrong"] == []
    assert counts["equal"] >= (ALL_EQUAL if FULL else SAMPLE_EQUAL), counts
