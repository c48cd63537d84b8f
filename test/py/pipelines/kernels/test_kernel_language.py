"""The kernel language: functions against float64, tails, loops, conditions, tile registers."""

import math

import ml_dtypes
import numpy as np
import pytest
from conftest import ALL_CASES, FULL
from kernel_runs import Kernels, pointwise, targets

from pyc_mlir.pipelines.kernels.lang import functions
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.tiles import COLUMNS, PRODUCTS, Tiles, TileShape, has_tiles
from pyc_mlir.pipelines.kernels.lang.values import Index, add, larger, least, maximum, minimum
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import host_cpu

TINY = 2.0**-126
SIZES = (1, 2, 7, 8, 15, 16, 17, 31, 64, 65, 100, 129, 257)
STATIC = SIZES[:: 1 if ALL_CASES else 3]
FOLDS = {"sum": (add, 0.0), "max": (maximum, -math.inf), "larger": (larger, -math.inf)}
REFERENCES = {
    "exp": np.exp,
    "exp_nonpositive": np.exp,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}
# At minus infinity these are 0, their limit; the equation gives NaN.
GATED = ("silu", "gelu", "gelu_tanh")


def fold_kernel(name, combine, start, size):
    def body(k, x, y):
        @k.fold(k.size(size), combine, start)
        def total(at):
            return x.load(at)

        y.put(total, 0)

    return Kernel(name, (Operand("x", (size,)), Operand("y", (1,), "out")), lambda s: (1,), body)


def language_kernels():
    made = [pointwise(name, getattr(functions, name)) for name in REFERENCES]
    made += [pointwise(f"double_{n}", lambda x: x + x, n) for n in STATIC]
    made += [
        fold_kernel(f"{name}_{size}", combine, start, size)
        for name, (combine, start) in FOLDS.items()
        for size in ("n", *STATIC)
    ]
    return [*made, pointwise("least", lambda x: minimum(x, 1.0)), conditions()]


def conditions():
    """Writes 1 where the row's number is even, else 2, in a loop over rows; 3 into the rest."""

    def body(k, x, y):
        with k.range(k.size("m")) as i:
            with k.when((i % 2).equals(0)):
                y.put(x.number(i) + 1.0, i)
            with k.when(Index.of(0) < i % 2):
                y.put(2.0 - x.number(i), i)

    shape = ("m",)
    operands = (Operand("x", shape), Operand("y", shape, "out"))
    return Kernel("conditions", operands, lambda size: (1,), body)


@pytest.fixture(scope="module", params=targets(__name__), ids=lambda t: t.name)
def kernels(request):
    return Kernels(request.param, language_kernels())


