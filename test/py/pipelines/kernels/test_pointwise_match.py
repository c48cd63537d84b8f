"""Groups of ops as kernels: how much of a group is offered, and what is read how.

In a full run the kernels run too, and compute what the ops compute.
"""

import numpy as np
import pytest
from conftest import FULL as FULL_RUN
from family_checks import Case, check, fed
from kernel_runs import any_target
from kernel_works import lone

from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.kernels.families import (
    elementwise as elementwise_family,
)
from pyc_mlir.pipelines.kernels.families import (
    rows as rows_family,
)
from pyc_mlir.pipelines.kernels.knobs import decode, encode
from pyc_mlir.pipelines.kernels.lang.pointwise import COLUMN, FULL, NUMBER, ROW, Read
from pyc_mlir.pipelines.kernels.match import MatrixView
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import F32, Input, Work, WorkOp

TARGET = Target.named("cpu-avx512")
FULL_2X3X8 = (2, 3, 8)


def group(shapes, *ops, constants=None):
    """Ops in order, each (name, operands, params); an operand is the number of a value."""
    types = [TensorType(tuple(s), F32) for s in shapes]
    arrays = {n: np.asarray(a, np.float32) for n, a in (constants or {}).items()}
    inputs = [
        Input(t, (lambda a=arrays[n]: a) if n in arrays else None) for n, t in enumerate(types)
    ]
    nodes = []
    for name, operands, *rest in ops:
        params = OPS[name].bind(rest[0] if rest else {})
        types.append(OPS[name].infer(*(types[o] for o in operands), **params))
        nodes.append(WorkOp(name, tuple(operands), params, types[-1]))
    return Work(tuple(inputs), tuple(nodes))


def holds(family, work, covers):
    """One offer, for the first `covers` ops; in a full run it computes them."""
    (offer,) = family.match(work, TARGET)
    assert offer.covers == covers
    assert decode(family.knobs, encode(offer.knobs)) == offer.knobs
    values = np.random.default_rng(7)
    call = [
        values.uniform(0.5, 2, [3 if d is None else d for d in source.type.shape]).astype(F32)
        if source.array is None
        else source.array()
        for source in work.inputs
    ]
    case = Case(family.name, work, offer, [call])
    assert list(fed(offer.knobs.kernel("k"), case, call))
    if FULL_RUN:
        check(any_target(), [case])
    return offer


@pytest.mark.parametrize(
    ("shape", "cut", "read"),
    [
        ((2, 3, 8), 2, FULL),
        ((8,), 2, ROW),
        ((1, 1, 8), 2, ROW),
        ((2, 3, 1), 2, COLUMN),
        ((), 2, NUMBER),
        ((1, 1), 2, NUMBER),
        ((3, 8), 2, Read(down=True, along=True, count=3)),
        ((2, 1, 8), 2, Read(down=True, along=True, each=3)),
        ((3, 1), 2, Read(down=True, along=False, count=3)),
        ((3, 8), 1, ROW),
        ((3, 1), 1, None),
        ((2, 3, 8), 0, ROW),
        ((2, 3, 8), 3, COLUMN),
        ((2, 3, 4), 2, None),
        ((1, 2, 3, 8), 2, None),
    ],
)
def test_how_a_broadcast_is_read(shape, cut, read):
    assert MatrixView(FULL_2X3X8, cut).read(shape) == read


def test_repeated_and_stretched_rows_and_what_cannot_be_said():
    view = MatrixView((2, 3, 4, 8), 3)
    assert view.read((1, 3, 1, 8)) == Read(down=True, along=True, each=4, count=3)
    assert view.read((2, 1, 4, 8)) is None
    assert MatrixView((None, 3, 8), 2).read((3, 8)) == Read(down=True, along=True, count=3)
    assert MatrixView((None, 3, 8), 2).read((None, 1, 8)) is None
    assert MatrixView((2, None, 8), 2).read((2, 1, 8)) is None


@pytest.mark.parametrize("shape", [(2, 3, 8), (8,), (3, 1), (3, 8), (2, 1, 1), (), (2, 1, 8)])
@pytest.mark.parametrize("own", [(2, 3, 8), (None, 3, 8)])
def test_a_cluster_reads_what_broadcasts(shape, own):
    if own[0] is None and len(shape) == 3 and shape[0] == 2:
        shape = (None, *shape[1:]) if shape[1] == 3 else (1, *shape[1:])
    work = group([own, shape], ("mul", (0, 1)), ("gelu", (2,), {"approximate": "tanh"}))
    holds(elementwise_family.FAMILY, work, 2)


