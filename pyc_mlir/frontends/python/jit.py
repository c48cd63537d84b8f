"""`jit`: a Python function that is compiled at its first call for each kind of arguments.

The compiler is an argument: `compile(traced, **options)` gets what the trace gives, and returns a
program that takes the arrays in the module's order and gives the results, one array or a sequence
of them.
"""

import inspect
import threading
from collections.abc import Callable, Hashable
from functools import partial, update_wrapper
from itertools import zip_longest
from types import MethodType
from typing import Any, NamedTuple, overload

from pyc_mlir.artifact.signature import flat
from pyc_mlir.dialects.errors import PycError, ReasonCode, memory_errors
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import require_plain
from pyc_mlir.frontends.python.captures import Captures
from pyc_mlir.frontends.python.recording import Recording
from pyc_mlir.frontends.python.specs import (
    annotated_specs,
    is_array,
    leaves,
    map_leaves,
    rebuild,
    spec_of,
)
from pyc_mlir.frontends.python.trace import (
    STATIC,
    Traced,
    bind,
    check_argument,
    running,
    trace_bound,
)
from pyc_mlir.frontends.python.tracer import TracedArray
from pyc_mlir.util.logs import JIT, logger

Compiler = Callable[..., Callable[..., Any]]
# From so many on, changes of captured values are told as a warning.
_MANY_CHANGES = 8
_CHANGED = (
    "%s: captured `%s` has changed, so the function is traced again, and compiled again if that "
    "gives another program (%d changes so far); pass what changes often as an argument"
)
_LEFT_OUT = "%s: calls do not compare captured %s, which is too large; pass it as an argument"
# How many of these a warning names.
_MOST_NAMED = 3


class CacheInfo(NamedTuple):
    """Calls that found a program, calls that compiled one, programs kept."""

    hits: int
    misses: int
    size: int


class _Compiled(NamedTuple):
    program: Callable[..., Any]
    results: Any
    # The module that was compiled, without locations: its graph and its constants.
    text: str
    captures: Captures
    # Kept so that no other object gets the identity that the key holds.
    instance: Any


