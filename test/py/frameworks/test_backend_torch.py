"""`torch.compile(model, backend="pyc")`: inference, recompiles, training, refusals, fallbacks."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._dynamo.testing import CompileCounter  # noqa: E402  # pyright: ignore

import pyc_mlir.api as api  # noqa: E402
import pyc_mlir.torch as pyc_torch  # noqa: E402
from pyc_mlir.dialects.errors import PycError  # noqa: E402
from pyc_mlir.pipelines.choices.contract import Contract  # noqa: E402
from pyc_mlir.util import children  # noqa: E402

F = torch.nn.functional
NO_CACHE = {"cache": False}


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    pyc_torch.reset_stats()


def mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    )


def compiled(module, **options):
    return torch.compile(module, backend="pyc", options={**NO_CACHE, **options})


def test_the_backend_is_known_by_name():
    assert "pyc" in torch._dynamo.list_backends()


def test_names_stand_for_functions_in_any_order():
    """`backend` is a module too, which is imported with the first of its names."""
    program = "import pyc_mlir.torch as t; assert callable(t.stats) and callable(t.backend)"
    assert not children.run(children.python_command(program)).returncode


def test_sizes_become_dynamic_and_recompiles_are_counted():
    module = mlp().eval()
    model = compiled(module)
    with torch.no_grad():
        for batch in (3, 5, 7, 9, 1):
            x = torch.randn(batch, 8)
            torch.testing.assert_close(model(x), module(x), atol=2e-6, rtol=1e-5)
    stats = pyc_torch.stats()
    # Size 3 alone, all others but 1 together, and 1, which is torch's own case.
    assert (stats.inference, stats.recompiled) == (3, 2)


def test_token_ids_out_of_range_are_refused():
    module = torch.nn.Embedding(30, 4).eval()
    ids = torch.tensor([[1, 30]])
    with torch.no_grad(), pytest.raises(PycError, match="0 to 29, got 30"):
        compiled(module)(ids)
    torch._dynamo.reset()
    with torch.no_grad():
        answered = compiled(module, guard_indices=False)(ids)
    torch.testing.assert_close(answered, module(torch.tensor([[1, 29]])))


def gradients(module, call, *inputs):
    module.zero_grad()
    loss = call(*inputs).square().mean()
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in module.named_parameters()}


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(11, 8)
        self.project = torch.nn.Linear(8, 24)

    def forward(self, ids):
        q, k, v = self.project(self.words(ids)).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v)


TRAINED = {
    "convolution": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1), torch.nn.Flatten(),
            torch.nn.Linear(64, 5),
        ),
        lambda: torch.randn(2, 3, 16, 16),
    ),
    "depthwise": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4), torch.nn.GELU(),
            torch.nn.AdaptiveAvgPool2d(1),
        ),
        lambda: torch.randn(2, 4, 7, 7),
    ),
    "attention": (Attention, lambda: torch.randint(0, 11, (2, 6))),
    "norms": (mlp, lambda: torch.randn(3, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_step_equals_eager(name):
    make, inputs = TRAINED[name]
    module, x = make().train(), inputs()
    reference = copy.deepcopy(module)
    loss, grads = gradients(module, compiled(module), x)
    want, expected = gradients(reference, reference, x)
    torch.testing.assert_close(loss, want, atol=1e-5, rtol=1e-5)
    largest = max(float(g.abs().max()) for g in expected.values())
    for parameter, gradient in expected.items():
        torch.testing.assert_close(
            grads[parameter], gradient, atol=2e-5 * max(1.0, largest), rtol=1e-4
        )
    for one, other in zip(module.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    stats = pyc_torch.stats()
    assert (stats.forward, stats.backward, stats.fallbacks) == (1, 1, 0)


def psi(x):
    return torch.digamma(x) + 1


def test_a_refusal_is_the_error_of_the_call():
    """It names what the user called, not one of the primitives that torch makes of it."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"aten\.digamma"):
        compiled(psi)(torch.rand(4))
    assert pyc_torch.stats().refused == 1


def test_a_refusal_names_the_line_of_the_code():
    def function(x):
        return torch.digamma(x) + 1

    line = function.__code__.co_firstlineno + 1
    with torch.no_grad(), pytest.raises(Exception, match=rf"digamma.* at .*{__name__}\.py:{line}"):
        compiled(function)(torch.ones(3))


def test_a_fallback_is_asked_for_and_counted():
    x = torch.rand(4)
    assert torch.equal(compiled(psi, fallback="eager")(x), psi(x))
    assert pyc_torch.stats().fallbacks == 1


def test_what_the_compile_refuses_after_the_import_falls_back_too():
    module, x = mlp().eval(), torch.randn(2, 8)
    contract = Contract(memory_budget_bytes=1)
    with torch.no_grad():
        with pytest.raises(Exception, match="BUDGET_IMPOSSIBLE"):
            compiled(module, contract=contract)(x)
        torch._dynamo.reset()
        model = compiled(module, contract=contract, fallback="eager")
        assert torch.equal(model(x), module(x)) and torch.equal(model(x), module(x))
    assert (pyc_torch.stats().refused, pyc_torch.stats().fallbacks) == (2, 1)


