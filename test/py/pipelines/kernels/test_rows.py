"""Row kernels: NaN and infinities as in numpy, work in place, refusals."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from family_checks import computed
from kernel_runs import FLOAT, Kernels, agrees, targets

from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.pipelines.kernels.families.reduce import REDUCTIONS
from pyc_mlir.pipelines.kernels.families.rows import EXPONENTIALS, WEIGHTS, Rows
from pyc_mlir.pipelines.kernels.lang import carrier, functions, values
from pyc_mlir.pipelines.kernels.lang.pointwise import FULL, Pointwise, PointwiseStep, Read
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable

NAMES = ("softmax", "log_softmax", *REDUCTIONS)


@pytest.fixture(scope="module", params=targets(__name__), ids=lambda t: t.name)
def kernels(request):
    return Kernels(request.param, [Rows(n, "m", 37).kernel(n) for n in (*NAMES, *WEIGHTS)])


@pytest.mark.parametrize("name", NAMES)
def test_special_numbers_follow_numpy(kernels, name):
    """A row each: NaN at the start, inside and in the tail, infinities, large, all equal."""
    x = np.random.default_rng(3).normal(size=(9, 37)).astype(np.float32)
    x[0, 0] = x[1, 20] = x[2, 36] = np.nan
    x[3, 5] = np.inf
    x[4, 5] = x[5, :] = -np.inf
    x[6, :] = 3e38 if name in EXPONENTIALS else 1e30
    x[7, :] = -100.0
    along = {"axes": (1,), "keepdims": False}
    want = computed(f"reduce_{name}", x, **along) if name in REDUCTIONS else computed(name, x)
    exact, got = want.value, kernels.run(name, x)
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert np.allclose(got, exact, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", WEIGHTS)
def test_norms_of_special_numbers_follow_numpy(kernels, name):
    """A row each: NaN at the start and in the tail, infinities, both, all equal, large, small."""
    random = np.random.default_rng(4)
    x = random.normal(size=(9, 37)).astype(np.float32)
    x[0, 0] = x[1, 36] = np.nan
    x[2, 5] = x[4, 20] = np.inf
    x[3, 36] = x[4, 21] = x[5, :] = -np.inf
    x[6, :] = -100.0
    x[7] *= np.float32(1e15)
    x[8] *= np.float32(1e-15)
    weights = random.normal(size=(len(WEIGHTS[name]), 37)).astype(np.float32)
    want = computed(name, x, *weights)
    agrees(kernels.run(name, x, *weights), want.value, want.tolerance)


PROGRAMS = {
    # softmax(x * 0.125 + mask), one mask for 3 heads of 4 rows
    "attention": Rows(
        "softmax",
        "m",
        37,
        prologue=Pointwise(
            (Read(down=True, along=True, each=12),),
            (0.125,),
            (PointwiseStep("mul", (0, 2)), PointwiseStep("add", (3, 1))),
        ),
    ),
    # layernorm(x + residual), then gelu
    "residual": Rows(
        "layernorm",
        "m",
        37,
        prologue=Pointwise((FULL,), (), (PointwiseStep("add", (0, 1)),)),
        epilogue=Pointwise((), (), (PointwiseStep("gelu", (0,)),)),
    ),
    # sqrt(mean x^2)
    "root": Rows(
        "mean",
        "m",
        37,
        prologue=Pointwise((), (), (PointwiseStep("mul", (0, 0)),)),
        epilogue=Pointwise((), (), (PointwiseStep("sqrt", (0,)),)),
    ),
}


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_what_a_mask_hides_has_no_share(target):
    run = Kernels(target, [PROGRAMS["attention"].kernel("attention")])
    values = np.random.default_rng(5)
    x = values.normal(size=(24, 37)).astype(np.float32)
    mask = np.where(values.random((2, 37)) < 0.3, -np.inf, 0.0).astype(np.float32)
    share = run.run("attention", x, mask)
    hidden = np.repeat(mask, 12, 0)
    want = computed(
        "softmax", computed("add", computed("mul", x, np.array(0.125, np.float32)), hidden)
    )
    assert np.allclose(share, want.value, atol=1e-6) and (share[np.isinf(hidden)] == 0).all()


def test_the_result_may_take_over_what_is_not_read_again():
    """Softmax keeps powers where the result will be; what the epilogue reads must not be there."""
    taken = {n: [r for _, r in k.kernel("k").in_place] for n, k in PROGRAMS.items()}
    assert taken == {"attention": ["x"], "residual": ["x", "before0"], "root": []}
    add = Pointwise((FULL,), (), (PointwiseStep("add", (0, 1)),))
    for operation, names in (("softmax", ["x"]), ("rmsnorm", ["x", "after0"])):
        made = Rows(operation, 4, 8, epilogue=add).kernel("k")
        assert [r for _, r in made.in_place] == names


def test_no_row_is_no_work(kernels):
    assert kernels.run("softmax", np.zeros((0, 37))).shape == (0, 37)


@pytest.mark.full
def test_the_documented_kernel_runs():
    """The code of docs/kernels.md, from the kernel to the vmfb."""
    text = (Path(__file__).parents[4] / "docs" / "kernels.md").read_text()
    code = "\n".join(re.findall(r"```python\n(def softmax.*?|shape = .*?)```", text, re.DOTALL))
    names = {**vars(carrier), **vars(values), **vars(functions), "inf": math.inf}
    names["compile_module"] = compile_module
    exec(code.replace("cpu-avx512", "cpu-avx2"), names)
    device = Device("local-sync")
    entry = Executable(names["vmfb"], device).entry("softmax", [FLOAT])
    x = np.random.default_rng(1).normal(size=(70, 21)).astype(np.float32)
    want = computed("softmax", x)
    agrees(entry([to_device(x, device)])[0].numpy(), want.value, want.tolerance)
