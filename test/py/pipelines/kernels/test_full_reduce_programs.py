"""Reductions, argmax and transposes as kernels of whole programs, equal to numpy."""

import numpy as np
import pytest
from kernel_runs import any_target, targets

from pyc_mlir.api import compile
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.runtime.device import Device

SITE = "pyc-select-kernels"
PROGRAMS = {
    "columns:reduce_sum": (lambda x: x.sum(1), lambda x: x.sum(1), (3, 50, 40)),
    "columns:reduce_max": (lambda x: x.max(0), lambda x: x.max(0), (3, 50, 40)),
    "full_reduce:reduce_sum": (lambda x: x.sum(), lambda x: x.sum(), (3, 50, 40)),
    "argmax:argmax": (lambda x: x.argmax(2), lambda x: x.argmax(2), (3, 50, 40)),
    "transpose:transpose": (
        lambda x: x.transpose((0, 2, 1)),
        lambda x: x.transpose(0, 2, 1),
        (3, 50, 40),
    ),
}


def chosen(program):
    return [d.chosen for d in program.artifact.decisions if d.site.pass_name == SITE]


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.full
def test_a_program_equals_numpy(name, target):
    function, reference, shape = PROGRAMS[name]
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    program = compile(function, [x], target=target, device=Device("local-sync"))
    assert chosen(program) == [name]
    got, exact = np.asarray(program(x)), reference(x.astype(np.float64))
    assert got.shape == exact.shape and np.allclose(got, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["columns:reduce_sum", "argmax:argmax", "transpose:transpose"])
@pytest.mark.sampled(2)
def test_a_dynamic_batch_runs_at_every_size(name):
    function, reference, shape = PROGRAMS[name]
    spec = TensorSpec("f32", None, *shape[1:])
    program = compile(function, [spec], target=any_target(), device=Device("local-sync"))
    assert chosen(program) == [name]
    for batch in (1, 2, 7, 0):
        x = np.random.default_rng(batch).normal(size=(batch, *shape[1:])).astype(np.float32)
        got, exact = np.asarray(program(x)), reference(x.astype(np.float64))
        assert got.shape == exact.shape and np.allclose(got, exact, rtol=1e-5, atol=1e-5)
