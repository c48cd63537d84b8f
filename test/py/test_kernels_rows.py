"""Row kernels: NaN and infinities as in numpy, work in place, refusals."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from kernel_runs import FLOAT, Kernels, targets

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.iree.array import to_device
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.iree.device import Device
from pyc_mlir.iree.executable import Executable
from pyc_mlir.pipelines.kernels import carrier, functions, values
from pyc_mlir.pipelines.kernels.rows import REDUCTIONS, Rows
from pyc_mlir.pipelines.kernels.rows_family import FAMILY
from pyc_mlir.pipelines.target import Target

NAMES = ("softmax", *REDUCTIONS)


@pytest.fixture(scope="module", params=targets(), ids=lambda t: t.name)
def kernels(request):
    return Kernels(request.param, [Rows(n, "m", 37).kernel(n) for n in NAMES])


@pytest.mark.parametrize("name", NAMES)
def test_special_numbers_follow_numpy(kernels, name):
    """A row each: NaN at the start, inside and in the tail, infinities, large, all equal."""
    x = np.random.default_rng(3).normal(size=(9, 37)).astype(np.float32)
    x[0, 0] = x[1, 20] = x[2, 36] = np.nan
    x[3, 5] = np.inf
    x[4, 5] = x[5, :] = -np.inf
    x[6, :] = 3e38 if name == "softmax" else 1e30
    x[7, :] = -100.0
    exact, _ = FAMILY.reference(Rows(name, "m", 37), [x])
    got = kernels.run(name, x)
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert np.allclose(got, exact, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_no_row_is_no_work(kernels):
    assert kernels.run("softmax", np.zeros((0, 37))).shape == (0, 37)


@pytest.mark.parametrize(
    "knobs",
    [
        {"operation": "median"},
        {"columns": 0},
        {"unroll": 0},
        {"operation": "max", "in_place": True},
    ],
)
def test_knobs_that_make_no_kernel_are_refused(knobs):
    with pytest.raises(PycError, match="row kernel: expected"):
        Rows(**{"operation": "softmax", "rows": 4, "columns": 4, **knobs})


def test_rows_beyond_the_cache_are_left_to_iree():
    target = Target.named("cpu-avx2")
    assert FAMILY.offers(Rows("sum", 4, 1024), target)
    assert "L2" in FAMILY.refusal(Rows("sum", 4, 1 << 20), target)


def test_the_documented_kernel_runs():
    """The code of docs/kernels.md, from the kernel to the vmfb."""
    text = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    code = "\n".join(re.findall(r"```python\n(def softmax.*?|shape = .*?)```", text, re.DOTALL))
    names = {**vars(carrier), **vars(values), **vars(functions), "inf": math.inf}
    names["compile_module"] = compile_module
    exec(code.replace("cpu-avx512", "cpu-avx2"), names)
    device = Device("local-sync")
    entry = Executable(names["vmfb"], device).entry("softmax", [FLOAT])
    x = np.random.default_rng(1).normal(size=(70, 21)).astype(np.float32)
    exact, bound = FAMILY.reference(Rows("softmax", "m", "n"), [x])
    assert (np.abs(entry([to_device(x, device)])[0].numpy() - exact) <= bound).all()
