"""JSON that others wrote: whatever is wrong with it is a ValueError."""

import json
from typing import Any

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
