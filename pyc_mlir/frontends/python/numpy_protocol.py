"""Entry points of numpy's calls on traced arrays: tables of handlers.

`UFUNCS` maps a ufunc to a handler of operands that already have the dtypes of numpy's own loop;
`FUNCTIONS` maps other numpy functions, and `operator.getitem`, to handlers with their signatures.
Types follow numpy's promotion (NEP 50: Python scalars are weak), asked from numpy itself, with
one addition: bfloat16, which numpy does not know, takes part as float16 does.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, dtype_name, is_float
from pyc_mlir.frontends.python.dims import DynamicDim
from pyc_mlir.frontends.python.source import bad, recording, untraceable, user_point
from pyc_mlir.frontends.python.specs import check_plain

Handler = Callable[..., Any]


class Recorder(Protocol):
    """The tracer, as far as calls need it before a handler takes over."""

    def lift(self, operand: Any, dtype: np.dtype) -> Any:
        """Return an operand as a traced array of `dtype`."""
        ...


UFUNCS: dict[np.ufunc, Handler] = {}
FUNCTIONS: dict[Callable[..., Any], Handler] = {}
# The function that `ufunc.reduce` stands for.
REDUCTIONS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.maximum: np.max,
    np.minimum: np.min,
    np.logical_and: np.all,
    np.logical_or: np.any,
}
_BF16, _F64 = DTYPES["bf16"], DTYPES["f64"]
_LIST = "see docs for the functions that can be traced, or compute it from those"
# What the Python array API standard (2024.12) names, and PyC lacks: the nearest that it has.
_SIZED = "its result has as many elements as the values say; use `np.where(condition, x, y)`, "
_COMPLEX = "there are no complex element types; keep real and imaginary parts as two arrays"
_ADVICE = {
    "spacing": "use `np.abs(x) * np.finfo(x.dtype).eps`",
    "vecdot linalg.vecdot": "use `(x * y).sum(axis=-1)`",
    "cross linalg.cross": "use products of `np.roll(x, -1, axis)` and `np.roll(y, 1, axis)`",
    "real imag conjugate": _COMPLEX,
    "nonzero argwhere":
        _SIZED + "or `np.argsort(~mask)` for the places of a known number of elements",
    "unique unique_all unique_counts unique_inverse unique_values":
        _SIZED + "or `np.sort`, and `np.diff` of it",
    "isin": "use `(x[..., None] == values).any(-1)`",
    "searchsorted": "use `(sorted[None, :] < values[:, None]).sum(-1)`",
    "median": "use `np.sort(x, axis)` and its middle",
    "quantile": "use `np.sort(x, axis)` and the element at that place",
    "interp": "use `np.take` of the neighbours, and `pyc_mlir.nn.resize` for images",
    "convolve": "use `pyc_mlir.nn.conv2d` on `x[None, None, None, :]`",
    "fft.fft": "use a product with `np.exp`'s parts: cosines and sines of a known length",
    "linalg.inv": "solve before tracing, or give the inverse as an argument",
    "linalg.solve": "solve before tracing, or give the factors as arguments",
    "linalg.svd linalg.eigh linalg.qr linalg.cholesky":
        "decompose before tracing, and give the factors as arguments",
    "linalg.det": "compute it before tracing, or by cofactors",
    "linalg.vector_norm": "use `np.linalg.norm`",
    "linalg.matrix_norm": "use `np.linalg.norm` of the raveled matrix",
    "linalg.outer": "use `np.outer`",
    "linalg.trace": "use `np.einsum` of x times the identity, or `(x * np.eye(n)).sum()`",
    "trace": "use `(x * np.eye(n)).sum()`",
    "diagonal linalg.diagonal": "use `(x * np.eye(n)).sum(-1)`",
    "diag": "use `(x * np.eye(n)).sum(-1)`, or `x[:, None] * np.eye(n)`",
    "add.accumulate": "use `np.cumsum`",
    "multiply.accumulate": "use `np.cumprod`",
}  # fmt: skip
NEAREST = {f"np.{name}": advice for names, advice in _ADVICE.items() for name in names.split()}
# Ops that one call may record: more would fill the memory before anything is refused.
_MOST_AT_ONCE = 10_000
# Comparisons, and what each is with its operands exchanged.
_MIRRORED = {
    np.equal: np.equal,
    np.not_equal: np.not_equal,
    np.less: np.greater,
    np.less_equal: np.greater_equal,
    np.greater: np.less,
    np.greater_equal: np.less_equal,
}


def nearest(name: str) -> str:
    """Return the advice on a replacement for a function that cannot be traced."""
    return NEAREST.get(name, _LIST)


def few(name: str, number: int, what: str, remedy: str) -> None:
    """Check a count of ops that one call records. Raises PycError (UNTRACEABLE, BAD_ARGUMENT)."""
    if number < 0:
        raise bad(f"{name}: expected {what} >= 0, got {number}")
    if number > _MOST_AT_ONCE:
        problem = f"{name}: expected at most {_MOST_AT_ONCE:,} {what}, got {number}"
        raise untraceable(problem, remedy, name)


def implements(*functions: Callable[..., Any]) -> Callable[[Handler], Handler]:
    """Register a handler for numpy functions of one signature."""

    def register(handler: Handler) -> Handler:
        FUNCTIONS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def call_ufunc(
    tracer: Recorder, ufunc: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Record ``ufunc(*inputs)``. Raises PycError (UNTRACEABLE) for what has no counterpart."""
    check_plain([*inputs, kwargs])
    if method == "reduce" and ufunc in REDUCTIONS:
        with recording(f"np.{ufunc.__name__}.reduce"):
            return REDUCTIONS[ufunc](inputs[0], **{"axis": 0, **kwargs})
    if method != "__call__" or ufunc not in UFUNCS:
        name = ufunc.__name__ + ("" if method == "__call__" else f".{method}")
        raise untraceable(f"np.{name} cannot be traced", nearest(f"np.{name}"), f"np.{name}")
    with recording(f"np.{ufunc.__name__}"):
        return _called(tracer, ufunc, inputs, kwargs)


