"""`jit`: a Python function that is compiled at its first call for each kind of arguments.

The compiler is an argument: `compile(module, **options)` returns a program that takes the arrays
in the module's order and gives the results, one array or a sequence of them.
"""

import threading
from collections.abc import Callable, Hashable
from functools import partial, update_wrapper
from typing import Any, NamedTuple, overload

from pyc_mlir.dialects.bindings import ir
from pyc_mlir.frontends.specs import annotated_specs, is_array, spec_of
from pyc_mlir.frontends.trace import Traced, bind, check_argument, trace_bound
from pyc_mlir.frontends.traced_array import TracedArray
from pyc_mlir.frontends.tree import leaves, map_leaves, rebuild

Compiler = Callable[..., Callable[..., Any]]


class CacheInfo(NamedTuple):
    """Calls that found a program, calls that compiled one, programs kept."""

    hits: int
    misses: int
    size: int


class _Compiled(NamedTuple):
    program: Callable[..., Any]
    traced: Traced


class JitFunction:
    """A function that compiles itself on first use.

    Programs are kept by the dtypes and shapes of the array arguments and the values of all others
    (Python numbers are compiled in). Where an annotation gives a spec, that is compiled for
    instead of the array's own shape, so that named dimensions share one program. What the function
    captures from outside is read when it is traced. Safe to call from many threads.
    """

    def __init__(
        self, function: Callable[..., Any], compile: Compiler, options: dict[str, Any]
    ) -> None:
        self._function = function
        self._compile = compile
        self._options = options
        self._annotated = annotated_specs(function)
        self._programs: dict[Hashable, _Compiled] = {}
        self._lock = threading.Lock()
        self._hits = 0
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled program; the results have the structure that the function returns."""
        if any(isinstance(v, TracedArray) for _, v in leaves([args, kwargs])):
            return self._function(*args, **kwargs)
        bound = bind(self._function, args, kwargs)
        arguments = dict(bound.arguments)
        compiled = self._find(bound, self._specs(arguments))
        outputs = compiled.program(*(v for _, v in leaves(arguments) if is_array(v)))
        if not isinstance(outputs, (list, tuple)):
            outputs = [outputs]
        return rebuild(compiled.traced.results, outputs)

    def trace(self, *args: Any, **kwargs: Any) -> ir.Module:
        """The module that a call with these arguments (arrays or specs) is compiled from."""
        bound = bind(self._function, args, kwargs)
        bound.arguments = self._specs(dict(bound.arguments))
        return trace_bound(self._function, bound).module

    def cache_info(self) -> CacheInfo:
        """How often programs were found and made."""
        return CacheInfo(self._hits, len(self._programs), len(self._programs))

    def cache_clear(self) -> None:
        """Forget all programs and counts."""
        with self._lock:
            self._programs.clear()
            self._hits = 0

    def _specs(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with a spec in place of each array."""
        out = {}
        for name, value in arguments.items():
            annotated = self._annotated.get(name)
            if annotated is not None and is_array(value):
                out[name] = annotated
            else:
                out[name] = map_leaves(lambda v: spec_of(v) if is_array(v) else v, value)
        return out

    def _find(self, bound: Any, specs: dict[str, Any]) -> _Compiled:
        key = tuple((path, type(v), v) for path, v in leaves(specs))
        for path, _, value in key:
            check_argument(self._function, path, value)
        with self._lock:
            if key in self._programs:
                self._hits += 1
            else:
                bound.arguments = specs
                traced = trace_bound(self._function, bound)
                program = self._compile(traced.module, **self._options)
                self._programs[key] = _Compiled(program, traced)
            return self._programs[key]


@overload
def jit(function: Callable[..., Any], *, compile: Compiler, **options: Any) -> JitFunction: ...
@overload
def jit(
    function: None = None, *, compile: Compiler, **options: Any
) -> Callable[[Callable[..., Any]], JitFunction]: ...
def jit(
    function: Callable[..., Any] | None = None, *, compile: Compiler, **options: Any
) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
    """Compile `function` on first use; as a decorator with or without options.

    `compile` and `options` as in `JitFunction`. Raises PycError from tracing and compiling at the
    call that needs them.
    """
    if function is None:
        return partial(JitFunction, compile=compile, options=options)
    return JitFunction(function, compile, options)
