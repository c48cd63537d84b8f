"""Random torch modules from a seed: a few layers on images or on sequences, with their inputs.

    python test/py/support/random_torch.py

runs 200 of them through `torch.compile(backend="pyc")` and stores how many equal eager mode.
"""

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

nn, F = torch.nn, torch.nn.functional
Layer = Callable[[Any], Any]


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Layer) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class _Sum(nn.Module):
    """x and what a layer makes of it, where that has the same shape; else that alone."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return x + y if y.shape == x.shape else y


class _Squared(nn.Module):
    """A layer of two operands on x and x."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x, x)


class _Attention(nn.Module):
    """Heads of width 4, causal or not, with a mask of the first positions or none."""

    def __init__(self, width: int, causal: bool, masked: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.causal, self.masked = causal, masked and not causal

    def forward(self, x: Any) -> Any:
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, w // 4, 4).permute(2, 0, 3, 1, 4)
        mask = (torch.arange(n) < 2).expand(n, n) if self.masked else None
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, n, w))


# Functions that keep a shape.
_POINTWISE: tuple[Layer, ...] = (
    torch.tanh, torch.sigmoid, torch.relu, F.gelu, F.silu, F.hardswish, F.elu, F.softplus,
    torch.sin, torch.abs, lambda x: x * x.mean(), lambda x: F.leaky_relu(x, 0.1), F.mish,
    lambda x: x.clamp(-1, 1), lambda x: torch.where(x > 0, x, x.exp() - 1),
    lambda x: F.log_softmax(x, -1),
    lambda x: F.gelu(x, approximate="tanh"), lambda x: x / (1 + x.abs()), F.softsign,
    lambda x: torch.maximum(x, x.flip(-1)), lambda x: x - x.amax(-1, keepdim=True),
    lambda x: x.cumsum(-1) / x.shape[-1], lambda x: x.roll(1, 1), lambda x: torch.erf(x) + x,
    lambda x: x.sort(-1).values, lambda x: x.masked_fill(x < -1, 0.5), torch.square,
    lambda x: F.softmax(x, -1), lambda x: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1),
)  # fmt: skip


def _image(pick: Callable[[int], int], channels: int) -> tuple[Any, int]:
    """A layer on [b, c, h, w], and the channels of its result."""
    out = 4 * (1 + pick(3))
    conv = nn.Conv2d(channels, out, 1 + 2 * pick(2), 1 + pick(2), pick(2), bias=bool(pick(2)))
    layers: tuple[Callable[[], tuple[Any, int]], ...] = (
        lambda: (conv, out),
        lambda: (nn.Conv2d(channels, channels, 3, padding=1, groups=channels), channels),
        lambda: (nn.ConvTranspose2d(channels, out, 2, 2), out),
        lambda: (nn.BatchNorm2d(channels), channels),
        lambda: (nn.GroupNorm(2, channels), channels),
        lambda: (nn.InstanceNorm2d(channels, affine=True), channels),
        lambda: (nn.MaxPool2d(3, 1, 1), channels),
        lambda: (nn.AvgPool2d(3, 1, 1, count_include_pad=bool(pick(2))), channels),
        lambda: (nn.AdaptiveAvgPool2d((4, 3)), channels),
        lambda: (nn.Upsample(scale_factor=2, mode=("nearest", "bilinear")[pick(2)]), channels),
        lambda: (nn.PReLU(channels), channels),
        lambda: (nn.ZeroPad2d((1, 0, 2, 1)), channels),
        lambda: (_Function(lambda x: torch.cat([x, x.flip(2)], 1)), 2 * channels),
        lambda: (_Function(_POINTWISE[pick(len(_POINTWISE))]), channels),
    )
    return layers[pick(len(layers))]()