def test_unknown_options_are_refused():
    with pytest.raises(Exception, match="sideways"):
        compiled(mlp(), fallback="sideways")(torch.randn(2, 8))
    with pytest.raises(Exception, match="sometimes"):
        compiled(mlp(), freeze="sometimes")(torch.randn(2, 8))
    with pytest.raises(Exception, match="max-autotune"):
        torch.compile(mlp(), backend="pyc", mode="max-autotune")(torch.randn(2, 8))


def test_inputs_that_are_written_are_written():
    def step(x, y):
        x.add_(y)
        return x * 2

    x, y = torch.ones(3), torch.full((3,), 2.0)
    with torch.no_grad():
        got = compiled(step)(x, y)
    assert torch.equal(x, torch.full((3,), 3.0))
    assert torch.equal(got, torch.full((3,), 6.0))


WHOLE = torch.arange(192.0).reshape(8, 24)
IMAGE = torch.arange(576.0).reshape(3, 3, 8, 8).remainder(7)
LAST = {"memory_format": torch.channels_last}
# What changes from call to call, and how often torch itself then compiles.
SERIES = {
    "numbers": (
        lambda x, k, n: (x * k + (x > k), x[:n] - n),
        [(WHOLE, k, n) for k, n in ((2, 3), (3, 4), (-5, 2), (0.5, 5), (1.5, 3), (-2.5, 4))],
    ),
    "strides": (
        lambda x: (x * 2).sum(-1),
        [(x,) for x in (WHOLE, WHOLE[:6, :4].T, WHOLE[::2, ::2], WHOLE[:, ::3], WHOLE[2:7, 3:8])],
    ),
    "layout": (
        torch.nn.Conv2d(3, 4, 3),
        [(x,) for x in (IMAGE[:1], IMAGE[:2].to(**LAST), IMAGE.to(**LAST))],
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", SERIES)
def test_what_changes_between_calls_compiles_as_often_as_torch_asks(name):
    function, calls = SERIES[name]
    counter = CompileCounter()
    want = [torch.compile(function, backend=counter)(*args) for args in calls]
    torch._dynamo.reset()
    model = compiled(function)
    for args, expected in zip(calls, want, strict=True):
        torch.testing.assert_close(model(*args), expected, atol=1e-5, rtol=1e-4)
    assert pyc_torch.stats().graphs == counter.frame_count


def test_batch_norm_in_training_takes_every_batch():
    ours, theirs = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    model = compiled(ours)
    for batch in (5, 7, 9):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(model(x), theirs(x), atol=1e-5, rtol=1e-5)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, atol=1e-6, rtol=1e-6)
    assert pyc_torch.stats().forward == 2


def _add_then_read(whole, part):
    whole.add_(100)
    return part * 2, whole + 1


def _write_the_part(whole, part):
    part.mul_(2)
    return whole + 1, part[0] * 3


@pytest.mark.parametrize("function", [_add_then_read, _write_the_part])
@pytest.mark.parametrize("part", [lambda t: t[1:], lambda t: t[:, 1:3]])
def test_arguments_that_overlap_are_written_as_in_eager_code(function, part):
    wholes = [torch.arange(24.0).reshape(4, 6) for _ in range(2)]
    with torch.no_grad():
        want = function(wholes[0], part(wholes[0]))
        got = compiled(function)(wholes[1], part(wholes[1]))
    for value, expected in zip((*got, wholes[1]), (*want, wholes[0]), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)


def test_results_that_are_one_value_are_apart():
    def function(x):
        return x + 1, x + 1, (x + 1).clone(), torch.zeros(3), torch.zeros(3), x.clone(), x.clone()

    x = torch.ones(3)
    with torch.no_grad():
        got = compiled(function)(x)
    for number, value in enumerate(got):
        value.fill_(number + 10)
    assert [v[0].item() for v in got] == list(range(10, 17)) and x[0] == 1


def test_one_program_with_plans_takes_the_place_of_recompiles(monkeypatch):
    made, original = [], api.compile

    def keep(*args, **options):
        made.append(original(*args, **options))
        return made[-1]

    def rows(x):  # of unknown length, whose greatest element has no kernel
        return torch.argmax(x, -1)

    monkeypatch.setattr(api, "compile", keep)
    fast = compiled(rows, plans=2)
    with torch.no_grad():
        for n in (64, 7, 512, 64, 300):
            x = torch.randn(256, n)
            torch._dynamo.mark_dynamic(x, 1, min=2, max=512)
            torch.testing.assert_close(fast(x), rows(x))
    assert pyc_torch.stats().recompiled == 0
    (program,) = made
    assert list(program.signature.ranges.values()) == [(2, 512)]
    served = program.stats().served
    assert len(program.shape_plans) == 2 and sum(served.values()) == 5
    assert sum(served[p] for p in program.shape_plans) >= 1
