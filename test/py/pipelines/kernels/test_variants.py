"""Spaces of knobs: what is legal, and how settings reach knobs.

That kernels of a space compute what the offer does is tested with the families.
"""

from dataclasses import dataclass, replace

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.knobs import (
    KernelKnobs,
    cuts,
    knob,
    shares,
    space_around,
    with_settings,
)
from pyc_mlir.pipelines.kernels.lang.carrier import Dim
from pyc_mlir.pipelines.target.target import Target

AVX512 = Target.named("cpu-avx512")


@dataclass(frozen=True)
class Inner(KernelKnobs, family="inner"):
    width: int = knob(4, lambda k, target: shares(target, k.width))


@dataclass(frozen=True)
class Knobs(KernelKnobs, family="outer"):
    """A kernel of even heights, at most 8 rows and columns in all."""

    height: int = knob(2, (1, 4, 6))
    panel: int = knob(4, (2, 6))
    rows: Dim = "m"
    streaming: bool = False
    images: Inner = Inner()

    def _misfit(self):
        return "an even height" if self.height % 2 else ""


def refused(knobs):
    return "" if knobs.height + knobs.panel <= 8 else "too large"


def test_a_space_has_what_can_be_made_and_is_not_refused():
    space = space_around(Knobs(), replace(AVX512, cores=1), refused)
    assert space is not None
    assert [axis.name for axis in space.axes] == ["height", "panel", "images.width"]
    assert space.settings(space.default) == {"height": 2, "panel": 4, "images.width": 4}
    found = {tuple(space.settings(config).values())[:2] for config in space}
    assert found == {(2, 2), (2, 4), (2, 6), (4, 2), (4, 4), (6, 2)}


def test_nothing_to_vary_is_no_space():
    assert space_around(Inner(1), replace(AVX512, cores=1), refused) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"height": 0}, "outer kernel: expected `height`: at least 1, got 0"),
        ({"rows": 0}, "`rows`: at least 1"),
        ({"height": 3}, "outer kernel: expected an even height, got Knobs"),
        ({"images.width": 0}, "inner kernel: expected `width`"),
    ],
)
def test_fields_are_what_they_declare(wrong, message):
    with pytest.raises(PycError, match=message) as caught:
        with_settings(Knobs(), wrong)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_names_become_sizes():
    assert Knobs().at({"m": 7}) == Knobs(rows=7)


def test_settings_reach_into_knobs():
    made = with_settings(Knobs(), {"height": 4, "images.width": 8})
    assert made == Knobs(height=4, images=Inner(8))


@pytest.mark.full
def test_grids_are_one_workgroup_or_some_for_each_core():
    cores = replace(AVX512, cores=4)
    assert shares(cores, 100) == [1, 4, 8, 16] and shares(cores, 9) == [1, 4, 8]
    assert shares(replace(AVX512, cores=1), 100) == [1]
    assert cuts(cores, 5, 8) == [(1, 1), (1, 4), (1, 8), (4, 1)]
