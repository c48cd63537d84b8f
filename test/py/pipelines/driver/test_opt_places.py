"""Every error of pyc-opt names the file and the line."""

import io
from pathlib import Path

import pytest

from pyc_mlir.tools.cli.opt_driver import OptDriver
from pyc_mlir.tools.cli.opt_flags import parse_flags


@pytest.mark.parametrize(
    "kind",
    [
        f"tensor<{2**62}x{2**62}xf32>",
        'tensor<4xf32, "encoding">',
        "tensor<99999999999999999999xf32>",
        "i99999999999",
        "tensor<*xi99999999999>",
        "vector<0xf32>",
    ],
)
@pytest.mark.parametrize("flag", ["--pyc-fuse", "--convert-pyc-to-linalg", "--canonicalize"])
def test_every_error_names_its_file_and_line(kind: str, flag: str, tmp_path: Path) -> None:
    text = f"func.func @f(%a: f32) {{ return }}\nfunc.func @g(%a: {kind}) {{ return }}\n"
    err = io.StringIO()
    done = OptDriver(parse_flags(["m.mlir", flag]), text.encode(), err).run()
    assert done.status == 0 or err.getvalue().startswith("m.mlir:2:"), err.getvalue()
