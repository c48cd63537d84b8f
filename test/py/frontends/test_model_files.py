"""Weights in files beside a model: only its own folder's, whole, and not too often."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx_models import node_model

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.onnx.weights import MAX_USES, FileRange, check_parts, inside, read_part

F = np.float32


def place(tensor: TensorProto, **fields: object) -> None:
    """Move a tensor's data to a file."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=str(value))


def sums(folder: Path, *places: Mapping[str, object], count: int = 3) -> Path:
    """A model that adds weights of `count` f32 each to its input, and where they are."""
    proto = node_model("Sum", [np.ones(count, F)], [np.ones(count, F) for _ in places], {})
    for tensor, fields in zip(proto.graph.initializer, places, strict=True):
        place(tensor, **fields)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def refused(model: Path | bytes, code: ReasonCode = ReasonCode.BAD_MODEL) -> str:
    with pytest.raises(PycError) as caught:
        import_onnx(model)
    assert caught.value.code is code
    return caught.value.message


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w").write_bytes(np.arange(12, dtype=F).tobytes())
    return tmp_path / "model"


def test_parts_of_one_file(folder):
    path = sums(folder, {"location": "w", "offset": 12, "length": 12}, {"location": "w"})
    (result,) = interpret(import_onnx(path), [np.zeros(3, F)])
    np.testing.assert_array_equal(result, [3, 5, 7])


def test_weights_in_a_folder_of_the_model_and_through_links_within(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "w").write_bytes(np.full(3, 2, F).tobytes())
    os.symlink(folder / "deep", folder / "link")
    path = sums(folder, {"location": "deep/er/w"}, {"location": "link/er/../er/w"})
    (result,) = interpret(import_onnx(path), [np.zeros(3, F)])
    np.testing.assert_array_equal(result, [4, 4, 4])


@pytest.mark.parametrize(
    "location", ["../secret", "./../secret", "/etc/hostname", "link", "up/secret", "",
                 ".", "loop", "pipe", "w\0", "a" * 5000, "w/w"],
)  # fmt: skip
def test_other_places_are_refused(folder, location):
    (folder.parent / "secret").write_bytes(bytes(12))
    os.symlink("../secret", folder / "link")
    os.symlink("..", folder / "up")
    os.symlink("loop", folder / "loop")
    os.mkfifo(folder / "pipe")
    message = refused(sums(folder, {"location": location}))
    assert "inside the model's directory" in message and len(message) < 1000


def test_files_that_are_not_there(folder):
    absent = sums(folder, {"location": "absent"})
    assert "inside the model's directory" in refused(absent, ReasonCode.FILE_ACCESS)
    model = sums(folder, {"location": "w"}).read_bytes()
    assert "give the model by its path" in refused(model)


@pytest.mark.parametrize(
    "fields",
    [{"offset": 40}, {"offset": 1 << 62}, {"offset": -4}, {"length": 16}, {"length": 8},
     {"offset": "1_0"}, {"offset": "9" * 5000}, {"length": -1}, {"offset": "x"}, {"length": "٣"}],
)  # fmt: skip
def test_parts_that_are_too_long_or_no_numbers(folder, fields):
    assert "`c0`" in refused(sums(folder, {"location": "w", **fields})) or "48 bytes" in refused(
        sums(folder, {"location": "w", **fields})
    )


def test_parts_that_overlap(folder):
    message = refused(sums(folder, {"location": "w"}, {"location": "w", "offset": 4}))
    assert "equal or apart" in message
    # Through another name it is the same file.
    os.symlink("w", folder / "also")
    assert "equal or apart" in refused(
        sums(folder, {"location": "w"}, {"location": "also", "offset": 4})
    )


def test_weights_that_are_used_too_often(folder):
    (folder / "w").write_bytes(bytes(12))
    import_onnx(sums(folder, *[{"location": "w"}] * MAX_USES))
    assert f"{MAX_USES} times" in refused(sums(folder, *[{"location": "w"}] * (MAX_USES + 1)))


def test_constants_and_inner_graphs_keep_to_the_folder_too(folder):
    tensor = onnx.numpy_helper.from_array(np.ones(3, F), "v")
    place(tensor, location="../secret")
    constant = onnx.helper.make_node("Constant", [], ["c"], value=tensor)
    graph = onnx.helper.make_graph([constant], "g", [], [])
    proto = node_model("Relu", [np.ones(3, F)], [], {})
    for node in (constant, onnx.helper.make_node("If", ["x0"], ["z"], then_branch=graph)):
        hostile = onnx.ModelProto()
        hostile.CopyFrom(proto)
        hostile.graph.node.append(node)
        path = folder / "model.onnx"
        path.write_bytes(hostile.SerializeToString())
        assert "inside the model's directory" in refused(path)


def test_what_takes_a_files_place_is_not_read(folder):
    """After the look at the parts, before they are read."""
    part = FileRange(inside(folder, "w"), 0, 12)
    check_parts([part])
    out = np.zeros(3, F)
    read_part(folder, part, out)
    np.testing.assert_array_equal(out, [0, 1, 2])
    for change in ("link", "pipe", "short", "gone"):
        (folder / "w").unlink(missing_ok=True)
        if change == "link":
            os.symlink("/etc/hostname", folder / "w")
        elif change == "pipe":
            os.mkfifo(folder / "w")
        elif change == "short":
            (folder / "w").write_bytes(b"1234")
        with pytest.raises((OSError, ValueError)):
            read_part(folder, part, out)


TWENTY_GIB = """
import resource, sys
from pathlib import Path
from pyc_mlir.frontends.onnx.importer import HANDLERS
from pyc_mlir.frontends.onnx.model import prepare
from pyc_mlir.frontends.onnx.reading import read_model
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
prepared = prepare(*read_model(Path(sys.argv[1])), set(HANDLERS))
print(sum(part.length for _, part in prepared.weights.outer.values()))
"""


@pytest.mark.full
def test_a_model_of_twenty_gibibytes_is_within_the_bounds(folder):
    """All checks pass, and none of them reads the weights."""
    each = 1 << 30
    places = [{"location": "w", "offset": i * each * 4, "length": each * 4} for i in range(5)]
    path = sums(folder, *places)
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        tensor.dims[:] = [each]
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = each
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = each
    path.write_bytes(proto.SerializeToString())
    os.truncate(folder / "w", 20 << 30)  # a file of holes
    run = subprocess.run(
        [sys.executable, "-c", TWENTY_GIB, str(path)], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.strip() == str(20 << 30), run.stderr
