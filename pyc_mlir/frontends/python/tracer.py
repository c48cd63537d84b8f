"""The recorder behind a trace: a builder of pyc ops whose values are traced arrays.

Each op gets the location of the user's line. The sizes of dynamic dimensions are followed
symbolically: every unknown size is represented by a large prime, its witness, and an op's result
shape is inferred once more with witnesses in place of the unknowns. Unknown sizes with equal
witnesses are the same `DynamicDim`, so that ``y.reshape(x.shape[0], -1)`` knows which dimension of
y is meant however y came from x. (A coincidence could only turn an error that numpy would raise
into one that the compiled program raises.)
"""

from collections.abc import Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode, VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder, create
from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.ops.movement import END, copied
from pyc_mlir.dialects.types import I64, TensorType, dtype_name, is_float
from pyc_mlir.frontends.python.dims import DynamicDim
from pyc_mlir.frontends.python.source import Untraceable, untraceable, user_point
from pyc_mlir.frontends.python.specs import check_plain, supported_dtype
from pyc_mlir.frontends.python.traced_array import TracedArray

_SMALLEST_WITNESS = 1_000_003

active: ContextVar["Tracer | None"] = ContextVar("active", default=None)


def current() -> "Tracer":
    """Return the tracer of the current trace. Raises PycError (UNTRACEABLE) outside of one."""
    tracer = active.get()
    if tracer is None:
        raise untraceable("a dynamic size outside of a trace", "use it where the function runs")
    return tracer


class Tracer(Builder):
    """Emits ops into the current insertion point; values are `TracedArray`s of this trace."""

    def __init__(self) -> None:
        self.closed = False
        # What the user should know of the trace, by the place in the source.
        self.notes: dict[str, str] = {}
        self._symbols: dict[int, DynamicDim] = {}
        self._computed: dict[tuple[str, Any, Any], DynamicDim] = {}
        self._primes = (n for n in count(_SMALLEST_WITNESS, 2) if _is_prime(n))

    def note(self, what: str) -> None:
        """Tell the user something of this line, once."""
        point = user_point()
        self.notes.setdefault(str(point), f"{point}: {what}")

    def symbol(self, name: str) -> DynamicDim:
        """Make a new dynamic dimension."""
        witness = next(p for p in self._primes if p not in self._symbols)
        self._symbols[witness] = DynamicDim(name, witness, self)
        return self._symbols[witness]

    def dimension(self, witness: int) -> DynamicDim:
        """Return the dynamic dimension of a witness."""
        return self._symbols[witness]

    def sized(
        self, op: str, sign: str, left: int | DynamicDim, right: int | DynamicDim
    ) -> DynamicDim:
        """``left op right``, one of which is a dynamic size: the same object each time."""
        one, other = (v.witness if isinstance(v, DynamicDim) else v for v in (left, right))
        key = f"{op} {isinstance(left, DynamicDim)} {isinstance(right, DynamicDim)}", one, other
        if key not in self._computed:
            name = " ".join(f"({v})" if " " in str(v) else str(v) for v in (left, sign, right))
            made = DynamicDim.computed(
                name,
                self._stand_in(op, one, other),
                self,
                lambda: _VALUES[op](*(self.lift(v, I64) for v in (left, right))),
                lambda: _length(self, op, left, right),
            )
            if isinstance(left, DynamicDim) and type(right) is int:
                made.form = (op, left.witness, right)
            self._computed[key] = made
        return self._computed[key]

    def _stand_in(self, op: str, left: int, right: int) -> int:
        """Return a computed size's stand-in: the same arithmetic of witnesses, if large."""
        found = {"add": left + right, "sub": left - right, "mul": left * right}.get(op, 0)
        found = left // right if op == "floordiv" else found
        if _SMALLEST_WITNESS // 2 <= found < 1 << 60:
            return found
        return self.symbol("?").witness

    def array(self, value: ir.Value, type_: TensorType, witness: tuple[int, ...]) -> TracedArray:
        """Wrap an MLIR value; unknown dimensions that are new remember where they stand."""
        made = TracedArray(self, value, type_, witness)
        for axis, (size, stand_in) in enumerate(zip(type_.shape, witness, strict=True)):
            if size is None and self._symbols[stand_in].source is None:
                self._symbols[stand_in].source = TracedArray(self, value, type_, witness)
                self._symbols[stand_in].axis = axis
        return made

    def emit(
        self, op: type[OpDef], operands: Sequence[TracedArray], params: dict[str, Any]
    ) -> TracedArray:
        """Create the op at the user's line. Raises VerificationError naming the line."""
        for operand in operands:
            self.check(operand)
        point = user_point()
        try:
            out = op.infer(*(v.type for v in operands), **params)
        except VerificationError as error:
            what = f"{point}: pyc.{op.name}: {error.message}"
            raise VerificationError(f"{what}\n    {point.text}") from None
        with point.location():
            value = create(op, [v.value for v in operands], params, out)
        return self.array(value, out, self._witness(op, operands, params, out))

    def type_of(self, value: TracedArray) -> TensorType:
        """Return the tensor type of a traced array."""
        return value.type

    def constant(self, value: np.ndarray) -> TracedArray:
        """Make a constant of the array's own dtype; a scalar's value stays known to the trace."""
        check_plain(value)
        value = np.asarray(value)
        _check_dtype(value.dtype)
        made = super().constant(value)
        made.literal = value[()] if value.ndim == 0 else None
        return made

    def check(self, operand: TracedArray) -> None:
        """Raise PycError (UNTRACEABLE) for an array of another trace or one changed in place."""
        if operand.tracer is not self or self.closed:
            raise untraceable(
                "a traced array is used outside of the trace that made it",
                "return it from the traced function instead of storing it",
            )
        if operand.storage.changed_at:
            raise untraceable(
                f"this array, or one that it is a view of, was changed in place at "
                f"{operand.storage.changed_at}",
                "write `x = x + y` instead of `x += y`, or make a copy first",
            )

    def lift(self, operand: Any, dtype: np.dtype) -> TracedArray:
        """Return an operand as a traced array of `dtype`; constants are converted here."""
        if isinstance(operand, TracedArray):
            same = operand.type.dtype == dtype
            return operand if same else self.cast(operand, dtype=self._supported(dtype))
        self._supported(dtype)
        check_plain(operand)
        if isinstance(operand, DynamicDim):
            size = operand.value()
            return size if dtype == I64 else self.cast(size, dtype=dtype)
        return self.constant(converted(operand, dtype))

    def like(self, shape: Sequence[int | DynamicDim]) -> TracedArray:
        """Return an i64 array with the dynamic dimensions of `shape` and any elements."""
        donors = [
            self._donor(d, i, len(shape)) for i, d in enumerate(shape) if isinstance(d, DynamicDim)
        ]
        total = donors[0]
        for donor in donors[1:]:
            total = self.add(total, donor)
        return total

    def _donor(self, dim: DynamicDim, position: int, rank: int) -> TracedArray:
        """Rank `rank`, the size of `dim` at `position`, 1 elsewhere."""
        source, axis = dim.holder(), dim.axis
        column = tuple(-1 if i == axis else 1 for i in range(source.type.rank))
        ramp = self.iota(source, shape=column, axis=axis, dtype=I64)
        entries = tuple(copied(axis) if i == position else 1 for i in range(rank))
        if (position, rank) == (axis, source.type.rank):
            return ramp
        return self.reshape(ramp, shape=entries)

    def _supported(self, dtype: np.dtype) -> np.dtype:
        if dtype_name(dtype) == str(dtype):
            _check_dtype(dtype)
        return dtype

    def _witness(
        self,
        op: type[OpDef],
        operands: Sequence[TracedArray],
        params: dict[str, Any],
        out: TensorType,
    ) -> tuple[int, ...]:
        """Return the result shape with a witness for each unknown size."""
        found: Sequence[int | None] = (None,) * out.rank
        if not out.is_static:
            try:
                types = [TensorType(v.witness, v.type.dtype) for v in operands]
                found = op.infer(*types, **params).shape
            except (VerificationError, OverflowError):
                pass  # the stand-ins do not fit where the real sizes may: all are new
        pairs = zip(out.shape, found, strict=True)
        return tuple(self._known(w) if d is None else d for d, w in pairs)

    def _known(self, witness: int | None) -> int:
        if witness is None or witness < _SMALLEST_WITNESS // 2:
            return self.symbol("?").witness
        if witness not in self._symbols:
            self._symbols[witness] = DynamicDim("?", witness, self)
        return witness


