"""Scalar types of linalg's bodies."""

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import dtype_of
from pyc_mlir.dialects.types import I64


def scalar_dtype(type_: ir.Type) -> np.dtype:
    """Return an element type; `index` is i64. Raises PycError (UNSUPPORTED_DTYPE)."""
    if isinstance(type_, ir.IndexType):
        return I64
    try:
        return dtype_of(type_)
    except PycError as error:
        raise PycError(ReasonCode.UNSUPPORTED_DTYPE, error.message) from error