def whole_range():
    """Every region of f32: linear, all exponents, around the limits, zeros, NaNs, infinities.

    Of each exponent (0: subnormal numbers) random mantissas of both signs, and powers of two.
    """
    step = 1 if FULL else 16
    exponents = np.arange(255, dtype=np.uint32)[:, None] << 23
    mantissas = np.random.default_rng(2).integers(0, 1 << 23, (255, 512 // step), np.uint32)
    mantissas[:, :2] = 0, (1 << 23) - 1
    random = (exponents | mantissas).view(np.float32).ravel()
    limits = (88.72283, -87.33654, -88.37, 7.9988117, 3.8325069, 5.3, 5.0, 2**0.5, 0.5**0.5)
    close = np.array(limits, np.float32).view(np.int32)[:, None] + np.arange(-9, 10, dtype=np.int32)
    near = close.view(np.float32).ravel()
    nans = np.array([0x7FC00000, 0x7FC001FF, 0xFFC000FF, 0x7FFFFFFF], np.uint32).view(np.float32)
    parts = [
        *(np.linspace(-110, 110, 1_600_001)[::step], np.linspace(-6, 6, 1_600_001)[::step]),
        *(random, -random, near, -near, [0.0, -0.0, np.inf, -np.inf], nans),
    ]
    return np.concatenate(parts).astype(np.float32)


def counted(x):
    """What numbers count as: subnormal ones are zeros of their sign."""
    return np.where(np.abs(x) < TINY, np.copysign(0.0, x), x.astype(np.float64))


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.full
def test_a_function_keeps_its_stated_error(kernels, name):
    x = whole_range()
    if name == "exp_nonpositive":
        x = x[~(x > 0)]
    y = kernels.run(name, x).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](counted(x))
        exact = np.where(np.abs(exact) < TINY, 0.0, exact)
        rounded = exact.astype(np.float32)
    if name in GATED:
        exact[x == -np.inf] = rounded[x == -np.inf] = 0.0
    assert np.array_equal(np.isnan(y), np.isnan(exact))
    infinite = np.isinf(rounded)
    assert np.array_equal(y[infinite], rounded[infinite])
    sound = np.isfinite(rounded) & np.isfinite(x)
    x, y, exact = x[sound].astype(np.float64), y[sound], exact[sound]
    relative, absolute = functions.ERRORS[name]
    # The flush may hit just above the smallest normal number.
    bound = relative * np.abs(exact) + absolute * np.abs(x) + TINY
    wrong = np.abs(y - exact) > bound
    assert not wrong.any(), (x[wrong][:5], y[wrong][:5], exact[wrong][:5])


@pytest.mark.parametrize("name", REFERENCES)
def test_a_function_has_its_limits_at_infinity(kernels, name):
    low, high = kernels.run(name, np.array([-np.inf, np.inf]))
    limits = {"exp": (0, np.inf), "tanh": (-1, 1), "erf": (-1, 1), "sigmoid": (0, 1)}
    limits |= {"erfc": (2, 0), **dict.fromkeys(GATED, (0, np.inf))}
    if name in ("log", "sqrt", "rsqrt"):
        assert np.isnan(low) and high == (0 if name == "rsqrt" else np.inf)
    else:
        assert name == "exp_nonpositive" or (low, high) == limits[name]


@pytest.mark.parametrize("size", STATIC)
def test_each_number_of_a_row_is_done_once(kernels, size):
    x = np.arange(size) - 3.0
    assert np.array_equal(kernels.run(f"double_{size}", x), x * 2)


@pytest.mark.parametrize("size", SIZES)
def test_a_dynamic_row_has_a_tail(kernels, size):
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    assert np.isclose(kernels.run("sum_n", x)[0], x.astype(np.float64).sum(), rtol=1e-5, atol=1e-5)
    assert kernels.run("max_n", x)[0] == x.max()


@pytest.mark.parametrize("size", STATIC)
def test_a_static_row_has_a_tail(kernels, size):
    x = -np.arange(1, size + 1, dtype=np.float32)
    assert kernels.run(f"sum_{size}", x)[0] == x.sum()
    assert kernels.run(f"max_{size}", x)[0] == -1.0


@pytest.mark.parametrize("place", [0, 5, 99])
def test_nan_follows_numpy_unless_the_kernel_says_otherwise(kernels, place):
    x = np.arange(100, dtype=np.float32)
    x[place] = np.nan
    assert np.isnan(kernels.run("max_n", x)[0])
    assert kernels.run("larger_n", x)[0] == np.nanmax(x)
    assert np.array_equal(kernels.run("least", x), np.minimum(x, 1), equal_nan=True)


def test_conditions_choose_what_runs(kernels):
    assert kernels.run("conditions", np.arange(5)).tolist() == [1, 1, 3, -1, 5]


def test_known_indices_leave_no_code():
    """Arithmetic of known sizes happens in Python: this needs no MLIR context."""
    n = Index.of(100)
    assert (n // 16 * 16).number == 96
    assert (n.ceildiv(16) + 0).number == 7
    assert (0 * n).number == 0 and (n % 1).number == 0 and (3 + n - 1).number == 102


NUMPY = {"ui8": np.uint8, "i8": np.int8, "bf16": ml_dtypes.bfloat16}
STEPS = 3


@pytest.fixture(scope="module")
def target():
    cpu = host_cpu()
    if cpu is None:
        pytest.skip("the system does not tell what its CPU has")
    host = Target.named("cpu").on(cpu)
    if not has_tiles(host, "i8") or not has_tiles(host, "bf16"):
        pytest.skip("no tile registers here, or none for this process")
    return host


def product(name, dtypes, row_bytes):
    """y[m, 16] = a[m, depth] @ b, for m of any size, in tiles of 16 rows and a last one."""
    left, right = ("bf16", "bf16") if dtypes[0] == "bf16" else ("i8", "i8")
    size = 2 if left == "bf16" else 1
    depth, groups = STEPS * row_bytes // size, row_bytes // 4

    def body(k, a, b, y):
        rows, tiles = a.shape[0], Tiles(k)
        with k.range(0, rows, 16) as row:
            own = TileShape(least(rows - row, 16))
            tiles.configure([own, TileShape(own.rows, row_bytes), TileShape(groups)])
            tiles.zero(0)
            with k.range(STEPS) as step:
                tiles.load(1, a.address(row, step * (row_bytes // size)), depth * size)
                tiles.load(2, b.address(step * groups, 0), 64)
                tiles.add_product(0, 1, 2, dtypes)
            tiles.store(0, y.address(row, 0), 64)
        tiles.release()

    operands = (
        Operand("a", ("m", depth), dtype=left),
        Operand("b", (STEPS * groups, 64 // size), dtype=right),
        Operand("y", ("m", COLUMNS), "out", "f32" if left == "bf16" else "i32"),
    )
    return Kernel(name, operands, lambda s: (1,), body)


CASES = [(dtypes, row_bytes) for dtypes in PRODUCTS for row_bytes in (4, 20, 64)]


@pytest.fixture(scope="module")
def kernels_of_tiles(target):
    return Kernels(target, [product(f"k{n}", *case) for n, case in enumerate(CASES)])


@pytest.mark.parametrize("rows", [1, 15, 16, 37])
def test_products_of_tiles_equal_numpy(kernels_of_tiles, rows):
    values = np.random.default_rng(rows)
    for n, (dtypes, row_bytes) in enumerate(CASES):
        left, right = (NUMPY[d] for d in dtypes)
        group = 4 // np.dtype(left).itemsize
        depth = STEPS * row_bytes // np.dtype(left).itemsize
        a, b = ((values.integers(0, 256, s) - 128) for s in ((rows, depth), (depth, COLUMNS)))
        a, b = a.astype(left), b.astype(right)
        laid = b.reshape(depth // group, group, COLUMNS).transpose(0, 2, 1)
        laid = laid.reshape(depth // group, -1)
        held = [x if left == NUMPY["bf16"] else x.view(np.int8) for x in (a, laid)]
        y = kernels_of_tiles.run(f"k{n}", *held)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        # Whole numbers below 2^24: no sum of f32 is rounded either.
        np.testing.assert_array_equal(y, exact)
