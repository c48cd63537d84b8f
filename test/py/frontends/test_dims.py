"""Symbolic sizes: their algebra, and the groups by which two shapes are reassociated."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc_mlir.pipelines.linalg.lowering import LoweredDim, product, reassociation

ATOMS = {0: 2, 1: 3, 2: 5}
dims = st.builds(
    lambda c, atoms: LoweredDim(c) * LoweredDim(1, tuple(sorted(atoms))),
    st.integers(0, 6),
    st.lists(st.sampled_from(sorted(ATOMS)), max_size=2),
)
sizes = dims.filter(lambda d: d.coefficient > 0)


def value(dim: LoweredDim) -> int:
    """The size when the atoms have theirs. Distinct primes: equal values are equal atoms."""
    return dim.coefficient * math.prod(ATOMS[a] for a in dim.atoms)


@given(dims, dims, dims)
def test_multiplication_is_that_of_the_sizes(a, b, c):
    assert value(a * b) == value(a) * value(b)
    assert a * b == b * a
    assert (a * b) * c == a * (b * c)
    assert a * LoweredDim(1) == a
    assert a * LoweredDim(0) == LoweredDim(0)


@given(dims, sizes)
def test_division_undoes_multiplication(a, b):
    assert (a * b).divide(b) == a or a == LoweredDim(0)


@given(dims, dims)
def test_a_quotient_is_exact(a, b):
    quotient = a.divide(b)
    if quotient is not None:
        assert quotient * b == a


@given(dims)
def test_static_sizes_are_those_without_atoms(a):
    assert (a.static is None) == bool(a.atoms)
    assert a.static in (None, value(a))


def test_products_of_lists():
    assert product([]) == LoweredDim(1)
    assert product([LoweredDim(2), LoweredDim(1, (3,)), LoweredDim(4)]) == LoweredDim(8, (3,))


@st.composite
def groupings(draw):
    """Two shapes with the groups that they were made from."""
    source: list[LoweredDim] = []
    target: list[LoweredDim] = []
    count = draw(st.integers(0, 4))
    for _ in range(count):
        parts = draw(st.lists(sizes, min_size=1, max_size=3))
        whole = [product(parts)]
        left, right = draw(st.sampled_from([(whole, parts), (parts, whole), (parts, parts)]))
        source += left
        target += right
    return source, target, count


def assert_valid(groups, source: list[LoweredDim], target: list[LoweredDim]) -> None:
    """Consecutive groups that cover both shapes, with equal sizes."""
    for side, shape in ((0, source), (1, target)):
        assert [i for g in groups for i in g[side]] == list(range(len(shape)))
    for left, right in groups:
        assert left and right
        assert product(source[i] for i in left) == product(target[i] for i in right)


@given(groupings())
def test_reassociation_finds_the_groups(shapes):
    source, target, count = shapes
    groups = reassociation(source, target)
    assert groups is not None
    assert len(groups) >= count
    if source and target:
        assert_valid(groups, source, target)


@given(st.lists(dims, max_size=4), st.lists(dims, max_size=4))
def test_reassociation_of_any_shapes_is_valid_or_none(source, target):
    groups = reassociation(source, target)
    if groups:
        assert_valid(groups, source, target)
    if groups is not None:
        assert product(source) == product(target)


@given(st.lists(sizes, max_size=4), st.lists(sizes, max_size=4))
def test_shapes_of_different_size_have_no_groups(source, target):
    if product(source) != product(target):
        assert reassociation(source, target) is None


A, B = LoweredDim(1, (0,)), LoweredDim(1, (1,))


@pytest.mark.parametrize(
    "source, target, expected",
    [
        ([LoweredDim(6)], [LoweredDim(2), LoweredDim(3)], [([0], [0, 1])]),
        ([LoweredDim(2), LoweredDim(3)], [LoweredDim(6)], [([0, 1], [0])]),
        ([A, B, LoweredDim(4)], [A * B, LoweredDim(4)], [([0, 1], [0]), ([2], [1])]),
        ([A, LoweredDim(4)], [A, LoweredDim(2), LoweredDim(2)], [([0], [0]), ([1], [1, 2])]),
        ([LoweredDim(3)], [LoweredDim(3), LoweredDim(1), LoweredDim(1)], [([0], [0, 1, 2])]),
        (
            [LoweredDim(2), LoweredDim(3)],
            [LoweredDim(2), LoweredDim(1), LoweredDim(3)],
            [([0], [0]), ([1], [1, 2])],
        ),
        ([], [LoweredDim(1)], []),
        ([LoweredDim(1), LoweredDim(1)], [], []),
        ([LoweredDim(2), LoweredDim(3)], [LoweredDim(3), LoweredDim(2)], [([0, 1], [0, 1])]),
        ([A], [B], None),
        ([A, B], [B, A], [([0, 1], [0, 1])]),
        ([], [LoweredDim(2)], None),
    ],
)
def test_examples(source, target, expected):
    assert reassociation(source, target) == expected
