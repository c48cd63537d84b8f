"""Memory that ends is told as such, with the limit and what to do; it is no fault of PyC."""

import os
import resource
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from conftest import sample

from pyc_mlir import PycError, ReasonCode
from pyc_mlir.dialects.errors import out_of_memory

CHAIN = "\n".join(
    f'  %{i + 1} = "pyc.sigmoid"(%{i}) : (tensor<8xf32>) -> tensor<8xf32>' for i in range(200)
)
TEXT = f"""func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = "pyc.relu"(%x) : (tensor<8xf32>) -> tensor<8xf32>
{CHAIN}
  return %200 : tensor<8xf32>
}}
"""
LIMITS = (150, 250, 350, 450, 550, 650)
TOOLS = {
    "pyc_opt": ("--pyc-fuse",),
    "pyc_compile": ("-o", "out"),
    "pyc_explain": (),
    "pyc_reduce": ("--check", "true {}"),
}


@pytest.mark.parametrize(("tool", "mebibytes"), sample(list(product(TOOLS, LIMITS)), 8))
@pytest.mark.full
def test_a_tool_with_little_memory(tool: str, mebibytes: int, tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(TEXT)
    code = f"import sys; from pyc_mlir.tools.{tool} import main; sys.exit(main())"
    most = mebibytes << 20
    done = subprocess.run(
        [sys.executable, "-c", code, "m.mlir", *TOOLS[tool]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
        timeout=120,
    )
    output_text = f"{done.returncode} {done.stderr[-2000:]}"
    assert done.returncode in (0, 1), output_text
    assert "fault of PyC" not in done.stderr and "Traceback" not in done.stderr, output_text
    named = "[OUT_OF_MEMORY]" in done.stderr and f"{mebibytes} MiB (`ulimit -v`)" in done.stderr
    # A module that fails no check is refused by pyc-reduce itself.
    assert done.returncode == 0 or named or tool == "pyc_reduce", output_text


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (MemoryError(), True),
        (MemoryError("Unable to allocate 4 TiB"), True),
        (RuntimeError("std::bad_alloc"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (RuntimeError("can't start new thread"), True),
        (ValueError("another thing"), False),
    ],
    ids=str,
)
def test_what_says_that_memory_ended(error: Exception, reported: bool) -> None:
    found = out_of_memory(error)
    assert (found is not None) == reported
    if found is not None:
        assert isinstance(found, PycError) and found.code is ReasonCode.OUT_OF_MEMORY
        assert "out of memory" not in found.message or "raise" in found.message


def test_limits_are_named() -> None:
    unlimited = out_of_memory(
        MemoryError(), lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    limited = out_of_memory(MemoryError(), lambda _: (1 << 30, 1 << 30))
    assert unlimited is not None and "ulimit" not in unlimited.message
    assert limited is not None and "1024 MiB (`ulimit -v`)" in limited.message
