"""Facts that a carried kernel declares of itself: its arithmetic, and what it may do in place.

The body of such a dispatch is loops over memory: there is no linalg to count operations on and no
tensors to follow. Whoever generated it says both on the inner ``func.func``, in discardable
attributes that IREE leaves alone:

- ``pyc.flops``: an integer, arithmetic operations of one run, beside those of linalg ops;
- ``pyc.in_place``: ``[[written, read], ...]``, numbers of bindings: the written one may be the
  same bytes as the read one if nothing else needs that any more. The generator has proven it.
"""

from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.streams.ir import ir

FLOPS, IN_PLACE = "pyc.flops", "pyc.in_place"


def declared_flops(function: Any) -> int:
    """Return the operations of one run, 0 where nothing is said.

    Raises PycError (INVALID_IR) for an attribute that is no integer of 0 or more.
    """
    if FLOPS not in function.attributes:
        return 0
    flops = _integer(function.attributes[FLOPS])
    if flops is None or flops < 0:
        raise _refused(function, FLOPS, "an integer of 0 or more")
    return flops


def declared_in_place(function: Any, bindings: int) -> frozenset[tuple[int, int]]:
    """Return the pairs (written, read) of a function with so many bindings; none if undeclared.

    Raises PycError (INVALID_IR) for what is no list of pairs of two different bindings.
    """
    if IN_PLACE not in function.attributes:
        return frozenset()
    attribute = function.attributes[IN_PLACE]
    pairs = [_pair(a) for a in attribute] if isinstance(attribute, ir.ArrayAttr) else [None]
    found = frozenset(pair for pair in pairs if pair is not None)
    inside = all(0 <= number < bindings for pair in found for number in pair)
    if None in pairs or not inside or any(written == read for written, read in found):
        expected = f"pairs [written, read] of different bindings below {bindings}"
        raise _refused(function, IN_PLACE, expected)
    return found


def _pair(attribute: Any) -> tuple[int, int] | None:
    numbers = list(map(_integer, attribute)) if isinstance(attribute, ir.ArrayAttr) else []
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return numbers[0], numbers[1]


def _integer(attribute: Any) -> int | None:
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None


def _refused(function: Any, name: str, expected: str) -> PycError:
    symbol = ir.StringAttr(function.attributes["sym_name"]).value
    return PycError(
        ReasonCode.INVALID_IR,
        f"kernel @{symbol}: expected `{name}` to be {expected}, got {function.attributes[name]}",
    )
