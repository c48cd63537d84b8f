"""`.mlir` files and texts: parsed with their names, refused with the place and a caret."""

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.mlir_text import parse_mlir

GOOD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
BAD = """func.func @main(%x: tensor<4xf32>) {
  %0 = "pyc.relu"(%x) : (tensor<4xf32>) -> tensor<5xf32>
  return
}
"""


def refused(source, code) -> str:
    with pytest.raises(PycError) as caught:
        parse_mlir(source, new_context())
    assert caught.value.code is code
    return caught.value.message


def test_text_parses():
    assert '"pyc.relu"' in str(parse_mlir(GOOD, new_context()))


def test_a_file_keeps_its_name(tmp_path):
    path = tmp_path / "model.mlir"
    path.write_text(GOOD)
    module = parse_mlir(str(path), new_context())
    first = entry_function(module).regions[0].blocks[0].operations[0]
    assert first.location.filename == str(path) and first.location.start_line == 2
    path.write_text(BAD)
    message = refused(path, ReasonCode.INVALID_IR)
    assert message.startswith(f"{path}:2:8: error: pyc.relu: expected a result of type")


def test_errors_show_a_caret():
    lines = refused(BAD, ReasonCode.INVALID_IR).splitlines()
    assert lines[0].startswith("<text>:2:8: error: pyc.relu: expected a result")
    assert lines[1:3] == [BAD.splitlines()[1], " " * 7 + "^"]


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ('"layer7/relu"', "<unknown>:0"),
        ('"layer7/relu"("m.py":3:4)', "m.py:3:4"),
        ('fused["layer7/relu", "m.py":3:4]', "m.py:3:4"),
        ('callsite("layer7/relu" at "m.py":3:4)', "<unknown>:0"),
    ],
)
def test_errors_name_the_op(location, place):
    text = BAD.replace("tensor<5xf32>\n", f"tensor<5xf32> loc({location})\n")
    first = refused(text, ReasonCode.INVALID_IR).splitlines()[0]
    assert first.startswith(f'{place}: error: "layer7/relu": pyc.relu: expected a result')


def test_custom_syntax_is_explained():
    text = GOOD.replace('"pyc.relu"(%x)', "pyc.relu %x")
    assert "written generically" in refused(text, ReasonCode.INVALID_IR)


def test_deep_nesting_is_refused():
    assert "nested" in refused("module {" * 501, ReasonCode.INVALID_IR)


@pytest.mark.parametrize("data", [b"ML\xefR\0", b"\xff\xfe"])
def test_files_that_are_no_text(tmp_path, data):
    path = tmp_path / "model.mlir"
    path.write_bytes(data)
    code = ReasonCode.BAD_MODEL if data.startswith(b"ML") else ReasonCode.INVALID_IR
    assert str(path) in refused(path, code)


@pytest.mark.full
def test_a_missing_file(tmp_path):
    assert "No such file" in refused(tmp_path / "none.mlir", ReasonCode.FILE_ACCESS)
