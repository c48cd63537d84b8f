"""Random torch functions from a seed: quotients, orders, writes in place, `torch.func`.

Every second one goes through `torch.export`, the others through `torch.compile`; the references
evaluate what PyC imports, so that nothing is compiled. The first steps of a function are exact, so
that the places where quotients, orders and comparisons jump are the same everywhere; smooth
functions, whose results are rounded, come after them. Norms, means and attention are asked of
16-bit numbers whose squares leave f16's range, with parameters of f32 as autocast has them.
"""

from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import torch._dynamo.exc  # pyright: ignore[reportMissingImports]
from torch.utils._python_dispatch import (  # pyright: ignore[reportMissingImports]
    _disable_current_modes,
)
from torch_cases import EQUAL, REFUSED, UNEXPORTED, Outcome, difference, evaluated

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.torch.compiled import import_compiled
from pyc_mlir.frontends.torch.export import from_torch
from pyc_mlir.torch.backend import _table
from pyc_mlir.torch.tensors import array_of, tensor_of

Step = Callable[[Any, Any], Any]
F, func = torch.nn.functional, torch.func
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64)
SEEDS = range(300)


def _divisor(y: Any) -> Any:
    return torch.where(y == 0, torch.ones_like(y), y)


def _written(write: Callable[[Any, Any], Any]) -> Step:
    """x after a copy of it was written in place."""

    def step(x: Any, y: Any) -> Any:
        x = x.clone()
        write(x, y)
        return x

    return step


def _first(x: Any, y: Any) -> None:
    x[0] = y[-1]


def _columns(x: Any, y: Any) -> None:
    x[..., ::2] *= 2


def _places(x: Any, y: Any) -> None:
    x[torch.tensor([0, -1, 0])] = y[:1]


def _rows_of_order(x: Any, y: Any) -> Any:
    return x.gather(-1, torch.argsort(y, stable=True, dim=-1))


def _triangle(x: Any, y: Any) -> Any:
    return x.tril() if x.ndim > 1 else x


def _diagonal(x: Any, offset: int) -> Any:
    return x.diagonal(offset, 0, -1) if x.ndim > 1 else x


def _ranks(x: Any, y: Any) -> Any:
    edges = x.reshape(-1).sort().values
    return torch.searchsorted(edges, y.contiguous()).to(x.dtype) + x


_EXACT: tuple[Step, ...] = (
    lambda x, y: x % _divisor(y), lambda x, y: x // _divisor(y), lambda x, y: x % 3 - y,
    lambda x, y: torch.fmod(x, _divisor(y)), lambda x, y: x // 2,
    lambda x, y: torch.div(x, _divisor(y), rounding_mode="trunc"), torch.maximum,
    lambda x, y: torch.where(x > y, x, -y), lambda x, y: x.clamp(-2, 2) + y, lambda x, y: x - y,
    lambda x, y: x.sort(0).values, lambda x, y: x.flip(-1), lambda x, y: x.roll(1, 0),
    lambda x, y: x.cummax(-1).values, lambda x, y: x.cummin(0).indices.to(x.dtype) + y,
    lambda x, y: x - x.median(-1, keepdim=True).values, lambda x, y: x.median() - x,
    lambda x, y: x.kthvalue(1, 0, keepdim=True).values + y, lambda x, y: x.cumsum(0),
    lambda x, y: x.masked_scatter(x > y, y), lambda x, y: x.masked_fill(x > y, 1),
    lambda x, y: torch.cat([x, y[:1]])[1:], lambda x, y: x.topk(1, -1).values + y,
    lambda x, y: x.scatter(0, torch.argsort(x, stable=True, dim=0), y), _triangle,
    lambda x, y: x.select_scatter(y[0], 0, -1), lambda x, y: x.diff(dim=0, prepend=y[:1]),
    lambda x, y: x.index_add(0, torch.tensor([0, 0]), y[:2]), _rows_of_order, _ranks,
    lambda x, y: torch.isin(x, y).to(x.dtype) * 2 - y,
    lambda x, y: torch.copysign(x, y).to(x.dtype),
    _written(_first), _written(_columns), _written(_places), _written(lambda x, y: x.add_(y)),
    _written(lambda x, y: x.transpose(0, -1).sub_(1)), _written(lambda x, y: x.fill_(3)),
    _written(lambda x, y: x[1:].copy_(y[:-1])), _written(lambda x, y: x.clamp_(min=0)),
    _written(lambda x, y: _diagonal(x, 0).add_(1)),
    _written(lambda x, y: _diagonal(x, 1).zero_()),
    _written(lambda x, y: _diagonal(x, -1).fill_(2)),
)  # fmt: skip


def _energy(v: Any) -> Any:
    return (torch.sin(v) * v.flip(0)).sum() + (v.tanh() ** 2).sum()


_SMOOTH: tuple[Step, ...] = (
    torch.atan2, torch.hypot, lambda x, y: torch.erfinv(x.tanh() / 2), lambda x, y: x.softmax(-1),
    lambda x, y: x.logcumsumexp(0), lambda x, y: torch.asin(y.tanh()) + torch.acos(x.sin()),
    lambda x, y: x.std(0, keepdim=True) + y, lambda x, y: torch.atan(x) * y, torch.logaddexp,
    lambda x, y: torch.erfc(x) - y, lambda x, y: F.normalize(x, dim=-1),
    lambda x, y: x / (y.abs() + 1),
)  # fmt: skip


