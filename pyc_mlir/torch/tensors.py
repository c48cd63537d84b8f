"""Tensors to and from a program's arrays, over the same memory."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from pyc_mlir.frontends.torch.shared.dtypes import numpy_view

_BF16 = np.dtype(ml_dtypes.bfloat16)
_Tensor: Any = torch.Tensor


def array_of(tensor: Any) -> np.ndarray:
    """Return a CPU tensor's memory as an array. Raises PycError (UNSUPPORTED_DTYPE)."""
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        # bf16, which numpy does not know, and tensors that a gradient is recorded for.
        return numpy_view(tensor)


def tensor_of(array: np.ndarray) -> Any:
    """Return a fresh result's memory as a tensor."""
    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def arrays_of(tensors: Sequence[Any]) -> list[Any]:
    """Return the arrays of tensors; other values unchanged."""
    return [array_of(t) if isinstance(t, _Tensor) else t for t in tensors]
