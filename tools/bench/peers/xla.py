"""XLA's temporary memory for a pyc module, through jax.

The builder `JaxBuilder` computes each op with jax, composite ops by their decompositions; traced by
`jax.jit` it gives XLA the program that PyC compiles, compiled for the CPU and never run. XLA's
`temp_size_in_bytes` counts transients only. Large constants become arguments, which are not
counted either, so that XLA does not spend minutes on folding them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import INLINE_BYTES, params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS, OpDef
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.sources import Source
from pyc_mlir.tools.bench.workloads.case import SuiteCase

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


@dataclass(frozen=True)
class XlaMemory:
    """Bytes of transients: as jax compiles by default, and with no operations given to libraries.

    By default XLA fuses operations into calls of a library of microkernels, whose own working
    memory its figure does not hold.
    """

    temp_bytes: int
    no_library_temp_bytes: int


# The kinds of operations that XLA for CPUs may give to the library: none.
_NO_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}


def temporary_memory(case: SuiteCase) -> XlaMemory | None:
    """Return XLA's transients for the program of `case`; None if jax is not installed.

    Raises PycError (UNSUPPORTED_OP) for an op that `JaxBuilder` has no rule for.
    """
    try:
        import jax  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return None
    lowered = jax.jit(_function(case)).lower(case.arrays, _constants(case))

    def bytes_under(options: Mapping[str, str]) -> int:
        analysis: Any = lowered.compile(compiler_options=dict(options)).memory_analysis()
        return int(analysis.temp_size_in_bytes)

    return XlaMemory(bytes_under({}), bytes_under(_NO_LIBRARY))


def evaluate(case: SuiteCase) -> list[np.ndarray]:
    """Compute the program's results by jax: the same function, run."""
    return [np.asarray(r) for r in _function(case)(case.arrays, _constants(case))]


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
                "add one to tools/bench/peers/xla.py",
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


def _large(op: Any) -> bool:
    return op.name == "pyc.constant" and _constant(op).nbytes > INLINE_BYTES


def _constant(op: Any) -> np.ndarray:
    return params_of(OPS["constant"], op)["value"]


def _operations(case: SuiteCase, visit: Callable[[Any], Any]) -> Any:
    """`visit` the entry block of the case's module, which lives no longer than that."""
    with new_context() as context, ir.Location.unknown():
        module = Source.of(case.source).load(case.specs, context).module
        assert module is not None, "workloads are pyc programs"
        return visit(entry_function(module).regions[0].blocks[0])


def _constants(case: SuiteCase) -> list[np.ndarray]:
    """Return the large constants in the program's order."""

    def visit(block: Any) -> list[np.ndarray]:
        found = [op.operation for op in block.operations]
        return [np.array(_constant(op)) for op in found if _large(op)]

    return _operations(case, visit)


def _function(case: SuiteCase) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """Return the program as a function of (arguments, large constants)."""

    def run(arrays: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        return _operations(case, lambda block: _run(block, arrays, constants))

    return run


def _run(block: Any, arrays: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
    builder, left = JaxBuilder(), iter(constants)
    values = dict(zip(block.arguments, arrays, strict=True))
    for op in block.operations:
        operation = op.operation
        if operation.name == "func.return":
            return [values[v] for v in operation.operands]
        if _large(operation):
            values[operation.result] = next(left)
            continue
        definition = OPS[operation.name.removeprefix("pyc.")]
        operands = [values[v] for v in operation.operands]
        values[operation.result] = builder.build(
            definition, *operands, **params_of(definition, operation)
        )
    raise AssertionError("a verified block ends in a terminator")
