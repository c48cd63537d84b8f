"""JSON that others wrote: whatever is wrong with it is a ValueError, in a file a PycError."""

import json
from typing import Any, TypeVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data

T = TypeVar("T")
# Bytes of a file of JSON that is read. In memory it takes up to fifty times as many.
MAX_JSON_BYTES = 64 << 20


def parse_json(data: str | bytes) -> Any:
    """Return the value. Raises ValueError, also for text that is too long or nests too deeply."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"expected at most {MAX_JSON_BYTES} bytes of JSON, got {len(data)}")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("expected JSON, got brackets that nest too deeply") from None


def read_record(
    kind: type[T],
    data: str | bytes,
    where: str,
    expected: str,
    remedy: str,
    code: ReasonCode = ReasonCode.BAD_ARGUMENT,
) -> T:
    """Return the record that JSON holds. Raises PycError, with `where` first, for anything else."""
    try:
        return from_data(kind, parse_json(data))
    except ValueError as error:
        raise PycError(
            code, where=where, expected=expected, got=f"one with a fault: {error}", remedy=remedy
        ) from None
