"""`jit`: a JAX function compiled by PyC, called with JAX arrays, differentiable in JAX.

A call flattens its arguments (pytrees), finds the program for their types, and hands the arrays
over by DLPack, without copies where memory is aligned to 64 bytes. Inside other JAX transformations
the same program runs as a callback, and its gradient is compiled by PyC too.
"""

import atexit
import inspect
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from types import MethodType
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np
from jax._src.config import trace_context  # pyright: ignore[reportMissingImports]
from jax._src.lax.lax import _convert_element_type  # pyright: ignore[reportMissingImports]
from jax.core import Tracer  # pyright: ignore[reportMissingImports]
from jax.dtypes import float0  # pyright: ignore[reportMissingImports]

from pyc_mlir.api import compile as compile_program
from pyc_mlir.artifact.signature import flat
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.frontends.jax.importer import (
    import_jaxpr,
    kept_arguments,
    without_dead_code,
)
from pyc_mlir.frontends.jax.keys import is_key, keys_of, words_of
from pyc_mlir.runtime.program import Program


def jit(function: Callable[..., Any] | None = None, **arguments: Any) -> Any:
    """Compile a JAX function with PyC at its first call for each kind of arguments.

    As ``@jit`` or ``@jit(...)``, with what `pyc_mlir.compile` takes besides:

    static_argnums: positions of arguments that are values of the program, not arrays; hashable.
        Negative ones count from the last parameter.
    static_argnames: names of such arguments. A parameter that is static by its position or by its
        name is so either way it is given. Equal values of other types (2, 2.0) are other programs.
    polymorphic_shapes: one entry for each array argument that is not static, as
        `jax.export.symbolic_args_specs` takes them: ``("batch, 784", None)`` shares one program
        between the sizes of `batch`.

    Arguments and results are pytrees of arrays; Python's numbers have JAX's weak types. Arrays
    that the function closes over become constants of the program: parameters are best closed
    over, since PyC packs constants.
    Raises PycError with the reason's code: UnsupportedModel lists every primitive that PyC lacks,
    with the line of Python that made it.
    """
    if function is None:
        return partial(jit, **arguments)
    return JaxFunction(function, **arguments)


# By id, the results that share memory with IREE.
_SHARED: dict[int, "weakref.ref[jax.Array]"] = {}


@dataclass(frozen=True)
class _Bound:
    """A call's arguments: the leaves of those that are arrays, and the static ones."""

    leaves: Sequence[Any]
    tree: Any
    static: tuple[tuple[int, Any], ...]
    static_keywords: tuple[tuple[str, Any], ...]

    def arrays(self) -> list[Any]:
        """Return the leaves as arrays."""
        return [_as_array(leaf) for leaf in self.leaves]


@dataclass(frozen=True)
class _Compiled:
    """A program, the structure and the types of its results, and the leaves that it takes."""

    program: Program
    results: Any
    types: tuple[Any, ...]
    kept: tuple[int, ...]

    def __call__(self, arrays: Sequence[Any]) -> Any:
        """Run it with all leaves."""
        made = _run(self.program, [words_of(arrays[i]) for i in self.kept])
        keyed = [_like(a, t) for a, t in zip(made, self.types, strict=True)]
        return jax.tree.unflatten(self.results, keyed)


