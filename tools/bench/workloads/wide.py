"""Class `wide`: much is computed before anything is reduced, so that the order decides the peak.

Branches (as multi-head or mixture models have them), an Inception block (Szegedy et al., 2014), a
DenseNet block (Huang et al., 2016), a U-Net (Ronneberger et al., 2015) and residual blocks (He et
al., 2015). Images are NHWC.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir import nn
from pyc_mlir.tools.bench.workloads.case import SeededWeights, SuiteCase, stacked


@dataclass(frozen=True)
class Branches:
    """`count` products x [rows, depth] @ w [depth, columns], all made before one is used."""

    count: int = 8
    rows: int = 1024
    depth: int = 256
    columns: int = 1024


def branches(shape: Branches, how: str) -> SuiteCase:
    """`reduced`: each branch to its row sums; `added`: each through a product, then their sum."""
    draw = SeededWeights(1)
    x = draw.activations(shape.rows, shape.depth)
    up = [draw.matrix(shape.depth, shape.columns) for _ in range(shape.count)]
    down = [draw.matrix(shape.columns, shape.depth) for _ in range(shape.count)]

    def reduced(x: Any) -> Any:
        wide = [np.tanh(x @ w) for w in up]
        return np.stack([np.sum(h, axis=1) for h in wide])

    def added(x: Any) -> Any:
        wide = [np.tanh(x @ w) for w in up]
        total = x
        for h, w in zip(wide, down, strict=True):
            total = total + h @ w
        return total

    source = {"reduced": reduced, "added": added}[how]
    return SuiteCase(f"branches {how} late", "wide", source, (x,))


def convolution(
    draw: SeededWeights, size: int, channels: int, filters: int
) -> Callable[[Any], Any]:
    """relu(conv(x) + bias) with a window of size x size that keeps height and width."""
    weight, bias = draw.window(size, channels, filters), draw.vector(filters)
    pads = size // 2
    return lambda x: nn.relu(nn.conv2d(x, weight, bias, pads=pads, layout="NHWC"))


@dataclass(frozen=True)
class Inception:
    """`blocks` blocks on [1, side, side, channels]; `scale` divides the paper's filter counts."""

    blocks: int = 2
    side: int = 56
    channels: int = 192
    scale: int = 1


def inception(shape: Inception) -> SuiteCase:
    """Make blocks of inception (3a): branches 1x1, 3x3, 5x5 and pooled, side by side."""
    draw, layers, channels = SeededWeights(2), [], shape.channels
    for _ in range(shape.blocks):
        block, channels = _inception_block(draw, channels, shape.scale)
        layers.append(block)
    x = SeededWeights(3).activations(1, shape.side, shape.side, shape.channels)
    return SuiteCase("inception blocks", "wide", stacked(layers), (x,))