def _called(tracer: Recorder, ufunc: np.ufunc, inputs: Sequence[Any], kwargs: Any) -> Any:
    """Run the handler on operands of the dtypes that numpy would take."""
    outs = kwargs.pop("out", None)
    dtype = kwargs.pop("dtype", None)
    if kwargs:
        raise untraceable(
            f"argument `{next(iter(kwargs))}` of np.{ufunc.__name__} cannot be traced",
            "leave it out",
        )
    if dtype is not None:
        inputs = [tracer.lift(_as_operand(x), np.dtype(dtype)) for x in inputs]
    ufunc, inputs = _within_type(ufunc, [_as_operand(x) for x in inputs])
    out = _run(tracer, ufunc, UFUNCS[ufunc], inputs)
    return out if outs is None else _in_place(tracer, ufunc, out, outs)


def _within_type(ufunc: np.ufunc, inputs: Sequence[Any]) -> tuple[np.ufunc, Sequence[Any]]:
    """Replace a Python integer beyond the other operand's type by the limit in a comparison.

    numpy compares such numbers exactly: for i8, x > 300 is x > 127, and x != 300 is x <= 127.
    """
    if ufunc not in _MIRRORED:
        return ufunc, inputs
    x, number = inputs
    if type(x) is int:
        ufunc, x, number = _MIRRORED[ufunc], number, x
    dtype = getattr(x, "dtype", None)
    if type(number) is not int or not isinstance(dtype, np.dtype) or dtype.kind not in "iu":
        return ufunc, inputs if x is inputs[0] else (x, number)
    limits = np.iinfo(dtype)
    if number > limits.max:
        never = ufunc in (np.equal, np.greater, np.greater_equal)
        return (np.greater if never else np.less_equal), (x, int(limits.max))
    if number < limits.min:
        never = ufunc in (np.equal, np.less, np.less_equal)
        return (np.less if never else np.greater_equal), (x, int(limits.min))
    return ufunc, (x, number)


def _run(tracer: Recorder, ufunc: np.ufunc, handler: Handler, inputs: Sequence[Any]) -> Any:
    loop = loop_dtypes(ufunc, inputs)
    lifted = [tracer.lift(x, dtype) for x, dtype in zip(inputs, loop, strict=False)]
    out = handler(tracer, *lifted)
    if isinstance(out, tuple):
        return tuple(map(tracer.lift, out, loop[len(inputs) :]))
    # A handler may give an operand back; numpy's ufuncs always make a new array.
    return tracer.lift(out.detached() if any(out is x for x in lifted) else out, loop[-1])


def _in_place(tracer: Recorder, ufunc: np.ufunc, out: Any, outs: tuple[Any, ...]) -> Any:
    """``x += y``: the sum under x's dtype; x's memory counts as changed."""
    target = outs[0]
    if isinstance(target, np.ndarray) or isinstance(out, tuple):
        raise untraceable(
            f"np.{ufunc.__name__} would write into an array that is not traced",
            "assign the result to a new name",
        )
    if not np.can_cast(out.dtype, target.dtype, "same_kind") or out.type.shape != target.type.shape:
        raise untraceable(
            f"the result {out!r} does not fit in place into {target!r}",
            "write `x = x + y` instead of `x += y`",
        )
    target.storage.changed_at = str(user_point())
    return tracer.lift(out, target.dtype)


