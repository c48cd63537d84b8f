"""ConvTranspose as a sub-pixel convolution: numbers, work and structure of what is imported."""

from itertools import product

import numpy as np
import pytest
from conftest import sample
from onnx_models import node_model

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.attributes import params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.pyc.canonicalize import Canonicalize
from pyc_mlir.pipelines.pyc.rewriting import functions_of, pyc_ops

RNG = np.random.default_rng(0)


def scattered(x: np.ndarray, w: np.ndarray, groups: int, strides, dilations, low, high):
    """The definition: each element of x adds its multiple of the kernel to the result."""
    (count, channels, *sizes), (_, filters, *kernel) = x.shape, w.shape
    full = [
        (n - 1) * s + d * (k - 1) + 1
        for n, s, d, k in zip(sizes, strides, dilations, kernel, strict=True)
    ]
    out = np.zeros((count, groups * filters, *full))
    blocks = x.reshape(count, groups, channels // groups, *sizes).astype(np.float64)
    weights = w.reshape(groups, channels // groups, filters, *kernel).astype(np.float64)
    for taps in product(*map(range, kernel)):
        part = np.einsum("ngc...,gcf->ngf...", blocks, weights[(..., *taps)])
        places = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(taps, dilations, sizes, strides, strict=True)
        ]
        out[(slice(None), slice(None), *places)] += part.reshape(count, -1, *sizes)
    wide = [(max(0, -a), max(0, -b)) for a, b in zip(low, high, strict=True)]
    out = np.pad(out, [(0, 0), (0, 0), *wide])
    cut = [
        slice(max(0, a), n - max(0, b) if b > 0 else None)
        for a, b, n in zip(low, high, out.shape[2:], strict=True)
    ]
    return out[(slice(None), slice(None), *cut)]


def draw(seed: int):
    """Sizes and attributes of a node with 1 or 2 spatial axes, its result never empty."""
    rng = np.random.default_rng(seed)
    rank, groups = int(rng.integers(1, 3)), int(rng.choice([1, 1, 2, 3]))
    axes = []
    while len(axes) < rank:
        k, s, d = (int(rng.integers(1, m)) for m in (6, 5, 4))
        n, low, high = (int(rng.integers(a, b)) for a, b in ((1, 6), (0, 4), (0, 4)))
        extra = int(rng.integers(0, max(s, d)))
        if (n - 1) * s + d * (k - 1) + 1 + extra - low - high > 0:
            axes.append((k, s, d, n, low, high, extra))
    k, s, d, n, low, high, extra = (list(v) for v in zip(*axes, strict=True))
    x = rng.normal(size=(int(rng.integers(1, 3)), groups * 2, *n)).astype(np.float32)
    w = rng.normal(size=(groups * 2, int(rng.integers(1, 4)), *k)).astype(np.float32)
    attributes = {
        "group": groups, "strides": s, "dilations": d, "pads": low + high, "output_padding": extra
    }  # fmt: skip
    return x, w, attributes, low, [h - e for h, e in zip(high, extra, strict=True)]


def imported(x: np.ndarray, constants: list, attributes: dict, *, dynamic: bool = False):
    proto = node_model("ConvTranspose", [x], constants, attributes, dynamic=dynamic)
    if dynamic:
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = x.shape[1]
    return import_onnx(proto)


@pytest.mark.parametrize("seed", sample(list(range(300)), 60))
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.sampled(68)
def test_equals_the_definition(seed: int, dynamic: bool) -> None:
    x, w, attributes, low, high = draw(seed)
    bias = RNG.normal(size=w.shape[1] * attributes["group"]).astype(np.float32)
    wanted = scattered(
        x, w, attributes["group"], attributes["strides"], attributes["dilations"], low, high
    )
    module = imported(x, [w, bias], attributes, dynamic=dynamic)
    (found,) = interpret(module, [x])
    shaped = bias.reshape(-1, *[1] * (x.ndim - 2))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted + shaped, 2e-5, 2e-5)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
def test_automatic_pads(mode: str, kernel: int) -> None:
    x, w = (RNG.normal(size=s).astype(np.float32) for s in ((1, 2, 4, 5), (2, 3, kernel, kernel)))
    attributes = {"auto_pad": mode, "strides": [2, 2]}
    total = 0 if mode == "VALID" else kernel - 2
    first = total // 2 if mode == "SAME_UPPER" else total - total // 2
    wanted = scattered(x, w, 1, (2, 2), (1, 1), [first] * 2, [total - first] * 2)
    for dynamic in (False, True):
        (found,) = interpret(imported(x, [w], attributes, dynamic=dynamic), [x])
        np.testing.assert_allclose(found, wanted, 2e-5, 2e-5)