def _attention(scale: float) -> Step:
    def step(h: Any, p: Any) -> Any:
        heads = h.reshape(1, 1, -1, h.shape[-1])
        return F.scaled_dot_product_attention(heads, heads / 64, heads, scale=scale)

    return step


def _channels(h: Any) -> Any:
    """[n, c, w] with the last dimension as channels."""
    return h.reshape(-1, h.shape[-1], 1).expand(-1, -1, 2)


# Of 16-bit numbers up to some hundreds and an f32 vector of the length of their last dimension.
_NARROW: tuple[Step, ...] = (
    lambda h, p: F.layer_norm(h, p.shape, p, p), lambda h, p: F.layer_norm(h, p.shape, p.to(h)),
    lambda h, p: F.rms_norm(h, p.shape, p), lambda h, p: F.rms_norm(h, p.shape),
    lambda h, p: F.batch_norm(_channels(h), p * 100, p.square() * 1e4 + 1, p, p),
    lambda h, p: F.group_norm(_channels(h), 1, p, p), lambda h, p: F.group_norm(_channels(h), 1),
    lambda h, p: F.normalize(h, dim=-1), lambda h, p: torch.linalg.vector_norm(h, dim=-1),
    lambda h, p: h.mean(-1), lambda h, p: h.softmax(-1), lambda h, p: h.logsumexp(-1),
    lambda h, p: F.mse_loss(h / 64, -h / 64), _attention(0.0), _attention(0.25),
)  # fmt: skip
# torch.export takes none of them.
_TRANSFORMS: tuple[Step, ...] = (
    lambda x, y: func.grad(_energy)(x), lambda x, y: func.jvp(_energy, (x,), (y,))[0] + x,
    lambda x, y: func.vmap(func.grad(lambda v: _energy(v[None])))(x),
    lambda x, y: func.vjp(torch.sin, x)[1](y)[0],
    lambda x, y: func.jacrev(lambda v: (v[0] ** 2))(x).reshape(-1, *x.shape).sum(0),
    lambda x, y: func.jacfwd(lambda v: v[0].sin())(x).reshape(-1, *x.shape).sum(0),
    lambda x, y: func.hessian(_energy)(x.reshape(-1)[:3]).diagonal().sum() + x,
)  # fmt: skip


def random_function(seed: int) -> tuple[Callable[..., Any], list[Any]]:
    """A function of two tensors of rank 1 to 3, and tensors for it: eighths, or integers."""
    generator = torch.Generator().manual_seed(seed)

    def pick(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    dtype = DTYPES[pick(len(DTYPES))]
    shape = [2 + pick(4) for _ in range(1 + pick(3))]
    exact = [_EXACT[pick(len(_EXACT))] for _ in range(1 + pick(3))]
    rounded = _SMOOTH if _exported(seed) else _SMOOTH + _TRANSFORMS
    smooth = [rounded[pick(len(rounded))] for _ in range(pick(3))]
    half = (torch.float16, torch.bfloat16)[pick(2)]
    narrow = [_NARROW[pick(len(_NARROW))] for _ in range(pick(3))]

    def function(x: Any, y: Any) -> Any:
        h, p = (x * 128).to(half), y.reshape(-1, y.shape[-1])[0].float()
        asked = [step(h, p) for step in narrow]
        for step in exact:
            x, y = step(x, y), x
        results = [*asked, x]
        if smooth:
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            x, y = x.to(wide), y.to(wide)
        for step in smooth:
            x, y = step(x, y), x
        return *results, x, y

    numbers = [torch.randint(-24, 25, shape, generator=generator) for _ in range(2)]
    scale = 1 if dtype == torch.int64 else 8
    return function, [(n // 4 if scale == 1 else n.double() / scale).to(dtype) for n in numbers]


def _exported(seed: int) -> bool:
    return seed % 2 == 0


def outcome_of(seed: int) -> Outcome:
    """Import a function and evaluate it by the references; compare with eager mode."""
    function, tensors = random_function(seed)
    want = [t.clone() for t in function(*tensors)]
    try:
        if _exported(seed):
            return evaluated(from_torch(function, tuple(tensors)), tensors, want)
        got = through_compile(function, tensors)
    except PycError as error:
        return Outcome(UNEXPORTED, error.message)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, PycError):
            raise
        return Outcome(REFUSED, error.inner_exception.message)
    found = [difference(array_of(g), array_of(w)) for g, w in zip(got, want, strict=True)]
    wrong = [f"result {i}: {text}" for i, text in enumerate(found) if text]
    return Outcome(wrong[0] if wrong else EQUAL)


def through_compile(function: Callable[..., Any], tensors: list[Any]) -> list[Any]:
    """The results of a function whose graphs torch.compile hands over, evaluated."""
    from torch._dynamo.backends.common import (  # pyright: ignore[reportMissingImports]
        aot_autograd,
    )

    def compiled(gm: Any, example_inputs: Any) -> Callable[..., Any]:
        with _disable_current_modes():
            made = import_compiled(gm, "graph", {})

        def call(args: list[Any]) -> list[Any]:
            given = [a(args) if callable(a) else array_of(args[a]) for a in made.arguments]
            found = interpret(made.module, given)
            arrays = found if isinstance(found, (list, tuple)) else [found]
            return [r(args) if callable(r) else tensor_of(arrays[r]) for r in made.results]

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    torch._dynamo.reset()
    made = aot_autograd(fw_compiler=compiled, decompositions=_table())
    with torch.no_grad():
        return list(torch.compile(function, backend=made)(*tensors))
