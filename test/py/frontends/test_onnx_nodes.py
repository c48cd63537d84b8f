"""The importer against ONNX's own tests, which the onnx wheel generates or holds as files.

A case counts as `equal`, `refused` (with a PycError) or `wrong`; none may be wrong.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import FULL, sample
from f16_ranges import SCALES, difference
from onnx_cases import array, cases, close, counted, import_case, tensors, with_dynamic_sizes

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.onnx.ops.node import HANDLERS
from pyc_mlir.frontends.onnx.reading import names_of

# How many cases must be equal: of all 1,884, and of the sample.
ALL_EQUAL, SAMPLE, SAMPLE_EQUAL = 1636, 500, 424
DYNAMIC_EQUAL, DYNAMIC_SAMPLE, DYNAMIC_SAMPLE_EQUAL = 1192, 250, 140
F16_SAMPLE, F16_EQUAL = 60, 100
STORED_EQUAL, STORED_SAMPLE, STORED_SAMPLE_EQUAL = 104, 50, 39


def outcome(case, context, dynamic: bool = False) -> str:
    found = tensors(case)
    if isinstance(found, str):
        return found
    model, inputs, wanted = found
    model = with_dynamic_sizes(model) if dynamic else model
    try:
        module, rest = import_case(model, inputs, context)
    except PycError:
        return "refused"
    assert module.operation.verify()
    found = counted(module, interpret(module, rest))
    pairs = zip(found, wanted, strict=True)
    return "equal" if all(close(f, w, case) for f, w in pairs) else "wrong"


def test_onnx_node_cases(record_property) -> None:
    chosen = sample(cases(), SAMPLE)
    context = new_context()
    results = {case.name: outcome(case, context) for case in chosen}
    counts = Counter(results.values())
    record_property("onnx node cases, imported and interpreted", dict(counts))
    assert [name for name, result in results.items() if result == "wrong"] == []
    assert counts["equal"] >= (ALL_EQUAL if FULL else SAMPLE_EQUAL), counts


def test_onnx_node_cases_of_dynamic_sizes(record_property) -> None:
    """Every size of the inputs but 1 is dynamic: right, or refused."""
    context = new_context()
    chosen = sample(cases(), DYNAMIC_SAMPLE)
    results = {case.name: outcome(case, context, dynamic=True) for case in chosen}
    counts = Counter(results.values())
    record_property("onnx node cases of dynamic sizes", dict(counts))
    assert [name for name, result in results.items() if result == "wrong"] == []
    assert counts["equal"] >= (DYNAMIC_EQUAL if FULL else DYNAMIC_SAMPLE_EQUAL), counts


def imported_whole(model: onnx.ModelProto) -> bool:
    """Return if PyC itself says what is rounded; of ONNX's functions their nodes say it."""
    return all(names_of(node)[1] in HANDLERS for node in model.graph.node)


def test_onnx_node_cases_over_the_range_of_f16(record_property) -> None:
    """A result of f32 within the range of f16 is f16's too."""
    context, counts = new_context(), Counter()
    wrong: dict[str, str] = {}
    plain = [c for c in cases() if "_expanded" not in c.name]
    for case in sample(plain, F16_SAMPLE):
        found = tensors(case)
        if isinstance(found, str) or not imported_whole(found[0]):
            continue
        model, inputs, _ = found
        try:
            _, rest = import_case(model, inputs, context)
            for scale in SCALES:
                differs = difference(model, rest, scale, context)
                counts["wrong" if differs else "equal"] += 1
                wrong |= {f"{case.name}, times {scale}": differs} if differs else {}
        except PycError:
            counts["refused"] += 1
    record_property("onnx node cases over the range of f16", dict(counts))
    assert wrong == {}
    assert counts["equal"] >= F16_EQUAL


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


@pytest.mark.full
def test_stored_models(record_property) -> None:
    chosen = sample(STORED, STORED_SAMPLE)
    context = new_context()
    results = {path.parent.name: stored_outcome(path, context) for path in chosen}
    counts = Counter(results.values())
    record_property("onnx stored models, imported and interpreted", dict(counts))
    assert [name for name, result in results.items() if result == "wrong"] == []
    assert counts["equal"] >= (STORED_EQUAL if FULL else STORED_SAMPLE_EQUAL), counts


@pytest.mark.parametrize("path", sorted(DATA.glob("light/*.onnx")), ids=lambda p: p.stem)
@pytest.mark.sampled(3)
def test_well_known_networks_are_imported(path: Path) -> None:
    module = import_onnx(path)
    assert module.operation.verify()


def test_a_well_known_network_runs() -> None:
    module = import_onnx(DATA / "light" / "light_shufflenet.onnx")
    x = np.linspace(0, 1, 3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)
    stored = (DATA / "light" / "light_shufflenet_output_0.pb").read_bytes()
    wanted = array(onnx.TensorProto.FromString(stored))
    np.testing.assert_allclose(interpret(module, [x])[0], wanted, 1e-4)
