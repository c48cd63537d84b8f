"""Examples of rewrites of single ops, and the pass on them with every bit compared.

`FORMS` are those of normal forms; the identities' stand in test_canonicalize.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from op_modules import module_of

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ops.movement import copied
from pyc_mlir.dialects.types import DTYPES, TensorType, is_float, tensor
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.pyc.canonicalize import Canonicalize

Program = Callable[..., Any]
SPECIAL = (np.nan, -0.0, 0.0, np.inf, -np.inf, 1.0, -1.5, 2.5, -3.0)
F32, I32, BOOL, U64 = (DTYPES[name] for name in ("f32", "i32", "i1", "ui64"))
X = tensor("f32", 3, 3)
N = tensor("i32", 3, 3)
U = tensor("ui64", 3, 3)
C = tensor("i1", 3, 3)
SQUARE = tensor("f32", 8, 8)
DYNAMIC = tensor("f32", None, 3)
# 1e-5 as a model stores it, in f32.
STORED = float(np.float32(1e-5))


def arrays_of(types: Sequence[TensorType]) -> list[np.ndarray]:
    """Every special value; a dynamic size is 3."""
    made = []
    for i, type_ in enumerate(types):
        shape = [3 if d is None else d for d in type_.shape]
        count = int(np.prod(shape, dtype=int))
        values = np.resize(np.roll(SPECIAL, i), count)
        if not is_float(type_.dtype):
            values = np.resize([-4, 0, 3, 1, -1, 7, 2], count)
        made.append(values.reshape(shape).astype(type_.dtype))
    return made


def simplified(program: Program, types: Sequence[TensorType], context: ir.Context) -> ir.Module:
    """The program after the pass, shown to give the same bits as before."""
    with context, ir.Location.unknown():
        module = module_of(program, types, context)
        arrays = arrays_of(types)
        (before,) = interpret(module, arrays)
        Canonicalize().run(module, PassContext())
        assert module.operation.verify()
        (after,) = interpret(module, arrays)
    assert (after.dtype, after.shape) == (before.dtype, before.shape)
    if is_float(after.dtype):
        np.testing.assert_array_equal(np.isnan(after), np.isnan(before))
        numbers = ~np.isnan(before)
        np.testing.assert_array_equal(np.signbit(after[numbers]), np.signbit(before[numbers]))
        after, before = after[numbers], before[numbers]
    np.testing.assert_array_equal(after, before)
    return module


def full(value: Any, dtype: np.dtype = F32, shape: Sequence[int] = ()) -> np.ndarray:
    return np.full(shape, value, dtype)


@dataclass(frozen=True)
class Example:
    """A program with one of some ops on arguments of `types`; `left` names those that remain."""

    rewrite: str
    ops: str
    program: Callable[..., Any]
    types: tuple[TensorType, ...] = (X,)
    left: str = ""

    def __str__(self) -> str:
        return f"{self.rewrite} {self.types[0] if self.types else ''}"


def bound(op: str, example: Example) -> Program:
    """The example's program with its op."""
    return lambda b, *arguments: example.program(b, getattr(b, op + "_"), *arguments)


def twice(value: Any) -> Program:
    """An op on x and a constant that repeats itself, and on x and one element of it."""

    def program(b: Any, f: Program, x: Any) -> Any:
        wide = np.broadcast_to(np.asarray(value), (3, 3))
        return b.add(f(x, wide), f(x, np.asarray(value)))

    return program


REPEATED = (
    *((op, twice(np.float32(2.5)), (X,), "constant $ add") for op in
      ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "rem")),
    *((op, twice(np.int32(6)), (N,), "constant $ add") for op in
      ("and", "or", "xor", "shift_left", "shift_right")),
    ("threefry", twice(np.uint64(6)), (U,), "constant $ add"),
    ("philox", lambda b, f, x: f(x, x, full(2, U64, (3, 3))), (U,), "constant $"),
    ("compare", lambda b, f, x: f(x, full(2, F32, (3, 3)), predicate="lt"), (X,),
     "constant $"),
    ("clip", lambda b, f, x: f(x, full(-1, F32, (3, 3)), full(1, F32, (3,))), (X,),
     "constant constant $"),
    ("select", lambda b, f, c, x: f(c, x, full(2, F32, (3, 3))), (C, X), "constant $"),
)  # fmt: skip


def x_row(b: Any, x: Any) -> Any:
    """A vector of the sizes of the last axis of x."""
    return b.reduce_min(x, axes=(0,))


