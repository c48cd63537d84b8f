"""Pointwise programs: each step against its op, reads of every kind, which groups become one."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import FULL as FULL_RUN
from family_checks import Case, check, computed, fed
from kernel_runs import Kernels, agrees, any_target, targets
from kernel_works import lone

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.numerics.uncertain import Uncertain
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.ops.elementwise import PREDICATES
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.pipelines.kernels.families import (
    elementwise as elementwise_family,
)
from pyc_mlir.pipelines.kernels.families import (
    rows as rows_family,
)
from pyc_mlir.pipelines.kernels.knobs import decode, encode
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.functions import STEPS
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    COLUMN,
    FULL,
    NUMBER,
    OWN,
    ROW,
    InKernel,
    Pointwise,
    PointwiseStep,
    Read,
)
from pyc_mlir.pipelines.kernels.match import Feed, LetterView, MatrixView
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import F32, Input, Work, WorkOp

ROWS, COLUMNS = 12, 37
READS = {
    "full": FULL,
    "row": ROW,
    "column": COLUMN,
    "number": NUMBER,
    "repeated rows": Read(down=True, along=True, count=4),
    "stretched rows": Read(down=True, along=True, each=3),
    "both": Read(down=True, along=True, each=2, count=3),
    "repeated column": Read(down=True, along=False, each=2, count=2),
}
# A constant on either side of a vector, and on both.
CONSTANTS = {
    (op, number, a, b): Pointwise((), (number, -number), (PointwiseStep(op, (a, b)),))
    for op in ("maximum", "minimum")
    for number in (0.0, 1.5, 2.0**-126)
    for a, b in ((0, 1), (1, 0), (1, 2))
}
SPECIAL = [0.0, -0.0, 1.5, -2.5, 1e30, -1e30, np.inf, -np.inf, np.nan]


def kernel(name, program, rows: int | str = ROWS, columns: int | str = COLUMNS):
    def body(k, x, *others):
        *reads, y = others
        held = InKernel(k, program, tuple(reads))
        with k.range(x.shape[0]) as i:
            apply = held.row(i)

            @k.each(x.shape[1])
            def _(at):
                y.store(apply(x.load(i, at), at), i, at)

    shape = (rows, columns)
    reads = program.operands("r", rows, columns)
    operands = (Operand("x", shape), *reads, Operand("y", shape, "out"))
    return Kernel(name, operands, lambda size: (1,), body)


def step_program(name):
    """One step of the kernel's value, a full read and a column; comparisons choose of them."""
    op = STEPS[name]
    if op.mask:
        return program_of((name, (0, 1)), ("select", (3, 0, 2)))
    if op.by_mask:
        return program_of(("gt", (0, 2)), (name, (3, 0, 1)))
    return program_of((name, tuple(range(op.operands))))


def program_of(*steps):
    return Pointwise((FULL, COLUMN), (), tuple(PointwiseStep(*s) for s in steps))


def read_program(read):
    return Pointwise((read,), (), (PointwiseStep("sub", (0, 1)),))


def of_program(program, x, *reads) -> Uncertain:
    """Compute the ops that the steps stand for, each in f32."""
    spread = []
    for read, array in zip(program.reads, reads, strict=True):
        found = array[read.row(np.arange(len(x)))] if read.down else array
        spread.append(found[:, None] if read.down and not read.along else found)
    values = [
        Uncertain.exact(a) for a in (x, *spread, *np.array(program.constants, np.float32)[:, None])
    ]
    for step in program.steps:
        operands = [values[o] for o in step.operands]
        if step.op in PREDICATES:
            values.append(computed("compare", *operands, predicate=step.op))
        elif step.op.startswith("to_"):
            half = computed("cast", *operands, dtype=DTYPES[step.op.removeprefix("to_")])
            values.append(computed("cast", half, dtype=np.dtype(np.float32)))
        elif step.op in ("gelu", "gelu_tanh"):
            form = "tanh" if step.op == "gelu_tanh" else "none"
            values.append(computed("gelu", *operands, approximate=form))
        else:
            values.append(computed(step.op, *operands))
    return values[-1]


@pytest.fixture(scope="module", params=targets(__name__), ids=lambda t: t.name)
def kernels(request):
    made = [kernel(f"step_{n}", step_program(n)) for n in STEPS]
    for n, read in enumerate(READS.values()):
        made.append(kernel(f"read_{n}", read_program(read)))
        made.append(kernel(f"dynamic_{n}", read_program(read), "m", "n"))
    made += [kernel(f"constant_{n}", program) for n, program in enumerate(CONSTANTS.values())]
    return Kernels(request.param, [*made, kernel("nothing", Pointwise())])


