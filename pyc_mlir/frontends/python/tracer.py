"""The recorder behind a trace, and the arrays that a traced function receives.

`TracedArray` records the operations applied to it: operators and ufuncs arrive at
`__array_ufunc__`, other numpy functions at `__array_function__`; both look up a handler in
`numpy_protocol`. What needs a value raises PycError (UNTRACEABLE) with the user's line. In-place
operators give a new array; the old one and its views may not be used any more, since numpy would
have changed them.

`Tracer` is a builder of pyc ops whose values are traced arrays. Each op gets the location of the
user's line. The sizes of dynamic dimensions are followed symbolically: every unknown size is
represented by a large prime, its witness, and an op's result shape is inferred once more with
witnesses in place of the unknowns. Unknown sizes with equal witnesses are the same `DynamicDim`, so
that ``y.reshape(x.shape[0], -1)`` knows which dimension of y is meant however y came from x. (A
coincidence could only turn an error that numpy would raise into one that the compiled program
raises.)
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, NoReturn

import numpy as np

from pyc_mlir.dialects.errors import PycError, VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder, create
from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.ops.movement import END, copied
from pyc_mlir.dialects.types import I64, TensorType, dtype_name, is_float
from pyc_mlir.frontends.python.dims import DynamicDim
from pyc_mlir.frontends.python.numpy_protocol import FUNCTIONS, call_function, call_ufunc
from pyc_mlir.frontends.python.source import Untraceable, bad, recording, untraceable, user_point
from pyc_mlir.frontends.python.specs import check_plain, supported_dtype

_USE_ARRAYS = "use array operations: the value is known only when the program runs"
_TO_ARRAY = (
    "use `np.stack` to join arrays, and `pyc_mlir.nn.take` to index a captured array with a "
    "traced one"
)
_CONTROL = "use `np.where(condition, a, b)`, `np.maximum` or a mask"
# Methods of arrays that are numpy's functions of the same name.
_METHODS = frozenset(
    {"all", "any", "argmax", "argmin", "argsort", "astype", "clip", "copy", "cumprod", "cumsum",
     "dot", "max", "mean", "min", "prod", "ravel", "repeat", "round", "squeeze", "std", "sum",
     "swapaxes", "take", "var"}
)  # fmt: skip
_SMALLEST_WITNESS = 1_000_003

active: ContextVar["Tracer | None"] = ContextVar("active", default=None)


class Storage:
    """The memory that an array and its views share in numpy: where it was changed, if it was."""

    __slots__ = ("changed_at",)

    def __init__(self) -> None:
        self.changed_at = ""


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: "TracedArray", *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__doc__ = f"numpy.{function.__name__}."
    return method


def _no_value(construct: str, what: str, remedy: str) -> Callable[..., NoReturn]:
    def refuse(self: "TracedArray", *_: Any, **__: Any) -> NoReturn:
        problem = f"{what} needs the value of a traced array ({self!r})"
        raise untraceable(problem, remedy, construct)

    return refuse


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A value of the program that is being recorded, with numpy's interface."""

    __slots__ = ("literal", "sliced", "storage", "tracer", "type", "value", "witness")

    def __init__(
        self, tracer: "Tracer", value: ir.Value, type_: TensorType, witness: tuple[int, ...]
    ) -> None:
        self.tracer = tracer
        self.value = value
        self.type = type_
        self.witness = witness
        self.storage = Storage()
        # The value of a rank-0 constant, for handlers that treat x ** 2 apart.
        self.literal: Any = None
        # What this is a slice of, with a slice for each dimension, for gathers from it.
        self.sliced: tuple[TracedArray, tuple[slice, ...]] | None = None

    def view_of(self, base: "TracedArray") -> "TracedArray":
        """Declare that this array shares memory with `base`, as in numpy; return it."""
        self.storage = base.storage
        return self

    def detached(self) -> "TracedArray":
        """Return the same value with memory of its own, as numpy's copies have."""
        self.tracer.check(self)
        made = TracedArray(self.tracer, self.value, self.type, self.witness)
        made.literal = self.literal
        return made

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int | DynamicDim, ...]:
        """Sizes; a `DynamicDim` where the size is dynamic."""
        pairs = zip(self.type.shape, self.witness, strict=True)
        return tuple(self.tracer.dimension(w) if d is None else d for d, w in pairs)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.type.rank

    @property
    def size(self) -> int:
        """The number of elements. Raises PycError for dynamic shapes."""
        if not self.type.is_static:
            self.shape[self.type.shape.index(None)]._refuse()  # type: ignore[union-attr]
        return self.type.elements

    @property
    def T(self) -> Any:
        """All dimensions reversed."""
        return np.transpose(self)

    @property
    def mT(self) -> Any:
        """The last two dimensions exchanged."""
        return np.swapaxes(self, -1, -2)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        given = (*inputs, *kwargs.get("out", ()))
        tracer = next(x.tracer for x in given if isinstance(x, TracedArray))
        return call_ufunc(tracer, ufunc, method, inputs, kwargs)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        return call_function(function, args, kwargs)

    def __getitem__(self, key: Any) -> "TracedArray":
        check_plain(key)
        with recording("x[i]"):
            return FUNCTIONS[operator.getitem](self, key)

    def __deepcopy__(self, memo: Any) -> Any:
        """Copy, as numpy's arrays do."""
        return np.copy(self)

    def __len__(self) -> int:
        if not self.type.rank:
            raise TypeError("len() of an array of rank 0")
        length = self.shape[0]
        return length if isinstance(length, int) else length._refuse()

    def __iter__(self) -> Iterator["TracedArray"]:
        return (self[i] for i in range(len(self)))

    def __pow__(self, exponent: Any) -> Any:
        """numpy's operator: 2 and 0.5 go other ways there than in `np.power`."""
        if type(exponent) is int and exponent == 2:
            return np.square(self)
        if type(exponent) is float and exponent == 0.5 and is_float(self.dtype):
            return np.sqrt(self)
        return np.power(self, exponent)

    def reshape(self, *shape: Any) -> Any:
        """numpy.reshape; the shape as one tuple or as arguments."""
        return np.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Any:
        """numpy.transpose; the order as one tuple, as arguments, or left out."""
        single = len(axes) == 1 and not isinstance(axes[0], int)
        return np.transpose(self, (axes[0] if single else axes) or None)

    def flatten(self) -> Any:
        """Return a copy of rank 1."""
        return np.ravel(np.copy(self))

    def item(self, *_: Any) -> NoReturn:
        """Raise PycError: the value is not known."""
        raise untraceable("`.item()` needs the value of a traced array", _USE_ARRAYS, ".item()")

    __round__ = _method(np.round)

    __bool__ = _no_value(
        "bool()", "Python control flow (`if`, `while`, `and`, `or`, `not`, `in`)", _CONTROL
    )
    __float__ = __int__ = __complex__ = _no_value(
        "float()", "converting to a Python number", _USE_ARRAYS
    )
    __index__ = _no_value("index()", "a Python index or size", _TO_ARRAY)
    __array__ = _no_value("np.asarray", "`np.array` or `np.asarray`", _TO_ARRAY)
    __contains__ = _no_value("in", "`in`", "use `(x == value).any()`")
    __setitem__ = _no_value(
        "x[i] = y",
        "assigning to a part",
        "use `pyc_mlir.nn.update_slice` or `np.where`, which make a new array",
    )
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return partial(_method(getattr(np, name)), self)
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            raise untraceable(
                f"`.{name}` of numpy's arrays is not among those that can be traced",
                _USE_ARRAYS,
                f"ndarray.{name}",
            )
        raise AttributeError(f"a traced array has no attribute `{name}`")

    def __repr__(self) -> str:
        dims = " x ".join(map(str, (*self.shape, dtype_name(self.dtype))))
        return f"traced array {dims}"


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
        raise bad(str(error)) from None


def _is_prime(n: int) -> bool:
    return all(n % d for d in range(3, int(n**0.5) + 1, 2))
