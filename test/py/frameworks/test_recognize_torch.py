"""Blocks of transformers as torch's exporter writes them: their composites are recognized."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from op_modules import ops_of

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
WIDTH, HEADS, FEW = 32, 4, 2
DEPTH = WIDTH // HEADS
PASSES = "pyc-canonicalize,pyc-infer-shapes,pyc-recognize,pyc-canonicalize"


class RmsNorm(torch.nn.Module):
    """As transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(WIDTH))

    def forward(self, x):
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)


def rotated(x, cos, sin):
    """Rotary embedding by halves."""
    first, second = x[..., : DEPTH // 2], x[..., DEPTH // 2 :]
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Decoder(torch.nn.Module):
    """Llama's block: grouped heads, rotary embedding, a gated feed-forward part."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.first, self.second = RmsNorm(), RmsNorm()
        self.q = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (torch.nn.Linear(WIDTH, FEW * DEPTH, bias=False) for _ in "kv")
        self.gate, self.up = (torch.nn.Linear(WIDTH, 64, bias=False) for _ in "gu")
        self.down = torch.nn.Linear(64, WIDTH, bias=False)

    def heads(self, x, count):
        return x.view(x.shape[0], x.shape[1], count, DEPTH).transpose(1, 2)

    def attention(self, q, k, v):
        if not self.by_hand:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = torch.matmul(q, k.transpose(2, 3)) * DEPTH**-0.5
        seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
        return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)

    def forward(self, x, cos, sin):
        y = self.first(x)
        q, k, v = (
            self.heads(self.q(y), HEADS),
            self.heads(self.k(y), FEW),
            self.heads(self.v(y), FEW),
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // FEW, dim=1) for t in (k, v))
        out = self.attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + out
        y = self.second(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def encoder() -> Any:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 64, activation="gelu", batch_first=True, norm_first=True
    )
    return layer.eval()


def decoder(by_hand: bool) -> Any:
    torch.manual_seed(0)
    return Decoder(by_hand).eval()


BLOCKS = {
    "encoder": (encoder, [(2, 6, WIDTH)], {"layernorm": 2, "gelu": 1, "attention": 1}),
    "decoder": (
        lambda: decoder(False),
        [(2, 6, WIDTH), (6, DEPTH), (6, DEPTH)],
        {"rmsnorm": 2, "silu": 1, "attention": 1},
    ),
    "decoder by hand": (
        lambda: decoder(True),
        [(2, 6, WIDTH), (6, DEPTH), (6, DEPTH)],
        {"rmsnorm": 2, "silu": 1, "attention": 1},
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_composites_of_an_exported_block_are_recognized(name, tmp_path):
    make, shapes, wanted = BLOCKS[name]
    block = make()
    inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in shapes]
    path = tmp_path / "block.onnx"
    torch.onnx.export(block, tuple(inputs), path, opset_version=18, dynamo=True, verbose=False)
    with new_context() as context, ir.Location.unknown():
        module = import_onnx(path, context=context)
        run_pipeline(module, PASSES, PassContext())
        found = Counter(op.name.removeprefix("pyc.") for op in ops_of(module))
        (got,) = interpret(module, [x.numpy() for x in inputs])
    with torch.no_grad():
        want = block(*inputs).numpy()
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)
    assert {op: found[op] for op in wanted} == wanted
    assert not {"softmax", "exp", "erf", "rsqrt", "sqrt"} & set(found)
