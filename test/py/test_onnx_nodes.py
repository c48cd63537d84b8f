"""The importer against ONNX's own tests, which the onnx wheel generates or holds as files.

A case counts as `equal`, `refused` (with a PycError) or `wrong`; none may be wrong. Two changes
make more of the cases usable: inputs that only say how (axes, shapes) become constants of the
model, and a case of a newer opset is tried as opset 23 when onnx's checker takes it for one.
"""

import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import FULL, sample

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.interpreter import interpret
from pyc_mlir.dialects.pyc import new_context
from pyc_mlir.frontends.onnx_import import UnsupportedModel, import_onnx
from pyc_mlir.frontends.onnx_model import NEWEST

# How many cases must be equal: of all 1,884, and of the sample.
ALL_EQUAL, SAMPLE, SAMPLE_EQUAL = 1090, 500, 281
STORED_EQUAL, STORED_SAMPLE, STORED_SAMPLE_EQUAL = 104, 50, 39
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


# Models that are files: exported by PyTorch long ago (opset 6 to 9), and well-known networks.

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
STORED = [p for kind in ("pytorch-*", "simple") for p in sorted(DATA.glob(f"{kind}/*/model.onnx"))]


def stored_outcome(path: Path, context) -> str:
    try:
        module = import_onnx(path, context=context)
    except PycError:
        return "refused"
    folder = path.parent / "test_data_set_0"

    def arrays(kind: str) -> list[np.ndarray]:
        files = [folder / f"{kind}_{i}.pb" for i in range(len(list(folder.glob(f"{kind}_*"))))]
        return [array(onnx.TensorProto.FromString(f.read_bytes())) for f in files]

    found, wanted = interpret(module, arrays("input")), arrays("output")
    pairs = zip(found, wanted, strict=True)
    same = all(
        f.dtype == w.dtype and np.allclose(f, w, 1e-3, 1e-5, equal_nan=True) for f, w in pairs
    )
    return "equal" if same else "wrong"


def test_stored_models(record_property) -> None:
    chosen = sample(STORED, STORED_SAMPLE)
    context = new_context()
    results = {path.parent.name: stored_outcome(path, context) for path in chosen}
    counts = Counter(results.values())
    record_property("onnx stored models", dict(counts))
    assert [name for name, result in results.items() if result == "wrong"] == []
    assert counts["equal"] >= (STORED_EQUAL if FULL else STORED_SAMPLE_EQUAL), counts


@pytest.mark.parametrize("path", sorted(DATA.glob("light/*.onnx")), ids=lambda p: p.stem)
def test_well_known_networks_are_imported(path: Path) -> None:
    module = import_onnx(path)
    assert module.operation.verify()


def test_a_well_known_network_runs() -> None:
    module = import_onnx(DATA / "light" / "light_shufflenet.onnx")
    x = np.linspace(0, 1, 3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)
    stored = (DATA / "light" / "light_shufflenet_output_0.pb").read_bytes()
    wanted = array(onnx.TensorProto.FromString(stored))
    np.testing.assert_allclose(interpret(module, [x])[0], wanted, 1e-4)
