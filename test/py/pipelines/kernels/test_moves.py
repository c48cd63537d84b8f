"""Kernels that move numbers: bits, trees of concatenations, growing images, what is offered."""

from itertools import pairwise, permutations

import numpy as np
import numpy.typing as npt
import pytest
from kernel_runs import Kernels, any_target, targets
from kernel_works import lone

from pyc_mlir import compile, nn
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import tensor
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.pipelines.kernels.families.moves import CONCAT, RESIZE, TRANSPOSE, Transpose
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.runtime.device import Device

AVX2, AVX512 = Target.named("cpu-avx2"), Target.named("cpu-avx512")


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
def test_bits_are_kept(target):
    """NaN's bits, infinities and negative zero; no arithmetic touches them."""
    x = np.random.default_rng(3).normal(size=(2, 16, 17)).astype(np.float32)
    x[0, 0, :4] = np.nan, np.inf, -np.inf, -0.0
    got = Kernels(target, [Transpose(2, 16, 17).kernel("k")]).run("k", x)
    assert np.array_equal(got.view(np.int32), x.transpose(0, 2, 1).copy().view(np.int32))


def test_large_results_are_streamed():
    assert Transpose.on(AVX2, 1, 4096, 4096).streaming
    assert not Transpose.on(AVX2, 1, 512, 512).streaming


@pytest.mark.parametrize("shape", [(9, 10, 11, 12), (9, 1, 11, 12), (9, 10, 1, 1)])
def test_what_is_offered_equals_numpy(shape):
    """Every permutation of four dimensions: the view that a feed makes of it, exchanged."""
    x = np.arange(np.prod(shape)).reshape(shape)
    found = 0
    for permutation in permutations(range(4)):
        for offer in TRANSPOSE.match(lone("transpose", shape, permutation=permutation), AVX2):
            cuts = (0, *offer.feeds[0].cuts, 4)
            view = x.reshape([int(np.prod(shape[a:b])) for a, b in pairwise(cuts)])
            exact = x.transpose(permutation)
            assert np.array_equal(view.swapaxes(1, 2).reshape(exact.shape), exact)
            found += 1
    assert found


RANDOM = np.random.default_rng(5)
PIXELS = 24 * 20


def numbers(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def tree(rows: int | None = 64, names=("concat", "concat"), axes=(1, -1)):
    """concat(a, concat(b, c)), the inner one first."""
    inputs = tuple(Input(tensor("f32", rows, w)) for w in (8, 16, 4))
    inner = WorkOp(names[0], (1, 2), {"axis": axes[0]}, tensor("f32", rows, 20))
    outer = WorkOp(names[1], (0, 3), {"axis": axes[1]}, tensor("f32", rows, 28))
    return Work(inputs, (inner, outer))


def test_a_tree_is_one_kernel():
    (offer,) = CONCAT.match(tree(), AVX512)
    assert offer.covers == 2 and offer.worth
    assert offer.knobs.widths == (8, 16, 4) and offer.knobs.rows == 64
    assert offer.feeds == tuple(Feed(i, (1,)) for i in range(3))
    assert offer.cost.traffic_bytes == 8 * 64 * 28
    (any_rows,) = CONCAT.match(tree(None), AVX512)
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
def test_concatenations_that_are_left_to_iree(work, target):
    assert CONCAT.match(work, target) == []


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


NEAREST = {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}
LINEAR = {"mode": "linear", "coordinates": "half_pixel", "rounding": "round_prefer_floor"}


def image(
    shape=(2, 8, 5, 20), layout="NCHW", dtype: npt.DTypeLike = np.float32, how=NEAREST, **params
):
    given = {"sizes": (-1, -1), "scales": (2.0, 2.0), "layout": layout, **how, **params}
    return lone("resize", shape, dtype=dtype, **given)


def test_what_is_offered_of_resizes():
    (planar,) = RESIZE.match(image(), AVX512)
    assert planar.knobs.is_planar and planar.knobs.images == 16
    assert planar.feeds == (Feed(0, (2, 3)),)
    assert planar.cost.traffic_bytes == 4 * 2 * 8 * 5 * 20 * 5
    (last,) = RESIZE.match(image((None, 5, 20, 8), "NHWC", scales=(3.0, 2.0)), AVX512)
    assert (last.knobs.images, last.knobs.down.factor, last.knobs.along.factor) == ("n", 3, 2)
    assert len(RESIZE.match(image(sizes=(10, 40), scales=()), AVX512)) == 1


@pytest.mark.parametrize(
    ("work", "target"),
    [
        (image(scales=(2.0, 3.0)), AVX512),
        (image(sizes=(7, 40), scales=()), AVX512),
        (image(sizes=(10, 40), scales=(2.1, 2.0)), AVX512),
        (image(sizes=(10, 40), scales=(), how={**LINEAR, "coordinates": "align_corners"}), AVX512),
        (image((2, 8, None, 20)), AVX512),
        (image((2, 5, 20, 8), "NHWC", scales=(5.0, 5.0)), AVX512),
        (image(dtype=np.float16), AVX512),
        (image(), Target.named("cuda")),
        (lone("relu", (2, 8, 5, 20)), AVX512),
    ],
)
def test_resizes_that_are_left_to_iree(work, target):
    assert RESIZE.match(work, target) == []


@pytest.mark.full
def test_a_decoder_grows_its_images_in_their_layout():
    """Channels stay last between convolutions, and the result is the model's own."""
    any_target()
    first, second = (numbers(16, c, 3, 3) * 0.1 for c in (3, 16))

    def decoder(x):
        x = nn.conv2d(x, first, pads=(1, 1, 1, 1))
        x = nn.resize(x, sizes=(24, 40), mode="linear", coordinates="half_pixel")
        return nn.conv2d(x, second, pads=(1, 1, 1, 1))

    x = numbers(1, 3, 12, 20)
    program = compile(decoder, [x], device=Device("local-sync"))
    chosen = [d.chosen for d in program.artifact.decisions]
    assert "resize:resize" in chosen and "NHWC" in chosen
    want = compile(decoder, [x], kernels="iree", device=Device("local-sync"))(x)
    assert np.abs(np.asarray(program(x)) - np.asarray(want)).max() < 1e-4


def turned(x, cos, sin):
    """The halves of heads, turned by an angle for each place of a sequence."""
    half = x.shape[-1] // 2
    other = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * cos + other * sin


def test_what_a_sequence_of_unknown_length_has_once_is_read_by_a_kernel_of_all_heads():
    specs = [TensorSpec("f32", None, 3, None, 32), *[TensorSpec("f32", 1, 1, None, 32)] * 2]
    program = compile(turned, specs, target=any_target(), device=Device("local-sync"))
    assert "concat:concat+mul+add" in [d.chosen for d in program.artifact.decisions]
    for batch, length in ((2, 5), (1, 1), (3, 70), (0, 4), (2, 0)):
        random = np.random.default_rng(length)
        x = random.normal(size=(batch, 3, length, 32)).astype(np.float32)
        cos, sin = (random.normal(size=(1, 1, length, 32)).astype(np.float32) for _ in "ab")
        np.testing.assert_allclose(program(x, cos, sin), turned(x, cos, sin), rtol=1e-5, atol=1e-6)
    with pytest.raises(PycError):
        program(np.ones((2, 3, 4, 32), np.float32), cos, np.ones((1, 1, 6, 32), np.float32))
