"""Random convolutional networks in NCHW: blocks of published networks between random ops.

Convolutions with biases and norms, residual sums, squeeze-and-excite, shuffles of channels, layer
norms between transposes that the model spells out, splits and joins, heads; images are small.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import numpy as np
import random_ops
from random_graphs import Drawing, Graph, Rejected, Value

from pyc_mlir.dialects.ops.movement import END, START, copied
from pyc_mlir.dialects.types import DTYPES

F32 = DTYPES["f32"]
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
ACTIVATIONS = ("relu", "silu", "sigmoid", "tanh", "gelu", "neg")


def is_image(v: Value) -> bool:
    return v.rank == 4 and v.dtype == F32 and bool(v.shape[1])


def image(d: Drawing) -> tuple[int, int]:
    """A value in NCHW, and its channels."""
    x = d.pick(is_image)
    return x, d.value(x).shape[1] or 0


def convolved(d: Drawing, x: int, filters: int, size: int, groups: int = 1, stride: int = 1) -> int:
    """A convolution that keeps the image's size where the stride is 1."""
    channels = d.value(x).shape[1] or 0
    weight = d.constant(F32, [filters, channels // groups, size, size])
    pads = (size // 2,) * 4
    return d.add("conv2d", x, weight, groups=groups, pads=pads, strides=(stride, stride))


def channel_vector(d: Drawing, x: int) -> int:
    """A constant that varies along the channels, as models write one."""
    channels = d.value(x).shape[1] or 0
    return d.constant(F32, d.random.choice(([1, channels, 1, 1], [channels, 1, 1], [])))


def convolution(d: Drawing) -> None:
    """Convolution, bias or norm, activation."""
    x, channels = image(d)
    groups = d.random.choice([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    filters = groups * d.random.randint(1, 3)
    out = convolved(d, x, filters, d.random.choice((1, 1, 3)), groups, d.random.choice((1, 1, 2)))
    if d.chance(0.5):
        out = d.add("add", out, channel_vector(d, out))
    if d.chance(0.5):
        out = d.add("mul", out, channel_vector(d, out))
        out = d.add(d.random.choice(("add", "sub")), out, channel_vector(d, out))
    if d.chance(0.7):
        d.add(d.random.choice(ACTIVATIONS), out)


def residual(d: Drawing) -> None:
    x, channels = image(d)
    out = convolved(d, d.add("relu", x), channels, 3)
    d.add("add", *((out, x) if d.chance(0.5) else (x, out)))


def excite(d: Drawing) -> None:
    """x scaled by a function of the means of its channels."""
    x, channels = image(d)
    if d.chance(0.5):
        mean = d.add("reduce_mean", x, axes=(2, 3), keepdims=True)
        scale = convolved(d, mean, channels, 1)
    else:
        mean = d.add("reduce_mean", x, axes=(-1, -2), keepdims=False)
        mixed = d.add("matmul", mean, d.constant(F32, [channels, channels]))
        entries = [copied(0) if d.value(mixed).shape[0] is None else d.value(mixed).shape[0]]
        scale = d.add("reshape", mixed, shape=(*entries, channels, 1, 1))
    d.add("mul", x, d.add("sigmoid", scale))


def entry(d: Drawing, x: int, dim: int) -> int:
    size = d.value(x).shape[dim]
    return copied(dim) if size is None else size


def shuffle(d: Drawing) -> None:
    """Channels in another order: split into groups, transposed, merged."""
    x, channels = image(d)
    if channels % 2:
        raise Rejected
    n, h, w = (entry(d, x, dim) for dim in (0, 2, 3))
    parted = d.add("reshape", x, shape=(n, 2, channels // 2, h, w))
    moved = d.add("transpose", parted, permutation=(0, 2, 1, 3, 4))
    n, h, w = (entry(d, moved, dim) for dim in (0, 3, 4))
    d.add("reshape", moved, shape=(n, channels, h, w))


def to_space(d: Drawing) -> None:
    """Channels become pixels (depth to space)."""
    x, channels = image(d)
    shape = d.value(x).shape
    if channels % 4 or None in shape:
        raise Rejected
    n, _, h, w = (s or 0 for s in shape)
    parted = d.add("reshape", x, shape=(n, channels // 4, 2, 2, h, w))
    moved = d.add("transpose", parted, permutation=(0, 1, 4, 2, 5, 3))
    d.add("reshape", moved, shape=(n, channels // 4, 2 * h, 2 * w))


def spelled(d: Drawing) -> None:
    """A layer norm and a product over the channels between two transposes (ConvNeXt)."""
    x, channels = image(d)
    if channels < 2:
        raise Rejected
    last = d.add("transpose", x, permutation=TO_LAST)
    vectors = [d.constant(F32, [channels]) for _ in range(2)]
    out = d.add("layernorm", last, *vectors, axis=3, epsilon=0.1)
    out = d.add("gelu", d.add("matmul", out, d.constant(F32, [channels, channels])))
    back = d.add("transpose", out, permutation=TO_FIRST)
    if d.chance(0.5):
        d.add("add", back, x)


def patches(d: Drawing) -> None:
    """Pixels as rows of a matrix (vision transformers)."""
    x, channels = image(d)
    n, h, w = (entry(d, x, dim) for dim in (0, 2, 3))
    if h <= -2 or w <= -2:
        raise Rejected
    flat = d.add("reshape", x, shape=(n, channels, h * w))
    d.add("transpose", flat, permutation=(0, 2, 1))


def split(d: Drawing) -> None:
    """Slices along the channels, one of them changed, joined again."""
    x, channels = image(d)
    if channels < 2:
        raise Rejected
    at = d.random.randint(1, channels - 1)
    parts = [
        d.add("slice", x, starts=(START, a, START, START), stops=(END, b, END, END), steps=(1,) * 4)
        for a, b in ((0, at), (at, channels))
    ]
    parts[0] = d.add(d.random.choice(ACTIVATIONS), parts[0])
    d.add("concat", *parts[:: d.random.choice((1, -1))], axis=d.random.choice((1, -3)))


def normed(d: Drawing) -> None:
    """A norm before what follows, not behind a convolution (DenseNet)."""
    x, channels = image(d)
    vectors = [d.constant(F32, [channels]) for _ in range(3)]
    variance = d.add("constant", value=np.full(channels, 1.5, np.float32))
    d.add("relu", d.add("batchnorm", x, *vectors, variance, axis=1))


def head(d: Drawing) -> None:
    """Global pooling, flattened, and classes."""
    x, channels = image(d)
    mean = d.add("reduce_mean", x, axes=(2, 3), keepdims=True)
    flat = d.add("reshape", mean, shape=(entry(d, x, 0), channels))
    d.add("softmax", d.add("matmul", flat, d.constant(F32, [channels, 3])), axis=-1)


def softmax(d: Drawing) -> None:
    x, _ = image(d)
    d.add(d.random.choice(("softmax", "log_softmax")), x, axis=d.random.randrange(-4, 4))


BLOCKS: Sequence[tuple[Callable[[Drawing], None], int]] = [
    (convolution, 10),
    (random_ops.pooling, 4),
    (random_ops.propose, 8),
    (random_ops.slice_, 2),
    (random_ops.pad, 2),
    (random_ops.concat, 3),
    (random_ops.reduction, 2),
    (random_ops.broadcast_to, 1),
    *((block, 2) for block in (residual, excite, shuffle, to_space, spelled, patches)),
    *((block, 2) for block in (split, normed, head, softmax)),
]


def draw_network(random: Random, *, dynamic: bool = False, blocks: int = 8) -> Graph:
    """A network on one or two images with one to three results; values are used in and out."""
    d = Drawing(random, dynamic)
    for _ in range(random.randint(1, 2)):
        size = [random.choice((1, 2)), random.choice((2, 3, 4)), random.choice((1, 3, 4, 5)), 4]
        d.argument(F32, size)
    with suppress(Rejected):
        convolution(d)
    functions, weights = zip(*BLOCKS, strict=True)
    for _ in range(blocks):
        with suppress(Rejected):
            random.choices(functions, weights)[0](d)
    graph = d.graph
    candidates = list(range(len(graph.dims), len(graph.values))) or [0]
    more = random.sample(candidates, min(len(candidates), random.randint(0, 2)))
    graph.results = tuple(dict.fromkeys([candidates[-1], *more]))
    return graph
