"""torch's element types as numpy's, and its tensors as numpy arrays over the same memory."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.frontends.importing.errors import unsupported

_BY_NAME = {**{d.name: d for d in DTYPES.values()}, "bool": DTYPES["i1"]}


def pyc_dtype(dtype: Any) -> np.dtype:
    """Return the numpy dtype of a ``torch.dtype``. Raises PycError (UNSUPPORTED_DTYPE)."""
    found = _BY_NAME.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise unsupported(
            f"element type {dtype}: expected one of {', '.join(DTYPES)}",
            ReasonCode.UNSUPPORTED_DTYPE,
        )
    return found


def numpy_view(tensor: Any) -> np.ndarray:
    """View a dense CPU tensor as an array over the same memory; copy those of other devices.

    Raises PycError (UNSUPPORTED_DTYPE) for types that PyC lacks, and for quantized and sparse
    tensors.
    """
    import torch  # pyright: ignore[reportMissingImports]

    if tensor.layout != torch.strided or tensor.is_quantized:
        raise unsupported(
            f"a {tensor.layout} tensor: expected a dense one; call `.to_dense()`",
            ReasonCode.UNSUPPORTED_DTYPE,
        )
    dtype = pyc_dtype(tensor.dtype)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    if dtype == DTYPES["bf16"]:
        return plain.view(torch.int16).numpy().view(dtype)
    return plain.numpy()