class JaxFunction:
    """A JAX function with its programs; see `jit`. Safe to call from many threads."""

    def __init__(
        self, function: Callable[..., Any], static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (), polymorphic_shapes: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        self._function = function
        numbers = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
        names = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
        self._static, self._static_names = _statics(function, numbers, names)
        self._polymorphic = polymorphic_shapes
        self._options = options
        self._programs: dict[Hashable, _Compiled] = {}
        self._lock = threading.Lock()
        update_wrapper(self, function)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the function as a method of `instance`."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled program; the result has the structure that the function returns."""
        bound = self._bind(args, kwargs)
        if any(isinstance(leaf, Tracer) for leaf in bound.leaves):
            return _traced(self._restored(bound), bound.leaves, self._options)
        arrays = bound.arrays()
        return self._find(bound, arrays)(arrays)

    def module(self, *args: Any, **kwargs: Any) -> ir.Module:
        """Return the pyc module that a call with these arguments is compiled from."""
        bound = self._bind(args, kwargs)
        return self._imported(bound, self._specs(bound, bound.arrays()))[0]

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Return the program of a call with these arguments; it takes the arguments' leaves."""
        bound = self._bind(args, kwargs)
        return self._find(bound, bound.arrays()).program

    def cache_clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._programs.clear()

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> _Bound:
        # Negative positions are left to the call where the function takes any number of arguments.
        static = {n + len(args) if n < 0 else n for n in self._static}
        arrays = tuple(a for i, a in enumerate(args) if i not in static)
        keywords = {k: v for k, v in kwargs.items() if k not in self._static_names}
        leaves, tree = jax.tree.flatten((arrays, keywords))
        return _Bound(
            leaves,
            tree,
            tuple((i, a) for i, a in enumerate(args) if i in static),
            tuple((k, kwargs[k]) for k in sorted(kwargs.keys() & self._static_names)),
        )

    def _restored(self, bound: _Bound) -> Callable[..., Any]:
        """Return the function of the array arguments' leaves alone."""

        def flat(*leaves: Any) -> Any:
            arrays, keywords = jax.tree.unflatten(bound.tree, leaves)
            args = list(arrays)
            for position, value in bound.static:
                args.insert(position, value)
            return self._function(*args, **keywords, **dict(bound.static_keywords))

        return flat

    def _find(self, bound: _Bound, arrays: Sequence[Any]) -> _Compiled:
        specs = self._specs(bound, arrays)
        types = tuple((str(s.shape), str(s.dtype), s.weak_type) for s in specs)
        static = _with_types((bound.static, bound.static_keywords))
        # JAX's settings that change what it traces, such as 64-bit types.
        key = (bound.tree, types, static, trace_context())
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                module, results, kept = self._imported(bound, specs)
                program = compile_program(module, **self._options)
                types, structure = jax.tree.flatten(results)
                found = _Compiled(program, structure, tuple(types), tuple(kept))
                self._programs[key] = found
        return found

    def _specs(self, bound: _Bound, arrays: Sequence[Any]) -> list[Any]:
        """Return the types of the leaves; symbolic if the caller named dimensions."""
        weak = map(_is_weak, bound.leaves)
        plain = [_described(a, w) for a, w in zip(arrays, weak, strict=True)]
        if self._polymorphic is None:
            return plain
        args, keywords = jax.tree.unflatten(bound.tree, plain)
        symbolic = jax.export.symbolic_args_specs(args, self._polymorphic)
        leaves = jax.tree.leaves((symbolic, keywords))
        return [_described(s, p.weak_type) for s, p in zip(leaves, plain, strict=True)]

    def _imported(self, bound: _Bound, specs: Sequence[Any]) -> tuple[ir.Module, Any, list[int]]:
        traced = jax.jit(self._restored(bound), keep_unused=True).trace(*specs)
        labels = [_label(path) for path, _ in jax.tree.leaves_with_path(traced.out_info)]
        jaxpr = without_dead_code(traced.jaxpr)
        names = self._argument_names(bound.tree)
        module = import_jaxpr(jaxpr, names, labels, _title(self._function))
        return module, traced.out_info, kept_arguments(jaxpr)

    def _argument_names(self, tree: Any) -> list[str]:
        """Name the leaves: ``params['dense']['kernel']``, ``x``."""
        numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
        parameters = _parameters(self._function)[0]
        positional = [p for i, p in enumerate(parameters) if i not in self._static]
        names = [""] * tree.num_leaves
        for (_, which, *rest), number in jax.tree.leaves_with_path(numbered):
            at = getattr(which, "idx", None)
            head = str(getattr(which, "key", f"arg{at}"))
            if at is not None and at < len(positional):
                head = positional[at]
            names[number] = head + jax.tree_util.keystr(tuple(rest))
        return names


def _parameters(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of the positional parameters, and if there may be more of them.

    No names if Python does not know them.
    """
    try:
        all_of = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], True
    positional = [p.name for p in all_of if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional, any(p.kind is p.VAR_POSITIONAL for p in all_of)


def _statics(
    function: Callable[..., Any], numbers: Sequence[int], names: Sequence[str]
) -> tuple[frozenset[int], frozenset[str]]:
    """Return positions and names of the static parameters: of each both, whichever is given.

    Raises PycError (BAD_ARGUMENT) for one that the function does not have.
    """
    parameters, more = _parameters(function)
    count = len(parameters)
    wrong = [n for n in numbers if not (more or -count <= n < count)]
    if parameters and not more:
        known = inspect.signature(function).parameters
        keywords = any(p.kind is p.VAR_KEYWORD for p in known.values())
        wrong += [name for name in names if not keywords and name not in known]
    if wrong:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"static arguments: expected some of {', '.join(parameters)}, got {wrong[0]!r}",
        )
    at = {n + count if -count <= n < 0 and not more else n for n in numbers}
    at |= {i for i, name in enumerate(parameters) if name in names}
    return frozenset(at), frozenset(names) | {parameters[i] for i in at if 0 <= i < count}


def _with_types(value: Any) -> Hashable:
    """Return a key that tells 2 from 2.0 and True, and 0.0 from -0.0; of tuples by their entries.

    Raises PycError (BAD_ARGUMENT) for a value that is not hashable.
    """
    if isinstance(value, tuple):
        return type(value), tuple(map(_with_types, value))
    if not isinstance(value, Hashable):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"static argument: expected a hashable value, got {type(value).__name__}",
        )
    return type(value), value.hex() if isinstance(value, float) else value


def _described(array: Any, weak: bool) -> Any:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=weak)


def _is_weak(leaf: Any) -> bool:
    """Return whether JAX lets the types of other operands decide: Python's numbers, and such."""
    return getattr(leaf, "weak_type", type(leaf) in (int, float, complex))


def _like(array: Any, kind: Any) -> Any:
    """Return an array as `kind` describes it: keys, or an array of a weak type."""
    array = keys_of(array, kind)
    return _convert_element_type(array, weak_type=True) if _is_weak(kind) else array


def _label(path: Any) -> str:
    return f"result{jax.tree_util.keystr(path)}"


def _title(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _as_array(leaf: Any) -> Any:
    """Return a leaf as an array of JAX's or numpy's, in the element type that JAX gives it.

    Raises PycError (BAD_ARGUMENT) for a leaf that is no array, or an integer beyond JAX's type.
    """
    if isinstance(leaf, jax.Array):
        return leaf
    try:
        array = np.asarray(leaf)
        if array.dtype.kind in "OSU":
            raise TypeError
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
        return np.asarray(leaf, dtype) if isinstance(leaf, int) else array.astype(dtype, copy=False)
    except OverflowError as error:
        raise PycError(ReasonCode.BAD_ARGUMENT, f"argument: {error}") from None
    except (TypeError, ValueError):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"argument: expected an array or a number, got {type(leaf).__name__}; name others in "
            "`static_argnums`",
        ) from None


def _run(program: Program, arrays: Sequence[Any]) -> list[jax.Array]:
    """Call a program with arrays, shared by DLPack where that is possible."""
    outputs = program(*(np.asarray(a) if isinstance(a, jax.Array) else a for a in arrays))
    return [_to_jax(o) for o in flat(outputs)]


def _to_jax(array: Any) -> jax.Array:
    """Return an array as JAX's, sharing its memory if that is aligned to 64 bytes."""
    host = np.asarray(array)
    try:
        shared = jnp.from_dlpack(host)
    except (BufferError, TypeError, ValueError, RuntimeError):
        # numpy hands out no bf16, nor memory that may not be written to.
        return jnp.asarray(host)
    key = id(shared)
    _SHARED[key] = weakref.ref(shared, lambda _: _SHARED.pop(key, None))
    return shared


@atexit.register
def _release() -> None:
    """Free the results that share IREE's memory and still live when Python ends.

    numpy, which holds the memory for JAX, frees nothing once Python finalizes, and IREE's bindings
    would report each object as leaked. Functions that were registered later, which run before this
    one, still read the results.
    """
    for reference in list(_SHARED.values()):
        array = reference()
        if array is not None and not array.is_deleted():
            array.delete()


def _traced(flat: Callable[..., Any], leaves: Sequence[Any], options: dict[str, Any]) -> Any:
    """Wrap the function for use inside other JAX code: a callback that runs PyC's program.

    Reverse-mode gradients are programs of PyC's as well: the backward pass computes the forward one
    again, so that nothing has to be kept between the two.
    """
    types, structure = jax.tree.flatten(jax.eval_shape(flat, *leaves))
    if any(map(is_key, (*types, *leaves))):
        out = _traced(_on_words(flat, leaves), [words_of(leaf) for leaf in leaves], options)
        return jax.tree.unflatten(structure, map(_like, out, types))

    def typed(*arrays: Any) -> Any:
        # The arrays of a callback have lost the leaves' weak types.
        return flat(*map(_like, arrays, leaves))

    shapes = jax.tree.unflatten(structure, types)
    forward = _copying(JaxFunction(typed, **options))

    @jax.custom_vjp
    def call(*arrays: Any) -> Any:
        return jax.pure_callback(forward, shapes, *arrays, vmap_method="sequential")

    def keep(*arrays: Any) -> tuple[Any, Any]:
        return call(*arrays), arrays

    def back(arrays: Any, cotangents: Any) -> tuple[Any, ...]:
        made = _gradients(typed, arrays, cotangents, options)
        return tuple(None if g is None else _like(g, k) for g, k in zip(made, leaves, strict=True))

    call.defvjp(keep, back)
    return jax.tree.map(_like, call(*leaves), shapes)


def _on_words(flat: Callable[..., Any], leaves: Sequence[Any]) -> Callable[..., Any]:
    """Return the function on the words of keys, with a list of arrays as its result."""

    def function(*arrays: Any) -> list[Any]:
        return [words_of(a) for a in jax.tree.leaves(flat(*map(keys_of, arrays, leaves)))]

    return function


def _copying(function: JaxFunction) -> Callable[..., Any]:
    """Copy a function's results to numpy's own memory: JAX may share those of callbacks."""

    def copied(*arrays: Any) -> Any:
        return jax.tree.map(np.array, function(*arrays))

    return copied


def _gradients(
    flat: Callable[..., Any], arrays: Sequence[Any], cotangents: Any, options: dict[str, Any]
) -> tuple[Any, ...]:
    """Compute the cotangents of the float arguments by a program; None for the others."""
    floats = [i for i, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.inexact)]
    given = [c for c in jax.tree.leaves(cotangents) if c.dtype != float0]

    def backward(arrays: Sequence[Any], given: Sequence[Any]) -> Any:
        def of_floats(*chosen: Any) -> Any:
            filled = list(arrays)
            for i, value in zip(floats, chosen, strict=True):
                filled[i] = value
            results = jax.tree.leaves(flat(*filled))
            return [r for r in results if jnp.issubdtype(r.dtype, jnp.inexact)]

        _, pull = jax.vjp(of_floats, *(arrays[i] for i in floats))
        return pull(list(given))

    made = iter(JaxFunction(backward, **options)(list(arrays), given))
    return tuple(next(made) if i in floats else None for i in range(len(arrays)))