def values(seed, *shape):
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_keeps_its_error_and_its_special_numbers(kernels, name):
    x, full, column = values(1, ROWS, COLUMNS), values(2, ROWS, COLUMNS), values(3, ROWS)
    full[5] = x[5]
    x[:9, 7], full[3, :9] = SPECIAL, SPECIAL
    want = of_program(step_program(name), x, full, column)
    exact = want.value
    if name in ("silu", "gelu", "gelu_tanh"):
        exact = np.where(x == -np.inf, 0.0, exact)
    agrees(kernels.run(f"step_{name}", x, full, column), exact, want.tolerance)


@pytest.mark.parametrize("number", range(len(CONSTANTS)))
def test_the_larger_or_smaller_of_constants(kernels, number):
    x = np.resize(np.array(SPECIAL, np.float32), (ROWS, COLUMNS))
    exact = np.broadcast_to(of_program(list(CONSTANTS.values())[number], x).value, x.shape)
    y = kernels.run(f"constant_{number}", x)
    assert np.array_equal(y, exact, equal_nan=True)
    # The larger of both zeros is 0, the smaller -0: IEEE 754, maximum and minimum.
    op, constant, a, b = list(CONSTANTS)[number]
    if constant == 0 and 0 in (a, b):
        assert (np.signbit(y[x == 0]) == (np.signbit(x[x == 0]) & (op == "minimum"))).all()


@pytest.mark.parametrize("number", range(len(READS)), ids=list(READS))
def test_a_read_of_every_kind(kernels, number):
    read = list(READS.values())[number]
    x = values(4, ROWS, COLUMNS)
    (operand,) = read_program(read).operands("r", ROWS, COLUMNS)
    array = values(5, *operand.shape)
    want = of_program(read_program(read), x, array)
    for name in (f"read_{number}", f"dynamic_{number}"):
        agrees(kernels.run(name, x, array), want.value, want.tolerance)


def test_no_step_is_the_value_itself(kernels):
    x = values(6, ROWS, COLUMNS)
    assert np.array_equal(kernels.run("nothing", x), x)


@pytest.mark.parametrize("program", [*map(step_program, STEPS), *map(read_program, READS.values())])
def test_a_program_is_data_and_text(program):
    assert decode(Pointwise, encode(program)) == program
    assert hash(decode(Pointwise, encode(program))) == hash(program)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"constants": (np.inf,)}, "finite constants"),
        ({"steps": (PointwiseStep("sort", (0,)),)}, "a step of add"),
        ({"steps": (PointwiseStep("add", (0,)),)}, "2 of the values before 1"),
        ({"steps": (PointwiseStep("neg", (1,)),)}, "1 of the values before 1"),
        ({"steps": (PointwiseStep("lt", (0, 0)),)}, "numbers as the result"),
        (
            {"steps": (PointwiseStep("lt", (0, 0)), PointwiseStep("neg", (1,)))},
            "comparisons as what selections",
        ),
        ({"steps": (PointwiseStep("select", (0, 0, 0)),)}, "comparisons as what selections"),
    ],
)
def test_programs_that_cannot_run_are_refused(fields, expected):
    with pytest.raises(PycError, match=expected):
        Pointwise(**fields)


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
    stretched = Read(down=True, along=True, each=3)
    assert MatrixView((None, 3, 8), 2).read((None, 1, 8)) == stretched
    assert stretched.operand("e0", "m", 8, {}).shape == ("e0_rows", 8)
    assert replace(MatrixView((None, 3, 8), 2), checked=False).read((None, 1, 8)) is None
    repeated = Read(down=True, along=True, count=OWN)
    assert MatrixView((2, None, 8), 2).read((None, 8)) == repeated
    assert MatrixView((2, None, 8), 2).read((2, 1, 8)) is None
    view = MatrixView((None, 3, None, 8), 3)
    assert view.read((1, 1, None, 8)) == Read(down=True, along=True, count=OWN)
    assert replace(view, checked=False).read((1, 1, None, 8)) is None


@pytest.mark.parametrize(
    ("shape", "letters", "cuts"),
    [
        ((None, 1, None, None), "am", (2, 3)),
        ((None, 1, 1, None), "a", (3,)),
        ((None, None), "m", (1,)),
        ((1, 3, None, 1), "bm", (2,)),
        ((None, 3, None, None), "abm", (1, 2, 3)),
        ((1, 1, None), "", ()),
    ],
)
def test_what_spreads_over_a_product_is_read_by_letters(shape, letters, cuts):
    view = LetterView((None, 3, None, None), 3, letters="abm")
    read = view.read(shape)
    assert read is not None
    assert read == Read(bool(letters), shape[-1] != 1, letters=letters)
    assert view.feed(4, shape, read) == Feed(4, cuts)


def test_known_rows_are_read_by_letters_only_where_they_must():
    view = LetterView((2, 3, 4, 8), 3, letters="abm")
    assert view.read((4, 8)) == Read(down=True, along=True, count=4)
    assert view.read((2, 1, 4, 8)) == Read(down=True, along=True, letters="am")


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
