"""Convolutions over one to three spatial dimensions, transposed ones, and their gradients."""

from collections.abc import Sequence
from typing import Any

from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import take
from pyc_mlir.frontends.importing.transposed import applied, plan_axis, transposed_conv2d
from pyc_mlir.frontends.importing.volumes import conv3d
from pyc_mlir.frontends.torch.shared.handler import AtenCall, aten


@aten("convolution.default")
def convolution(n: AtenCall) -> Any:
    """pyc.conv2d plus the bias; over three dimensions one with the depth unfolded."""
    b, rank = n.b, n.rank("input") - 2
    if n.arg("transposed", False):
        return _transposed(n)
    stride, pads, dilation = (filled(n, k, rank) for k in ("stride", "padding", "dilation"))
    x, weight, groups = n.x("input"), n.x("weight"), n.static("groups", 1)
    if rank == 3:
        out = conv3d(b, x, weight, stride, pads, pads, dilation, groups)
    elif rank in (1, 2):
        out = conv2d(b, x, weight, (stride, pads, dilation), groups)
    else:
        raise unsupported(f"{rank} spatial dimensions: expected 1 to 3")
    return b.add(out, b.align(n.x("bias"), 1, rank + 2)) if n.has("bias") else out


def filled(n: AtenCall, name: str, rank: int) -> tuple[int, ...]:
    """Return an argument with an entry for each spatial dimension; one entry is for all."""
    given = n.ints(name)
    return given * rank if len(given) == 1 else given


Window = tuple[Sequence[int], Sequence[int], Sequence[int]]


def conv2d(b: Any, x: Any, weight: Any, window: Window, groups: int) -> Any:
    """pyc.conv2d of x of rank 3 or 4; `window` is stride, pads and dilation."""
    rank = b.type_of(x).rank - 2
    if rank == 1:
        x, weight = b.expand_dims(x, 2), b.expand_dims(weight, 2)
        stride, pads, dilation = ((1, window[0][0]), (0, window[1][0]), (1, window[2][0]))
    else:
        stride, pads, dilation = window
    out = b.conv2d(
        x, weight, strides=tuple(stride), pads=(*pads, *pads), dilations=tuple(dilation),
        groups=groups,
    )  # fmt: skip
    return b.squeeze(out, 2) if rank == 1 else out


def _transposed(n: AtenCall) -> Any:
    """Build one pyc.conv2d whose filters are the phases of the result, and a depth-to-space."""
    b, rank = n.b, n.rank("input") - 2
    if rank not in (1, 2):
        raise unsupported(f"a transposed convolution over {rank} dimensions: expected 1 or 2")
    stride, pads, dilation, extra = (
        filled(n, k, rank) for k in ("stride", "padding", "dilation", "output_padding")
    )
    shape = n.type("weight").shape
    if None in shape:
        raise unsupported("weights of dynamic size: expected static ones")
    plans = [
        plan_axis(int(k or 0), s, d, p, p - e)
        for k, s, d, p, e in zip(shape[2:], stride, dilation, pads, extra, strict=True)
    ]
    if rank == 1:
        plans.insert(0, plan_axis(1, 1, 1, 0, 0))
    flat = (lambda v: b.expand_dims(v, 2)) if rank == 1 else (lambda v: v)

    def weight(build: Any) -> Any:
        def built(builder: Any, w: Any) -> Any:
            return build(builder, builder.expand_dims(w, 2) if rank == 1 else w)

        return applied(b, n.known("weight"), lambda: n.x("weight"), built)

    def bias(build: Any) -> Any:
        return applied(b, n.known("bias"), lambda: n.x("bias"), build)

    channels = n.static("groups", 1), int(shape[1] or 0)
    axes = plans[0], plans[1]
    given = bias if n.has("bias") else None
    out = transposed_conv2d(b, flat(n.x("input")), weight, given, channels, axes)
    return b.squeeze(out, 2) if rank == 1 else out


@aten("convolution_backward.default")
def convolution_backward(n: AtenCall) -> Any:
    """Build the gradients of input, weight and bias of a convolution over one or two dimensions.

    Of the input: the transposed convolution of the result's gradient. Of the weight: the
    correlation of input and gradient, with the batch as channels, stride and dilation exchanged.
    """
    b, rank = n.b, n.rank("input") - 2
    if rank not in (1, 2) or n.arg("transposed", False):
        raise unsupported("the gradient of a transposed or three-dimensional convolution")
    grad, x, weight = n.x("grad_output"), n.x("input"), n.x("weight")
    window = [filled(n, k, rank) for k in ("stride", "padding", "dilation")]
    if rank == 1:
        grad, x, weight = (b.expand_dims(v, 2) for v in (grad, x, weight))
        window = [(first, *w) for first, w in zip((1, 0, 1), window, strict=True)]
    groups = n.static("groups", 1)
    wanted = n.static("output_mask")
    out = (
        _input_gradient(b, grad, x, weight, window, groups) if wanted[0] else None,
        _weight_gradient(b, grad, x, weight, window, groups) if wanted[1] else None,
        b.reduce_sum(grad, axes=(0, 2, 3)) if wanted[2] else None,
    )
    if rank == 2:
        return out
    return tuple(v if v is None or i == 2 else b.squeeze(v, 2) for i, v in enumerate(out))


def _sizes(b: Any, x: Any) -> tuple[int, ...]:
    """Return the spatial sizes. Raises unsupported for dynamic ones."""
    shape = b.type_of(x).shape[2:]
    if None in shape:
        raise unsupported("a gradient over dynamic spatial dimensions: expected static ones")
    return tuple(int(d or 0) for d in shape)


def _input_gradient(
    b: Any, grad: Any, x: Any, weight: Any, window: Sequence[Sequence[int]], groups: int
) -> Any:
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


def _weight_gradient(
    b: Any, grad: Any, x: Any, weight: Any, window: Sequence[Sequence[int]], groups: int
) -> Any:
    """[f, c/groups, kh, kw], a group after the other."""
    stride, pads, dilation = window
    kernel = _sizes(b, weight)
    filters, channels = b.type_of(weight).shape[:2]
    parts = []
    for group in range(groups):
        g = take(b, grad, 1, group * (filters // groups), (group + 1) * (filters // groups))
        part = take(b, x, 1, group * channels, (group + 1) * channels)
        turned = [b.transpose(v, permutation=(1, 0, 2, 3)) for v in (part, g)]
        out = b.conv2d(
            *turned, strides=tuple(dilation), pads=(*pads, *pads), dilations=tuple(stride)
        )
        for axis, size in zip((2, 3), kernel, strict=True):
            out = take(b, out, axis, 0, size)
        parts.append(b.transpose(out, permutation=(1, 0, 2, 3)))
    out = parts[0]
    for part in parts[1:]:
        out = b.concat(out, part, axis=0)
    return out
