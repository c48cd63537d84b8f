"""One op each, as small workloads that check a device against numpy.

Each row is a function in numpy style with seeded arguments; the reference is the same function on
float64 arrays. Sizes are odd here and there, so that tiles have remainders.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pyc_mlir import nn
from pyc_mlir.tools.bench.peers.workload import BenchWorkload

# Errors of one op relative to its largest result. Tensor cores may round f32 operands to 10 bits.
TOLERANCES = {"f32": 2e-3, "f16": 5e-3, "bf16": 4e-2, "i64": 0.0}
_DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i64": np.int64}


@dataclass(frozen=True)
class OpCase:
    """A function and the shapes of its arguments, all of one element type.

    `positive` arguments are variances and the like, at least 1/2.
    """

    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    dtype: str = "f32"
    positive: bool = False

    def workload(self, name: str) -> BenchWorkload:
        """Return the case on seeded arguments."""
        rng = np.random.default_rng(0)
        arrays = [rng.normal(0, 1, shape) for shape in self.shapes]
        if self.positive:
            arrays = [np.abs(a) + 0.5 for a in arrays]
        if self.dtype == "i64":
            arrays = [a * 100 for a in arrays]
        inputs = tuple(a.astype(_DTYPES[self.dtype]) for a in arrays)
        return BenchWorkload(
            f"op {name}, {self.dtype}",
            self.function,
            inputs,
            lambda: (np.asarray(self.function(*(a.astype(np.float64) for a in inputs))),),
            TOLERANCES[self.dtype],
        )


_INDICES = np.array([5, 0, 0, 16, 3])

OPS: Mapping[str, OpCase] = {
    "add": OpCase(lambda a, b: a + b, [(33, 65), (65,)]),
    "integer arithmetic": OpCase(lambda a, b: a * b - a, [(33, 65), (65,)], "i64"),
    "divide and power": OpCase(lambda a, b: a / b + a**b, [(17, 31), (17, 31)], positive=True),
    "exponentials": OpCase(lambda x: np.tanh(x) + np.exp(-x) + nn.erf(x), [(129, 33)]),
    "gelu": OpCase(nn.gelu, [(64, 130)]),
    "select": OpCase(lambda a, b: np.where(a > b, a, b * 2), [(19, 23), (19, 23)]),
    "matmul": OpCase(lambda a, b: a @ b, [(128, 256), (256, 192)]),
    "matmul with remainders": OpCase(lambda a, b: a @ b, [(67, 129), (129, 35)]),
    "matmul, half": OpCase(lambda a, b: a @ b, [(128, 128), (128, 128)], "f16"),
    "matmul, bfloat": OpCase(lambda a, b: a @ b, [(128, 128), (128, 128)], "bf16"),
    "matmul, vector": OpCase(lambda a, b: a @ b, [(1, 512), (512, 384)]),
    "matmul, batched": OpCase(lambda a, b: a @ b, [(6, 32, 48), (6, 48, 40)]),
    "matmul, bias, relu": OpCase(
        lambda x, w, b: nn.relu(x @ w + b), [(64, 128), (128, 256), (256,)]
    ),
    "conv2d, NCHW": OpCase(lambda x, w: nn.conv2d(x, w, pads=1), [(2, 8, 14, 14), (16, 8, 3, 3)]),
    "conv2d, NHWC": OpCase(
        lambda x, w: nn.conv2d(x, w, strides=2, layout="NHWC"), [(2, 15, 15, 8), (3, 3, 8, 16)]
    ),
    "conv2d, depthwise": OpCase(
        lambda x, w: nn.conv2d(x, w, groups=8, pads=1), [(1, 8, 14, 14), (8, 1, 3, 3)]
    ),
    "max_pool2d": OpCase(lambda x: nn.max_pool2d(x, 2), [(2, 8, 14, 14)]),
    "avg_pool2d": OpCase(lambda x: nn.avg_pool2d(x, 3, 2), [(2, 8, 15, 15)]),
    "sum of rows": OpCase(lambda x: np.sum(x, axis=1), [(65, 1023)]),
    "sum of columns": OpCase(lambda x: np.sum(x, axis=0), [(1023, 65)]),
    "mean of all": OpCase(np.mean, [(63, 65)], positive=True),
    "argmax": OpCase(lambda x: np.argmax(x, axis=-1), [(33, 100)]),
    "softmax": OpCase(nn.softmax, [(33, 257)]),
    "layernorm": OpCase(nn.layernorm, [(32, 96), (96,), (96,)]),
    "rmsnorm": OpCase(nn.rmsnorm, [(32, 96), (96,)]),
    "batchnorm": OpCase(nn.batchnorm, [(2, 8, 7, 7), *[(8,)] * 4], positive=True),
    "attention": OpCase(nn.attention, [(4, 32, 16)] * 3),
    "attention, causal": OpCase(
        lambda q, k, v: nn.attention(q, k, v, is_causal=True), [(4, 32, 16)] * 3
    ),
    "transpose, reshape": OpCase(lambda x: x.transpose(2, 0, 1).reshape(-1, 6), [(6, 5, 4)]),
    "concatenate": OpCase(lambda a, b: np.concatenate([a, b], 1), [(9, 5), (9, 7)]),
    "slice": OpCase(lambda x: x[1:, ::2], [(9, 16)]),
    "pad": OpCase(lambda x: np.pad(x, ((1, 2), (0, 3))), [(9, 5)]),
    "take": OpCase(lambda x: nn.take(x, _INDICES), [(17, 9)]),
}
SMALLEST = "add"


def op_workload(name: str) -> BenchWorkload:
    """Return the workload of a row of OPS."""
    return OPS[name].workload(name)