def _inception_block(
    draw: SeededWeights, channels: int, scale: int
) -> tuple[Callable[[Any], Any], int]:
    one, narrow3, three, narrow5, five, pooled = (n // scale for n in (64, 96, 128, 16, 32, 32))
    direct = convolution(draw, 1, channels, one)
    middle = stacked(
        [convolution(draw, 1, channels, narrow3), convolution(draw, 3, narrow3, three)]
    )
    large = stacked([convolution(draw, 1, channels, narrow5), convolution(draw, 5, narrow5, five)])
    after_pool = convolution(draw, 1, channels, pooled)

    def block(x: Any) -> Any:
        pool = nn.max_pool2d(x, 3, 1, pads=1, layout="NHWC")
        return np.concatenate([direct(x), middle(x), large(x), after_pool(pool)], axis=-1)

    return block, one + three + five + pooled


@dataclass(frozen=True)
class DenseNet:
    """`layers` layers of `growth` channels on [1, side, side, channels]."""

    layers: int = 6
    side: int = 56
    channels: int = 64
    growth: int = 32


def densenet(shape: DenseNet) -> SuiteCase:
    """Make layers that read all earlier ones: relu, 1x1 to 4 growth channels, 3x3 to growth."""
    draw = SeededWeights(4)
    steps = []
    for i in range(shape.layers):
        channels = shape.channels + i * shape.growth
        narrow = convolution(draw, 1, channels, 4 * shape.growth)
        steps.append(stacked([narrow, convolution(draw, 3, 4 * shape.growth, shape.growth)]))

    def block(x: Any) -> Any:
        found = [x]
        for step in steps:
            found.append(step(np.concatenate(found, axis=-1) if len(found) > 1 else x))
        return np.concatenate(found, axis=-1)

    x = SeededWeights(5).activations(1, shape.side, shape.side, shape.channels)
    return SuiteCase("densenet block", "wide", block, (x,))


@dataclass(frozen=True)
class UNet:
    """`depth` halvings of [1, side, side, 3]; the first level has `channels` channels."""

    depth: int = 4
    side: int = 256
    channels: int = 16


def unet(shape: UNet) -> SuiteCase:
    """Make a U-Net: down by pooling, up by doubling; each level's result skips to its way up."""
    draw, channels = SeededWeights(6), 3
    down, up = [], []
    for level in range(shape.depth + 1):
        filters = shape.channels << level
        down.append(_twice(draw, channels, filters))
        channels = filters
    for level in reversed(range(shape.depth)):
        filters = shape.channels << level
        up.append(_twice(draw, channels + filters, filters))
        channels = filters
    last = draw.matrix(channels, 2)

    def net(x: Any) -> Any:
        skips = []
        for step in down[:-1]:
            x = step(x)
            skips.append(x)
            x = nn.max_pool2d(x, 2, layout="NHWC")
        x = down[-1](x)
        for step in up:
            x = step(np.concatenate([skips.pop(), _doubled(x)], axis=-1))
        return x @ last

    x = SeededWeights(7).activations(1, shape.side, shape.side, 3)
    return SuiteCase("u-net", "wide", net, (x,))


def _twice(draw: SeededWeights, channels: int, filters: int) -> Callable[[Any], Any]:
    return stacked(
        [convolution(draw, 3, channels, filters), convolution(draw, 3, filters, filters)]
    )


def _doubled(x: Any) -> Any:
    """[n, h, w, c] -> [n, 2h, 2w, c], each pixel four times."""
    return np.repeat(np.repeat(x, 2, axis=1), 2, axis=2)


@dataclass(frozen=True)
class ResidualBlocks:
    """`blocks` residual blocks on each of `channels`, the side halved from one to the next."""

    side: int = 56
    channels: Sequence[int] = (64, 128, 256)
    blocks: int = 1


def residual(shape: ResidualBlocks) -> SuiteCase:
    """Make the first stages of ResNet-10, without the first layers."""
    draw, steps, before = SeededWeights(8), [], shape.channels[0]
    for channels in shape.channels:
        for number in range(shape.blocks):
            strides = 2 if number == 0 and channels != shape.channels[0] else 1
            steps.append(_block(draw, before, channels, strides))
            before = channels
    x = SeededWeights(9).activations(1, shape.side, shape.side, shape.channels[0])
    return SuiteCase("residual blocks", "wide", stacked(steps), (x,))


def _block(draw: SeededWeights, before: int, channels: int, strides: int) -> Callable[[Any], Any]:
    """relu(conv(relu(conv(x) + b)) + b + x), 3x3; x through a 1x1 where sizes change."""
    first, second = draw.window(3, before, channels), draw.window(3, channels, channels)
    bias, other = draw.vector(channels), draw.vector(channels)
    short = None if before == channels else draw.window(1, before, channels)

    def block(x: Any) -> Any:
        y = nn.relu(nn.conv2d(x, first, bias, strides=strides, pads=1, layout="NHWC"))
        if short is not None:
            x = nn.conv2d(x, short, strides=strides, layout="NHWC")
        return nn.relu(nn.conv2d(y, second, other, pads=1, layout="NHWC") + x)

    return block
