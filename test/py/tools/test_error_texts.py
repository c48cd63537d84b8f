"""Errors name what to do, and the remedies work as they are written."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.external_data_helper import set_external_data
from pythons import python
from refusals import refused

import pyc_mlir
from pyc_mlir import PycError, ReasonCode
from pyc_mlir.dialects.util.files import require_writable
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.util.temp_dir import require_room

ROOT = Path(__file__).resolve().parents[3]


def model(node: onnx.NodeProto, inputs: dict[str, tuple[int, ...]], opset: int = 17) -> bytes:
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    out = helper.make_tensor_value_info(node.output[0], TensorProto.UNDEFINED, None)
    out.type.tensor_type.elem_type = TensorProto.INT64
    graph = helper.make_graph([node], "g", given, [out])
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def test_a_suppression_without_a_limit_keeps_nothing():
    """ONNX's default of `max_output_boxes_per_class` is 0."""
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores"], ["kept"])
    module = import_onnx(model(node, {"boxes": (1, 8, 4), "scores": (1, 2, 8)}))
    rng = np.random.default_rng(0)
    given = [rng.random(shape).astype(np.float32) for shape in ((1, 8, 4), (1, 2, 8))]
    (rows,) = pyc_mlir.interpret(module, given)
    assert rows.shape == (0, 3)


def test_weights_of_a_missing_file_are_asked_for(tmp_path):
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [64], np.ones(64, "f4").tobytes(), raw=True)
    set_external_data(tensor, "weights.bin", 0, 256)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [tensor])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    error = refused(ReasonCode.FILE_ACCESS, import_onnx, tmp_path / "model.onnx")
    assert "weights.bin" in str(error) and "beside the model" in error.remedy
    assert "export the model again" not in str(error)


def test_a_model_in_the_place_of_a_program_is_to_be_compiled(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x09 no archive")
    done = python("-m", "pyc_mlir.tools.pyc_run", path)
    assert done.returncode == 1
    assert f"pyc-compile {path} -o model.vmfb" in done.stderr


def test_a_disk_that_can_only_be_read_is_told_as_such(tmp_path, monkeypatch):
    found = os.statvfs(tmp_path)
    fixed = SimpleNamespace(f_flag=found.f_flag | os.ST_RDONLY, f_bavail=1 << 30, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda folder: fixed)
    monkeypatch.setattr(os, "access", lambda *given: False)
    with pytest.raises(PycError, match=r"Read-only file system; name one on a disk"):
        require_writable(tmp_path / "model.vmfb")
    with pytest.raises(PycError, match=r"Read-only file system.*TMPDIR"):
        require_room({"TMPDIR": str(tmp_path)})


def test_a_reason_code_prints_as_its_name():
    assert repr(ReasonCode.BAD_MODEL) == "ReasonCode.BAD_MODEL"


def test_remedies_name_what_exists():
    """No registry has PyC; an issue has an address; a form that nothing names is not asked for."""
    tops = ("dialects", "pipelines", "pyc_mlir", "tools")
    sources = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    named = re.compile(r"pip install '?pyc-mlir\[")
    assert [str(p) for p in sources if named.search(p.read_text())] == []
    assert "CONTRIBUTING.md" in ReasonCode.UNSUPPORTED_OP.value.remedy
    assert "## Issues" in (ROOT / "CONTRIBUTING.md").read_text()
    assert "if it names none" in ReasonCode.UNSUPPORTED_ATTRIBUTE.value.remedy
