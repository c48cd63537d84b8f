"""Groups of pyc ops as families see them, from a shape and an op's parameters."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

import pyc_mlir.dialects.ops  # noqa: F401
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp


def lone(name, *shapes, dtype: npt.DTypeLike = np.float32, **params):
    """A group of one op on arguments of these shapes; None is a dynamic dimension."""
    types = [TensorType(shape, np.dtype(dtype)) for shape in shapes]
    operands = tuple(range(len(types)))
    node = WorkOp(name, operands, params, OPS[name].infer(*types, **params))
    return Work(tuple(map(Input, types)), (node,))


def constant(work, value, array):
    """The group with an argument that is a constant."""
    given = replace(work.inputs[value], array=lambda: array)
    inputs = (*work.inputs[:value], given, *work.inputs[value + 1 :])
    return replace(work, inputs=inputs)
