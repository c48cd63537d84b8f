"""Small things that kinds of captured state share."""

from typing import Any

import numpy as np


class Holder:
    """An object with any attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def full(value: float) -> np.ndarray:
    """Four numbers."""
    return np.full(4, value, np.float32)
