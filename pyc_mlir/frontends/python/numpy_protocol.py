"""Entry points of numpy's calls on traced arrays: tables of handlers.

`UFUNCS` maps a ufunc to a handler of operands that already have the dtypes of numpy's own loop;
`FUNCTIONS` maps other numpy functions, and `operator.getitem`, to handlers with their signatures.
Types follow numpy's promotion (NEP 50: Python scalars are weak), asked from numpy itself, with
one addition: bfloat16, which numpy does not know, takes part as float16 does.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.frontends.python.dims import Dim
from pyc_mlir.frontends.python.source import recording, untraceable, user_point

if TYPE_CHECKING:
    from pyc_mlir.frontends.python.tracer import Tracer

Handler = Callable[..., Any]

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
_BF16 = DTYPES["bf16"]
_LIST = "see docs for the functions that can be traced, or compute it from those"


def implements(*functions: Callable[..., Any]) -> Callable[[Handler], Handler]:
    """Register a handler for numpy functions of one signature."""

    def register(handler: Handler) -> Handler:
        FUNCTIONS.update(dict.fromkeys(functions, handler))
        return handler

    return register


def call_ufunc(
    tracer: "Tracer", ufunc: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Record ``ufunc(*inputs)``. Raises PycError (UNTRACEABLE) for what has no counterpart."""
    if method == "reduce" and ufunc in REDUCTIONS:
        return REDUCTIONS[ufunc](inputs[0], **{"axis": 0, **kwargs})
    handler = UFUNCS.get(ufunc)
    if method != "__call__" or handler is None:
        name = ufunc.__name__ + ("" if method == "__call__" else f".{method}")
        raise untraceable(f"np.{name} cannot be traced", _LIST, f"np.{name}")
    with recording(f"np.{ufunc.__name__}"):
        return _called(tracer, ufunc, handler, inputs, kwargs)


def _called(
    tracer: "Tracer", ufunc: np.ufunc, handler: Handler, inputs: Sequence[Any], kwargs: Any
) -> Any:
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
    out = _run(tracer, ufunc, handler, [_as_operand(x) for x in inputs])
    return out if outs is None else _in_place(tracer, ufunc, out, outs)


def _run(tracer: "Tracer", ufunc: np.ufunc, handler: Handler, inputs: Sequence[Any]) -> Any:
    loop = loop_dtypes(ufunc, inputs)
    lifted = [tracer.lift(x, dtype) for x, dtype in zip(inputs, loop, strict=False)]
    out = handler(tracer, *lifted)
    if isinstance(out, tuple):
        return tuple(map(tracer.lift, out, loop[len(inputs) :]))
    # A handler may give an operand back; numpy's ufuncs always make a new array.
    return tracer.lift(out.detached() if any(out is x for x in lifted) else out, loop[-1])


def _in_place(tracer: "Tracer", ufunc: np.ufunc, out: Any, outs: tuple[Any, ...]) -> Any:
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
        raise untraceable(f"{name} cannot be traced", _LIST, name)
    try:
        inspect.signature(handler).bind(*args, **kwargs)
    except TypeError as error:
        raise untraceable(f"{name}: {error}", "leave the argument out", name) from None
    with recording(name):
        return handler(*args, **kwargs)


def _as_operand(value: Any) -> Any:
    """Traced arrays, dimensions and Python numbers as they are; anything else as an array."""
    known = hasattr(value, "dtype") or isinstance(value, (Dim, bool, int, float))
    return value if known else np.asarray(value)


def numpy_type(operand: Any) -> Any:
    """What promotion sees: a dtype, or `int`, `float`, `complex` for a weak scalar."""
    if isinstance(operand, Dim):
        return int
    for weak in (int, float, complex):
        if type(operand) is weak:
            return weak
    return operand.dtype if hasattr(operand, "dtype") else np.asarray(operand).dtype


def _strong(types: Sequence[Any]) -> list[Any]:
    """The types, where weak real numbers beside nothing but bf16 count as bf16.

    Raises PycError (UNSUPPORTED_DTYPE) for bf16 beside a type that has none in common with it.
    """
    dtypes = [t for t in types if isinstance(t, np.dtype)]
    try:
        only_bf16 = bool(dtypes) and np.result_type(*dtypes) == _BF16
    except TypeError:
        raise _no_common_type(types) from None
    return [_BF16 if only_bf16 and t in (int, float) else t for t in types]


def loop_dtypes(ufunc: np.ufunc, operands: Sequence[Any]) -> tuple[np.dtype, ...]:
    """The input and output dtypes of the loop that numpy would run.

    Raises PycError (UNSUPPORTED_DTYPE) where numpy has none.
    """
    types = _strong([numpy_type(x) for x in operands])
    if ufunc is np.matmul and set(types) == {_BF16}:
        return (_BF16,) * 3
    try:
        return ufunc.resolve_dtypes((*types, *(None,) * ufunc.nout))
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
        return np.result_type(*(weak.get(t, t) for t in types))
    except TypeError:
        raise _no_common_type(types) from None


def _no_common_type(types: Sequence[Any]) -> PycError:
    """What numpy says of bf16 beside another strong type."""
    names = ", ".join(dtype_name(t) if isinstance(t, np.dtype) else t.__name__ for t in types)
    return PycError(
        ReasonCode.UNSUPPORTED_DTYPE,
        f"{user_point()}: expected element types with a common one, got {names}; convert with "
        "`.astype`",
    )
