"""Subjects and their data: types and constness kept, indices in range, results finite."""

import numpy as np
import pytest
from kernel_works import lone

from pyc_mlir import nn
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import optimized
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES, tensor
from pyc_mlir.lab.sessions.session import works_of
from pyc_mlir.lab.sessions.subjects import (
    NOMINAL_DIMENSION,
    POSITIVE,
    SIGNED,
    subject_of_program,
    subject_of_work,
    values_of,
)
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp, work_id, work_text

I64, X = DTYPES["i64"], tensor("f32", 8, 16)
KERNELS = "pyc-select-kernels"


def model(x):
    w = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)
    return nn.softmax(nn.relu(x @ w + w[0]))


def test_a_work_is_a_program_of_one_group_that_computes_it():
    with optimized(Job.of(model, [np.zeros((4, 16), np.float32)], make_options())) as (
        made,
        context,
    ):
        names = [d.site.work for d in context.choices.log if d.site.pass_name == KERNELS]
        subjects = [subject_of_work(found.work) for found in works_of(made.module)]
    assert [s.graph.graph_id for s in subjects] == names
    for subject in subjects:
        assert subject.reference is not None and subject.arguments is not None
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(subject.source)
            (found,) = interpret(module, subject.arguments)
        assert np.array_equal(found, subject.reference.expected[0].value)
        assert subject.reference.problem([found.tobytes()]) == ""
        assert "result 0" in subject.reference.problem([(found + 1).tobytes()])
        assert "bytes" in subject.reference.problem([b""])


def test_constants_stay_constants_and_equal_seeds_give_equal_programs():
    work = Work((Input(X), Input(X, lambda: np.zeros(0))), (WorkOp("add", (0, 1), {}, X),))
    one, other = (subject_of_work(given) for given in (work, work_text(work)))
    assert one.source == other.source and one.workload == other.workload
    assert one.arguments is not None and len(one.arguments) == 1
    assert one.source.count("pyc.constant") == 1 and work_id(work) == one.graph.graph_id
    assert subject_of_work(work, seed=1).source != one.source


def test_indices_are_in_range():
    table, indices = tensor("f32", 5, 4), tensor("i64", 100)
    out = tensor("f32", 100, 4)
    work = Work((Input(table), Input(indices)), (WorkOp("gather", (0, 1), {"axis": 0}, out),))
    _, found = values_of(work, 0)
    assert found.dtype == I64 and set(found) == set(range(5))


@pytest.mark.parametrize("name", DTYPES)
def test_values_of_every_type(name):
    dtype = DTYPES[name]
    work = Work((Input(tensor(name, 32, 8)),), ())
    for floats in (SIGNED, POSITIVE):
        (found,) = values_of(work, 0, floats)
        assert found.dtype == dtype and found.shape == (32, 8)
        assert np.isfinite(found.astype(np.float64)).all() and len(np.unique(found)) > 1


def test_dynamic_dimensions_are_nominal_unless_told():
    work = lone("softmax", (None, 4), axis=-1)
    assert values_of(work, 0)[0].shape == (NOMINAL_DIMENSION, 4)
    assert values_of(work, 0, dims={"0[0]": 3})[0].shape == (3, 4)
    assert subject_of_work(work, dims={"0[0]": 3}).workload.dims == {"0[0]": 3}


def test_data_are_positive_where_results_would_not_be_finite():
    subject = subject_of_work(lone("log", (8, 8)))
    assert subject.workload.data["floats"] == POSITIVE
    assert subject.reference is not None and subject.reference.finite_share == 1


def test_a_work_of_constants_alone_is_refused():
    work = Work((Input(X, lambda: np.zeros(0)),), (WorkOp("relu", (0,), {}, X),))
    with pytest.raises(PycError) as error:
        subject_of_work(work)
    assert error.value.code is ReasonCode.BAD_ARGUMENT


def test_programs_that_enter_at_iree_have_a_row_too():
    text = (
        "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
        "  %b = math.absf %a : tensor<4xf32>\n  return %b : tensor<4xf32>\n}\n"
    )
    subject = subject_of_program(text)
    assert subject.graph.kind == "program" and subject.arguments is not None


def test_given_shapes_take_the_place_of_dynamic_ones():
    text = (
        "func.func @main(%a: tensor<?x4xf32>) -> tensor<?x4xf32> {\n"
        '  %b = "pyc.relu"(%a) : (tensor<?x4xf32>) -> tensor<?x4xf32>\n'
        "  return %b : tensor<?x4xf32>\n}\n"
    )
    for inputs, rows in ((None, NOMINAL_DIMENSION), ([(3, 4)], 3), ([np.zeros((5, 4))], 5)):
        subject = subject_of_program(text, inputs)
        assert subject.arguments is not None and subject.arguments[0].shape == (rows, 4)
