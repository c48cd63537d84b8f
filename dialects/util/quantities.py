"""Sizes and durations that users write with a unit: ``64MiB``, ``5ms``."""

import re
from collections.abc import Mapping
from math import isinf

_BYTES = {"": 1, "B": 1}
_BYTES |= {f"{p}iB": 1 << 10 * i for i, p in enumerate("KMG", 1)}
_BYTES |= {f"{p}B": 1000**i for i, p in enumerate("KMG", 1)}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)$")


def size(text: str) -> int:
    """Return the bytes of ``64MiB``, ``1.5GB`` or ``4096``. Raises ValueError."""
    return int(_quantity(text, _BYTES))


def duration(text: str) -> float:
    """Return seconds of ``5ms``, ``2min`` or ``1.5``. Raises ValueError."""
    return _quantity(text, _SECONDS)


def _quantity(text: str, units: Mapping[str, float]) -> float:
    match = _QUANTITY.match(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"a number and one of {', '.join(u for u in units if u)}")
    found = float(match[1]) * units[match[2]]
    if isinf(found):
        raise ValueError("a number that is not beyond all others")
    return found
