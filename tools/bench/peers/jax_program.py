"""A `PeerGraph` as a function of jax, for XLA.

`JaxBuilder` computes each op with jax, composite ops by their decompositions; traced by `jax.jit`
it gives XLA the program that PyC compiles.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.tools.bench.peers.graph import PeerGraph

# Ops that jax.numpy has under a name of its own, and those of jax.lax.
_NUMPY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "maximum": "maximum",
    "minimum": "minimum", "pow": "power", "neg": "negative", "abs": "abs", "floor": "floor",
    "ceil": "ceil", "round": "round", "exp": "exp", "log": "log", "sin": "sin", "cos": "cos",
    "sqrt": "sqrt", "tanh": "tanh", "select": "where", "matmul": "matmul", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not",
}  # fmt: skip
_LAX = {"rsqrt": "rsqrt", "erf": "erf"}
_REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod"}
_PREDICATES = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


def jax_function(
    graph: PeerGraph, least_bytes: int = 0
) -> tuple[Callable[[Sequence[Any], Sequence[Any]], list[Any]], list[np.ndarray]]:
    """Return the program as a function of (arguments, constants), and those constants.

    Constants of less than `least_bytes` are part of the function. The function raises PycError
    (UNSUPPORTED_OP) for an op that `JaxBuilder` has no rule for.
    """
    given = [a for a in graph.constants.values() if a.nbytes >= least_bytes]

    def run(arguments: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        builder = JaxBuilder()
        at = {id(a): c for a, c in zip(given, constants, strict=True)}
        return graph.build(
            builder, arguments, lambda a: at[id(a)] if id(a) in at else builder.constant(a)
        )

    return run, given


class JaxBuilder(Builder):
    """Computes each op with jax; under `jax.jit` that records it."""

    def __init__(self) -> None:
        import jax  # pyright: ignore[reportMissingImports]

        self.rules = _rules(jax)

    def emit(self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]) -> Any:
        """Record one op by its rule, else by its decomposition."""
        out = op.infer(*(self.type_of(v) for v in operands), **params)
        rule = self.rules.get(op.name)
        if rule is not None:
            return rule(out, *operands, **params)
        made = op.decompose(self, *operands, **params) if op.decompose is not None else None
        if made is None:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"XLA's figure: expected an op with a rule for jax, got pyc.{op.name}; "
                "add one to tools/bench/peers/jax_program.py",
            )
        return made

    def type_of(self, value: Any) -> TensorType:
        """Return the type of an array, traced or not."""
        return TensorType(tuple(value.shape), np.dtype(value.dtype))


def _rules(jax: Any) -> Mapping[str, Callable[..., Any]]:
    """op name -> function of (result type, operands..., parameters)."""
    jnp, lax = jax.numpy, jax.lax

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda out, *operands: function(*operands)

    def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda out, x, *, axes, keepdims: function(x, axis=axes, keepdims=keepdims)

    rules = {op: plain(getattr(jnp, name)) for op, name in _NUMPY.items()}
    rules |= {op: plain(getattr(lax, name)) for op, name in _LAX.items()}
    rules |= {op: reduction(getattr(jnp, name)) for op, name in _REDUCTIONS.items()}
    return rules | {
        "constant": lambda out, *, value: jnp.asarray(value),
        "compare": lambda out, x, y, *, predicate: getattr(jnp, _PREDICATES[predicate])(x, y),
        "cast": lambda out, x, *, dtype: x.astype(dtype),
        "transpose": lambda out, x, *, permutation: jnp.transpose(x, permutation),
        "reshape": lambda out, x, *, shape: jnp.reshape(x, out.shape),
        "broadcast_to": lambda out, x, *like, shape: jnp.broadcast_to(x, out.shape),
        "concat": lambda out, x, y, *, axis: jnp.concatenate([x, y], axis),
        "iota": lambda out, *like, shape, axis, dtype: lax.broadcasted_iota(
            jax.dtypes.canonicalize_dtype(dtype), out.shape, axis
        ),
        "conv2d": lambda out, x, w, **params: _convolution(lax, x, w, **params),
        "max_pool2d": lambda out, x, **params: _max_pool(lax, x, **params),
    }


def _convolution(
    lax: Any,
    x: Any,
    weight: Any,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    layout: str,
) -> Any:
    top, left, bottom, right = pads
    return lax.conv_general_dilated(
        x,
        weight,
        strides,
        ((top, bottom), (left, right)),
        rhs_dilation=dilations,
        dimension_numbers=(layout, "OIHW" if layout == "NCHW" else "HWIO", layout),
        feature_group_count=groups,
    )


def _max_pool(
    lax: Any,
    x: Any,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    layout: str,
) -> Any:
    top, left, bottom, right = pads

    def spread(pair: Sequence[Any], other: Any) -> tuple[Any, ...]:
        return (other, other, *pair) if layout == "NCHW" else (other, *pair, other)

    return lax.reduce_window(
        x,
        -np.inf,
        lax.max,
        spread(kernel, 1),
        spread(strides, 1),
        spread(((top, bottom), (left, right)), (0, 0)),
        window_dilation=spread(dilations, 1),
    )
