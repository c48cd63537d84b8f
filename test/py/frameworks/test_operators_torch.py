"""ATen operators whose formulas have corners: equal to torch's eager mode, evaluated by the
references."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_cases import EQUAL, evaluated  # noqa: E402

from pyc_mlir.frontends.torch.export import from_torch  # noqa: E402

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
