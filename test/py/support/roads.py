"""Two models by every road: torch.export, ONNX of two opsets, jaxpr, StableHLO, linalg.

`by_road(model)` gives a pyc module for each road. Models are as their frameworks' users write them:
torch modules with torch's layers, JAX functions in `jax.numpy`, whose composites are spelled out.
Layouts agree (images are NCHW), and so does the mathematics.
"""

import io
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.export  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

import pyc_mlir.jax as pyc_jax
from pyc_mlir.dialects.ir.bindings import ir, passmanager, stablehlo
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.linalg import import_linalg
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.stablehlo.importer import import_stablehlo, read_artifact
from pyc_mlir.frontends.torch.export import from_torch
from pyc_mlir.frontends.torch.importer import import_torch

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 2, 8, 32, 4, 2
DEPTH = WIDTH // HEADS
EPSILON = 1e-5
_LEGACY_OPSET, _OPSET = 18, 23
_TO_LINALG = "builtin.module(func.func(stablehlo-legalize-to-linalg))"


@dataclass(frozen=True)
class Model:
    """One model twice; `function` takes the state of `module` as numpy arrays, and x."""

    module: Any
    function: Callable[[dict[str, Any], Any], Any]
    x: np.ndarray

    @cached_property
    def state(self) -> dict[str, np.ndarray]:
        """Parameters and buffers by their paths."""
        return {name: t.detach().numpy() for name, t in self.module.state_dict().items()}

    def closed(self, x: Any) -> Any:
        """The JAX function with its weights as constants."""
        return self.function(self.state, x)


class _Block(torch.nn.Module):
    """An encoder's block, normalization first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.LayerNorm(WIDTH, eps=EPSILON) for _ in range(2))
        self.q, self.k, self.v, self.o = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = torch.nn.Linear(WIDTH, 64), torch.nn.Linear(64, WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        q, k, v = (
            layer(y).view(BATCH, LENGTH, HEADS, DEPTH).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))


def _encoder(w: dict[str, Any], x: Any) -> Any:
    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        normed = (x - mean) * jax.lax.rsqrt(variance + EPSILON)
        return normed * w[f"{name}.weight"] + w[f"{name}.bias"]

    def heads(x: Any) -> Any:
        return x.reshape(BATCH, LENGTH, HEADS, DEPTH).transpose(0, 2, 1, 3)

    for i in range(LAYERS):
        y = norm(x, f"{i}.first")
        q, k, v = (heads(linear(y, f"{i}.{name}")) for name in "qkv")
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(DEPTH)
        mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3)
        x = x + linear(mixed.reshape(BATCH, LENGTH, WIDTH), f"{i}.o")
        inner = jax.nn.gelu(linear(norm(x, f"{i}.second"), f"{i}.up"))
        x = x + linear(inner, f"{i}.down")
    return x


class _Residual(torch.nn.Module):
    """A block of He et al. (2016): two convolutions, and a third one beside where sizes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        conv, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d
        self.conv1 = conv(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = conv(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = norm(outputs), norm(outputs)
        self.beside = conv(inputs, outputs, 1, stride, bias=False) if stride > 1 else None
        self.bn3 = norm(outputs) if stride > 1 else None

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.beside is not None and self.bn3 is not None:
            x = self.bn3(self.beside(x))
        return functional.relu(y + x)


class _ResNet(torch.nn.Module):
    """Stem, two residual blocks, and the mean of each channel through a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn = torch.nn.BatchNorm2d(8)
        self.one, self.two = _Residual(8, 8, 1), _Residual(8, 16, 2)
        self.out = torch.nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.bn(self.conv(x))), 3, 2, 1)
        return self.out(functional.adaptive_avg_pool2d(self.two(self.one(x)), 1).flatten(1))


def _resnet(w: dict[str, Any], x: Any) -> Any:
    def conv(x: Any, name: str, stride: int, pad: int) -> Any:
        kernel = w[f"{name}.weight"]
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), [(pad, pad)] * 2)

    def norm(x: Any, name: str) -> Any:
        names = ("running_mean", "running_var", "weight", "bias")
        mean, variance, scale, bias = (w[f"{name}.{n}"][:, None, None] for n in names)
        return (x - mean) / jnp.sqrt(variance + EPSILON) * scale + bias

    def residual(x: Any, name: str, stride: int) -> Any:
        y = jax.nn.relu(norm(conv(x, f"{name}.conv1", stride, 1), f"{name}.bn1"))
        y = norm(conv(y, f"{name}.conv2", 1, 1), f"{name}.bn2")
        if stride > 1:
            x = norm(conv(x, f"{name}.beside", stride, 0), f"{name}.bn3")
        return jax.nn.relu(y + x)

    x = jax.nn.relu(norm(conv(x, "conv", 2, 3), "bn"))
    window, strides, pads = (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, pads)
    x = residual(residual(x, "one", 1), "two", 2).mean((2, 3))
    return x @ w["out.weight"].T + w["out.bias"]


def encoder() -> Model:
    """Two blocks, normalization first: x [2, 8, 32]."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(_Block() for _ in range(LAYERS))).eval()
    return Model(_moved(module), _encoder, _normal(BATCH, LENGTH, WIDTH))


def resnet() -> Model:
    """A stem and two residual blocks: x [2, 3, 32, 32]."""
    torch.manual_seed(0)
    return Model(_moved(_ResNet().eval()), _resnet, _normal(2, 3, 32, 32))


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _moved(module: Any) -> Any:
    """The module with vectors away from 0 and 1, so that none is an identity."""
    for name, tensor in module.state_dict().items():
        if tensor.dim() == 1:
            low = 0.5 if "var" in name or "weight" in name else -0.1
            tensor.uniform_(low, low + 0.3)
    return module


def by_road(model: Model, linalg: bool = True) -> Iterator[tuple[str, ir.Module]]:
    """A pyc module for each road, each in a context of its own; `linalg`: by that road too."""
    x = torch.from_numpy(model.x)
    yield "torch", import_torch(from_torch(model.module, (x,)))
    for opset in (_LEGACY_OPSET, _OPSET):
        yield f"onnx {opset}", import_onnx(_onnx(model.module, x, opset), context=new_context())
    yield "jaxpr", pyc_jax.jit(model.closed).module(model.x)
    exported = jax.export.export(jax.jit(model.closed))(model.x).mlir_module_serialized
    yield "stablehlo", import_stablehlo(read_artifact(exported, "test", new_context()), "test")
    if not linalg:
        return
    with new_context():
        stablehlo.register_stablehlo_passes()
        foreign = read_artifact(exported, "test", ir.Context.current)
        passmanager.PassManager.parse(_TO_LINALG).run(foreign.operation)
        yield "linalg", import_linalg(foreign, "test")


def _onnx(module: Any, x: Any, opset: int) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, (x,), dynamo=True, opset_version=opset, optimize=True, verbose=False
        )
    assert program is not None
    program.save(file)  # pyright: ignore[reportArgumentType]  (it takes a file, too)
    return file.getvalue()
