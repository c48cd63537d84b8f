"""Keys of `jax.random` as arrays of their words, and the primitives that take or give keys.

JAX types an array of keys as ``key<fry>[3]``; here it is the ui32[3, 2] of its words. A primitive
of `jax.random` becomes the jaxpr that JAX itself computes for the words: the bits are JAX's.
A primitive that moves keys (slice, reshape, select) moves their words.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np
from jax._src import core as jax_core  # pyright: ignore[reportMissingImports]
from jax._src.random import prng  # pyright: ignore[reportMissingImports]

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.frontends.importing.errors import unsupported


def is_key(value: Any) -> bool:
    """Return whether an array or the description of one holds keys."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def words_of(array: Any) -> Any:
    """Return the words of an array of keys; any other array as it is."""
    return jax.random.key_data(array) if is_key(array) else array


def constant_of(array: Any) -> np.ndarray:
    """Return a constant of a jaxpr as numpy's."""
    return np.asarray(words_of(array))


def physical(aval: Any) -> Any:
    """Return the description of the words of keys; any other as it is."""
    return jax_core.physical_aval(aval)


def keys_of(words: Any, like: Any) -> Any:
    """Return a copy as keys of the type that `like` describes; the array itself if that is no key.

    Shared memory would be kept by a key that nobody can be asked to release.
    """
    if not is_key(like):
        return words
    return jax.random.wrap_key_data(jnp.array(words), impl=like.dtype._impl)


def on_words(equation: Any) -> Any | None:
    """Return the jaxpr of an equation for the words of its keys; None if it has no keys.

    Raises PycError (UNSUPPORTED_OP) for keys of another generator than Threefry.
    """
    given = [v.aval for v in equation.invars]
    made = [v.aval for v in equation.outvars]
    if not any(map(is_key, (*given, *made))):
        return None
    compute = _COMPUTED.get(equation.primitive.name)
    if compute is not None:
        kind = next(a.dtype._impl for a in (*given, *made) if is_key(a))
        _require_threefry(kind)
        function = partial(compute, kind, given[0].ndim, **equation.params)
    else:
        function = _moved(equation, [-1 if is_key(a) else None for a in given])
    shapes = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in map(physical, given)]
    return jax.make_jaxpr(function)(*shapes)


def _require_threefry(kind: Any) -> None:
    if kind.name != "threefry2x32":
        raise unsupported(
            f"keys of the generator `{kind.name}`: expected `threefry2x32`, JAX's default; make "
            'them with `jax.random.key(seed, impl="threefry2x32")`',
            ReasonCode.UNSUPPORTED_OP,
        )


# What JAX computes for the words of keys. `kind` is JAX's record of their generator, `rank` that of
# operand 0.
_COMPUTED: dict[str, Callable[..., Any]] = {
    "random_seed": lambda kind, rank, seeds, **p: prng.random_seed_impl_base(seeds, impl=kind),
    "random_split": lambda kind, rank, words, *, shape: prng.random_split_impl_base(
        kind, words, rank, shape=shape
    ),
    "random_fold_in": lambda kind, rank, words, data: prng.random_fold_in_impl_base(
        kind, words, data, words.shape[:rank]
    ),
    "random_bits": lambda kind, rank, words, *, bit_width, shape: prng.random_bits_impl_base(
        kind, words, rank, bit_width=bit_width, shape=shape
    ),
    **dict.fromkeys(("random_wrap", "random_unwrap"), lambda kind, rank, words, **p: words),
}


def _moved(equation: Any, axes: Sequence[int | None]) -> Callable[..., Any]:
    """Return a primitive for each of the words, which are the last dimension."""
    bind = partial(equation.primitive.bind, **equation.params)
    return jax.vmap(bind, in_axes=axes, out_axes=-1)