def _sequence(pick: Callable[[int], int], width: int) -> tuple[Any, int]:
    """A layer on [b, n, w], and the width of its result."""
    out = 8 * (1 + pick(2))
    layers: tuple[Callable[[], tuple[Any, int]], ...] = (
        lambda: (nn.Linear(width, out, bias=bool(pick(2))), out),
        lambda: (nn.LayerNorm(width), width),
        lambda: (nn.RMSNorm(width), width),
        lambda: (_Attention(width, bool(pick(2)), bool(pick(2))), width),
        lambda: (_Squared(nn.Bilinear(width, width, out)), out),
        lambda: (_Function(lambda x: torch.einsum("bnw,bmw->bnm", x, x) @ x), width),
        lambda: (_Function(lambda x: F.glu(torch.cat([x, x], -1))), width),
        lambda: (_Function(lambda x: x[:, ::2].repeat_interleave(2, 1)[:, : x.shape[1]]), width),
        lambda: (_Function(_POINTWISE[pick(len(_POINTWISE))]), width),
    )
    made, width = layers[pick(len(layers))]()
    return (_Sum(made) if pick(2) else made), width


def random_module(seed: int) -> tuple[Any, Callable[[int], Any]]:
    """A module in eval mode, and its input for a batch size: images [b, 8, 9, 8] or [b, 6, 8]."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)

    def pick(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    images = bool(pick(2))
    size, make = 8, (_image if images else _sequence)
    layers = []
    for _ in range(2 + pick(4)):
        layer, size = make(pick, size)
        layers += [layer, _Function(_POINTWISE[pick(len(_POINTWISE))])]
    shape = (8, 9, 8) if images else (6, 8)
    return nn.Sequential(*layers).eval(), lambda batch: torch.randn(batch, *shape)


SEEDS = range(200)
# Of the largest result; or ten times what torch's result is off the one in f64.
TOLERANCE = 1e-4
RESULT = Path(__file__).resolve().parents[3] / "docs" / "results" / "torch-random.json"


def batches_of(seed: int) -> tuple[int, ...]:
    """The batches that a module is called with; a second one makes it dynamic."""
    return (2, 3) if seed % 4 == 0 else (2,)


def check(seed: int) -> None:
    """Raise AssertionError unless a module through PyC equals eager, PycError if it is refused."""
    module, inputs = random_module(seed)
    torch._dynamo.reset()
    model = torch.compile(module, backend="pyc", options={"cache": False})
    for batch in batches_of(seed):
        x = inputs(batch)
        with torch.no_grad():
            want, got = module(x), model(x)
            exact = copy.deepcopy(module).double()(x.double())
        assert torch.isfinite(want).all(), "a module whose results say nothing"
        # Where values cancel, torch's own results are no better than these.
        own = 10 * float((want - exact).abs().max())
        atol = max(TOLERANCE * float(want.abs().max()), own)
        torch.testing.assert_close(got, want, rtol=0, atol=atol)


def main() -> None:
    """Run all and store the counts, by the number of batches."""
    from pyc_mlir.dialects.errors import PycError
    from pyc_mlir.measure.environment import probe
    from pyc_mlir.measure.records import Report, record

    found: dict[str, Counter[str]] = {"one batch": Counter(), "a second batch": Counter()}
    faults: dict[str, list[str]] = {}
    for seed in SEEDS:
        kind = "a second batch" if len(batches_of(seed)) > 1 else "one batch"
        try:
            check(seed)
            outcome = "equal"
        # torch wraps what a backend raises in an error of its own.
        except (AssertionError, PycError, RuntimeError) as error:
            outcome = "different" if isinstance(error, AssertionError) else "refused"
            faults.setdefault(kind, []).append(f"{seed}: {error}"[:200])
        found[kind][outcome] += 1
        print(seed, outcome, flush=True)
    rows = []
    for kind, counts in found.items():
        others = {name: counts[name] for name in ("refused", "different")}
        told = {"faults": faults[kind]} if kind in faults else {}
        given = {"of": counts.total(), **others, **told}
        rows.append(record(kind, "pyc", "equal", "modules", counts["equal"], **given))
    Report("torch-random", probe(), {"tolerance": TOLERANCE}, rows).save(RESULT)


if __name__ == "__main__":
    main()