_VALUES: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
}


def _length(
    b: Tracer, op: str, left: int | DynamicDim, right: int | DynamicDim
) -> TracedArray | None:
    """Build a vector of a computed length; None if there is no op for it.

    ``n - c`` of n < c is an error when the program runs: a reshape there expects one element.
    """

    def vector(size: int | DynamicDim) -> TracedArray:
        like = (b.like([size]),) if isinstance(size, DynamicDim) else ()
        return b.iota(*like, shape=(-1 if like else size,), axis=0, dtype=I64)

    if op == "add" and all(isinstance(v, DynamicDim) or v >= 0 for v in (left, right)):
        return b.concat(vector(left), vector(right), axis=0)
    if op == "mul" and all(isinstance(v, DynamicDim) or v >= 0 for v in (left, right)):
        rows = b.reshape(
            vector(left), shape=(copied(0) if isinstance(left, DynamicDim) else left, 1)
        )
        return b.reshape(b.add(rows, vector(right)), shape=(-1,))
    if not isinstance(left, DynamicDim) or not isinstance(right, int):
        return None
    if op == "floordiv":
        return b.slice(vector(left), starts=(right - 1,), stops=(END,), steps=(right,))
    if op == "sub":
        whole = vector(left)
        last = b.slice(whole, starts=(right - 1,), stops=(right,), steps=(1,))
        rest = b.slice(whole, starts=(right,), stops=(END,), steps=(1,))
        # All of them are larger; what adds or multiplies nothing would be taken away.
        return b.maximum(rest, b.reshape(last, shape=()))
    return None


def _check_dtype(dtype: np.dtype) -> None:
    point = user_point()
    try:
        supported_dtype(dtype, str(point))
    except PycError as error:
        raise Untraceable(error.message, str(dtype), point, error.message, error.code) from None


def converted(operand: Any, dtype: np.dtype) -> np.ndarray:
    """Return a constant of `dtype`. Raises PycError (BAD_ARGUMENT) if numpy raises too."""
    if not isinstance(operand, (int, float)) or isinstance(operand, bool):
        return np.asarray(operand).astype(dtype, copy=False)
    try:
        # bf16's own conversion knows no large integers; numpy's others take this way themselves.
        return np.array(float(operand) if is_float(dtype) else operand, dtype)
    except (OverflowError, ValueError) as error:
        raise PycError(ReasonCode.BAD_ARGUMENT, f"{user_point()}: {error}") from None


def _is_prime(n: int) -> bool:
    return all(n % d for d in range(3, int(n**0.5) + 1, 2))
