"""Expectations of a test about a call that PyC refuses."""

from collections.abc import Callable
from typing import Any

import pytest

from pyc_mlir import PycError, ReasonCode


def refused(
    code: ReasonCode,
    call: Callable[..., object],
    *arguments: Any,
    match: str | None = None,
    **named: Any,
) -> PycError:
    """Return the error that a call ends in, which has this code and a message that fits."""
    with pytest.raises(PycError, match=match) as caught:
        call(*arguments, **named)
    assert caught.value.code is code, f"expected {code.name}, got {caught.value}"
    return caught.value
