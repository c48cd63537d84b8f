"""From a Python function in numpy style to a pyc module.

    def model(x: Tensor["f32", "batch", 784], w: Tensor["f32", 784, 10]):
        return np.maximum(x @ w + bias, 0)

    module = trace(model)

The function runs once on traced arrays; a comparison also runs it on numpy arrays (self-check and
`max_error`). Arrays that it captures become constants. Arguments and results may be tuples, lists
and dicts. The module's function carries `pyc.name` for each argument and result, `pyc.dims` for
each argument (the names of dynamic dimensions, "" for others), and `pyc.results` for the structure
of results that are neither one array nor a tuple of several. Each op has the location of the
Python line that made it.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.artifact.import_report import OPS, GraphBreak, ImportReport, UnsupportedModel
from pyc_mlir.artifact.signature import RESULTS, encode
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.irtypes import to_mlir
from pyc_mlir.dialects.ir.pyc import load, new_context
from pyc_mlir.frontends.python import numpy_movement, numpy_reductions, numpy_ufuncs  # noqa: F401  (each fills the table of handlers)
from pyc_mlir.frontends.python.dims import DynamicDim
from pyc_mlir.frontends.python.numpy_protocol import result_dtype
from pyc_mlir.frontends.python.recording import Effects, random_states
from pyc_mlir.frontends.python.source import Untraceable, definition_point, refused_elsewhere
from pyc_mlir.frontends.python.specs import (
    TensorSpec,
    annotated_specs,
    check_leaf,
    is_array,
    leaves,
    map_leaves,
    rebuild,
    result_names,
    spec_of,
)
from pyc_mlir.frontends.python.tracer import TracedArray, Tracer, active
from pyc_mlir.util.logs import TRACE, logger

# What breaks of a trace are counted under, by the beginning of the construct; else Python.
_FAMILIES = {"np": "numpy", "ndarray": "numpy", "nn": "nn"}
# Whether numpy runs a traced function: what it calls is not compiled by itself then.
running: ContextVar[bool] = ContextVar("running", default=False)
STATIC = (bool, int, float, str, type(None))


_BAKED = (
    "random numbers were drawn while it was traced: they are constants of the program, the same at "
    "each call; draw them outside, and pass them as an argument"
)
# One array for each argument; the leaves of the results.
NumpyCall = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Traced:
    """The results of a trace: the module, the names of its arguments, the tree of its results.

    call: runs the function itself on numpy arrays, one for each argument; its results' leaves.
    effects: the side effects of the function, as `Effects.found`.
    """

    module: ir.Module
    names: tuple[str, ...]
    results: Any
    call: NumpyCall
    effects: str = ""


def trace(
    function: Callable[..., Any],
    *specs: Any,
    name: str = "main",
    context: ir.Context | None = None,
) -> ir.Module:
    """Record `function` as a pyc module with one function `name`.

    `specs` stand for the arguments in order: TensorSpec, an array as an example, a Python value
    to be passed as it is, or a tree of these. Arguments left out take the annotation's spec, then
    the default value. Raises PycError: UNTRACEABLE with the line of what cannot be recorded,
    BAD_ARGUMENT for specs that do not fit the function.
    """
    bound = bind(function, specs, {})
    traced = trace_bound(function, bound, name=name, context=context)
    if text := encode(traced.results):
        with traced.module.context:
            made = traced.module.body.operations[0]
            made.operation.attributes[RESULTS] = ir.StringAttr.get(text)
    return traced.module


def bind(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Bind the arguments to parameters; annotations stand in for those left out.

    Defaults are not filled in: the function brings them itself, as it does captured arrays.
    """
    signature = inspect.signature(function)
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"{_title(function)}: {error}; expected {signature}"
        ) from None
    annotated = annotated_specs(function)
    for parameter in signature.parameters.values():
        if parameter.name not in bound.arguments and parameter.name in annotated:
            bound.arguments[parameter.name] = annotated[parameter.name]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        p.name
        for p in signature.parameters.values()
        if p.name not in bound.arguments and p.default is p.empty and p.kind not in variadic
    ]
    if missing:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{_title(function)}: expected a spec for `{missing[0]}`; pass one to `trace`, or "
            f'annotate it: `{missing[0]}: Tensor["f32", "batch", 784]`',
        )
    bound.arguments = {p: bound.arguments[p] for p in signature.parameters if p in bound.arguments}
    return bound


