"""Random numbers under `torch.compile(backend="pyc")`: distributions, seeds and gradients."""

import copy
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pyc_mlir  # noqa: E402
import pyc_mlir.torch as pyc_torch  # noqa: E402
from pyc_mlir.artifact.import_report import UnsupportedModel  # noqa: E402
from pyc_mlir.torch.backend import imported  # noqa: E402

F = torch.nn.functional
COUNT = 1 << 15


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def compiled(module):
    return torch.compile(module, backend="pyc", options={"cache": False})


def distance(sample, distribution):
    """The Kolmogorov-Smirnov statistic, in units of its 1e-6 quantile."""
    ordered = np.sort(sample.double().flatten().numpy())
    cdf = distribution(ordered)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    gap = max(np.abs(cdf - steps[1:]).max(), np.abs(cdf - steps[:-1]).max())
    return gap * math.sqrt(len(ordered)) / math.sqrt(-math.log(1e-6 / 2) / 2)


def even(sample, counts):
    """Pearson's statistic of counts that should be `counts`, in deviations from its mean."""
    found = torch.bincount(sample.flatten().long(), minlength=len(counts)).double()
    chi = float(((found - counts) ** 2 / counts).sum())
    return abs(chi - len(counts) + 1) / math.sqrt(2 * len(counts))


def normal_cdf(x):
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


def draws(weights):
    """One program with every distribution; two of them drawn twice."""
    shape = (COUNT,)
    return (
        torch.rand(shape),
        torch.rand(shape),
        torch.rand(shape, dtype=torch.float64),
        torch.randn(128, 256),
        torch.randn(shape, dtype=torch.float64),
        torch.empty(shape).uniform_(-2, 6),
        torch.empty(shape).exponential_(2.0),
        torch.randint(3, 10, shape),
        torch.randint(0, 1 << 40, shape),
        torch.empty(shape).bernoulli_(0.3),
        torch.bernoulli(torch.full(shape, 0.75)),
        torch.multinomial(weights, COUNT, replacement=True),
        torch.multinomial(weights, 3),
        torch.randperm(1000),
        torch.normal(torch.full(shape, 5.0), 2.0),
        torch.rand(shape, dtype=torch.bfloat16),
    )


def test_distributions_are_torchs_and_draws_are_independent():
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0, 0.0])
    function = compiled(draws)
    with torch.no_grad():
        first, second = function(weights), function(weights)
        torch.manual_seed(0)
        again = function(weights)
    for a, b, c in zip(first, second, again, strict=True):
        assert torch.equal(a, c)
        assert not torch.equal(a, b) or a.numel() < 100
    rand, other, rand64, randn, randn64, uniform, exponential, small, large, *rest = first
    bernoulli, chances, replaced, distinct, order, shifted, narrow = rest
    for sample in (rand, other, rand64, (uniform + 2) / 8, large.double() / (1 << 40)):
        assert distance(sample, lambda x: x) < 1
        assert float(sample.min()) >= 0 and float(sample.max()) < 1
    for sample in (randn, randn64, (shifted - 5) / 2):
        assert distance(sample, normal_cdf) < 1
        assert abs(float(sample.mean())) < 0.03 and abs(float(sample.var()) - 1) < 0.05
    assert distance(exponential, lambda x: 1 - np.exp(-2 * x)) < 1
    assert even(small - 3, torch.full((7,), COUNT / 7, dtype=torch.float64)) < 5
    assert even(replaced - 1, COUNT * torch.tensor([1.0, 2, 5]).double() / 8) < 5
    assert abs(float(bernoulli.mean()) - 0.3) < 0.015 and abs(float(chances.mean()) - 0.75) < 0.015
    assert sorted(distinct.tolist()) == [1, 2, 3] and sorted(order.tolist()) == list(range(1000))
    assert float(narrow.float().max()) < 1 and abs(float(narrow.float().mean()) - 0.5) < 0.015
    pairs = ((rand, other), (rand, second[0]), (rand[:-1], rand[1:]), (randn.flatten(), rand))
    for a, b in pairs:
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 5 / math.sqrt(COUNT)


def test_a_program_gives_equal_results_for_equal_seeds():
    captured = []

    def backend(gm, example_inputs):
        from torch._dynamo.backends.common import (  # pyright: ignore[reportMissingImports]
            aot_autograd,
        )

        def keep(gm, example_inputs):
            captured.append(imported(gm))
            return gm.forward

        return aot_autograd(fw_compiler=keep, inference_compiler=keep)(gm, example_inputs)

    with torch.no_grad():
        torch.compile(lambda x: torch.rand_like(x) + x, backend=backend)(torch.zeros(64))
    program = pyc_mlir.compile(captured[0].module, cache=False)
    assert [i.name for i in program.signature.inputs][-1] == "seed"
    x, seeds = np.zeros(64, np.float32), [np.array(s, np.uint64) for s in (1, 1, 2)]
    a, b, c = (np.asarray(program(x, seed)) for seed in seeds)
    np.testing.assert_array_equal(a, b)
    assert (a != c).mean() > 0.9


def test_the_backward_pass_has_the_mask_of_the_forward_pass():
    dropout = torch.nn.Dropout(0.25)
    function = compiled(dropout)
    x = torch.ones(64, 100, requires_grad=True)
    y = function(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    kept = y.detach() != 0
    assert torch.allclose(y.detach()[kept], torch.tensor(4 / 3))
    assert abs(float(kept.float().mean()) - 0.75) < 5 * math.sqrt(0.25 * 0.75 / x.numel())
    dropout.eval()
    assert torch.equal(function(x), x)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(p):
    x = torch.randn(5, 6, requires_grad=True)
    y = compiled(lambda x: F.dropout(x, p, training=True) * 2)(x)
    y.sum().backward()
    assert torch.equal(y.detach(), x.detach() * 2 * (1 - p))
    assert torch.equal(x.grad, torch.full_like(x, 2 * (1 - p)))


def _losses(step, model, rounds):
    torch.manual_seed(3)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    x = torch.randn(256, 6)
    target = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs()], 1)
    losses = []
    for _ in range(rounds):
        optimizer.zero_grad()
        loss = F.mse_loss(step(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_training_with_dropout_converges_as_eager_does():
    eager = torch.nn.Sequential(
        torch.nn.Linear(6, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
    )
    mine = copy.deepcopy(eager)
    want, got = _losses(eager, eager, 150), _losses(compiled(mine), mine, 150)
    assert sum(got[-10:]) < 0.5 * sum(got[:10])
    assert abs(sum(got[-30:]) / sum(want[-30:]) - 1) < 0.2
    assert len(set(got)) > 140


def test_dynamic_sizes_draw_for_each_element():
    function = compiled(lambda x: torch.rand_like(x))
    with torch.no_grad():
        for size in (4, 50, 33):
            out = function(torch.zeros(size, 3))
            assert out.shape == (size, 3) and len(set(out.flatten().tolist())) > 0.9 * out.numel()


def test_an_exported_model_has_no_seed():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).train()
    with pytest.raises(UnsupportedModel, match=r"\.eval\(\)") as refused:
        pyc_mlir.compile(model, (torch.randn(2, 4),), cache=False)
    assert "seed" in str(refused.value)
    with pytest.raises(UnsupportedModel, match="seed"):
        pyc_torch.compile(lambda x: x + torch.rand(3), (torch.randn(3),), cache=False)
