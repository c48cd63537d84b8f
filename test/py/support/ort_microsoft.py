"""Cases of onnxruntime's own operators, over types, shapes at the edges and attributes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from ort_cases import MICROSOFT, Case

F16, F32 = np.float16, np.float32


def _case(op: str, *inputs: Any, known: Any = (), **more: Any) -> Case:
    options = {k: more.pop(k) for k in ("outputs", "within", "note") if k in more}
    return Case(op, inputs, more, frozenset(known), domain=MICROSOFT, **options)


def cases(seed: int = 17) -> Iterator[Case]:
    """Every case."""
    rng = np.random.default_rng(seed)
    for dtype in (F32, F16):
        yield from _norms(rng, dtype)
        yield from _few_bits(rng, dtype)
        yield from _rotary(rng, dtype)
    yield from _activations(rng)
    yield from _products(rng)
    yield from _encoders(rng)
    yield from _decoders(rng)
    yield from _quantized(rng)
    yield from _embeddings(rng)


def _x(rng: np.random.Generator, *shape: int, dtype: Any = F32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def _norms(rng: np.random.Generator, dtype: Any) -> Iterator[Case]:
    for batch, length, hidden in ((2, 3, 8), (1, 1, 1), (1, 4, 5)):
        x, skip = (_x(rng, batch, length, hidden, dtype=dtype) for _ in range(2))
        gamma, beta, bias = (_x(rng, hidden, dtype=dtype) for _ in range(3))
        for inputs in ((x, skip, gamma), (x, skip, gamma, beta), (x, skip, gamma, beta, bias)):
            yield _case("SkipLayerNormalization", *inputs, epsilon=1e-5)
        for inputs in ((x, skip, gamma), (x, skip, gamma, bias)):
            yield _case("SkipSimplifiedLayerNormalization", *inputs, epsilon=1e-6)
        yield _case("SkipSimplifiedLayerNormalization", x, skip[:1], gamma, epsilon=1e-6)


def _activations(rng: np.random.Generator) -> Iterator[Case]:
    for shape in ((2, 3, 8), (1, 1), (0, 4), (4,)):
        x, bias = 3 * _x(rng, *shape), _x(rng, shape[-1])
        yield _case("BiasGelu", x, bias)
        yield _case("Gelu", x)
        for inputs in ((x,), (x, bias)):
            yield _case("FastGelu", *inputs, within=2e-5)
        for alpha in (1.702, 1.0, -0.5):
            yield _case("QuickGelu", x, alpha=alpha)


def _products(rng: np.random.Generator) -> Iterator[Case]:
    for ta in (0, 1):
        for tb in (0, 1):
            for lead in ((), (2,), (2, 3)):
                a = _x(rng, *lead, *((4, 5) if not ta else (5, 4)))
                c = _x(rng, *lead, *((5, 3) if not tb else (3, 5)))
                yield _case("FusedMatMul", a, c, transA=ta, transB=tb, alpha=0.5)
                batched = [np.moveaxis(v, -2, 0) if lead else v for v in (a, c)]
                flags = {"transBatchA": 1, "transBatchB": 1} if lead else {}
                yield _case("FusedMatMul", *batched, transA=ta, transB=tb, **flags)
    yield _case("FusedMatMul", _x(rng, 0, 4), _x(rng, 4, 3))
    for name, numbers in _ACTIVATIONS.items():
        x, w = _x(rng, 1, 2, 5, 4), _x(rng, 3, 2, 3, 3)
        more: dict[str, Any] = {"activation_params": numbers} if numbers else {}
        yield _case(
            "FusedConv", x, w, _x(rng, 3), known=(1, 2), activation=name, pads=[1] * 4, **more
        )
        if name == "Relu":
            z = _x(rng, 1, 3, 5, 4)
            yield _case(
                "FusedConv", x, w, _x(rng, 3), z, known=(1, 2), activation=name, pads=[1] * 4
            )
        parts = zip(("activation_alpha", "activation_beta"), numbers, strict=False)
        gemm = dict(parts) if name != "Clip" else {}
        if name != "Clip":
            inputs = (_x(rng, 4, 3), _x(rng, 3, 5), _x(rng, 5))
            yield _case("FusedGemm", *inputs, activation=name, beta=0.5, **gemm)


_ACTIVATIONS: dict[str, list[float]] = {
    "Relu": [], "Tanh": [], "Sigmoid": [], "LeakyRelu": [0.2], "Clip": [-0.5, 0.5],
    "HardSigmoid": [0.3, 0.4],
}  # fmt: skip


def _few_bits(rng: np.random.Generator, dtype: Any) -> Iterator[Case]:
    for bits in (4, 8):
        for depth, rows, block in ((32, 3, 16), (40, 2, 32), (16, 1, 16)):
            blocks = -(-depth // block)
            packed = rng.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
            scale = (rng.random((rows, blocks)) * 0.1).astype(dtype)
            width = -(-blocks * bits // 8)
            points = rng.integers(0, 256, (rows, width)).astype(np.uint8)
            x = _x(rng, 2, depth, dtype=dtype)
            more = {"K": depth, "N": rows, "bits": bits, "block_size": block}
            within = 2e-4 if dtype == F32 else 2e-2
            for flat in (False, True):
                s = scale.reshape(-1) if flat else scale
                p = points.reshape(-1) if flat else points
                yield _case("MatMulNBits", x, packed, s, known=(1, 2), within=within, **more)
                yield _case("MatMulNBits", x, packed, s, p, known=(1, 2, 3), within=within, **more)
            bias = _x(rng, rows, dtype=dtype)
            inputs = (x[None], packed, scale, None, None, bias)
            yield _case("MatMulNBits", *inputs, known=(1, 2, 5), within=within, **more)
    for bits in (4, 8):
        data = rng.integers(0, 256, (5, 32 * bits // 8)).astype(np.uint8)
        scale = rng.random((5, 2)).astype(dtype)
        points = rng.integers(0, 256, (5, 2 * bits // 8)).astype(np.uint8)
        for ids in (np.array([[0, 4, 2]]), np.array(3, np.int32), np.zeros((0,), np.int64)):
            more = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
            yield _case("GatherBlockQuantized", data, ids, scale, known=(0, 2), **more)
            inputs = (data, ids, scale, points)
            yield _case("GatherBlockQuantized", *inputs, known=(0, 2, 3), **more)


def _rotary(rng: np.random.Generator, dtype: Any) -> Iterator[Case]:
    angles = rng.random((16, 4)) * 6
    cosine, sine = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
    for interleaved in (0, 1):
        for batch, length in ((2, 3), (1, 1)):
            places = rng.integers(0, 16, (batch, length))
            for ids in (places, np.array([2])):
                yield _case(
                    "RotaryEmbedding", _x(rng, batch, length, 24, dtype=dtype), ids, cosine, sine,
                    interleaved=interleaved,
                )  # fmt: skip
                yield _case(
                    "RotaryEmbedding", _x(rng, batch, 3, length, 8, dtype=dtype), ids, cosine, sine,
                    interleaved=interleaved,
                )  # fmt: skip
            yield _case(
                "RotaryEmbedding", _x(rng, batch, length, 36, dtype=dtype), places, cosine, sine,
                interleaved=interleaved, num_heads=3, rotary_embedding_dim=8,
            )  # fmt: skip
            yield Case(
                "RotaryEmbedding",
                (_x(rng, batch, 3, length, 8, dtype=dtype), cosine, sine, places),
                {"interleaved": interleaved},
                opset=23,
            )


def _encoders(rng: np.random.Generator) -> Iterator[Case]:
    heads, depth = 2, 4
    wide = heads * depth
    for batch, rows, keys in ((2, 3, 3), (1, 1, 1), (2, 3, 5)):
        q = _x(rng, batch, rows, wide)
        k, v = _x(rng, batch, keys, wide), _x(rng, batch, keys, wide)
        bias = _x(rng, 3 * wide)
        mask = (rng.random((batch, keys)) < 0.7).astype(np.int32)
        lengths = rng.integers(1, keys + 1, (batch,)).astype(np.int32)
        added = _x(rng, 1, heads, rows, keys)
        mha = {"num_heads": heads}
        yield _case("MultiHeadAttention", q, k, v, **mha)
        yield _case("MultiHeadAttention", q, k, v, bias, **mha)
        yield _case("MultiHeadAttention", q, k, v, bias, mask, **mha)
        yield _case("MultiHeadAttention", q, k, v, None, lengths, **mha)
        yield _case("MultiHeadAttention", q, k, v, None, None, added, scale=0.3, **mha)
        past = [_x(rng, batch, heads, 2, depth) for _ in range(2)]
        for causal in (0, 1) if rows == keys else (0,):
            inputs = (q, k, v, None, None, None, *past)
            yield _case("MultiHeadAttention", *inputs, outputs=3, unidirectional=causal, **mha)
        apart = [x.reshape(batch, keys, heads, depth).transpose(0, 2, 1, 3) for x in (k, v)]
        yield _case("MultiHeadAttention", q, *apart, **mha)
        yield _case("MultiHeadAttention", q, _x(rng, batch, keys, heads, 2, depth), **mha)
    for batch, rows in ((2, 3), (1, 1), (1, 4)):
        x, w, bias = _x(rng, batch, rows, 6), _x(rng, 6, 3 * wide), _x(rng, 3 * wide)
        raw = (rng.random((batch, rows)) < 0.7).astype(np.int32)
        lengths = rng.integers(1, rows + 1, (batch,)).astype(np.int32)
        each = (rng.random((batch, rows, rows)) < 0.7).astype(np.int32)
        past = _x(rng, 2, batch, heads, 2, depth)
        for mask in (None, raw, lengths, each):
            for causal in (0, 1):
                more = {"num_heads": heads, "unidirectional": causal}
                # Scores to which 10,000 is added lose digits, in another order than onnxruntime's.
                yield _case("Attention", x, w, bias, mask, within=2e-3, **more)
                yield _case("Attention", x, w, bias, mask, mask_filter_value=-50.0, **more)
        yield _case("Attention", x, w, bias, None, past, outputs=2, unidirectional=1, num_heads=2)
        added = _x(rng, batch, heads, rows, rows)
        yield _case("Attention", x, w, bias, None, None, added, num_heads=2)
        w, bias = _x(rng, 6, 2 * wide + 4), _x(rng, 2 * wide + 4)
        yield _case("Attention", x, w, bias, num_heads=2, qkv_hidden_sizes=[wide, wide, 4])


def _decoders(rng: np.random.Generator) -> Iterator[Case]:
    """A first call, and calls of one token after caches of equal and of other lengths."""
    heads, few, depth = 4, 2, 16
    angles = rng.random((32, depth // 2)) * 6
    tables = np.cos(angles).astype(F32), np.sin(angles).astype(F32)
    forms: list[dict[str, Any]] = [
        {}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}, {"softcap": 2.0},
        {"local_window_size": 2}, {"scale": 0.2}, {"smooth_softmax": 1},
        {"do_rotary": 1, "softcap": 5.0, "local_window_size": 3},
    ]  # fmt: skip
    for batch, rows, before in ((2, 3, 0), (1, 1, 4), (2, 1, 4), (1, 4, 0), (1, 3, 4)):
        total = np.array(rows + before, np.int32)
        ends = np.full((batch,), rows + before - 1, np.int32)
        if batch > 1 and before:
            ends[0] -= 2  # A shorter sequence.
        q, k, v = (_x(rng, batch, rows, n * depth) for n in (heads, few, few))
        past = [_x(rng, batch, few, before, depth) for _ in range(2)]
        past = [np.where(_held(ends, rows, before), p, 0).astype(F32) for p in past]
        for packed in (False, True):
            operands = (np.concatenate([q, k, v], 2), None, None) if packed else (q, k, v)
            for form in forms:
                angled = tables if form.get("do_rotary") else (None, None)
                yield _case(
                    "GroupQueryAttention", *operands, *past, ends, total, *angled, known=(6,),
                    num_heads=heads, kv_num_heads=few, outputs=3, **form,
                )  # fmt: skip
        sink, bias = _x(rng, heads), _x(rng, 1, heads, rows, rows + before)
        # A first call of onnxruntime takes all places from the first one.
        places = np.tile(rng.integers(0, 24) + np.arange(rows), (batch, 1))
        more = {"num_heads": heads, "kv_num_heads": few, "outputs": 3, "known": (6,)}
        base = (q, k, v, *past, ends, total)
        yield _case("GroupQueryAttention", *base, *tables, places, do_rotary=1, **more)
        yield _case("GroupQueryAttention", *base, None, None, None, bias, **more)
        yield _case("GroupQueryAttention", *base, None, None, None, None, sink, **more)
        if not before:
            yield _case("GroupQueryAttention", q, k, v, None, None, ends, total, **more)


def _held(ends: np.ndarray, rows: int, before: int) -> np.ndarray:
    """[batch, 1, places, 1]: what the cache holds of each sequence before a call."""
    return (np.arange(before)[None] <= (ends - rows)[:, None])[:, None, :, None]


def _quantized(rng: np.random.Generator) -> Iterator[Case]:
    scale, other, made = (np.array(v, F32) for v in (0.05, 0.1, 0.07))
    for dtype, middle in ((np.uint8, 128), (np.int8, 3)):

        def data(*shape: int, dtype: Any = dtype) -> np.ndarray:
            info = np.iinfo(dtype)
            return rng.integers(info.min, info.max + 1, shape).astype(dtype)

        def weights(*shape: int, dtype: Any = dtype) -> np.ndarray:
            # onnxruntime's sums of two products saturate on AVX2 if signed weights have 8 bits.
            return data(*shape) // np.array(2 if dtype == np.int8 else 1, dtype)

        point, zero = np.array(middle, dtype), np.array(0, dtype)
        for shape in ((2, 3, 4, 4), (1, 1, 1, 1), (2, 1, 3, 5)):
            x, y = data(*shape), data(*shape)
            for op in ("QLinearAdd", "QLinearMul"):
                yield _case(op, x, scale, point, y, other, zero, made, point)
                yield _case(op, x, scale, point, y[:1], other, zero, made, zero)
            yield _case("QLinearSigmoid", x, scale, point, np.array(1 / 256, F32), zero)
            yield _case("QLinearLeakyRelu", x, scale, point, other, point, alpha=0.2)
            yield _case("QLinearGlobalAveragePool", x, scale, point, other, zero)
            yield _case("QLinearConcat", made, point, x, scale, zero, y, other, point, axis=1)
            where = rng.random(shape) < 0.5
            yield _case("QLinearWhere", where, x, scale, zero, y, other, point, made, point)
            inputs = (x, scale, point, np.array(1 / 256, F32), zero)
            if shape[-1] > 1:  # onnxruntime wraps a 1 around to 0 where the type has no 256.
                yield _case("QLinearSoftmax", *inputs, axis=-1, opset=13, within=1)
        for pads, stride, count in (([0] * 4, 1, 0), ([1] * 4, 2, 0), ([1] * 4, 1, 1)):
            inputs = (data(1, 2, 5, 5), scale, point, scale, point)
            yield _case(
                "QLinearAveragePool", *inputs, kernel_shape=[2, 2], strides=[stride] * 2, pads=pads,
                count_include_pad=count, within=1,
            )  # fmt: skip
        a, c = data(4, 6), weights(6, 3)
        bias = rng.integers(-500, 500, (3,)).astype(np.int32)
        yield _case("QGemm", a, scale, point, c, other, zero, bias, made, point)
        yield _case("QGemm", a, scale, point, c, other, zero, bias, alpha=0.5)
        yield _case("QGemm", a.T.copy(), scale, point, c, other, zero, transA=1)
        yield _case("MatMulIntegerToFloat", a, c, scale, other, point, zero, _x(rng, 3))
        yield _case("MatMulIntegerToFloat", a, c, scale, other, within=1e-4)
        yield _case("DynamicQuantizeMatMul", _x(rng, 4, 6), c, other, zero, _x(rng, 3), within=1e-4)
        columns, points = rng.random(3).astype(F32), data(3)
        inputs = (_x(rng, 2, 4, 6), c, columns, points)
        yield _case("DynamicQuantizeMatMul", *inputs, within=1e-4)
        w, wide = weights(6, 24), _x(rng, 24)
        mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
        for form in ((None,), (mask,)):
            x8 = rng.integers(0, 256, (2, 3, 6)).astype(np.uint8)
            inputs = (x8, w, wide, np.array(0.01, F32), np.array(0.02, F32), *form)
            inputs = (*inputs, np.array(120, np.uint8), zero)
            yield _case("QAttention", *inputs, num_heads=2, within=1e-4)
    for dtype in (np.int16, np.uint16):
        x, zero = _x(rng, 3, 4), np.array(7, dtype)
        step = np.array(0.001, F32)
        yield _case("QuantizeLinear", x, step, zero)
        yield _case("DequantizeLinear", (x * 100).astype(dtype), step, zero)


def _embeddings(rng: np.random.Generator) -> Iterator[Case]:
    tables = [_x(rng, n, 8) for n in (20, 6, 2)]
    gamma, beta = _x(rng, 8), _x(rng, 8)
    for batch, length in ((2, 3), (1, 1), (1, 6)):
        ids = rng.integers(0, 20, (batch, length)).astype(np.int32)
        segments = rng.integers(0, 2, (batch, length)).astype(np.int32)
        mask = (rng.random((batch, length)) < 0.7).astype(np.int32)
        places = rng.integers(0, 6, (batch, length)).astype(np.int32)
        inputs = (ids, segments, *tables, gamma, beta)
        yield _case("EmbedLayerNormalization", *inputs, outputs=2)
        yield _case("EmbedLayerNormalization", *inputs, mask, outputs=2)
        yield _case("EmbedLayerNormalization", *inputs, mask, places, outputs=3)
        inputs = (ids, None, *tables[:2], None, gamma, beta)
        yield _case("EmbedLayerNormalization", *inputs, outputs=2)