def call_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Record ``function(*args, **kwargs)``. Raises PycError (UNTRACEABLE), naming the function."""
    module = function.__module__.replace("numpy", "np", 1)
    name = f"{module}.{function.__name__}"
    handler = FUNCTIONS.get(function)
    if handler is None:
        raise untraceable(f"{name} cannot be traced", nearest(name), name)
    try:
        inspect.signature(handler).bind(*args, **kwargs)
    except TypeError as error:
        raise untraceable(f"{name}: {error}", "leave the argument out", name) from None
    check_plain([*args, kwargs])
    with recording(name):
        return handler(*args, **kwargs)


def _as_operand(value: Any) -> Any:
    """Return traced arrays, dimensions and Python numbers unchanged; anything else as an array."""
    known = hasattr(value, "dtype") or isinstance(value, (DynamicDim, bool, int, float))
    return value if known else np.asarray(value)


def numpy_type(operand: Any) -> Any:
    """Return an operand's type for promotion: a dtype, or a weak scalar's int, float or complex."""
    if isinstance(operand, DynamicDim):
        return int
    for weak in (int, float, complex):
        if type(operand) is weak:
            return weak
    return operand.dtype if hasattr(operand, "dtype") else np.asarray(operand).dtype


def _strong(types: Sequence[Any]) -> list[Any]:
    """Return the types; weak real numbers beside nothing but bf16 count as bf16.

    Raises PycError (UNSUPPORTED_DTYPE) for bf16 beside a type that has none in common with it.
    """
    dtypes = [t for t in types if isinstance(t, np.dtype)]
    try:
        only_bf16 = bool(dtypes) and np.result_type(*dtypes) == _BF16
    except TypeError:
        raise _no_common_type(types) from None
    return [_BF16 if only_bf16 and t in (int, float) else t for t in types]


def loop_dtypes(ufunc: np.ufunc, operands: Sequence[Any]) -> tuple[np.dtype, ...]:
    """Return the input and output dtypes of the loop that numpy would run.

    Raises PycError (UNSUPPORTED_DTYPE) if numpy has none.
    """
    types = _strong([numpy_type(x) for x in operands])
    if ufunc is np.matmul and set(types) == {_BF16}:
        return (_BF16,) * 3
    try:
        found = ufunc.resolve_dtypes((*types, *(None,) * ufunc.nout))
        _note_widening(operands, found)
        return found
    except TypeError as error:
        raise PycError(
            ReasonCode.UNSUPPORTED_DTYPE,
            f"{user_point()}: np.{ufunc.__name__}: {error}; convert with `.astype`",
        ) from None


def result_dtype(*operands: Any) -> np.dtype:
    """numpy's result_type of arrays and weak scalars.

    Raises PycError (UNSUPPORTED_DTYPE) where there is none.
    """
    types = _strong([numpy_type(x) for x in operands])
    weak = {int: 0, float: 0.0, complex: 0j}
    try:
        found = np.result_type(*(weak.get(t, t) for t in types))
        _note_widening(operands, [found])
        return found
    except TypeError:
        raise _no_common_type(types) from None


def _note_widening(operands: Sequence[Any], found: Sequence[np.dtype]) -> None:
    """Tell of traced floats that become f64 because of a captured array or number of numpy's."""
    wide = [x for x in operands if isinstance(x, np.generic | np.ndarray) and x.dtype == _F64]
    narrow = [
        x
        for x in operands
        if hasattr(x, "tracer")
        and not isinstance(x, DynamicDim)
        and is_float(x.dtype)
        and x.dtype != _F64
    ]
    if wide and narrow and _F64 in found:
        kind = dtype_name(narrow[0].dtype)
        narrow[0].tracer.note(
            f"an array of {kind} becomes f64, since a captured {type(wide[0]).__name__} is; "
            f"convert that with `.astype(x.dtype)` or `float(...)` to stay in {kind}"
        )


def _no_common_type(types: Sequence[Any]) -> PycError:
    """Return the error for bf16 beside another strong type."""
    names = ", ".join(dtype_name(t) if isinstance(t, np.dtype) else t.__name__ for t in types)
    return PycError(
        ReasonCode.UNSUPPORTED_DTYPE,
        f"{user_point()}: expected element types with a common one, got {names}; convert with "
        "`.astype`",
    )
