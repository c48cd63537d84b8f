"""Cases of ONNX's larger operators for onnxruntime: types, sizes 0 and 1, ranks, attributes."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from ort_cases import Case

F32 = np.float32


def _case(op: str, *inputs: Any, known: Any = (), **more: Any) -> Case:
    options = {k: more.pop(k) for k in ("outputs", "within", "opset") if k in more}
    return Case(op, inputs, more, frozenset(known), **options)


def cases(seed: int = 17) -> Iterator[Case]:
    """Every case."""
    rng = np.random.default_rng(seed)
    for family in (_images, _volumes, _boxes, _ordering, _scatters, _recurrent, _sums, _sampled):
        yield from family(rng)
    yield from _reductions(rng)
    yield from _quantized(rng)


def _x(rng: np.random.Generator, *shape: int, dtype: Any = F32) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(-9 if np.dtype(dtype).kind == "i" else 0, 10, shape).astype(dtype)


def _images(rng: np.random.Generator) -> Iterator[Case]:
    modes = ("nearest", "linear", "cubic")
    ways = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    for mode, way, sizes in product(modes, ways, ((1, 2, 7, 3), (1, 2, 2, 9), (1, 2, 1, 1))):
        x = _x(rng, 1, 2, 4, 5)
        inputs = (x, None, None, np.array(sizes))
        more = {"nearest_mode": "floor"} if mode == "nearest" else {}
        yield _case(
            "Resize", *inputs, known=(3,), mode=mode, coordinate_transformation_mode=way,
            within=1e-4, **more,
        )  # fmt: skip
    for factor in (0.5, 1.0, 2.5):
        scales = np.array([1, 1, factor, factor], F32)
        yield _case("Resize", _x(rng, 2, 1, 4, 5), None, scales, known=(2,), mode="linear")
    for shape, kernel in (((1, 2, 5, 6), [3, 2]), ((2, 1, 1, 1), [1, 1]), ((1, 2, 7), [3])):
        for pads, stride, ceil in ((0, 1, 0), (1, 2, 1), (0, 2, 1)):
            if pads >= min(kernel):
                continue
            more = {
                "kernel_shape": kernel, "pads": [pads] * 2 * len(kernel),
                "strides": [stride] * len(kernel),
            }  # fmt: skip
            x = _x(rng, *shape)
            yield _case("MaxPool", x, ceil_mode=ceil, **more)
            yield _case("AveragePool", x, ceil_mode=ceil, **more, count_include_pad=1)
            yield _case("LpPool", x, p=2, **more)
    for way, inner, groups in product(("NOTSET", "SAME_UPPER", "SAME_LOWER"), (1, 2), (1, 2)):
        more = {"auto_pad": way, "dilations": [inner] * 2, "group": groups}
        w = _x(rng, 4, 4 // groups, 3, 2)
        yield _case("Conv", _x(rng, 2, 4, 7, 6), w, known=(1,), within=1e-4, **more)
    yield _case("LRN", _x(rng, 1, 7, 2, 3), size=3)
    yield _case("DepthToSpace", _x(rng, 1, 8, 2, 3), blocksize=2, mode="CRD")
    yield _case("SpaceToDepth", _x(rng, 1, 2, 4, 6), blocksize=2)


def _volumes(rng: np.random.Generator) -> Iterator[Case]:
    for spatial in (1, 2, 3):
        forms: tuple[dict[str, Any], ...] = (
                 {}, {"strides": [2] * spatial}, {"dilations": [2] * spatial},
                 {"pads": [1] * 2 * spatial}, {"strides": [3] * spatial, "group": 2},
                 {"strides": [2] * spatial, "output_padding": [1] * spatial},
                 {"strides": [2] * spatial, "pads": [2] * spatial + [1] * spatial})  # fmt: skip
        for form in forms:
            x, w = _x(rng, 1, 4, *[3, 4, 2][:spatial]), _x(rng, 4, 2, *[2, 3, 2][:spatial])
            yield _case("ConvTranspose", x, w, _x(rng, 2 * form.get("group", 1)), known=(1, 2),
                        within=1e-4, **form)  # fmt: skip
    w = _x(rng, 4, 2, 2, 3, 2)
    more = {"group": 2, "pads": [1] * 6, "strides": [2, 1, 2]}
    yield _case("Conv", _x(rng, 1, 4, 4, 5, 3), w, known=(1,), within=1e-4, **more)
    for op in ("MaxPool", "AveragePool"):
        yield _case(op, _x(rng, 1, 2, 4, 5, 3), kernel_shape=[2, 3, 2], strides=[1, 2, 1])


def _boxes(rng: np.random.Generator) -> Iterator[Case]:
    for mode, half, samples in product(("avg", "max"), (0, 1), (1, 2)):
        corners = rng.random((5, 2)) * 6 - 1
        rois = np.concatenate([corners, corners + rng.random((5, 2)) * 5], 1).astype(F32)
        batch = rng.integers(0, 2, (5,))
        way = "half_pixel" if half else "output_half_pixel"
        yield _case(
            "RoiAlign", _x(rng, 2, 3, 6, 5), rois, batch, mode=mode, sampling_ratio=samples,
            output_height=2, output_width=3, spatial_scale=0.8, coordinate_transformation_mode=way,
        )  # fmt: skip


def _ordering(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in (F32, np.float16, np.int64, np.int32, np.uint8):
        for shape, axis, count in (((3, 5), 1, 2), ((3, 5), 0, 3), ((4,), 0, 4), ((2, 1, 3), 1, 1)):
            x = rng.permutation(np.prod(shape)).reshape(shape).astype(dtype)
            for largest in (0, 1):
                yield _case(
                    "TopK", x, np.array([count]), known=(1,), axis=axis, largest=largest, outputs=2
                )
    for axis, flag in product((0, 1), (0, 1)):
        for dtype in (F32, np.int64):
            x = _x(rng, 3, 4, dtype=dtype)
            yield _case("CumSum", x, np.array(axis), known=(1,), reverse=flag, exclusive=1 - flag)
            yield _case("ArgMax", x, axis=axis, select_last_index=flag, keepdims=flag)
    yield _case("CumSum", _x(rng, 0, 4), np.array(0), known=(1,))


def _scatters(rng: np.random.Generator) -> Iterator[Case]:
    for how in ("none", "add", "mul", "max", "min"):
        for axis in (0, 1, -1):
            x, index = _x(rng, 4, 5), np.argsort(rng.random((4, 5)), axis=axis)[:2, :3] - 2
            index = index if how == "none" else rng.integers(-4, 4, (2, 3))
            updates = _x(rng, *index.shape)
            yield _case("ScatterElements", x, index, updates, axis=axis, reduction=how)
        index = rng.integers(-3, 3, (2, 2)) if how != "none" else np.array([[0, 1], [2, -1]])
        yield _case("ScatterND", _x(rng, 3, 4, 2), index, _x(rng, 2, 2), reduction=how)
    x = _x(rng, 2, 3, 4)
    for batch, shape in ((0, (2, 2)), (1, (2, 5, 1)), (0, (1, 3)), (2, (2, 3, 1))):
        limit = [2, 3, 4][batch : batch + shape[-1]]
        index = np.stack([rng.integers(-m, m, shape[:-1]) for m in limit], -1)
        yield _case("GatherND", x, index, batch_dims=batch)
    for axis in (0, 2, -1):
        yield _case("GatherElements", x, rng.integers(-2, 2, (2, 3, 4)), axis=axis)
        yield _case("Gather", x, rng.integers(-2, 2, (3, 2)), axis=axis)


def _recurrent(rng: np.random.Generator) -> Iterator[Case]:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}
    for (op, gate), way in product(gates.items(), ("forward", "reverse", "bidirectional")):
        both, hidden, size = 1 + (way == "bidirectional"), 3, 2
        for length, batch in ((4, 2), (1, 1)):
            x, w = _x(rng, length, batch, size), _x(rng, both, gate * hidden, size)
            r, bias = _x(rng, both, gate * hidden, hidden), _x(rng, both, 2 * gate * hidden)
            first = _x(rng, both, batch, hidden)
            lengths = rng.integers(1, length + 1, (batch,)).astype(np.int32)
            more: dict[str, Any] = {"hidden_size": hidden, "direction": way}
            outputs = 3 if op == "LSTM" else 2
            if op == "GRU":
                more["linear_before_reset"] = int(rng.integers(0, 2))
            known = (1, 2, 3)
            yield _case(op, x, w, r, known=known, outputs=outputs, within=1e-4, **more)
            inputs = (x, w, r, bias, lengths, first)
            yield _case(op, *inputs, known=known, outputs=outputs, within=1e-4, **more)


def _sums(rng: np.random.Generator) -> Iterator[Case]:
    forms = {
        "ij,jk->ik": ((2, 3), (3, 4)), "bij,bjk->bik": ((2, 2, 3), (2, 3, 4)), "ij->ji": ((2, 3),),
        "ij->": ((2, 3),), "bhid,bhjd->bhij": ((1, 2, 3, 4), (1, 2, 5, 4)), "i,j->ij": ((2,), (3,)),
        "...ij,...jk->...ik": ((2, 2, 3), (2, 3, 4)), "ii->i": ((3, 3),),
        "...ii->...i": ((2, 3, 3),), "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)),
        "iji->j": ((2, 3, 2),),
        "...ij,jk": ((2, 2, 3), (3, 4)), "b...,b...->b": ((2, 3, 4), (2, 3, 4)),
    }  # fmt: skip
    for equation, shapes in forms.items():
        yield _case("Einsum", *(_x(rng, *s) for s in shapes), equation=equation)
    yield _case("Einsum", _x(rng, 1, 2, 3), _x(rng, 4, 3, 2), equation="...ij,...jk->...ik")
    for inverse, onesided, axis in ((0, 0, 1), (0, 1, 1), (1, 0, 1), (0, 0, 2)):
        x = _x(rng, 2, 5, 3, 1 + inverse)
        inputs = (x, None, np.array(axis))
        more = {"inverse": inverse, "onesided": onesided}
        yield _case("DFT", *inputs, known=(2,), opset=20, within=1e-4, **more)
    for shape in ((2, 4, 3), (1, 4), (2, 4, 2, 2)):
        inputs = (_x(rng, *shape), _x(rng, 4), _x(rng, 4))
        if len(shape) > 2:
            yield _case("GroupNormalization", *inputs, num_groups=2, within=1e-4, opset=21)
            yield _case("InstanceNormalization", *inputs, within=1e-4)
        last = _x(rng, shape[-1])
        yield _case("LayerNormalization", inputs[0], last, last, within=1e-4)
    yield _case("RMSNormalization", _x(rng, 2, 3), _x(rng, 3), opset=23)
    for axis in (0, 1, -1):
        for op in ("Softmax", "LogSoftmax", "Hardmax"):
            yield _case(op, _x(rng, 3, 4), axis=axis)
            yield _case(op, _x(rng, 1, 1), axis=axis)


def _sampled(rng: np.random.Generator) -> Iterator[Case]:
    modes, pads = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    for mode, pad, corners in product(modes, pads, (0, 1)):
        grid = (rng.random((2, 3, 4, 2)) * 2.6 - 1.3).astype(F32)
        more = {"mode": mode, "padding_mode": pad, "align_corners": corners}
        yield _case("GridSample", _x(rng, 2, 2, 4, 5), grid, opset=20, within=1e-4, **more)
    sizes, block = np.array([4, 5]), np.array([2, 2])
    yield _case("Col2Im", _x(rng, 1, 8, 12), sizes, block, known=(1, 2), opset=18)
    for mode in ("constant", "reflect", "edge", "wrap"):
        x = _x(rng, 3, 4)
        yield _case("Pad", x, np.array([1, 2, 0, 1]), known=(1,), mode=mode, opset=19)
    for dtype in (F32, np.int64, np.int32, np.uint8):
        y = _x(rng, 3, 4, dtype=dtype)
        y[y == 0] = 1
        for flag in (0, 1) if dtype != F32 else (1,):
            yield _case("Mod", _x(rng, 3, 4, dtype=dtype), y, fmod=flag)


def _reductions(rng: np.random.Generator) -> Iterator[Case]:
    ops = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    for op, keep in product(ops, (0, 1)):
        for shape, axes in (((2, 3, 4), [1]), ((2, 3, 4), [-1, 0]), ((1, 1), [0]), ((2, 3), None)):
            x = np.abs(_x(rng, *shape)) + F32(0.1)
            inputs = (x,) if axes is None else (x, np.array(axes))
            yield _case(f"Reduce{op}", *inputs, known=(1,), keepdims=keep, opset=18)
        if op not in ("L1", "L2", "LogSum", "LogSumExp", "Mean"):
            yield _case(f"Reduce{op}", _x(rng, 3, 4, dtype=np.int32), np.array([0]), known=(1,))


def _quantized(rng: np.random.Generator) -> Iterator[Case]:
    scale, step = np.array(0.05, F32), np.array(0.1, F32)
    for dtype in (np.uint8, np.int8):
        info = np.iinfo(dtype)
        # onnxruntime's sums of two products saturate on AVX2 if signed weights have 8 bits.
        half = np.array(2 if dtype == np.int8 else 1, dtype)
        a, c = (rng.integers(info.min, info.max + 1, s).astype(dtype) for s in ((4, 6), (6, 3)))
        c //= half
        zero = np.array(3, dtype)
        yield _case("MatMulInteger", a, c, zero, zero)
        yield _case("QLinearMatMul", a, scale, zero, c, step, zero, np.array(0.9, F32), zero)
        x = rng.integers(info.min, info.max + 1, (1, 2, 5, 5)).astype(dtype)
        w = rng.integers(info.min, info.max + 1, (3, 2, 3, 3)).astype(dtype) // half
        bias = rng.integers(-99, 99, (3,)).astype(np.int32)
        inputs = (x, scale, zero, w, step, np.array(0, dtype), np.array(1.7, F32), zero, bias)
        yield _case("QLinearConv", *inputs, known=(3, 8), pads=[1] * 4)
        scales = rng.random(3).astype(F32) + F32(0.01)
        inputs = (x, scale, zero, w, scales, np.zeros(3, dtype), np.array(1.7, F32), zero)
        yield _case("QLinearConv", *inputs, known=(3, 4, 5))
        yield _case("ConvInteger", x, w, zero, known=(1,))
        yield _case("QuantizeLinear", 4 * _x(rng, 3, 4), scale, zero)
        yield _case("DequantizeLinear", a, scale, zero)
        yield _case("QuantizeLinear", _x(rng, 3, 4), scales, np.zeros(3, dtype), axis=0)
    for shape in ((3, 4), (1,), (2, 1, 5)):
        yield _case("DynamicQuantizeLinear", 3 * _x(rng, *shape), outputs=3)
