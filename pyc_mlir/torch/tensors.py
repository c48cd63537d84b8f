"""Tensors to and from a program's arrays, over the same memory."""

import atexit
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from pyc_mlir.frontends.torch.shared.dtypes import numpy_view

_BF16 = np.dtype(ml_dtypes.bfloat16)
_Tensor: Any = torch.Tensor
# Results by their ids, while they live.
_SHARED: dict[int, weakref.ref[Any]] = {}


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
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    key = id(tensor)
    _SHARED[key] = weakref.ref(tensor, lambda _: _SHARED.pop(key, None))
    return tensor


@atexit.register
def _release() -> None:
    """Drop torch's compiled graphs when Python ends, and copy results that still live.

    torch would keep both beyond that end, where IREE's bindings report each object as leaked.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    for reference in list(_SHARED.values()):
        if (tensor := reference()) is not None:
            tensor.data = tensor.data.clone()


def arrays_of(tensors: Sequence[Any]) -> list[Any]:
    """Return the arrays of tensors; other values unchanged."""
    return [array_of(t) if isinstance(t, _Tensor) else t for t in tensors]