def test_a_cluster_of_whole_tensors_is_one_row():
    shapes = {(4, 5): 20, (None,): "n", (None, 2, 5): "n", (None, 2): "n"}
    for shape, columns in shapes.items():
        work = group([shape, shape], ("add", (0, 1)), ("relu", (2,)))
        knobs = holds(elementwise_family.FAMILY, work, 2).knobs
        assert (knobs.rows, knobs.columns) == (1, columns)


def test_constants_of_one_number_are_in_the_program():
    work = group([(4, 5), ()], ("mul", (0, 1)), constants={1: 0.125})
    offer = holds(elementwise_family.FAMILY, work, 1)
    assert offer.knobs.program.constants == (0.125,) and len(offer.feeds) == 1
    infinite = group([(4, 5), ()], ("maximum", (0, 1)), constants={1: -np.inf})
    assert holds(elementwise_family.FAMILY, infinite, 1).knobs.program.reads == (NUMBER,)


def test_a_square_is_a_product():
    work = group([(4, 5), ()], ("pow", (0, 1)), constants={1: 2.0})
    holds(elementwise_family.FAMILY, work, 1)
    for exponent in (3.0, 0.5):
        other = group([(4, 5), ()], ("pow", (0, 1)), constants={1: exponent})
        assert not elementwise_family.FAMILY.match(other, TARGET)


def test_a_comparison_chooses_within_a_kernel():
    """A leaky relu: x where x > 1, else x / 8."""
    steps = (("mul", (0, 2)), ("compare", (0, 1), {"predicate": "gt"}), ("select", (4, 0, 3)))
    work = group([(4, 5), (), ()], *steps, constants={1: 1.0, 2: 0.125})
    holds(elementwise_family.FAMILY, work, 3)
    bare = group([(4, 5), ()], ("compare", (0, 1), {"predicate": "eq"}))
    assert not elementwise_family.FAMILY.match(bare, TARGET)


def test_what_has_no_kernel_ends_a_cluster():
    work = group([(4, 5)], ("relu", (0,)), ("sin", (1,)), ("neg", (2,)))
    holds(elementwise_family.FAMILY, work, 1)
    used = group([(4, 5)], ("relu", (0,)), ("neg", (1,)), ("sin", (2,)), ("add", (3, 1)))
    holds(elementwise_family.FAMILY, used, 1)


@pytest.mark.parametrize(
    "work",
    [
        lone("neg", (4, 5), dtype=np.float64),
        lone("neg", (0, 5)),
        lone("sin", (4, 5)),
        lone("add", (4, 1), (1, 5)),
        lone("add", (100, 3), (3,)),
    ],
)
def test_groups_without_elementwise_kernel(work):
    assert not elementwise_family.FAMILY.match(work, TARGET)


@pytest.mark.parametrize("rows", [2, None])
def test_attention_takes_scale_and_mask_before_and_ops_after(rows):
    shape = (rows, 3, 4, 8)
    work = group(
        [shape, (), (2, 1, 1, 8) if rows else (4, 8), ()],
        *(("mul", (0, 1)), ("add", (4, 2)), ("softmax", (5,)), ("mul", (6, 3))),
        constants={1: 0.125, 3: 3.0},
    )
    knobs = holds(rows_family.FAMILY, work, 4).knobs
    assert len(knobs.prologue.steps) == 2 and len(knobs.epilogue.steps) == 1


def test_a_norm_takes_a_residual_before_and_an_activation_after():
    work = group(
        [(2, 3, 8), (2, 3, 8), (8,), (8,)],
        *(("add", (0, 1)), ("layernorm", (4, 2, 3)), ("silu", (5,)), ("add", (6, 0))),
    )
    holds(rows_family.FAMILY, work, 4)


def test_a_value_inside_a_kernel_is_not_used_again():
    """The sum is wanted behind the norm: then no kernel can begin with it."""
    work = group(
        [(6, 8), (6, 8), (8,)],
        *(("add", (0, 1)), ("rmsnorm", (3, 2)), ("add", (4, 3))),
    )
    assert not rows_family.FAMILY.match(work, TARGET)


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_a_reduction_takes_programs_before_and_after(op, keepdims):
    after = (2, 3, 1) if keepdims else (2, 3)
    work = group(
        [(2, 3, 8), after, ()],
        ("mul", (0, 0)),
        (f"reduce_{op}", (3,), {"axes": (2,), "keepdims": keepdims}),
        *(("add", (4, 2)), ("rsqrt", (5,)), ("mul", (6, 1))),
        constants={2: 1e-5},
    )
    knobs = holds(rows_family.FAMILY, work, 5).knobs
    assert knobs.epilogue.reads == (COLUMN,)


def test_log_softmax_is_a_row_kernel():
    holds(rows_family.FAMILY, group([(6, 8)], ("log_softmax", (0,))), 1)
    assert not rows_family.FAMILY.match(group([(6, 8)], ("softmax", (0,), {"axis": 0})), TARGET)
