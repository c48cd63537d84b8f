"""ATen operators whose formulas have corners: equal to torch's eager mode, evaluated by the
references."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from random_torch_functions import through_compile  # noqa: E402
from torch_cases import EQUAL, difference, evaluated  # noqa: E402

from pyc_mlir import TensorSpec  # noqa: E402
from pyc_mlir.frontends.torch.export import from_torch  # noqa: E402
from pyc_mlir.torch.tensors import array_of  # noqa: E402

nn, F = torch.nn, torch.nn.functional
NO_CACHE = {"cache": False}
INF, NAN = float("inf"), float("nan")


def _divisions(x, y):
    """Of tensors and of Python numbers, which torch rounds to 16 bits in some and not in others."""
    for number in (0.1, 3.14, -0.3, INF):
        yield from (x // number, x % number, torch.fmod(x, number))
        yield from (torch.div(x, number, rounding_mode=m) for m in ("floor", "trunc"))
    yield from (x // y, x % y, torch.fmod(x, y), torch.remainder(3.14, y))
    yield torch.div(x, torch.tensor(0.1), rounding_mode="trunc")


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_quotients_of_floats_do_not_cross_whole_numbers(name):
    dtype = getattr(torch, name)
    values = [1.0, 5.0, -1.0, 3.140625, -1.5, 0.1, 6.28, INF, -INF, NAN, 0.0, -4.0, 300.3]
    x = torch.tensor([*values, 1e17 if dtype.itemsize > 2 else 7.0], dtype=dtype)
    y = torch.tensor([0.1, 3.0, -0.3, INF, 3.0, 7.0, -2.0], dtype=dtype).repeat(2)

    def function(x, y):
        return tuple(_divisions(x, y))

    found = evaluated(from_torch(function, (x, y)), [x, y], list(function(x, y)), exact=True)
    assert found.kind == EQUAL, found


def test_quotients_of_integers():
    x, y = (torch.tensor(v) for v in ([7, -7, 7, -7, 0, 6], [2, 2, -2, -2, 3, -3]))

    def function(x, y):
        floors = x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="floor")
        return *floors, torch.div(x, y, rounding_mode="trunc"), x // 3, x % -3

    found = evaluated(from_torch(function, (x, y)), [x, y], list(function(x, y)), exact=True)
    assert found.kind == EQUAL, found


def _corners(x, y, grid):
    """Zeros of both signs, infinities, NaN, and ties."""
    yield from (torch.atan2(x, y), torch.copysign(x, y), torch.hypot(x, y), torch.signbit(x))
    yield from (torch.atan(x), torch.asin(x / 4), torch.acos(x / 4), torch.angle(x))
    yield from (torch.erfinv(x / 2), torch.erfc(x), torch.nextafter(x, y), x.round(decimals=1))
    yield from (*x.cummax(0), *y.cummin(0), grid.logcumsumexp(1), x.median(), y.nanmedian())
    yield from (*grid.median(dim=1), *grid.nanmedian(dim=0), *grid.kthvalue(2, 1, keepdim=True))
    yield from (grid.histc(4, 0, 3), torch.full((3,), 2.0).histc(4))
    yield torch.searchsorted(torch.tensor([-1.0, 0.0, 2.0]), x, right=True)
    yield grid.diagonal_scatter(torch.tensor([7.0, 8.0]), -1)
    yield grid.masked_scatter(grid > 1, torch.arange(9.0))


def test_functions_at_their_corners():
    x = torch.tensor([0.0, -0.0, 1.0, -2.0, INF, -INF, 2.0, NAN, 0.25])
    y = torch.tensor([-0.0, 1.0, -0.0, 2.0, INF, -INF, 2.0, 1.0, NAN])
    grid = torch.tensor([[3.0, NAN, 1.0, 0.5], [-INF, -1.0, 2.0, 3.0], [1.0, 5.0, 3.0, -1.0]])

    def function(x, y, grid):
        return tuple(_corners(x, y, grid))

    given = [x, y, grid]
    found = evaluated(from_torch(function, tuple(given)), given, list(function(*given)))
    assert found.kind == EQUAL, found


def _norms(x, weight, bias, mean, variance):
    """Of [n, c, w] with c = w; the parameters may have another type than x."""
    yield from (F.batch_norm(x, mean, variance, *more) for more in ((weight, bias), ()))
    yield from (F.layer_norm(x, (4,), *more) for more in ((weight, bias), (weight,), ()))
    yield from (F.rms_norm(x, (4,), *more) for more in ((weight,), ()))
    yield from (F.group_norm(x, 2, *more) for more in ((weight, bias), ()))
    yield F.instance_norm(x, None, None, weight, bias)
    yield F.instance_norm(x, mean, variance, weight, bias, use_input_stats=False)


@pytest.mark.parametrize("parameters", ["float32", "as x"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_norms_of_16_bits_round_only_their_results(name, parameters):
    """The mean of the first channel is far from 0, the squares of the last leave f16's range.

    Eager mode rounds some statistics too; so the results are compared with those in f64.
    """
    dtype, generator = getattr(torch, name), torch.Generator().manual_seed(3)
    mean, variance = torch.tensor([10.03, 0, 1, -9.5]), torch.tensor([0.01, 1e3, 1, 5e4])
    unit = torch.randn(3, 4, 4, generator=generator)
    x = (unit * variance.sqrt()[:, None] + mean[:, None]).to(dtype)
    given = [x, torch.rand(4, generator=generator) + 0.5, mean / 3, mean, variance]
    given = [v.to(dtype) for v in given] if parameters == "as x" else given

    def function(*given):
        return tuple(_norms(*given))

    want = [v.to(dtype) for v in function(*(v.double() for v in given))]
    found = evaluated(from_torch(function, tuple(given)), given, want)
    assert found.kind == EQUAL, found
    for got, expected in zip(through_compile(function, given), want, strict=True):
        assert not difference(array_of(got), array_of(expected))


def test_norms_under_autocast_have_statistics_that_their_gradients_take():
    """The native forms give statistics in the type that torch says they have."""
    norms = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GroupNorm(2, 8))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        want, got = norms(x), torch.compile(norms, backend="pyc", options=NO_CACHE)(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=5e-2, atol=5e-2)
    gradients = [torch.autograd.grad(v.float().pow(2).sum(), norms[1].weight) for v in (got, want)]
    torch.testing.assert_close(*gradients, rtol=0.1, atol=0.1)


def test_a_scale_of_zero_is_a_scale():
    """All keys weigh the same then; no gradient reaches queries and keys."""
    q, k, v, mask = torch.randn(4, 1, 2, 4, 4, generator=torch.Generator().manual_seed(0))

    def function(q, k, v, mask):
        plain = F.scaled_dot_product_attention(q, k, v, scale=0.0)
        return plain, F.scaled_dot_product_attention(q, k, v, mask, scale=0.0)

    given = [q, k, v, mask]
    found = evaluated(from_torch(function, tuple(given)), given, list(function(*given)))
    assert found.kind == EQUAL, found
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    options = {"backend": "pyc", "options": NO_CACHE}
    compiled = torch.compile(lambda a, b, c: function(a, b, c, mask)[0], **options)
    got, want = (
        torch.autograd.grad(f(leaves).square().sum(), leaves)
        for f in (lambda t: compiled(*t), lambda t: function(t[0], t[1], t[2], mask)[0])
    )
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def _grouped(x, weights, ends):
    out, start = x.new_zeros(x.shape[0], weights.shape[2]), 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        out[start:end] = x[start:end] @ weight
        start = end
    return out


def _experts(rows, ends):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 8, generator=generator).bfloat16()
    weights = torch.randn(len(ends), 8, 8, generator=generator).bfloat16()
    return [x, weights, torch.tensor(ends, dtype=torch.int32)]


def _product(x, weights, ends):
    return torch._grouped_mm(x, weights, offs=ends)


@pytest.mark.parametrize(
    ("rows", "ends"),
    [(8, [2, 2, 8]), (8, [8, 8, 8]), (2, [0, 1, 1, 2]), (7, [3, 6]), (5, [5]), (20, [1, 19, 20])],
)
def test_rows_are_multiplied_by_the_matrix_of_their_group(rows, ends):
    """Empty groups, fewer rows than groups, and rows behind the last group, which are 0."""
    given = _experts(rows, ends)
    found = evaluated(from_torch(_product, tuple(given)), given, [_grouped(*given)])
    assert found.kind == EQUAL, found


def test_groups_of_a_dynamic_number_of_rows():
    specs = TensorSpec("bf16", "n", 8), TensorSpec("bf16", 3, 8, 8), TensorSpec("i32", 3)
    model = from_torch(_product, specs)
    for rows, ends in ((8, [2, 2, 8]), (1, [0, 1, 1]), (100, [70, 70, 99])):
        given = _experts(rows, ends)
        found = evaluated(model, given, [_grouped(*given)])
        assert found.kind == EQUAL, found


def test_the_grouped_product_of_transformers_has_its_own_name():
    """For other types than bf16 it calls an operator of its own."""
    name = "transformers::grouped_mm_fallback"
    library = torch.library.Library("transformers", "FRAGMENT")
    library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    torch.library.impl(name, "CPU", _grouped, lib=library)
    torch.library.register_fake(
        name, lambda x, w, o: x.new_empty(x.shape[0], w.shape[2]), lib=library
    )
    given = [t.float() if t.is_floating_point() else t for t in _experts(6, [1, 6])]
    model = from_torch(torch.ops.transformers.grouped_mm_fallback, tuple(given))
    found = evaluated(model, given, [_grouped(*given)])
    assert found.kind == EQUAL, found


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian"])
def test_jacobians_write_diagonals_in_place(name):
    """As torch.compile records them: torch's decomposition of such a write is not functional."""
    derived = getattr(torch.func, name)(lambda x: torch.mm(torch.prod(x) + x, x.sum() * x).sum())
    x = torch.arange(1, 10, dtype=torch.float32).reshape(3, 3) / 10
    (got,) = through_compile(lambda x: (derived(x),), [x])
    torch.testing.assert_close(got, derived(x.double()).float(), rtol=1e-4, atol=1e-4)
