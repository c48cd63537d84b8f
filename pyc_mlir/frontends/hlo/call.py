"""One operation of XLA's set: its operands as values of the builder that computes it.

XLA spells out every broadcast, pyc's elementwise ops broadcast as numpy does. So an elementwise op
reads the source of a broadcast (`Call.pointwise`), and the broadcast disappears unless something
else reads it.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.importing.builders import GraphBuilder
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import Lift
from pyc_mlir.frontends.importing.shaping import broadcast_extents, expand_to
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize, SymbolicSizes, Untracked


class Call:
    """Operands of one operation. `operands` holds what `Importer.node` was given.

    b: the builder that the operation is to use.
    """

    def __init__(self, builder: Any, operands: Sequence[Any], lift: Lift) -> None:
        self.b = builder
        self.operands = operands
        self._lift = lift

    @property
    def count(self) -> int:
        """The number of operands."""
        return len(self.operands)

    @property
    def emits(self) -> bool:
        """True when ops are emitted, False when the result is computed now."""
        return isinstance(self.b, GraphBuilder)

    def x(self, index: int = 0) -> Any:
        """Return an operand as a value of the builder."""
        return self._lift(index)

    def all(self) -> list[Any]:
        """Return every operand as a value of the builder."""
        return [self.x(i) for i in range(self.count)]

    def type(self, index: int = 0) -> TensorType:
        """Return the type of an operand."""
        operand = self.operands[index]
        if isinstance(operand, np.ndarray):
            return TensorType(operand.shape, operand.dtype)
        return self.b.type_of(self.x(index))

    def dims(self, index: int = 0) -> tuple[Extent, ...]:
        """Return the sizes of an operand: ints, and `SymbolicSize` for dynamic dimensions."""
        operand = self.operands[index]
        return operand.shape if isinstance(operand, np.ndarray) else self.b.dims(self.x(index))

    def value(self, index: int) -> np.ndarray | None:
        """Return an operand that is known at import, else None."""
        operand = self.operands[index]
        return operand if isinstance(operand, np.ndarray) else None

    def known(self, index: int, what: str) -> np.ndarray:
        """Return an operand known at import. Raises PycError (UNSUPPORTED_ATTRIBUTE) otherwise."""
        value = self.operands[index]
        if isinstance(value, SymbolicSizes) and not self.emits:
            raise Untracked(what)
        if not isinstance(value, np.ndarray):
            raise unsupported(f"{what} is computed when the program runs: expected a constant")
        return value

    def pointwise(self, compute: Callable[..., Any]) -> Any:
        """``compute(b, *operands)`` for an elementwise computation; broadcasts move behind it."""
        if not self.emits:
            return compute(self.b, *self.all())
        target = reduce(broadcast_extents, (self.dims(i) for i in range(self.count)))
        narrow = [self._source(i) for i in range(self.count)]
        reached = reduce(broadcast_extents, map(self.b.dims, narrow))
        aligned = (1,) * (len(target) - len(reached)) + tuple(reached)
        dynamic = any(isinstance(d, SymbolicSize) for d in target)
        if dynamic and aligned != tuple(target):
            return compute(self.b, *self.all())
        return expand_to(self.b, compute(self.b, *narrow), target)

    def _source(self, index: int) -> Any:
        """Return an operand before it was broadcast: for a splat, its one value."""
        operand = self.operands[index]
        if isinstance(operand, np.ndarray):
            return self.b.constant(splat(operand)) if is_splat(operand) else self.x(index)
        value = self.x(index)
        made = made_by(value)
        if made is not None and made.name == "pyc.broadcast_to":
            return made.operands[0]
        return value


def made_by(value: Any) -> ir.Operation | None:
    """Return the operation that makes a value; None for an argument of a block."""
    if not isinstance(value, ir.Value) or not isinstance(value.owner, ir.Operation | ir.OpView):
        return None
    return value.owner.operation


def is_splat(array: np.ndarray) -> bool:
    """Return True for several elements of one value."""
    if array.size < 2:
        return False
    if not any(array.strides):
        return True
    first = array.reshape(-1)[0]
    if not (first == first and (array == first).all()):
        return False
    signed = first == 0 and array.dtype.kind not in "biu"
    return not (signed and (np.signbit(array) != np.signbit(first)).any())


def splat(array: np.ndarray) -> np.ndarray:
    """Return the one value of a splat, of rank 0."""
    return np.array(array[(0,) * array.ndim])
