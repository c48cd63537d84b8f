"""Programs that read more tensors than one dispatch binds are computed in parts."""

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.iree.foreign import compile_plain, plain_flags
from pyc_mlir.pipelines.target.target import MOST_BINDINGS, Target
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable

NUMBER = 40
NAMES = [f"%a{i}" for i in range(NUMBER)]
ARRAYS = [np.full((4, 4), i, np.float32) for i in range(NUMBER)]


def sum_text() -> str:
    arguments = ", ".join(f"{name}: tensor<4x4xf32>" for name in NAMES)
    sums = [
        f"%s{i} = stablehlo.add {f'%s{i - 1}' if i > 1 else NAMES[0]}, {NAMES[i]} : tensor<4x4xf32>"
        for i in range(1, NUMBER)
    ]
    body = "\n".join(sums)
    return (
        f"func.func @main({arguments}) -> tensor<4x4xf32> {{\n{body}\n"
        f"return %s{NUMBER - 1} : tensor<4x4xf32>\n}}"
    )


def total(*values):
    return sum(values[1:], start=values[0])


def largest(*values):
    out = values[0]
    for value in values[1:]:
        out = np.maximum(out, value)
    return out


def test_own_groups_and_kernels():
    """At the limit and above it, behind a product, in front of a reduction, side by side."""

    def program(*v):
        return (
            total(*v[: MOST_BINDINGS - 1]),
            total(*v[:MOST_BINDINGS]),
            largest(*v).sum(axis=1),
            total(v[0] @ v[1], *v[2:]),
            np.concatenate([x * np.float32(2) for x in v], axis=1),
        )

    for got, wanted in zip(
        pyc_mlir.compile(program, ARRAYS)(*ARRAYS), program(*ARRAYS), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("setting", ["aggressive", "unfused"])
def test_dispatches_of_a_foreign_program(setting, tmp_path):
    path = tmp_path / "sum.mlir"
    path.write_text(sum_text())
    recipe = pyc_mlir.Recipe({"raise:module": "iree", "iree-fusion:module": setting})
    program = pyc_mlir.compile(path, recipe=recipe)
    np.testing.assert_array_equal(program(*ARRAYS), total(*ARRAYS))


def test_iree_alone_still_needs_it():
    """Fails once IREE is mended: then the workaround can go."""
    cpu = Target.named("cpu")
    with pytest.raises(PycError, match=f"binding count {NUMBER + 1} > {MOST_BINDINGS}"):
        Executable(compile_plain(sum_text().encode(), plain_flags(cpu)), Device("local-sync"))