@pytest.mark.parametrize("size", [6, 7, 8, 10, 11])
def test_stated_output_shapes(size: int) -> None:
    x, w = (RNG.normal(size=s).astype(np.float32) for s in ((1, 2, 4), (2, 3, 3)))
    total = 3 * 2 + 3 - size
    low = total - total // 2
    wanted = scattered(x, w, 1, (2,), (1,), [low], [total - low])
    attributes = {"strides": [2], "output_shape": [size]}
    (found,) = interpret(imported(x, [w], attributes), [x])
    assert found.shape == (1, 3, size)
    np.testing.assert_allclose(found, wanted, 2e-5, 2e-5)


def test_a_stated_output_shape_needs_a_static_size() -> None:
    x, w = (RNG.normal(size=s).astype(np.float32) for s in ((1, 2, 4), (2, 3, 3)))
    with pytest.raises(PycError, match="output_shape with dynamic spatial dimensions"):
        imported(x, [w], {"strides": [2], "output_shape": [8]}, dynamic=True)


def ops_of(module: ir.Module) -> list[ir.Operation]:
    (function,) = functions_of(module)
    return list(pyc_ops(function.regions[0].blocks[0]))


def flops_of(module: ir.Module) -> int:
    total = 0
    for op in ops_of(module):
        definition = OPS[op.name.removeprefix("pyc.")]
        types = [from_mlir(v.type) for v in op.operands]
        total += definition.flops(types, from_mlir(op.result.type), **params_of(definition, op))
    return total


@pytest.mark.parametrize("kernel, pad", [(2, 0), (4, 1), (4, 0), (6, 2)])
def test_work_is_the_ideal_where_the_stride_divides_the_kernel(kernel: int, pad: int) -> None:
    """Each result reads (kernel / 2)**2 pixels; what is cut off is at most a border of one."""
    x, w = (RNG.normal(size=s).astype(np.float32) for s in ((2, 6, 8, 9), (6, 5, kernel, kernel)))
    attributes = {"strides": [2, 2], "pads": [pad] * 4}
    module = imported(x, [w], attributes)
    height, width = (d or 0 for d in from_mlir(ops_of(module)[-1].result.type).shape[2:])
    reads = 2 * 2 * 6 * 5 * (kernel // 2) ** 2
    crop = 2 * (pad % 2)
    assert flops_of(module) == reads * (height + crop) * (width + crop)
    if kernel == 2:
        assert flops_of(module) == 2 * x.size * w[0].size


def test_structure_after_canonicalize() -> None:
    """Where the kernel is the stride: a 1x1 convolution, its bias, and one copy."""
    x, w = np.zeros((1, 64, 8, 8), np.float32), RNG.normal(size=(64, 32, 2, 2)).astype(np.float32)
    bias = RNG.normal(size=32).astype(np.float32)
    module = imported(x, [w, bias], {"strides": [2, 2]})
    Canonicalize().run(module, PassContext())
    found = [op.name.removeprefix("pyc.") for op in ops_of(module)]
    assert [f for f in found if f != "constant"] == [
        "conv2d", "add", "reshape", "transpose", "reshape"
    ]  # fmt: skip
    (conv,) = (op for op in ops_of(module) if op.name == "pyc.conv2d")
    assert from_mlir(conv.operands[1].type).shape == (4 * 32, 64, 1, 1)
    assert all(v.owner.name == "pyc.constant" for v in (conv.operands[1],))


def test_large_weights_are_laid_out_at_import() -> None:
    """More than canonicalize folds: the zero taps of a 3x3 kernel make the weights larger."""
    w = RNG.normal(size=(256, 160, 3, 3)).astype(np.float32)
    attributes = {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}
    module = imported(np.zeros((1, 256, 4, 4), np.float32), [w], attributes)
    names = [op.name.removeprefix("pyc.") for op in ops_of(module)]
    assert names[:2] == ["constant", "conv2d"] and "slice" not in names
    (conv,) = (op for op in ops_of(module) if op.name == "pyc.conv2d")
    assert from_mlir(conv.operands[1].type).shape == (4 * 160, 256, 2, 2)