class JitFunction:
    """A function that compiles itself on first use.

    Programs are kept by the dtypes and shapes of the array arguments and the values of all others
    (Python numbers are compiled in). Where an annotation gives a spec, that is compiled for
    instead of the array's own shape, so that named dimensions share one program. Safe to call from
    many threads.

    What the function captures from outside is a constant of its programs. Each call compares what
    docs/frontends.md lists with what it was at the trace. Where something has changed, the function
    is traced again, and compiled again if that gives another module. What is not compared, such as
    the contents of larger arrays: after such a change call `cache_clear`, or pass the value as an
    argument. With `audit=n` every n-th call traces again in any case, and raises PycError
    (STALE_CAPTURES) if the module is not the one that was compiled.

    On a method, `self` is captured too: each instance has programs of its own, which keep it alive
    until `cache_clear`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        compile: Compiler,
        options: dict[str, Any],
        audit: int = 0,
    ) -> None:
        if isinstance(audit, bool) or not isinstance(audit, int) or audit < 0:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"audit: expected 0 for none or n for every n-th call, got {audit!r}",
            )
        self._function = function
        self._audit = audit
        self._compile = compile
        self._options = options
        self._annotated = annotated_specs(function)
        self._programs: dict[Hashable, _Compiled] = {}
        self._lock = threading.Lock()
        self._hits = self._misses = self._changes = 0
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled program; the results have the structure that the function returns."""
        return self.call(self._function, None, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> "JitFunction | JitMethod":
        """Bind the function to an instance, as Python's methods are."""
        return self if instance is None else JitMethod(self, self._function, instance)

    def call(
        self,
        function: Callable[..., Any],
        instance: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run `function`, which is this one or this one bound to `instance`."""
        if running.get() or any(isinstance(v, TracedArray) for _, v in leaves([args, kwargs])):
            return function(*args, **kwargs)
        bound = bind(function, args, kwargs)
        arguments = dict(bound.arguments)
        compiled = self._find(function, instance, bound, self._specs(arguments))
        outputs = compiled.program(*(v for _, v in leaves(arguments) if is_array(v)))
        return rebuild(compiled.results, flat(outputs))

    def trace(self, *args: Any, **kwargs: Any) -> ir.Module:
        """Return the module that a call with these arguments (arrays or specs) is compiled from."""
        return self.trace_call(self._function, args, kwargs)

    def trace_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ir.Module:
        """Trace as `trace` does, of this function or this one bound to an instance."""
        bound = bind(function, args, kwargs)
        bound.arguments = self._specs(dict(bound.arguments))
        return trace_bound(function, bound).module

    def __repr__(self) -> str:
        info = self.cache_info()
        return f"jit({_title(self._function)}, {info.size} programs, {info.hits} hits)"

    def cache_info(self) -> CacheInfo:
        """Return the numbers of programs found and made."""
        return CacheInfo(self._hits, self._misses, len(self._programs))

    def cache_clear(self) -> None:
        """Forget all programs and counts."""
        with self._lock:
            self._programs.clear()
            self._hits = self._misses = self._changes = 0

    def _specs(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with a spec in place of each array."""
        out = {}
        for name, value in arguments.items():
            annotated = self._annotated.get(name)
            if annotated is not None and is_array(value):
                require_plain(value, f"argument `{name}`")
                out[name] = annotated
            else:
                out[name] = map_leaves(lambda v: spec_of(v) if is_array(v) else v, value)
        return out

    def _find(
        self, function: Callable[..., Any], instance: Any, bound: Any, specs: dict[str, Any]
    ) -> _Compiled:
        for path, value in leaves(specs):
            check_argument(function, path, value)
        named = leaves(_with_defaults(bound.signature, specs))
        key = (id(instance), *((path, type(v), _exact(v)) for path, v in named))
        with self._lock:
            found = self._programs.get(key)
            change = "" if found is None else found.captures.changed()
            if found is not None and not change and not self._is_audited():
                self._hits += 1
                return found
            if change:
                self._tell(function, change)
            traced, captures = self._trace(function, bound, specs)
            text = _text(traced.module)
            if found is not None and text == found.text:
                self._hits += 1
                self._programs[key] = found._replace(captures=captures)
                return self._programs[key]
            if found is not None and not change:
                raise _stale(function, found.text, text, traced.module)
            program = self._compile(traced, **self._options)
            self._misses += 1
            self._programs[key] = _Compiled(program, traced.results, text, captures, instance)
            return self._programs[key]

    def _is_audited(self) -> bool:
        """Return whether this call of a known program is one of those that trace again."""
        return bool(self._audit) and (self._hits + 1) % self._audit == 0

    def _tell(self, function: Callable[..., Any], change: str) -> None:
        """Log a change of captured state, one of many as a warning."""
        self._changes += 1
        log = logger(JIT)
        told = log.warning if self._changes == _MANY_CHANGES else log.info
        told(_CHANGED, _title(function), change, self._changes)

    def _trace(
        self, function: Callable[..., Any], bound: Any, specs: dict[str, Any]
    ) -> tuple[Traced, Captures]:
        bound.arguments = specs
        with memory_errors(), Recording() as recording:
            traced = trace_bound(function, bound)
        bound.arguments = specs
        # Before the compile, during which others may change something.
        captures = Captures(function, recording)
        if captures.left_out:
            named = ", ".join(f"`{name}`" for name in captures.left_out[:_MOST_NAMED])
            more = len(captures.left_out) - _MOST_NAMED
            named += f" and {more} more" if more > 0 else ""
            logger(JIT).warning(_LEFT_OUT, _title(function), named)
        return traced, captures


class JitMethod:
    """A `JitFunction` bound to an instance."""

    def __init__(self, jitted: JitFunction, function: Callable[..., Any], instance: Any) -> None:
        self._jitted = jitted
        self._instance = instance
        self._bound = MethodType(function, instance)
        update_wrapper(self, self._bound)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call as `JitFunction` does, without `self`."""
        return self._jitted.call(self._bound, self._instance, args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> ir.Module:
        """Trace as `JitFunction.trace` does, without `self`."""
        return self._jitted.trace_call(self._bound, args, kwargs)

    def __repr__(self) -> str:
        return f"{self._jitted!r} of {type(self._instance).__name__}"

    def cache_info(self) -> CacheInfo:
        """Return the counts of the function, over all instances."""
        return self._jitted.cache_info()

    def cache_clear(self) -> None:
        """Forget the programs of all instances."""
        self._jitted.cache_clear()


def _text(module: ir.Module) -> str:
    """Print a module without locations. Large constants are named by a hash of their contents."""
    text = module.operation.get_asm(enable_debug_info=False, large_resource_limit=0)
    return text.partition("\n{-#")[0]


def _stale(function: Callable[..., Any], old: str, new: str, module: ir.Module) -> PycError:
    """Return the error of an audit that found another module than the one that was compiled."""
    lines = zip_longest(old.splitlines(), new.splitlines(), fillvalue="")
    number, now = next((i, b.strip()) for i, (a, b) in enumerate(lines) if a != b)
    # An op of the function is a line, behind those that begin the module and the function.
    ops = list(module.body.operations[0].regions[0].blocks[0].operations)[number - 2 : number - 1]
    place = f" at {str(ops[0].location)[4:-1]}" if ops and number >= 2 else ""
    return PycError(
        ReasonCode.STALE_CAPTURES,
        f"{_title(function)}: expected the trace that was compiled, got another one, which differs "
        f"first in `{now:.120}`{place}; the function reads state that calls do not compare "
        "(docs/frontends.md lists it): pass it as an argument, or call `cache_clear()` after a "
        "change",
    )


def _title(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _with_defaults(signature: inspect.Signature, specs: dict[str, Any]) -> dict[str, Any]:
    """Add defaults that are plain values to the arguments: given or left out is one program.

    A default with arrays stays out: left out it is a constant of the program, given an argument.
    """
    found = {}
    for name, parameter in signature.parameters.items():
        if name in specs:
            found[name] = specs[name]
        elif parameter.default is not parameter.empty:
            plain = all(isinstance(v, STATIC) for _, v in leaves(parameter.default))
            found |= {name: parameter.default} if plain else {}
    return found


def _exact(value: Any) -> Hashable:
    """Return a key that tells values apart bit for bit: 0.0 is not -0.0, and NaN is NaN."""
    return value.hex() if isinstance(value, float) else value


@overload
def jit(
    function: Callable[..., Any], *, compile: Compiler, audit: int = 0, **options: Any
) -> JitFunction: ...
@overload
def jit(
    function: None = None, *, compile: Compiler, audit: int = 0, **options: Any
) -> Callable[[Callable[..., Any]], JitFunction]: ...
def jit(
    function: Callable[..., Any] | None = None, *, compile: Compiler, audit: int = 0, **options: Any
) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
    """Compile `function` on first use; as a decorator with or without options.

    `compile`, `options` and `audit` as in `JitFunction`. Raises PycError from tracing and compiling
    at the call that needs them.
    """
    if function is None:
        return partial(JitFunction, compile=compile, options=options, audit=audit)
    return JitFunction(function, compile, options, audit)
