"""Programs are right under `python -O`, which leaves assertions out."""

import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np
import pyc_mlir
from pyc_mlir.pipelines.choices.choices import Recipe

assert False, "this process runs assertions"
x = np.linspace(-2, 2, 4096, dtype=np.float32).reshape(64, 64)
for f in (lambda x: np.maximum(x * 2 + 1, x[0]), lambda x: np.exp(x) @ x + x.sum(0)):
    got, want = pyc_mlir.compile(f, [x], target="cpu-avx2")(x), f(x)
    if not np.allclose(got, want, 1e-4, 1e-3):
        raise SystemExit(f"expected {want}, got {got}")
"""


@pytest.mark.full
def test_programs_are_right_without_assertions() -> None:
    command = [sys.executable, "-O", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
