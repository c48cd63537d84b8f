"""An encoder in the manner of BERT, of any length.

Batch and length are named dimensions of one program. A mask hides padding.
"""

import torch
from torch.nn import functional

import pyc_mlir
from pyc_mlir import TensorSpec


class Layer(torch.nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads, self.qkv = heads, torch.nn.Linear(width, 3 * width)
        self.out, self.norms = (
            torch.nn.Linear(width, width),
            torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2)),
        )
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
        x = self.norms[0](x + self.out(seen.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.down(functional.gelu(self.up(x))))


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layer = torch.nn.Embedding(1000, 64), Layer()

    def forward(self, ids, mask):
        return self.layer(self.words(ids), mask)


encoder = Encoder().eval()
specs = (TensorSpec("i64", "batch", "length"), TensorSpec("i1", "batch", "length"))
program = pyc_mlir.compile(encoder, specs)
for batch, length in ((2, 7), (3, 16)):
    ids = torch.randint(1000, (batch, length))
    mask = torch.arange(length)[None, :] < torch.randint(1, length + 1, (batch, 1))
    wanted = encoder(ids, mask).detach().numpy()
    assert abs(program(ids, mask) - wanted).max() < 1e-4
