"""The ranges that indices in an argument must keep, and the check of a call's arrays.

An op that takes elements at indices clamps them, or drops what is out of range. Where the source
calls such an index an error (ONNX, PyTorch), and the indices are an argument of the program, the
front end declares an `IndexRange`, and every call compares the least and the greatest index.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data

# The attributes of a function: its ranges as text, and how many ops take indices that the program
# computes.
INDICES, CLAMPED = "pyc.indices", "pyc.clamped"


@dataclass(frozen=True)
class IndexRange:
    """The range of the indices in one argument: below a size, and not below 0 or minus the size.

    input: the number of the argument. size: a number, or with an axis from 0 the number of the
        argument whose size along that axis it is. negative: indices may count from the end.
    """

    complete: ClassVar[bool] = True
    input: int
    size: int
    axis: int = -1
    negative: bool = True

    def fits(self, ranks: Sequence[int]) -> bool:
        """Return whether a program with arguments of these ranks can have this range."""
        count = len(ranks)
        known = self.axis < 0 or (self.size < count and self.axis < ranks[self.size])
        return 0 <= self.input < count and self.size >= 0 and known

    def of(self, arrays: Sequence[Any]) -> tuple[int, int]:
        """Return the least and the greatest index that a call with these arrays may have."""
        size = self.size if self.axis < 0 else arrays[self.size].shape[self.axis]
        return (-size if self.negative else 0), size - 1


def ranges_text(ranges: Iterable[IndexRange]) -> str:
    """Return ranges as text."""
    return json.dumps(to_data(tuple(ranges)))


def ranges_of(text: str, ranks: Sequence[int]) -> tuple[IndexRange, ...]:
    """Read the ranges of a function whose arguments have these ranks. Raises PycError."""
    try:
        found = from_data(tuple[IndexRange, ...], json.loads(text), INDICES)
        if all(r.fits(ranks) for r in found):
            return found
    except (PycError, ValueError):
        pass
    message = f"`{INDICES}`: expected ranges of indices in its arguments, got {text:.200}"
    raise PycError(ReasonCode.INVALID_IR, message)


def check_indices(
    ranges: Sequence[IndexRange], names: Sequence[str], arrays: Sequence[Any]
) -> None:
    """Raise PycError (INDEX_OUT_OF_RANGE) for arrays of numpy or of devices with other indices."""
    for range_ in ranges:
        array = arrays[range_.input]
        host = array if isinstance(array, np.ndarray) else array.own()
        if not host.size:
            continue
        low, high = range_.of(arrays)
        least, greatest = np.minimum.reduce(host, None), np.maximum.reduce(host, None)
        if least < low or greatest > high:
            raise PycError(
                ReasonCode.INDEX_OUT_OF_RANGE,
                f"argument `{names[range_.input]}`: expected indices from {low} to {high}, got "
                f"{least if least < low else greatest}; see that the data fit the model, or "
                "compile with `guard_indices=False`, which clamps",
            )
