"""Spaces of knobs: every family's variants compute what the family's reference does."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from conftest import FULL
from family_checks import cases, check, hash_of
from kernel_runs import name_of, pairs

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.match import KernelOffer
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.kernels.variants import cuts, knob_space, shares, with_settings
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target

KERNELS, VARIANTS = (170, 2) if FULL else (3, 1)
CORES = 3
AVX512 = Target.named("cpu-avx512")


@pytest.mark.parametrize("name,target", pairs("test_variants", FAMILIES), ids=name_of)
def test_random_variants_equal_float64(name, target):
    """Knob sets of a family's space compute what its reference does, for the same call."""
    family, rng = FAMILIES[name], np.random.default_rng(hash_of(name))
    varied = [
        (made, [repacked(knobs, made, arrays) for arrays in calls])
        for knobs, calls in cases(family, hash_of(name) + 1, target, KERNELS)
        for made in variants(family, knobs, replace(target, cores=CORES), rng)
    ]
    check(family, target, varied)


def variants(family, knobs, target, rng):
    """Some legal knob sets around `knobs`, which are the space's default."""
    space = family.space(KernelOffer(knobs, 1, (), Cost()), target)
    if space is None:
        return []
    assert space.is_legal(space.default) and not space.label(space.default)
    assert with_settings(knobs, space.settings(space.default)) == knobs
    configs = sorted({space.sample(rng) for _ in range(VARIANTS)})
    assert [space.labelled(space.label(c)) for c in configs] == configs
    made = [with_settings(knobs, space.settings(config)) for config in configs]
    assert all(family.offers(one, target) for one in made)
    return made


def repacked(before, after, arrays):
    """The arrays of a call with constants laid out as another kernel wants them."""
    pairs = zip(before.kernel("k").operands, after.kernel("k").operands, strict=True)
    layouts = [(old.layout, new.layout) for old, new in pairs if old.role != "out"]
    return [
        array if old == new else new.pack(old.unpack(array)).astype(array.dtype)
        for array, (old, new) in zip(arrays, layouts, strict=True)
    ]


@dataclass(frozen=True)
class Inner:
    width: int = 4


@dataclass(frozen=True)
class Knobs:
    """A kernel of even heights, at most 8 rows and columns in all."""

    height: int = 2
    panel: int = 4
    streaming: bool = False
    images: Inner = Inner()

    def __post_init__(self):
        if self.height % 2:
            raise PycError(ReasonCode.BAD_ARGUMENT, "odd")


def refused(knobs):
    return "" if knobs.height + knobs.panel <= 8 else "too large"


def test_a_space_has_what_can_be_made_and_is_not_refused():
    space = knob_space(Knobs(), {"height": (1, 4, 6), "panel": (2, 6), "streaming": ()}, refused)
    assert space is not None
    assert [axis.name for axis in space.axes] == ["height", "panel"]
    assert space.settings(space.default) == {"height": 2, "panel": 4}
    found = [tuple(space.settings(config).values()) for config in space]
    assert found == [(2, 2), (2, 4), (2, 6), (4, 2), (4, 4), (6, 2)]


def test_nothing_to_vary_is_no_space():
    assert knob_space(Knobs(), {"height": (2,), "panel": ()}, refused) is None


def test_settings_reach_into_knobs():
    made = with_settings(Knobs(), {"height": 4, "images.width": 8})
    assert made == Knobs(height=4, images=Inner(8))


@pytest.mark.full
def test_grids_are_one_workgroup_or_some_for_each_core():
    cores = replace(AVX512, cores=4)
    assert shares(cores, 100) == [1, 4, 8, 16] and shares(cores, 9) == [1, 4, 8]
    assert shares(replace(AVX512, cores=1), 100) == [1]
    assert cuts(cores, 5, 8) == [(1, 1), (1, 4), (1, 8), (4, 1)]
