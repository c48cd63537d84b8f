"""Growing images: what is offered."""

import numpy as np
import numpy.typing as npt
import pytest
from kernel_runs import any_target
from kernel_works import lone

from pyc_mlir import compile, nn
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.families.moves import RESIZE as FAMILY
from pyc_mlir.pipelines.kernels.families.moves import Phases, Resize
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device

AVX512 = Target.named("cpu-avx512")
NEAREST = {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}
LINEAR = {"mode": "linear", "coordinates": "half_pixel", "rounding": "round_prefer_floor"}


def numbers(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def image(
    shape=(2, 8, 5, 20), layout="NCHW", dtype: npt.DTypeLike = np.float32, how=NEAREST, **params
):
    given = {"sizes": (-1, -1), "scales": (2.0, 2.0), "layout": layout, **how, **params}
    return lone("resize", shape, dtype=dtype, **given)


def test_what_is_offered():
    (planar,) = FAMILY.match(image(), AVX512)
    assert planar.knobs.is_planar and planar.knobs.images == 16
    assert planar.feeds == (Feed(0, (2, 3)),)
    assert planar.cost.traffic_bytes == 4 * 2 * 8 * 5 * 20 * 5
    (last,) = FAMILY.match(image((None, 5, 20, 8), "NHWC", scales=(3.0, 2.0)), AVX512)
    assert (last.knobs.images, last.knobs.down.factor, last.knobs.along.factor) == ("n", 3, 2)
    assert len(FAMILY.match(image(sizes=(10, 40), scales=()), AVX512)) == 1


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
def test_what_is_left_to_iree(work, target):
    assert FAMILY.match(work, target) == []


def test_impossible_knobs_are_refused():
    once = Phases()
    for knobs in ((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 1, 0)):
        with pytest.raises(PycError, match="at least 1"):
            Resize(*knobs, once, once)
    with pytest.raises(PycError, match="at most 16 outputs"):
        Resize(1, 1, 1, 1, Phases((((0, 1.0),),) * 17), once)
    with pytest.raises(PycError, match="at most 2 away"):
        Resize(1, 1, 1, 1, Phases((((3, 1.0),),)), once)


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
