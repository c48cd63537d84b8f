"""Pointwise programs: every step against its op, reads of every kind, what cannot run."""

import numpy as np
import pytest
from family_checks import computed
from kernel_runs import Kernels, agrees, targets

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.numerics.uncertain import Uncertain
from pyc_mlir.dialects.ops.elementwise import PREDICATES
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.kernels.knobs import decode, encode
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.functions import STEPS
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    COLUMN,
    FULL,
    NUMBER,
    ROW,
    InKernel,
    Pointwise,
    PointwiseStep,
    Read,
)

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