def _title(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def check_argument(function: Callable[..., Any], path: str, value: Any) -> None:
    """Raise PycError (BAD_ARGUMENT) for an argument that is neither an array nor a plain value."""
    expected = "a TensorSpec, an array, a number, a string or None"
    where = f"{_title(function)}: argument `{path}`"
    check_leaf(value, lambda v: isinstance(v, (TensorSpec, *STATIC)), where, expected)


def trace_bound(
    function: Callable[..., Any],
    bound: inspect.BoundArguments,
    *,
    name: str = "main",
    context: ir.Context | None = None,
) -> Traced:
    """Record a call with `bound` arguments, whose leaves are specs, arrays and static values."""
    tree = _specs(bound)
    for path, leaf in leaves(tree):
        check_argument(function, path, leaf)
    effects = Effects(function)
    call = by_numpy(function, bound)  # before the recorder binds traced arrays
    where = context if context is not None else new_context()
    load(where)
    with where, _definition(function):
        module = ir.Module.create()
        recorder = _Recorder(module, name, tree)
        with ir.InsertionPoint(recorder.block):
            results = recorder.run(function, bound)
        module.operation.verify()
    return Traced(module, tuple(recorder.names), results, call, effects.found())


def _specs(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments with a spec in place of each array."""
    return map_leaves(lambda v: spec_of(v) if is_array(v) else v, dict(bound.arguments))


def by_numpy(function: Callable[..., Any], bound: inspect.BoundArguments) -> NumpyCall:
    """Return `function` on arrays in place of its specs; jitted functions run as written."""
    signature, tree = bound.signature, _specs(bound)

    def call(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        given = iter(arrays)
        arguments = map_leaves(lambda v: next(given) if isinstance(v, TensorSpec) else v, tree)
        own = inspect.BoundArguments(signature, OrderedDict(arguments))
        token = running.set(True)
        try:
            return [np.asarray(leaf) for _, leaf in leaves(function(*own.args, **own.kwargs))]
        finally:
            running.reset(token)

    return call


def _definition(function: Callable[..., Any]) -> ir.Location:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return definition_point(code).location() if code else ir.Location.unknown()


class _Recorder:
    """Makes the function around one trace: arguments, body, results, their names."""

    def __init__(self, module: ir.Module, name: str, tree: dict[str, Any]) -> None:
        self.tree = tree
        named = [(path, v) for path, v in leaves(tree) if isinstance(v, TensorSpec)]
        self.names = [path for path, _ in named]
        self.specs = [v for _, v in named]
        self.types = [to_mlir(s.type) for s in self.specs]
        with ir.InsertionPoint(module.body):
            self.function = func.FuncOp(name, (self.types, []))
        locations = [ir.Location.name(n, ir.Location.current) for n in self.names]
        self.block = self.function.add_entry_block(locations)
        self.tracer = Tracer()

    def run(self, function: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        """Call the function on traced arguments; the tree of its results (leaves are indices)."""
        arguments = iter(self._arguments())
        bound.arguments = map_leaves(
            lambda v: next(arguments) if isinstance(v, TensorSpec) else v, self.tree
        )
        token = active.set(self.tracer)
        drawn = random_states()
        try:
            results = function(*bound.args, **bound.kwargs)
            outputs = [self._output(path, leaf) for path, leaf in leaves(results)]
        except Untraceable as error:
            raise self._refusal(function, error) from None
        except (PycError, AssertionError, MemoryError, RecursionError):
            raise
        except Exception as error:
            if (refused := refused_elsewhere(error)) is None:
                raise
            raise self._refusal(function, refused).with_traceback(error.__traceback__) from error
        finally:
            active.reset(token)
            self.tracer.closed = True
        if drawn != random_states():
            self.tracer.notes["random"] = f"{_title(function)}: {_BAKED}"
        for text in self.tracer.notes.values():
            logger(TRACE).warning("%s", text)
        self._finish(outputs, result_names(results))
        return rebuild(results, range(len(outputs)))

    def _refusal(self, function: Callable[..., Any], error: Untraceable) -> UnsupportedModel:
        refusal = UnsupportedModel(self._report(_title(function), error), error.message)
        return refusal.with_traceback(error.__traceback__)

    def _report(self, name: str, error: Untraceable) -> ImportReport:
        """Return the break and the number of ops recorded before it; the rest is not known."""
        ops = [op.operation.name for op in self.block.operations]
        count = len(ops) - ops.count("pyc.constant")
        family = _FAMILIES.get(error.construct.partition(".")[0], "Python")
        file, line, _ = error.point
        found = GraphBreak(name, error.construct, error.code, error.problem, line, family)
        return ImportReport(count + 1, OPS, file, (found,), None, lost_flops=None)

    def _arguments(self) -> list[TracedArray]:
        symbols: dict[str, DynamicDim] = {}
        made = []
        for value, spec in zip(self.block.arguments, self.specs, strict=True):
            witness = []
            for dim in spec.dims:
                if isinstance(dim, str) and dim not in symbols:
                    symbols[dim] = self.tracer.symbol(dim)
                if isinstance(dim, int):
                    witness.append(dim)
                else:
                    witness.append((symbols[dim] if dim else self.tracer.symbol("?")).witness)
            made.append(self.tracer.array(value, spec.type, tuple(witness)))
        return made

    def _output(self, path: str, leaf: Any) -> TracedArray:
        where = f"result `{path}`" if path else "result"
        allowed = (TracedArray, DynamicDim, np.ndarray, np.generic, bool, int, float)
        check_leaf(leaf, lambda v: isinstance(v, allowed), where, "arrays and numbers")
        if isinstance(leaf, TracedArray):
            self.tracer.check(leaf)
            return leaf
        return self.tracer.lift(leaf, result_dtype(leaf))

    def _finish(self, outputs: Sequence[TracedArray], names: Sequence[str]) -> None:
        func.ReturnOp([v.value for v in outputs])
        erase_unused(self.block)
        attributes = self.function.operation.attributes
        types = ir.FunctionType.get(self.types, [v.value.type for v in outputs])
        attributes["function_type"] = ir.TypeAttr.get(types)
        attributes["arg_attrs"] = ir.ArrayAttr.get(
            [_argument_attributes(n, s) for n, s in zip(self.names, self.specs, strict=True)]
        )
        attributes["res_attrs"] = ir.ArrayAttr.get(
            [ir.DictAttr.get({"pyc.name": ir.StringAttr.get(n)}) for n in names]
        )


def _argument_attributes(name: str, spec: TensorSpec) -> ir.DictAttr:
    dims = [ir.StringAttr.get(d if isinstance(d, str) else "") for d in spec.dims]
    return ir.DictAttr.get(
        {"pyc.name": ir.StringAttr.get(name), "pyc.dims": ir.ArrayAttr.get(dims)}
    )


def erase_unused(block: ir.Block) -> None:
    """Remove the ops whose results nobody reads, such as constants that handlers looked into."""
    for op in reversed(list(block.operations)):
        unused = all(next(iter(r.uses), None) is None for r in op.operation.results)
        if op.operation.name.startswith("pyc.") and unused:
            op.operation.erase()
