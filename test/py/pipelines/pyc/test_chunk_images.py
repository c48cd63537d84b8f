"""pyc-chunk on images: parts of rows with halos compute what the whole computes, in less memory."""

from random import Random

import numpy as np
import pytest
from conftest import FULL
from kernel_runs import any_target
from op_modules import module_of
from test_chunk import in_parts, same

from pyc_mlir import compile, nn
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function, interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import tensor
from pyc_mlir.pipelines.pyc.chunk import graph as chunk_graph
from pyc_mlir.pipelines.pyc.chunk.dims import ChunkWindow, OpCall
from pyc_mlir.pipelines.pyc.chunk.graph import ChunkGraph, regions, rows_of
from pyc_mlir.runtime.device import Device

NUMBERS = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


def weights(*shape):
    return NUMBERS.normal(size=shape, scale=0.3).astype(np.float32)


def test_rows_of_a_window_are_those_that_its_outputs_see():
    random = Random(1)
    for _ in range(300):
        size, reach, stride = random.randint(1, 12), random.randint(1, 5), random.randint(1, 3)
        low, high = random.randrange(reach), random.randrange(reach)
        outputs = (size + low + high - reach) // stride + 1
        if size + low + high < reach:
            continue
        first = random.randrange(outputs)
        rows = (first, random.randint(first + 1, outputs))
        window = ChunkWindow(size, reach, stride, low)
        seen = {o * stride - low + t for o in range(*rows) for t in range(reach)}
        inside = sorted(s for s in seen if 0 <= s < size)
        start, end = window.source(rows)
        assert (start, end) == (max(min(seen), 0), min(max(seen) + 1, size))
        assert not inside or (start <= inside[0] and inside[-1] < end)
        before, behind = window.pads(rows)
        assert (end - start + before + behind - reach) // stride + 1 == rows[1] - rows[0]


def window_call(size, kernel, pads, layout="NHWC"):
    shape = (1, size, size, 4) if layout == "NHWC" else (1, 4, size, size)
    x, definition = tensor("f32", *shape), OPS["max_pool2d"]
    params = definition.bind({"kernel": (kernel, kernel), "pads": pads, "layout": layout})
    return OpCall(definition, (x,), definition.infer(x, **params), params)


def test_windows_that_see_padding_alone_are_not_cut():
    assert window_call(6, 3, (1, 1, 1, 1)).dims[1] == (1,)
    assert window_call(6, 3, (1, 1, 1, 1), "NCHW").dims[3] == (3,)
    assert window_call(6, 3, (3, 0, 0, 0)).dims[1] is None
    assert window_call(6, 3, (0, 0, 3, 0)).dims[1] is None
    assert window_call(6, 3, (3, 0, 3, 0)).dims[2] == (2,)


def drawn(random):
    """A chain of windows on NHWC images, with residual sums, of 12 rows at first."""
    shapes = [(4, 4) for _ in range(random.randint(2, 4))]

    def body(b, x):
        for channels, _ in shapes:
            kind = random.choice(("conv", "conv", "depthwise", "max", "mean", "relu", "residual"))
            high = b.type_of(x).shape[1]
            window = {
                "strides": (random.choice((1, 1, 2)), random.choice((1, 2))),
                "pads": random.choice(((1, 1, 1, 1), (0, 1, 1, 0), (2, 2, 2, 2))),
                "layout": "NHWC",
            }
            if high < 4 or kind == "relu":
                x = b.relu(x)
            elif kind in ("conv", "depthwise"):
                groups = channels if kind == "depthwise" else 1
                w = b.constant(value=weights(3, 3, channels // groups, channels))
                x = b.conv2d(x, w, groups=groups, dilations=(random.choice((1, 2)), 1), **window)
            elif kind == "residual":
                w = b.constant(value=weights(3, 3, channels, channels))
                x = b.add(b.conv2d(x, w, pads=(1, 1, 1, 1), layout="NHWC"), x)
            elif kind == "max":
                x = b.max_pool2d(x, kernel=(3, 3), **window)
            else:
                x = b.avg_pool2d(
                    x, kernel=(3, 3), count_include_pad=random.random() < 0.5, **window
                )
        return x

    return body


def test_random_windows_in_parts_compute_the_same(monkeypatch):
    monkeypatch.setattr(chunk_graph, "RESULT_SHARE", np.inf)
    split = 0
    for seed in range(500 if FULL else 60):
        module = module_of(drawn(Random(seed)), [tensor("f32", 1, 12, 5, 4)], ir.Context.current)
        x = weights(1, 12, 5, 4)
        want = interpret(module, [x])
        split += in_parts(module, Random(seed))
        assert module.operation.verify()
        assert same(interpret(module, [x]), want), f"seed {seed}"
    assert split > 30


def test_parts_overlap_in_halos_alone():
    def body(b, x):
        w = b.constant(value=weights(3, 3, 4, 4))
        y = b.relu(b.conv2d(x, w, pads=(1, 1, 1, 1), layout="NHWC"))
        y = b.conv2d(y, w, pads=(1, 1, 1, 1), layout="NHWC", strides=(2, 2))
        return b.max_pool2d(y, kernel=(2, 2), strides=(2, 2), layout="NHWC")

    module = module_of(body, [tensor("f32", 1, 32, 32, 4)], ir.Context.current)
    graph = ChunkGraph(entry_function(module))
    conv, relu, down, pool = (
        i for i in range(len(graph.ops)) if graph.name(i) not in ("", "constant")
    )
    region = max(regions(graph, conv, pool, frozenset()), key=lambda r: len(r.ops))
    assert region.size == 8
    every = [rows_of(graph, region, 4, n) for n in range(4)]
    assert [r[pool] for r in every] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert [r[down] for r in every] == [(0, 4), (4, 8), (8, 12), (12, 16)]
    assert [r[relu] for r in every] == [(0, 8), (7, 16), (15, 24), (23, 32)]
    assert [r[conv] for r in every] == [r[relu] for r in every]
    whole = region.inside
    assert whole / 4 < region.inside_of(4) < whole / 2


EXPAND, DEPTHWISE, PROJECT = weights(96, 16, 1, 1), weights(96, 1, 3, 3), weights(24, 96, 1, 1)


def block(x):
    """An inverted residual block that halves the image (MobileNet-V2)."""
    x = nn.relu(nn.conv2d(x, EXPAND))
    x = nn.relu(nn.conv2d(x, DEPTHWISE, pads=1, strides=(2, 2), groups=96))
    return nn.conv2d(x, PROJECT)


@pytest.mark.full
def test_an_image_in_parts_needs_less_memory():
    any_target()
    x = NUMBERS.normal(size=(1, 16, 96, 96)).astype(np.float32)
    needs, results = {}, {}
    for mode in ("latency_first", "memory_first"):
        program = compile(block, [x], planner_mode=mode, device=Device("local-sync"))
        needs[mode] = program.artifact.account.transients
        results[mode] = np.asarray(program(x))
        chosen = [d.chosen for d in program.artifact.decisions if d.site.pass_name == "pyc-chunk"]
        assert any(c.startswith("split") for c in chosen) == (mode == "memory_first")
    assert np.abs(results["latency_first"] - results["memory_first"]).max() < 1e-4
    assert needs["memory_first"] < 0.6 * needs["latency_first"]
