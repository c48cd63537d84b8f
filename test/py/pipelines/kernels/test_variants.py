"""Spaces of knobs: what is legal, and how settings reach knobs.

That kernels of a space compute what the offer does is tested with the families.
"""

from dataclasses import dataclass, replace

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.variants import cuts, knob_space, shares, with_settings
from pyc_mlir.pipelines.target.target import Target

AVX512 = Target.named("cpu-avx512")


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
