"""A decoder in the manner of Llama, with a cache.

One token a call. The cache is a pair of buffers that the module writes: the compiled program keeps
them between calls, and their memory is donated to it.
"""

import torch
from torch.nn import functional

import pyc_mlir.torch

PLACES, WIDTH, HEADS = 32, 64, 4


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = torch.nn.Embedding(100, WIDTH), torch.nn.RMSNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, 100)
        angles = torch.arange(PLACES)[:, None] / 1e4 ** (torch.arange(8) / 8)
        self.register_buffer("turn", torch.stack([angles.cos(), angles.sin()]))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, PLACES, 16))

    def rotate(self, x, place):
        (cos, sin), (a, b) = self.turn[:, place], x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, token, place):
        x = self.words(token)
        q, k, v = self.qkv(self.norm(x)).view(1, 3, HEADS, 1, 16).unbind(1)
        self.keys.index_copy_(2, place, self.rotate(k, place))
        self.values.index_copy_(2, place, v)
        mask = torch.arange(PLACES)[None] <= place
        q = self.rotate(q, place)
        x = x + functional.scaled_dot_product_attention(q, self.keys, self.values, mask).flatten(1)
        return self.out(functional.silu(x))


def generate(step, token=torch.tensor([1]), count=8):
    said = []
    for place in range(count):
        token = torch.as_tensor(step(token, torch.tensor([place]))).argmax(-1)
        said.append(int(token))
    return said


torch.manual_seed(0)
decoder = Decoder().eval()
compiled = pyc_mlir.torch.compile(decoder, (torch.tensor([1]), torch.tensor([0])))
with torch.no_grad():
    assert generate(compiled) == generate(decoder)
