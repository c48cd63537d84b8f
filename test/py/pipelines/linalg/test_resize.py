"""What pyc.resize becomes: repetitions are broadcasts, the rest gathers along an axis."""

import pytest
from op_modules import module_of

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import tensor
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.linalg.convert_to_linalg import ConvertToLinalg

IMAGE = tensor("f32", 1, 3, 4, 5)
DYNAMIC = tensor("f32", None, 3, None, None)
TWICE = {"sizes": (-1, -1), "scales": (2.0, 2.0)}


def converted(x, **params) -> str:
    with new_context() as context, ir.Location.unknown():
        module = module_of(lambda b, v: b.resize(v, **params), [x], context)
        ConvertToLinalg().run(module, PassContext())
        return str(module)


@pytest.mark.parametrize("x", [IMAGE, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize("how", ["half_pixel", "asymmetric"])
def test_nearest_by_an_integer_is_a_broadcast(x, how) -> None:
    rounding = "floor" if how == "asymmetric" else "round_prefer_floor"
    text = converted(x, coordinates=how, rounding=rounding, **TWICE)
    assert text.count("linalg.generic") == 1 and "tensor.extract" not in text


def test_an_axis_that_stays_is_not_read_again() -> None:
    text = converted(IMAGE, sizes=(4, 9), mode="linear")
    assert text.count("linalg.generic") == 1 and text.count("tensor.extract ") == 2
    assert "linalg.generic" not in converted(IMAGE, sizes=(4, 5), mode="linear")


@pytest.mark.parametrize(
    ("sizes", "between"), [((8, 10), "4x10"), ((2, 10), "2x5"), ((8, 3), "4x3")]
)
def test_the_axis_that_makes_less_comes_first(sizes: tuple[int, int], between: str) -> None:
    text = converted(IMAGE, sizes=sizes, mode="linear")
    first, second = (line for line in text.splitlines() if "-> tensor<1x3x" in line and "}" in line)
    assert f"1x3x{between}xf32" in first
    assert f"1x3x{sizes[0]}x{sizes[1]}xf32" in second


def test_f16_is_rounded_once() -> None:
    text = converted(tensor("f16", 1, 3, 4, 5), sizes=(8, 10), mode="linear")
    assert "tensor<1x3x4x10xf32>" in text and "tensor<1x3x4x10xf16>" not in text
    assert text.count("arith.truncf") == 1
