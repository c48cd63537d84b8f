import torch
from model import x

import pyc_mlir


class Sparse(torch.nn.Module):
    def forward(self, t):
        return torch.nonzero(t)


try:
    pyc_mlir.compile(Sparse(), [x])
except pyc_mlir.PycError as error:
    print(error)
