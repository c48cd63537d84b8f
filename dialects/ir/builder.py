"""Building pyc programs op by op, with the result types inferred.

    b = IRBuilder()
    y = b.relu(b.add(b.matmul(x, w), bias))

`Builder` holds what all builders share: every op of the dialect as a method, and short forms for
common patterns. `IRBuilder` emits MLIR at the current insertion point; `NumpyBuilder` computes
at once with the references, which makes a decomposition testable against its op.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.attributes import encode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir, to_mlir
from pyc_mlir.dialects.opdef import OPS, OpDef, evaluate
from pyc_mlir.dialects.ops.elementwise import PREDICATES
from pyc_mlir.dialects.ops.movement import copied
from pyc_mlir.dialects.types import I64, TensorType, dtype_name

_ARRAYS = (np.ndarray, np.generic)


class Builder(ABC):
    """Every op of the dialect as a method: ``b.softmax(x, axis=-1)``.

    Operands are values of the builder. numpy arrays and scalars become constants, and a Python
    number one of the element type of the last value beside it: ``b.mul(x, 0.5)``. Predicates are
    methods too: ``b.lt(x, 0)``. Raises VerificationError for operands or parameters that do not
    fit.
    """

    @abstractmethod
    def emit(self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]) -> Any:
        """Make one op; `params` are complete and the types have been checked."""

    @abstractmethod
    def type_of(self, value: Any) -> TensorType:
        """Return the type of a value."""

    def __getattr__(self, name: str) -> Any:
        if name in PREDICATES:
            return partial(self.build, OPS["compare"], predicate=name)
        op = OPS.get(name.rstrip("_"))
        if op is None:
            raise AttributeError(f"the pyc dialect has no op `{name}`")
        return partial(self.build, op)

    def build(self, op: type[OpDef], *operands: Any, **params: Any) -> Any:
        """Make one op from its definition. Raises VerificationError."""
        op.check_arity(len(operands))
        values = [self.constant(np.asarray(v)) if isinstance(v, _ARRAYS) else v for v in operands]
        if any(isinstance(v, int | float) for v in values):
            like = [v for v in values if not isinstance(v, int | float)][-1]
            values = [self.scalar(v, like) if isinstance(v, int | float) else v for v in values]
        return self.emit(op, values, op.bind(params))

    def constant(self, value: np.ndarray) -> Any:
        """Return a constant with the array's own dtype."""
        return self.build(OPS["constant"], value=np.asarray(value))

    def scalar(self, value: float, like: Any) -> Any:
        """Return a rank-0 constant of the element type of `like`.

        Raises VerificationError for a number beyond an integer type.
        """
        dtype = self.type_of(like).dtype
        try:
            return self.constant(np.array(value, dtype))
        except (OverflowError, ValueError):
            raise VerificationError(
                f"scalar: expected a number of {dtype_name(dtype)}, got {value}"
            ) from None

    def declare_indices(self, indices: Any, size: Any, negative: bool = True) -> None:
        """State that the source calls indices outside of an axis an error.

        negative: they may count from the end. Ignored where nothing is emitted.
        """
        del indices, size, negative

    def size(self, x: Any, *axes: int) -> Any:
        """Return the product of the sizes of `axes` as a rank-0 i64, a constant where known."""
        shape = self.type_of(x).shape
        sizes = [shape[a] for a in axes]
        if None in sizes:
            return self.build(OPS["size"], x, axes=axes)
        return self.constant(np.array(np.prod(np.array(sizes, np.int64), dtype=np.int64)))

    def count(self, x: Any, axes: Sequence[int]) -> Any:
        """Return `size` in the element type of x."""
        dtype = self.type_of(x).dtype
        shape = self.type_of(x).shape
        sizes = [shape[a] for a in axes]
        if None not in sizes:
            return self.constant(np.array(np.prod(np.array(sizes, np.float64)), dtype))
        return self.cast(self.size(x, *axes), dtype=dtype)

    def convert(self, x: Any, dtype: np.dtype) -> Any:
        """Return x as `dtype`; x itself if that is its type."""
        return x if self.type_of(x).dtype == dtype else self.cast(x, dtype=dtype)

    def iota_like(self, x: Any, axis: int) -> Any:
        """Return i64 of rank as x: the index along `axis`, size 1 elsewhere."""
        type_ = self.type_of(x)
        shape = tuple(
            1 if i != axis else (-1 if d is None else d) for i, d in enumerate(type_.shape)
        )
        like = (x,) if -1 in shape else ()
        return self.iota(*like, shape=shape, axis=axis, dtype=I64)

    def expand_dims(self, x: Any, axis: int) -> Any:
        """Return x with a dimension of size 1 inserted before `axis`."""
        rank = self.type_of(x).rank
        entries = [self._entry(x, d) for d in range(rank)]
        return self.reshape(x, shape=(*entries[:axis], 1, *entries[axis:]))

    def squeeze(self, x: Any, axis: int) -> Any:
        """Return x without its dimension `axis` of size 1."""
        rank = self.type_of(x).rank
        return self.reshape(x, shape=tuple(self._entry(x, d) for d in range(rank) if d != axis))

    def align(self, vector: Any, axis: int, rank: int) -> Any:
        """Return a vector as a tensor of `rank` that varies along `axis`."""
        entry = self._entry(vector, 0)
        return self.reshape(vector, shape=tuple(entry if i == axis else 1 for i in range(rank)))

    def _entry(self, x: Any, dimension: int) -> int:
        size = self.type_of(x).shape[dimension]
        return copied(dimension) if size is None else size


class IRBuilder(Builder):
    """Emits pyc ops at the current insertion point and location of the MLIR bindings."""

    def emit(self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]) -> ir.Value:
        """Create the operation; default parameters are left out of the text."""
        inferred = op.infer(*(self.type_of(v) for v in operands), **params)
        return create(op, operands, params, inferred)

    def type_of(self, value: ir.Value) -> TensorType:
        """Return the type of an MLIR value."""
        return from_mlir(value.type)


def create(
    op: type[OpDef], operands: Sequence[ir.Value], params: dict[str, Any], out: TensorType
) -> ir.Value:
    """Create a pyc op with the given result type and return its value."""
    attributes = {
        p.name: encode(params[p.name], p.kind)
        for p in op.params
        if p.is_required or params[p.name] != p.default
    }
    made = ir.Operation.create(
        f"pyc.{op.name}", results=[to_mlir(out)], operands=list(operands), attributes=attributes
    )
    return made.result


class NumpyBuilder(Builder):
    """Computes each op at once with its numpy reference."""

    def emit(self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]) -> np.ndarray:
        """Evaluate the reference."""
        return evaluate(op, operands, **params)

    def constant(self, value: np.ndarray) -> np.ndarray:
        """Return the array itself."""
        return np.asarray(value)

    def type_of(self, value: np.ndarray) -> TensorType:
        """Return the type of an array."""
        return TensorType(value.shape, value.dtype)
