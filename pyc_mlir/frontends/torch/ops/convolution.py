"""Convolutions over one to three spatial dimensions, transposed ones, and their gradients.

One spatial dimension is the second of two, the first of size 1.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import chain, take
from pyc_mlir.frontends.importing.windows import Axis, applied, conv3d, plan_axis, transposed_conv2d
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten, static_sizes

# Stride, pads and dilation, each by spatial dimension; what a dimension of size 1 has.
_Window = Sequence[Sequence[int]]
_NONE = (1, 0, 1)


@aten("convolution.default")
def convolution(n: AtenCall, x: Any, *, transposed: bool, groups: int) -> Any:
    """pyc.conv2d plus the bias; over three dimensions one with the depth unfolded."""
    b, rank = n.b, n.rank() - 2
    if transposed and rank not in (1, 2):
        raise unsupported(f"a transposed convolution over {rank} dimensions: expected 1 or 2")
    if rank not in (1, 2, 3):
        raise unsupported(f"{rank} spatial dimensions: expected 1 to 3")
    window = _window(n, rank)
    if transposed:
        return _transposed(n, x, window, groups)
    weight = n.x("weight")
    if rank == 3:
        axes = [Axis(0, s, d, p, p) for s, p, d in zip(*window, strict=True)]
        out = conv3d(b, x, weight, axes, groups)
    else:
        stride, pads, dilation = _flat(window)
        out = b.conv2d(
            _image(b, x), _image(b, weight), strides=tuple(stride), pads=(*pads, *pads),
            dilations=tuple(dilation), groups=groups,
        )  # fmt: skip
        out = b.squeeze(out, 2) if rank == 1 else out
    return b.add(out, b.align(n.x("bias"), 1, rank + 2)) if n.has("bias") else out


def _window(n: AtenCall, rank: int) -> _Window:
    """Return stride, pads and dilation; one entry is for all dimensions."""
    given = (n.static(name) for name in ("stride", "padding", "dilation"))
    return [tuple(v) * (rank if len(v) == 1 else 1) for v in given]


def _flat(window: _Window) -> _Window:
    return [(*(none,) * (2 - len(w)), *w) for none, w in zip(_NONE, window, strict=True)]


def _image(b: Any, x: Any) -> Any:
    """x of rank 3 or 4 as one of rank 4."""
    return b.expand_dims(x, 2) if b.type_of(x).rank == 3 else x


def _transposed(n: AtenCall, x: Any, window: _Window, groups: int) -> Any:
    """Build one pyc.conv2d whose filters are the phases of the result, and a depth-to-space."""
    b, rank = n.b, len(window[0])
    extra = n.static("output_padding")
    shape = n.type("weight").shape
    if None in shape:
        raise unsupported("weights of dynamic size: expected static ones")
    plans = [
        plan_axis(int(k or 0), s, d, p, p - e)
        for k, s, p, d, e in zip(shape[2:], *window, extra * (rank // len(extra)), strict=True)
    ]
    if rank == 1:
        plans.insert(0, plan_axis(1, 1, 1, 0, 0))

    def built(name: str, build: Callable[[Any, Any], Any]) -> Any:
        return applied(b, n.known(name), lambda: n.x(name), build)

    def weight(build: Any) -> Any:
        return built("weight", lambda builder, w: build(builder, _image(builder, w)))

    def bias(build: Any) -> Any:
        return built("bias", build)

    given = bias if n.has("bias") else None
    channels, axes = (groups, int(shape[1] or 0)), (plans[0], plans[1])
    out = transposed_conv2d(b, _image(b, x), weight, given, channels, axes)
    return b.squeeze(out, 2) if rank == 1 else out


@aten("convolution_backward.default")
def convolution_backward(
    n: AtenCall, grad: Any, x: Any, weight: Any, *,
    transposed: bool, groups: int, output_mask: list[bool],
) -> Any:  # fmt: skip
    """Build the gradients of input, weight and bias of a convolution over one or two dimensions.

    Of the input: the transposed convolution of the result's gradient. Of the weight: the
    correlation of input and gradient, with the batch as channels, stride and dilation exchanged.
    """
    b, rank = n.b, n.rank() - 2
    if rank not in (1, 2) or transposed:
        raise unsupported("the gradient of a transposed or three-dimensional convolution")
    grad, x, weight = (_image(b, v) for v in (grad, x, weight))
    window = _flat(_window(n, rank))
    out = (
        _input_gradient(b, grad, x, weight, window, groups) if output_mask[0] else None,
        _weight_gradient(b, grad, x, weight, window, groups) if output_mask[1] else None,
        b.reduce_sum(grad, axes=(0, 2, 3)) if output_mask[2] else None,
    )
    if rank == 2:
        return out
    return tuple(v if v is None or i == 2 else b.squeeze(v, 2) for i, v in enumerate(out))


def _sizes(b: Any, x: Any) -> tuple[int, ...]:
    """Return the spatial sizes. Raises unsupported for dynamic ones."""
    return static_sizes(b, x, slice(2, None), "a gradient over dynamic spatial dimensions")


def _input_gradient(b: Any, grad: Any, x: Any, weight: Any, window: _Window, groups: int) -> Any:
    """Build the transposed convolution, with the rows and columns of x that no window reached."""
    kernel, sizes, got = _sizes(b, weight), _sizes(b, x), _sizes(b, grad)
    plans = []
    for k, s, p, d, size, count in zip(kernel, *window, sizes, got, strict=True):
        full = (count - 1) * s + d * (k - 1) + 1
        plans.append(plan_axis(k, s, d, p, full - p - size))
    filters = b.type_of(weight).shape[1]
    return transposed_conv2d(
        b, grad, lambda build: build(b, weight), None, (groups, filters), (plans[0], plans[1])
    )


def _weight_gradient(b: Any, grad: Any, x: Any, weight: Any, window: _Window, groups: int) -> Any:
    """[f, c/groups, kh, kw], a group after the other."""
    stride, pads, dilation = window
    kernel = _sizes(b, weight)
    filters, channels = b.type_of(weight).shape[0] // groups, b.type_of(weight).shape[1]
    parts = []
    for group in range(groups):
        g = take(b, grad, 1, group * filters, (group + 1) * filters)
        part = take(b, x, 1, group * channels, (group + 1) * channels)
        turned = [b.transpose(v, permutation=(1, 0, 2, 3)) for v in (part, g)]
        out = b.conv2d(
            *turned, strides=tuple(dilation), pads=(*pads, *pads), dilations=tuple(stride)
        )
        for axis, size in zip((2, 3), kernel, strict=True):
            out = take(b, out, axis, 0, size)
        parts.append(b.transpose(out, permutation=(1, 0, 2, 3)))
    return chain(b, parts, 0)
