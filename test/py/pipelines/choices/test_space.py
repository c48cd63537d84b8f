"""Spaces: names of variants, and configurations that are found one by one."""

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.space import Knob, KnobSpace, split_variant, variant_name

AXES = (Knob("rows", (1, 2, 4)), Knob("far", (False, True)), Knob("grid", ((1, 1), (2, 1))))
SPACE = KnobSpace(AXES, lambda config: sum(config) < 4, default=(1, 0, 0))


def test_a_label_names_what_differs_from_the_default():
    assert SPACE.label(SPACE.default) == ""
    assert SPACE.label((0, 1, 1)) == "rows=1,far=true,grid=2x1"
    assert SPACE.label((1, 0, 1)) == "grid=2x1"


def test_labels_and_configurations_are_one_to_one():
    labels = {SPACE.label(config): config for config in SPACE}
    assert len(labels) == len(list(SPACE)) == 11
    assert all(SPACE.labelled(label) == config for label, config in labels.items())


OTHERS = {
    "unknown knob": "columns=2",
    "unknown value": "rows=3",
    "the default's value": "rows=2",
    "another order": "far=true,rows=1",
    "twice": "rows=1,rows=1",
    "illegal": "rows=4,far=true,grid=2x1",
    "no text": "rows",
    "another spelling": "rows=01",
}


@pytest.mark.parametrize("label", OTHERS.values(), ids=OTHERS)
def test_other_labels_are_refused(label):
    with pytest.raises(PycError, match="variant: expected") as caught:
        SPACE.labelled(label)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_configurations_are_found_one_by_one():
    requested = []
    axes = tuple(Knob(name, tuple(range(1000))) for name in "abc")
    space = KnobSpace(axes, lambda config: not requested.append(config))
    assert next(iter(space)) == (0, 0, 0)
    assert len(requested) == 1


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gemm:matmul+add[rows=4,far=true]", ("gemm:matmul+add", "rows=4,far=true")),
        ("gemm:matmul#1[rows=4]", ("gemm:matmul#1", "rows=4")),
        ("gemm:matmul", ("gemm:matmul", "")),
    ],
)
def test_names_of_variants_have_two_parts(name, parts):
    assert split_variant(name) == parts
    assert variant_name(*parts) == name


@pytest.mark.parametrize("name", ["gemm[]", "[rows=4]", "gemm[a=1][b=2]", "gemm[a=1]x", ""])
def test_other_names_are_no_variants(name):
    assert split_variant(name) == (name, "")