def equal_parameters(ops: Sequence[str], *spelled: dict[str, Any]) -> Iterator[Example]:
    """Two spellings of the parameters of one op: the results become one value."""
    first, second = spelled

    def program(b: Any, f: Program, x: Any) -> Any:
        given = OPERANDS.get(f.args[0].name, lambda b, x: (x,))(b, x)  # type: ignore[attr-defined]
        return b.add(f(*given, **first), f(*given, **second))

    for op in ops:
        left = f"{LEFT.get(op, '')} $ add"
        yield Example("spelled_parameters", op, program, left=left)


# What the operands of an op are made of one matrix with, and the ops that this takes.
OPERANDS: dict[str, Program] = {
    **dict.fromkeys(
        ("layernorm",), lambda b, x: (x, b.reduce_max(x, axes=(0,)), b.reduce_min(x, axes=(0,)))
    ),
    "rmsnorm": lambda b, x: (x, b.reduce_max(x, axes=(0,))),
    "batchnorm": lambda b, x: (x, *(b.reduce_max(x, axes=(0,)) for _ in range(4))),
    "attention": lambda b, x: (x, x, x),
    "gather": lambda b, x: (x, b.argmax(x, axis=0)),
    "concat": lambda b, x: (x, x),
}
LEFT = {
    "layernorm": "reduce_max reduce_min", "rmsnorm": "reduce_max", "batchnorm": "reduce_max",
    "gather": "argmax",
}  # fmt: skip
REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_mean")

FORMS = (
    *equal_parameters(("softmax", "log_softmax", "argsort"), {"axis": 1}, {"axis": -1}),
    *equal_parameters(
        ("layernorm", "rmsnorm"), {"axis": 1, "epsilon": STORED}, {"axis": -1, "epsilon": 1e-5}
    ),
    *equal_parameters(
        ("batchnorm",), {"axis": 1, "epsilon": STORED}, {"axis": -1, "epsilon": 1e-5}
    ),
    *equal_parameters(("attention",), {"scale": 3**-0.5}, {"scale": float(np.float32(3**-0.5))}),
    *equal_parameters(REDUCTIONS, {"axes": (1, 0)}, {"axes": (-2, -1)}),
    *equal_parameters(("cumulative", "argmax", "gather", "concat"), {"axis": -1}, {"axis": 1}),
    Example(
        "spelled_parameters",
        "iota",
        lambda b, f: b.add(f(shape=(3, 3), axis=-1), f(shape=(3, 3), axis=1)),
        types=(),
        left="$ add",
    ),
    Example(
        "spelled_parameters",
        "size",
        lambda b, f, x: b.add(f(x, axes=(-2,)), f(x, axes=(0,))),
        types=(DYNAMIC,),
        left="$ add",
    ),
    *(
        Example("repeated_constant", op, program, types=types, left=left)
        for op, program, types, left in REPEATED
    ),
    Example(
        "mean_of_sum",
        "div",
        lambda b, f, x: f(b.reduce_sum(x, axes=(-1,)), full(3)),
        left="reduce_mean",
    ),
    Example(
        "mean_of_sum",
        "mul",
        lambda b, f, x: f(b.reduce_sum(x, axes=(0,)), full(1 / 8)),
        types=(SQUARE,),
        left="reduce_mean",
    ),
    Example(
        "kept_dimensions",
        "reshape",
        lambda b, f, x: f(b.reduce_max(x, axes=(1,)), shape=(3, 1)),
        left="reduce_max",
    ),
    Example(
        "kept_dimensions",
        "reshape",
        lambda b, f, x: f(b.reduce_sum(x, axes=(0,), keepdims=True), shape=(3,)),
        left="reduce_sum",
    ),
    Example(
        "rows_apart",
        "reshape",
        lambda b, f, x: f(_rows(b, x, 4), x, shape=(copied(2), copied(3), 4)),
        types=(tensor("f32", None, None, 3),),
        left="constant matmul relu",
    ),
    Example(
        "rows_apart",
        "reshape",
        lambda b, f, x: f(_rows(b, x, 4), shape=(2, 3, 4)),
        types=(tensor("f32", 2, 3, 1, 3),),
        left="constant reshape matmul relu",
    ),
)


def _rows(b: Any, x: Any, columns: int) -> Any:
    """A layer of the rows of a tensor."""
    weights = full(2, F32, (3, columns))
    return b.relu(b.matmul(b.reshape(x, shape=(-1, 3)), weights))
