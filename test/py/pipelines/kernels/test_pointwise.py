"""Pointwise programs: every step against float64, reads of every kind, errors that hold."""

from random import Random

import numpy as np
import pytest
from conftest import FULL as FULL_RUN
from kernel_runs import Kernels, agrees, targets

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.knobs import decode, encode
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    COLUMN,
    FULL,
    NUMBER,
    ROW,
    InKernel,
    Pointwise,
    PointwiseStep,
    Read,
    evaluate,
)
from pyc_mlir.pipelines.kernels.lang.pointwise_ops import STEPS
from pyc_mlir.pipelines.kernels.match_samples import random_program, random_reads

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
RANDOM = [random_program(Random(seed), 4) for seed in range(40 if FULL_RUN else 8)]
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


@pytest.fixture(scope="module", params=targets(__name__), ids=lambda t: t.name)
def kernels(request):
    made = [kernel(f"step_{n}", step_program(n)) for n in STEPS]
    for n, read in enumerate(READS.values()):
        made.append(kernel(f"read_{n}", read_program(read)))
        made.append(kernel(f"dynamic_{n}", read_program(read), "m", "n"))
    made += [kernel(f"constant_{n}", program) for n, program in enumerate(CONSTANTS.values())]
    made += [kernel(f"random_{n}", program) for n, program in enumerate(RANDOM)]
    return Kernels(request.param, [*made, kernel("nothing", Pointwise())])


def values(seed, *shape):
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_keeps_its_error_and_its_special_numbers(kernels, name):
    x, full, column = values(1, ROWS, COLUMNS), values(2, ROWS, COLUMNS), values(3, ROWS)
    full[5] = x[5]
    x[:9, 7], full[3, :9] = SPECIAL, SPECIAL
    exact, bound = evaluate(step_program(name), x, [full, column])
    if name in ("silu", "gelu", "gelu_tanh"):
        exact = np.where(x == -np.inf, 0.0, exact)
    agrees(kernels.run(f"step_{name}", x, full, column), exact, bound)


@pytest.mark.parametrize("number", range(len(CONSTANTS)))
def test_the_larger_or_smaller_of_constants(kernels, number):
    x = np.resize(np.array(SPECIAL, np.float32), (ROWS, COLUMNS))
    exact, _ = evaluate(list(CONSTANTS.values())[number], x, [])
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
    exact, bound = evaluate(read_program(read), x, [array])
    agrees(kernels.run(f"read_{number}", x, array), exact, bound)
    agrees(kernels.run(f"dynamic_{number}", x, array), exact, bound)


@pytest.mark.parametrize("number", range(len(RANDOM)))
def test_a_random_program_keeps_its_error(kernels, number):
    program, random = RANDOM[number], Random(number)
    x = values(number, ROWS, COLUMNS)
    reads = random_reads(program, ROWS, COLUMNS, random)
    exact, bound = evaluate(program, x, reads)
    got = kernels.run(f"random_{number}", x, *reads)
    known = np.isfinite(bound)
    assert known.mean() > 0.9 and (np.abs(got - exact)[known] <= bound[known]).all(), program


def test_random_programs_have_every_step_but_those_to_integers():
    steps = {s.op for seed in range(200) for s in random_program(Random(seed), 5).steps}
    assert steps == set(STEPS) - {"floor", "ceil", "round"}
    plain = [random_program(Random(seed), 5, choices=False) for seed in range(50)]
    assert not any(STEPS[s.op].mask for program in plain for s in program.steps)


def test_no_bound_holds_where_a_number_may_pass_the_largest():
    """x * x overflows in f32 and not in f64; what comes of it has no bound either."""
    square = Pointwise((), (), (PointwiseStep("mul", (0, 0)), PointwiseStep("tanh", (1,))))
    _, bound = evaluate(square, np.array([[1e15, 1e20, np.inf]]), [])
    assert np.isfinite(bound).tolist() == [[True, False, True]]


def test_no_step_is_the_value_itself(kernels):
    x = values(6, ROWS, COLUMNS)
    assert np.array_equal(kernels.run("nothing", x), x)
    exact, bound = evaluate(Pointwise(), x, [], 0.5)
    assert np.array_equal(exact, x) and (bound == 0.5).all()


@pytest.mark.parametrize("program", [*RANDOM[:8], *map(read_program, READS.values()), Pointwise()])
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


def test_the_error_grows_with_the_steps():
    """Each step passes on the error of its operands, by the slope of its function."""
    x = np.linspace(1, 5, 20).reshape(4, 5)
    for op, slope in (("exp", np.exp(x)), ("log", 1 / x), ("sqrt", 0.5 / np.sqrt(x))):
        _, small = evaluate(Pointwise((), (), (PointwiseStep(op, (0,)),)), x, [], 1e-3)
        assert np.allclose(small, 1e-3 * slope, rtol=1e-2)
    chosen = Pointwise(
        (), (3.0,), (PointwiseStep("lt", (0, 1)), PointwiseStep("select", (2, 1, 0)))
    )
    _, bound = evaluate(chosen, np.array([[2.0, 3.0001, 4.0]]), [], 1e-3)
    assert np.allclose(bound, [[0, 1.1e-3, 1e-3]], atol=1e-9)
    twice = Pointwise((), (3.0,), (PointwiseStep("mul", (0, 1)), PointwiseStep("sub", (2, 0))))
    _, bound = evaluate(twice, x, [], 1e-4)
    assert np.allclose(bound, 4e-4, rtol=1e-2)
