"""Kinds of captured state: calls notice a change, or an audit does."""

import numpy as np
import pytest
from capture_kinds import SEEN, UNSEEN, Kind

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.jit import jit

X = np.arange(1, 5, dtype=np.float32)


def name(kind: Kind) -> str:
    return kind.__name__


def traced_only(traced, **options):
    """A compiler of programs that are not run for what they compute."""
    return lambda x: x


@pytest.mark.parametrize("kind", SEEN, ids=name)
def test_a_call_notices(kind: Kind):
    steps = kind()
    function = next(steps)
    jitted = jit(function, compile=traced_only)
    before = np.asarray(function(X), np.float32)
    jitted(X)
    jitted(X)
    assert jitted.cache_info() == (1, 1, 1)
    next(steps, None)
    assert before.tobytes() != np.asarray(function(X), np.float32).tobytes()
    jitted(X)
    jitted(X)
    assert jitted.cache_info() == (2, 2, 1)


@pytest.mark.parametrize("kind", UNSEEN, ids=name)
def test_an_audit_notices(kind: Kind):
    steps = kind()
    function = jit(next(steps), compile=traced_only, audit=2)
    function(X)
    next(steps, None)
    function(X)
    with pytest.raises(PycError, match=r"unseen\.py") as caught:
        function(X)
    assert caught.value.code is ReasonCode.STALE_CAPTURES
