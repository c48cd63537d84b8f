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
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np
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
    static_argnames: names of such keyword arguments.
    polymorphic_shapes: one entry for each array argument that is not static, as
        `jax.export.symbolic_args_specs` takes them: ``("batch, 784", None)`` shares one program
        between the sizes of `batch`.

    Arguments and results are pytrees of arrays. Arrays that the function closes over become
    constants of the program: parameters are best closed over, since PyC packs constants.
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
    """A call's arguments: those that are arrays as a pytree, and the others as part of the key."""

    arrays: tuple[Any, ...]
    keywords: dict[str, Any]
    static: tuple[tuple[int, Any], ...]
    static_keywords: tuple[tuple[str, Any], ...]


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
        keyed = [keys_of(a, t) for a, t in zip(made, self.types, strict=True)]
        return jax.tree.unflatten(self.results, keyed)


class JaxFunction:
    """A JAX function with its programs; see `jit`. Safe to call from many threads."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        polymorphic_shapes: Any = None,
        **options: Any,
    ) -> None:
        self._function = function
        numbers = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
        self._static = frozenset(numbers)
        names = (static_argnames,) if isinstance(static_argnames, str) else static_argnames
        self._static_names = frozenset(names)
        self._polymorphic = polymorphic_shapes
        self._options = options
        self._programs: dict[Hashable, _Compiled] = {}
        self._lock = threading.Lock()
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled program; the result has the structure that the function returns."""
        bound = self._bind(args, kwargs)
        leaves, tree = jax.tree.flatten((bound.arrays, bound.keywords))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return _traced(self._restored(bound, tree), leaves, self._options)
        arrays = [_as_array(leaf) for leaf in leaves]
        return self._find(bound, tree, arrays)(arrays)

    def module(self, *args: Any, **kwargs: Any) -> ir.Module:
        """Return the pyc module that a call with these arguments is compiled from."""
        bound = self._bind(args, kwargs)
        leaves, tree = jax.tree.flatten((bound.arrays, bound.keywords))
        return self._imported(bound, tree, [_as_array(leaf) for leaf in leaves])[0]

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Return the program of a call with these arguments; it takes the arguments' leaves."""
        bound = self._bind(args, kwargs)
        leaves, tree = jax.tree.flatten((bound.arrays, bound.keywords))
        return self._find(bound, tree, [_as_array(leaf) for leaf in leaves]).program

    def cache_clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._programs.clear()

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> _Bound:
        static = tuple((i, a) for i, a in enumerate(args) if i in self._static)
        named = tuple(sorted((k, v) for k, v in kwargs.items() if k in self._static_names))
        return _Bound(
            tuple(a for i, a in enumerate(args) if i not in self._static),
            {k: v for k, v in kwargs.items() if k not in self._static_names},
            static,
            named,
        )

    def _restored(self, bound: _Bound, tree: Any) -> Callable[..., Any]:
        """Return the function of the array arguments' leaves alone."""

        def flat(*leaves: Any) -> Any:
            arrays, keywords = jax.tree.unflatten(tree, leaves)
            args = list(arrays)
            for position, value in bound.static:
                args.insert(position, value)
            return self._function(*args, **keywords, **dict(bound.static_keywords))

        return flat

    def _find(self, bound: _Bound, tree: Any, arrays: Sequence[Any]) -> _Compiled:
        specs = self._specs(bound, tree, arrays)
        types = tuple((str(s.shape), str(s.dtype)) for s in specs)
        key = (tree, types, bound.static, bound.static_keywords)
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                module, results, kept = self._imported(bound, tree, arrays)
                program = compile_program(module, **self._options)
                types, structure = jax.tree.flatten(results)
                found = _Compiled(program, structure, tuple(types), tuple(kept))
                self._programs[key] = found
        return found

    def _specs(self, bound: _Bound, tree: Any, arrays: Sequence[Any]) -> list[Any]:
        """Return the types of the leaves; symbolic if the caller named dimensions."""
        plain = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
        if self._polymorphic is None:
            return plain
        args, keywords = jax.tree.unflatten(tree, plain)
        symbolic = jax.export.symbolic_args_specs(args, self._polymorphic)
        return jax.tree.leaves((symbolic, keywords))

    def _imported(
        self, bound: _Bound, tree: Any, arrays: Sequence[Any]
    ) -> tuple[ir.Module, Any, list[int]]:
        specs = self._specs(bound, tree, arrays)
        flat = self._restored(bound, tree)
        traced = jax.jit(flat, keep_unused=True).trace(*specs)
        labels = [_label(path) for path, _ in jax.tree.leaves_with_path(traced.out_info)]
        jaxpr = without_dead_code(traced.jaxpr)
        module = import_jaxpr(jaxpr, self._argument_names(tree), labels, _title(self._function))
        return module, traced.out_info, kept_arguments(jaxpr)

    def _argument_names(self, tree: Any) -> list[str]:
        """Name the leaves: ``params['dense']['kernel']``, ``x``."""
        numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
        parameters = list(_parameters(self._function))
        positional = [p for i, p in enumerate(parameters) if i not in self._static]
        names = [""] * tree.num_leaves
        for (_, which, *rest), number in jax.tree.leaves_with_path(numbered):
            at = getattr(which, "idx", None)
            head = str(getattr(which, "key", f"arg{at}"))
            if at is not None and at < len(positional):
                head = positional[at]
            names[number] = head + jax.tree_util.keystr(tuple(rest))
        return names


def _parameters(function: Callable[..., Any]) -> Sequence[str]:
    """Return the names of the positional parameters; none if Python does not know them."""
    try:
        return [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return []


def _label(path: Any) -> str:
    return f"result{jax.tree_util.keystr(path)}"


def _title(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _as_array(leaf: Any) -> Any:
    """Return a leaf as an array of JAX's or numpy's, in the element type that JAX gives it.

    Raises PycError (BAD_ARGUMENT) for a leaf that is no array.
    """
    if isinstance(leaf, jax.Array):
        return leaf
    try:
        array = np.asarray(leaf)
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    except (TypeError, ValueError):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"argument: expected an array or a number, got {type(leaf).__name__}; name others in "
            "`static_argnums`",
        ) from None
    return array.astype(dtype, copy=False)


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
        return jax.tree.unflatten(structure, map(keys_of, out, types))
    shapes = jax.tree.unflatten(structure, types)
    forward = _copying(JaxFunction(flat, **options))

    @jax.custom_vjp
    def call(*arrays: Any) -> Any:
        return jax.pure_callback(forward, shapes, *arrays, vmap_method="sequential")

    def keep(*arrays: Any) -> tuple[Any, Any]:
        return call(*arrays), arrays

    def back(arrays: Any, cotangents: Any) -> tuple[Any, ...]:
        return _gradients(flat, arrays, cotangents, options)

    call.defvjp(keep, back)
    return call(*leaves)


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
