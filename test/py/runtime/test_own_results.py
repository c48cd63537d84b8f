"""Results have memory of their own, in every entry, whatever value numbering made of them."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from pyc_mlir import TensorSpec, compile
from pyc_mlir.runtime.array import overlap, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import serving

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)
FOREIGN = """func.func @main(%x: tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>,
    tensor<?x4xf32>, tensor<?x4xf32>) {
  %y = stablehlo.tanh %x : tensor<?x4xf32>
  return %x, %y, %y, %x : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>
}"""


def results(x: Any) -> Any:
    """The same value, zeros, an argument, a constant: each twice or more, also in other shapes."""
    y = x + 1
    zeros = np.zeros((3, 4), np.float32)
    same = y, x + 1, y.reshape(12), np.copy(y), zeros, np.zeros_like(zeros)
    return *same, x, x, x.reshape(4, 3), WEIGHTS, WEIGHTS.reshape(12), y[1:], x[1:]


def dynamic(x: Any) -> Any:
    return x, np.tanh(x), x, np.tanh(x), np.tanh(x).reshape(-1, 2)


CASES = {
    "planned": (results, [TensorSpec("f32", 3, 4)], {}),
    "by IREE alone": (results, [TensorSpec("f32", 3, 4)], {"planner_mode": "iree"}),
    "arguments alone": (lambda x: (x, x), [TensorSpec("f32", 3, 4)], {}),
    "dynamic": (dynamic, [TensorSpec("f32", "n", 4)], {}),
    "entering at IREE": (FOREIGN, None, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_no_result_has_memory_of_another_one_or_of_an_argument(case):
    source, specs, options = CASES[case]
    program = compile(source, specs, device=Device("local-sync"), cache=False, **options)
    x = to_device(WEIGHTS + 7, program.device)
    arena = program._plans.current.arena
    assert arena is not None
    for values in (serving(program).run([x]), arena.call([x], arena.needs([x])), program(x)):
        for one, other in combinations([x, *values], 2):
            assert not overlap(one, other)
        want = [v.numpy().copy() for v in values]
        for value in values:
            value.host().fill(9)
        assert (x.numpy() == WEIGHTS + 7).all()
    for value, expected in zip(program(x), want, strict=True):
        np.testing.assert_array_equal(value.numpy(), expected)
