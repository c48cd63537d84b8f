"""The array that a traced function receives: it records the operations applied to it.

Operators and ufuncs arrive at `__array_ufunc__`, other numpy functions at `__array_function__`;
both look up a handler in `numpy_protocol`. What needs a value raises PycError (UNTRACEABLE) with
the user's line. In-place operators give a new array; the old one and its views may not be used
any more, since numpy would have changed them.
"""

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import TensorType, dtype_name, is_float
from pyc_mlir.frontends.python import numpy_protocol
from pyc_mlir.frontends.python.dims import DynamicDim
from pyc_mlir.frontends.python.source import recording, untraceable
from pyc_mlir.frontends.python.specs import check_plain

if TYPE_CHECKING:
    from pyc_mlir.frontends.python.tracer import Tracer


_USE_ARRAYS = "use array operations: the value is known only when the program runs"
_TO_ARRAY = (
    "use `np.stack` to join arrays, and `pyc_mlir.nn.take` to index a captured array with a "
    "traced one"
)
_CONTROL = "use `np.where(condition, a, b)`, `np.maximum` or a mask"


class Storage:
    """The memory that an array and its views share in numpy: where it was changed, if it was."""

    __slots__ = ("changed_at",)

    def __init__(self) -> None:
        self.changed_at = ""


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of numpy's function of the same meaning."""

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
        tracer = _tracer((*inputs, *kwargs.get("out", ())))
        return numpy_protocol.call_ufunc(tracer, ufunc, method, inputs, kwargs)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        return numpy_protocol.call_function(function, args, kwargs)

    def __getitem__(self, key: Any) -> "TracedArray":
        check_plain(key)
        with recording("x[i]"):
            return numpy_protocol.FUNCTIONS[operator.getitem](self, key)

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

    def flatten(self) -> "TracedArray":
        """Return a copy of rank 1."""
        return self.copy().ravel()

    def item(self, *_: Any) -> NoReturn:
        """Raise PycError: the value is not known."""
        raise untraceable("`.item()` needs the value of a traced array", _USE_ARRAYS, ".item()")

    astype = _method(np.astype)
    all = _method(np.all)
    any = _method(np.any)
    argmax = _method(np.argmax)
    argmin = _method(np.argmin)
    argsort = _method(np.argsort)
    clip = _method(np.clip)
    copy = _method(np.copy)
    cumprod = _method(np.cumprod)
    cumsum = _method(np.cumsum)
    dot = _method(np.dot)
    max = _method(np.max)
    mean = _method(np.mean)
    min = _method(np.min)
    prod = _method(np.prod)
    ravel = _method(np.ravel)
    repeat = _method(np.repeat)
    round = _method(np.round)
    squeeze = _method(np.squeeze)
    std = _method(np.std)
    sum = _method(np.sum)
    swapaxes = _method(np.swapaxes)
    take = _method(np.take)
    var = _method(np.var)
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

    def __getattr__(self, name: str) -> NoReturn:
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


def _tracer(inputs: tuple[Any, ...]) -> "Tracer":
    return next(x.tracer for x in inputs if isinstance(x, TracedArray))
