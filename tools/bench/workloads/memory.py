"""The workloads of the memory suites, each at its published shape and at a tiny one for tests.

    wide        much is computed before anything is reduced, so that the order decides the peak
    chain       one thing after another, so that only reuse and packing can save memory
    inference   transformers as they are served, weights as constants
    training    forward plus backward, weights as arguments
    random      a seeded graph in layers whose structure does not reveal a good order

Images are NHWC.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

from pyc_mlir import nn
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.workloads.cpu import digits
from pyc_mlir.tools.bench.workloads.parts import (
    TINY,
    Block,
    EncoderShape,
    Row,
    SeededWeights,
    case,
    encoder_block,
    encoder_weights,
    gated_block,
    made,
    mlp,
    stacked,
)
from pyc_mlir.tools.bench.workloads.training import encoder_step, mlp_step

CLASSES = ("wide", "chain", "inference", "training", "random")


def branches(how: str, count: int, rows: int, depth: int, columns: int) -> Workload:
    """Make `count` products x [rows, depth] @ w [depth, columns], all before one is used.

    `reduced`: each branch to its row sums; `added`: each through a product, then their sum.
    """
    draw = SeededWeights(1)
    up = [draw.matrix(depth, columns) for _ in range(count)]
    down = [draw.matrix(columns, depth) for _ in range(count)]

    def reduced(x: Any) -> Any:
        wide = [np.tanh(x @ w) for w in up]
        return np.stack([np.sum(h, axis=1) for h in wide])

    def added(x: Any) -> Any:
        wide = [np.tanh(x @ w) for w in up]
        total = x
        for h, w in zip(wide, down, strict=True):
            total = total + h @ w
        return total

    return case({"reduced": reduced, "added": added}[how], (rows, depth))


def _conv(draw: SeededWeights, size: int, channels: int, filters: int) -> Block:
    """relu(conv(x) + bias) with a window of size x size that keeps height and width."""
    weight, bias = draw.window(size, channels, filters), draw.vector(filters)
    return lambda x: nn.relu(nn.conv2d(x, weight, bias, pads=size // 2, layout="NHWC"))


def inception(blocks: int, side: int, channels: int, scale: int) -> Workload:
    """Make blocks of inception (3a) on [1, side, side, channels] (Szegedy et al., 2014).

    Branches 1x1, 3x3, 5x5 and pooled, side by side; `scale` divides the paper's filter counts.
    """
    draw, layers, before = SeededWeights(2), [], channels
    one, narrow3, three, narrow5, five, pooled = (n // scale for n in (64, 96, 128, 16, 32, 32))

    def block_of(channels: int) -> Block:
        direct = _conv(draw, 1, channels, one)
        middle = stacked([_conv(draw, 1, channels, narrow3), _conv(draw, 3, narrow3, three)])
        large = stacked([_conv(draw, 1, channels, narrow5), _conv(draw, 5, narrow5, five)])
        after_pool = _conv(draw, 1, channels, pooled)

        def block(x: Any) -> Any:
            pool = nn.max_pool2d(x, 3, 1, pads=1, layout="NHWC")
            return np.concatenate([direct(x), middle(x), large(x), after_pool(pool)], axis=-1)

        return block

    for _ in range(blocks):
        layers.append(block_of(before))
        before = one + three + five + pooled
    return case(stacked(layers), (1, side, side, channels))


def densenet(layers: int, side: int, channels: int, growth: int) -> Workload:
    """Make layers that read all earlier ones, on [1, side, side, channels] (Huang et al., 2016).

    Each is relu, 1x1 to 4 growth channels, 3x3 to growth.
    """
    draw, steps = SeededWeights(4), []
    for i in range(layers):
        narrow = _conv(draw, 1, channels + i * growth, 4 * growth)
        steps.append(stacked([narrow, _conv(draw, 3, 4 * growth, growth)]))

    def block(x: Any) -> Any:
        found = [x]
        for step in steps:
            found.append(step(np.concatenate(found, axis=-1) if len(found) > 1 else x))
        return np.concatenate(found, axis=-1)

    return case(block, (1, side, side, channels))


def unet(depth: int, side: int, channels: int) -> Workload:
    """Make a U-Net of `depth` halvings of [1, side, side, 3] (Ronneberger et al., 2015).

    Down by pooling, up by doubling; each level's result skips to its way up.
    """
    draw, before = SeededWeights(6), 3
    down, up = [], []

    def twice(channels: int, filters: int) -> Block:
        return stacked([_conv(draw, 3, channels, filters), _conv(draw, 3, filters, filters)])

    for level in range(depth + 1):
        down.append(twice(before, channels << level))
        before = channels << level
    for level in reversed(range(depth)):
        up.append(twice(before + (channels << level), channels << level))
        before = channels << level
    last = draw.matrix(before, 2)

    def net(x: Any) -> Any:
        skips = []
        for step in down[:-1]:
            x = step(x)
            skips.append(x)
            x = nn.max_pool2d(x, 2, layout="NHWC")
        x = down[-1](x)
        for step in up:
            doubled = np.repeat(np.repeat(x, 2, axis=1), 2, axis=2)
            x = step(np.concatenate([skips.pop(), doubled], axis=-1))
        return x @ last

    return case(net, (1, side, side, 3))


def residual(side: int, stages: Sequence[int], blocks: int) -> Workload:
    """Make the first stages of ResNet-10, without the first layers (He et al., 2015).

    `blocks` residual blocks on each stage's channels, the side halved from one to the next:
    relu(conv(relu(conv(x) + b)) + b + x), 3x3; x through a 1x1 where sizes change.
    """
    draw, steps, before = SeededWeights(8), [], stages[0]

    def block_of(before: int, channels: int, strides: int) -> Block:
        first, second = draw.window(3, before, channels), draw.window(3, channels, channels)
        bias, other = draw.vector(channels), draw.vector(channels)
        short = None if before == channels else draw.window(1, before, channels)

        def block(x: Any) -> Any:
            y = nn.relu(nn.conv2d(x, first, bias, strides=strides, pads=1, layout="NHWC"))
            if short is not None:
                x = nn.conv2d(x, short, strides=strides, layout="NHWC")
            return nn.relu(nn.conv2d(y, second, other, pads=1, layout="NHWC") + x)

        return block

    for channels in stages:
        for number in range(blocks):
            strides = 2 if number == 0 and channels != stages[0] else 1
            steps.append(block_of(before, channels, strides))
            before = channels
    return case(stacked(steps), (1, side, side, stages[0]))


def growing_matmuls(rows: int, widths: Sequence[int]) -> Workload:
    """x @ w0 @ w1 @ ...: no two buffers are of one size."""
    draw = SeededWeights(1)
    weights = [draw.matrix(n, m, gain=1.4) for n, m in pairwise(widths)]
    return case(lambda x: reduce(lambda a, w: a @ w, weights, x), (rows, widths[0]))


def _mlp(rows: int, widths: Sequence[int]) -> Workload:
    return case(mlp(widths), (rows, widths[0]))


def encoder(shape: EncoderShape, layers: int) -> Workload:
    """Make `layers` encoder blocks, each with weights of its own, on one sequence."""
    blocks = [encoder_block(shape, encoder_weights(shape, seed)) for seed in range(layers)]
    return case(stacked(blocks), (shape.seq, shape.width))


def decoder(shape: EncoderShape) -> Workload:
    """Make one gated decoder block on a whole sequence (prefill)."""
    return case(gated_block(shape), (shape.seq, shape.width))


# One operation: `product`, `tanh` or `add`, its operands by number, its result's columns.
_Step = tuple[str, tuple[int, ...], int]


def layered(
    ops: int, width: int, rows: int, columns: Sequence[int], reach: int = 6, seed: int = 0
) -> Workload:
    """Make `ops` operations in layers of `width`, on matrices of `rows` times one of `columns`.

    Each layer's values are read by later layers, up to `reach` of them away. Results are the sums
    of the rows of unread operations.
    """
    draw = SeededWeights(seed)
    xs = tuple(draw.activations(rows, c) for c in columns)
    weights = {(a, b): draw.matrix(a, b) for a in columns for b in columns}
    steps = _steps(ops, width, columns, reach, Random(seed))
    read = {operand for _, operands, _ in steps for operand in operands}
    unread = [i for i in range(len(xs), len(xs) + len(steps)) if i not in read]

    def run(*xs: Any) -> Any:
        values = list(xs)
        for op, operands, after in steps:
            x, *other = (values[i] for i in operands)
            if op == "product":
                values.append(x @ weights[x.shape[1], after])
            else:
                values.append(np.tanh(x) if op == "tanh" else x + other[0])
        return np.stack([np.sum(values[i], axis=1) for i in unread])

    return Workload("", run, xs)


def _steps(
    ops: int, width: int, columns: Sequence[int], reach: int, draw: Random
) -> Sequence[_Step]:
    """Draw the operations, the three kinds in turn: a product begins a kernel of its own.

    More kinds would be more kernels to compile, not a harder plan.
    """
    after, steps = list(columns), []
    for number in range(ops):
        layer = len(columns) + number // width * width
        first = max(0, layer - reach * width)
        x = draw.randrange(first, layer)
        alike = [i for i in range(first, layer) if after[i] == after[x]]
        if number % 3 == 0:
            steps.append(("product", (x,), draw.choice(columns)))
        elif number % 3 == 1:
            steps.append(("tanh", (x,), after[x]))
        else:
            steps.append(("add", (x, draw.choice(alike)), after[x]))
        after.append(steps[-1][-1])
    return steps


_LONG = EncoderShape(seq=512, width=768, heads=12, hidden=3072)
_GATED = EncoderShape(seq=512, width=768, heads=12, hidden=2048)
_LAYER = EncoderShape(seq=256, width=512, heads=8, hidden=2048)
_SHORT = (4, (4, 8, 16))

WORKLOADS: Mapping[str, Row] = {
    **{
        f"branches {how} late": Row("wide", branches, (how, 8, 1024, 256, 1024), (how, 3, 8, 4, 16))
        for how in ("reduced", "added")
    },
    "inception blocks": Row("wide", inception, (2, 56, 192, 1), (1, 4, 8, 16)),
    "densenet block": Row("wide", densenet, (6, 56, 64, 32), (2, 4, 3, 2)),
    "u-net": Row("wide", unet, (4, 256, 16), (1, 4, 2)),
    "growing matmuls": Row("chain", growing_matmuls, (256, (256, 512, 1024, 2048, 4096)), _SHORT),
    "digits mlp": Row("chain", digits, ("mlp", 16384), ("mlp", 2)),
    "digits cnn": Row("chain", digits, ("cnn", 1440), ("cnn", 2)),
    "mlp": Row("chain", _mlp, (512, (784, 2048, 2048, 2048, 10)), _SHORT),
    "encoder, 6 layers": Row("inference", encoder, (_LONG, 6), (TINY, 6)),
    "decoder block": Row("inference", decoder, (_GATED,), (TINY,)),
    "mlp, gradients": Row("training", mlp_step, (512, (784, 1024, 1024, 1024, 16)), (6, (5, 7, 4))),
    "encoder layer, gradients": Row("training", encoder_step, (_LAYER,), (TINY,)),
    "layered graph, 500 ops": Row(
        "random", layered, (500, 10, 128, (256, 512)), (30, 5, 4, (4, 8))
    ),
}

# Workloads whose quickest kernels need much more memory than their smallest ones: 3x3 convolutions,
# of which minimal filtering has 16/9 or 4 times the weights; products of vectors of 300 numbers, as
# of pretrained words, that pad their weights, with attention that can be cut.
_WORDS = EncoderShape(seq=256, width=300, heads=6, hidden=1200)
PRESSED: Mapping[str, Row] = {
    "residual blocks": Row("wide", residual, (56, (64, 128, 256), 1), (12, (16, 24), 1)),
    "u-net": Row("wide", unet, (2, 128, 32), (1, 8, 16)),
    "encoder, 2 layers": Row("inference", encoder, (_WORDS, 2), (TINY, 1)),
}


def make(name: str, quick: bool) -> Workload:
    """Make the workload `name`, tiny if `quick`."""
    return made(WORKLOADS, name, quick)
