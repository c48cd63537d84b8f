"""Reading the text of a work back."""

import numpy as np
import pytest
from kernel_works import lone

import pyc_mlir.dialects.ops  # noqa: F401
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, parse_type, tensor
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp, parse_work, work_id, work_text

X, W = tensor("f32", 8, 16), tensor("f32", 16, 4)
OUT = tensor("f32", 8, 4)
HALF = Input(tensor("f32"), lambda: np.array(0.5, np.float32))
WORKS = {
    "layer": Work(
        (Input(X), Input(W, lambda: np.zeros((16, 4), np.float32)), HALF),
        (
            WorkOp("matmul", (0, 1), {}, OUT),
            WorkOp("add", (3, 2), {}, OUT),
            WorkOp("gelu", (4,), {"approximate": "tanh"}, OUT),
        ),
        ("matmul", "reduce_sum"),
    ),
    "axis": lone("softmax", (None, 4), axis=-1),
    "dtype": Work((Input(X),), (WorkOp("cast", (0,), {"dtype": DTYPES["bf16"]}, X),)),
    "lists": lone("transpose", (2, 3, 4), permutation=(2, 0, 1)),
    "no elements": lone("transpose", (), permutation=()),
    "floats": lone("pad", (2, 3), low=(0, 1), high=(1, 0), value=float("-inf")),
    "windows": lone(
        "max_pool2d",
        (1, 8, 8, 3),
        kernel=(2, 2),
        strides=(2, 2),
        pads=(0, 0, 0, 0),
        dilations=(1, 1),
        layout="NHWC",
    ),
    "shared": Work((Input(X),), (WorkOp("mul", (0, 0), {}, X), WorkOp("add", (1, 1), {}, X))),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_text_gives_its_work_again(name):
    work = WORKS[name]
    again = parse_work(work_text(work))
    assert work_text(again) == work_text(work) and work_id(again) == work_id(work)
    assert [i.array is None for i in again.inputs].count(False) == sum(
        i.array is not None for i in work.inputs
    )


def test_a_constant_of_a_text_has_no_contents():
    work = parse_work(work_text(WORKS["layer"]))
    (first, *_) = [i.array for i in work.inputs if i.array is not None]
    with pytest.raises(PycError, match="contents"):
        first()


@pytest.mark.parametrize("name", DTYPES)
def test_types(name):
    for shape in ((), (3,), (None, 2, None)):
        assert parse_type(str(tensor(name, *shape))) == tensor(name, *shape)


@pytest.mark.parametrize(
    "text",
    ["", "work 0\n", "work 1\nnonsense", "work 1\n() input tensor<4xq7>", "work 1\n() input 4",
     "work 1\n() input tensor<4xf32>\n(%0) nothing : tensor<4xf32>",
     "work 1\n() input tensor<4xf32>\n(%0) softmax{axis=x} : tensor<4xf32>",
     "work 1\n() input tensor<4xf32>\n(%9) relu : tensor<4xf32>"],
)  # fmt: skip
def test_what_is_no_work_is_refused(text):
    with pytest.raises(PycError) as error:
        parse_work(text)
    assert error.value.code is ReasonCode.BAD_ARGUMENT
