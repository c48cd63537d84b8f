"""Fusion's analysis without MLIR: the groups with a single result."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.pyc.fuse import Fuse, FusionGraph


@st.composite
def chains(draw):
    """Users by position (all behind it) and some members, in order."""
    size = draw(st.integers(1, 12))
    users = [
        sorted(draw(st.sets(st.integers(i + 1, size - 1), max_size=3))) if i + 1 < size else []
        for i in range(size)
    ]
    members = sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))
    return users, tuple(members)


@given(chains())
def test_closed_prefixes_are_those_with_one_result(chain):
    graph = FusionGraph.__new__(FusionGraph)
    graph.users, members = chain
    wanted = [
        n for n in range(len(members), 1, -1) if graph.escapes(members[:n]) == [members[n - 1]]
    ]
    assert graph.closed_prefixes(members) == wanted


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(PycError, match=f"`max-ops`: expected 1 or more, got {limit}") as caught:
        Fuse(max_ops=limit)
    assert caught.value.code is ReasonCode.INVALID_PIPELINE
    assert Fuse(max_ops=1).max_ops == 1
