"""Concatenations in one pass: trees of them, what is offered, and the bytes they move."""

import numpy as np
import pytest
from kernel_runs import any_target
from kernel_works import lone

from pyc_mlir import compile, nn
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import tensor
from pyc_mlir.pipelines.kernels.families.moves import CONCAT as FAMILY
from pyc_mlir.pipelines.kernels.families.moves import Concat
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.runtime.device import Device

AVX512 = Target.named("cpu-avx512")
RANDOM = np.random.default_rng(5)
PIXELS = 24 * 20


def numbers(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("knobs", [{"widths": ()}, {"widths": (3, 0)}, {"rows": 0}, {"unroll": 0}])
def test_impossible_knobs_are_refused(knobs):
    with pytest.raises(PycError, match="concat kernel: expected"):
        Concat(**{"rows": 4, "widths": (3, 4), **knobs})


def tree(rows: int | None = 64, names=("concat", "concat"), axes=(1, -1)):
    """concat(a, concat(b, c)), the inner one first."""
    inputs = tuple(Input(tensor("f32", rows, w)) for w in (8, 16, 4))
    inner = WorkOp(names[0], (1, 2), {"axis": axes[0]}, tensor("f32", rows, 20))
    outer = WorkOp(names[1], (0, 3), {"axis": axes[1]}, tensor("f32", rows, 28))
    return Work(inputs, (inner, outer))


def test_a_tree_is_one_kernel():
    (offer,) = FAMILY.match(tree(), AVX512)
    assert offer.covers == 2 and offer.worth
    assert offer.knobs.widths == (8, 16, 4) and offer.knobs.rows == 64
    assert offer.feeds == tuple(Feed(i, (1,)) for i in range(3))
    assert offer.cost.traffic_bytes == 8 * 64 * 28
    (any_rows,) = FAMILY.match(tree(None), AVX512)
    assert any_rows.knobs.rows == "m"


ALONE = (4, 20, 16, 8)


@pytest.mark.parametrize(
    ("work", "target"),
    [
        (lone("concat", ALONE, ALONE, axis=0), AVX512),  # one row
        (lone("concat", ALONE, (4, 20, 16, None), axis=3), AVX512),
        (lone("concat", ALONE, (4, 20, 16, 0), axis=3), AVX512),
        (lone("concat", ALONE, (None, 20, 16, 8), axis=3), AVX512),  # sizes to be checked
        (lone("concat", ALONE, ALONE, axis=3, dtype=np.float16), AVX512),
        (lone("concat", ALONE, ALONE, axis=3), Target.named("cuda")),
        (lone("relu", ALONE), AVX512),
        (tree(axes=(0, 1)), AVX512),
    ],
)
def test_what_is_left_to_iree(work, target):
    assert FAMILY.match(work, target) == []


def dense_block(layers, growth=16):
    """Layers of norm, activation and convolution, each on all results before it (DenseNet)."""
    weights = [numbers(growth, 32 + growth * i, 1, 1) * 0.1 for i in range(layers)]
    scales = [numbers(32 + growth * i, 1, 1) for i in range(layers + 1)]

    def block(x):
        parts = [nn.conv2d(x, FIRST)]
        for i, w in enumerate(weights):
            joined = np.concatenate(parts, 1) if i else parts[0]
            parts.append(nn.conv2d(nn.relu(joined * scales[i] + scales[i]), w))
        return nn.relu(np.concatenate(parts, 1) * scales[layers])

    return block


FIRST = numbers(32, 8, 1, 1) * 0.1


@pytest.mark.full
def test_a_dense_block_moves_each_number_once_for_each_layer():
    any_target()
    layers, x = 6, numbers(1, 8, 24, 20)
    block = dense_block(layers)
    program = compile(block, [x], device=Device("local-sync"))
    want = compile(block, [x], kernels="iree", device=Device("local-sync"))(x)
    assert np.abs(np.asarray(program(x)) - np.asarray(want)).max() < 1e-4
    rows = [r for r in program.profile(x).rows if r.code == "concat"]
    assert len(rows) == layers and all("concat" in r.computes for r in rows)
    channels = [32 + 16 * i for i in range(1, layers + 1)]
    # Read once, written once; scale and shift are vectors.
    moved = sum(r.traffic_bytes or 0 for r in rows)
    assert (
        sum(8 * PIXELS * c for c in channels)
        <= moved
        <= sum(8 * (PIXELS + 1) * c for c in channels)
    )
    others = {r.code for r in program.profile(x).rows if r.is_dispatch} - {"concat"}
    copies = [r for r in program.profile(x).rows if r.code == "IREE" and "concat" in r.computes]
    assert "conv" in others and not copies
