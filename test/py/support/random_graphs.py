"""Random pyc graphs with inputs: what the property tests run through passes and compilers.

A `Drawing` grows a graph op by op and evaluates it on the way, so that the graph is well behaved:
finite, small, not close to where rounding would decide (a comparison, an argmax or a conversion to
integers reads only values that every correct program computes exactly), and well conditioned (the
same graph in f64 stays close). What is left must then agree within an error bound, whoever computes
it. `random_ops.draw_graph` proposes the ops.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from compiled import RELATIVE, add_function

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.opdef import OPS, evaluate
from pyc_mlir.dialects.types import DTYPES, TensorType, dtype_name, is_float

F64 = DTYPES["f64"]
SIZES = (1, 2, 3, 4, 5, 7, 1, 2, 3, 4, 5, 7, 0)
MAX_ELEMENTS = 2048
LIMITS = {"f16": 100.0, "bf16": 100.0, "f32": 1000.0, "f64": 1000.0}
# The others give the same bits whoever computes them, as long as these are exact in their type.
INEXACT = frozenset(
    {"div", "pow", "exp", "log", "sin", "cos", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "silu"}
    | {"gelu", "softmax", "log_softmax", "layernorm", "rmsnorm", "batchnorm", "attention"}
    | {"reduce_mean", "avg_pool2d"}
)
# A small error of an operand may become a large one of the result.
DISCONTINUOUS = frozenset({"floor", "ceil", "round", "compare", "argmax"})


class Rejected(Exception):
    """An op that does not fit, or whose results are not well behaved."""


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the graph: its type in the program and what it holds for the graph's inputs."""

    declared: TensorType
    array: np.ndarray
    shadow: np.ndarray
    exact: bool
    noise: float
    depth: int

    @property
    def dtype(self) -> np.dtype:
        return self.declared.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        return self.declared.shape

    @property
    def rank(self) -> int:
        return self.declared.rank

    @property
    def error(self) -> float:
        """What two correct programs may differ by in any element."""
        if self.exact or not self.array.size:
            return 0.0
        scale = max(1.0, float(np.abs(self.shadow).max()))
        distance = float(np.abs(self.array.astype(np.float64) - self.shadow).max())
        return self.noise * (1 + self.depth) * scale + 16 * distance


@dataclass(frozen=True, eq=False)
class Node:
    """One op: operands are positions of values, arguments first."""

    op: str
    operands: tuple[int, ...]
    params: dict[str, Any]


@dataclass(eq=False)
class Graph:
    """A function: `values` are those of the arguments, then one for each node."""

    values: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    dims: list[tuple[str, ...]] = field(default_factory=list)
    results: tuple[int, ...] = ()

    @property
    def arguments(self) -> list[Value]:
        return self.values[: len(self.dims)]

    @property
    def types(self) -> list[TensorType]:
        return [v.declared for v in self.arguments]

    @property
    def inputs(self) -> list[np.ndarray]:
        return [v.array for v in self.arguments]

    @property
    def returned(self) -> list[Value]:
        return [self.values[r] for r in self.results]

    def __str__(self) -> str:
        lines = [f"arguments {', '.join(map(str, self.types))}"]
        for i, node in enumerate(self.nodes, start=len(self.dims)):
            params = {k: v for k, v in node.params.items() if not isinstance(v, np.ndarray)}
            lines.append(f"%{i} = {node.op}{node.operands} {params} : {self.values[i].declared}")
        return "\n".join([*lines, f"return {self.results}"])

    __repr__ = __str__

    def build(self, builder: Builder, *arguments: Any) -> list[Any]:
        """Emit the nodes; return the results."""
        values = list(arguments)
        for node in self.nodes:
            operands = [values[i] for i in node.operands]
            values.append(builder.build(OPS[node.op], *operands, **node.params))
        return [values[r] for r in self.results]

    def add_to(self, module: ir.Module, name: str = "main") -> list[TensorType]:
        """Append the graph as a function with named dimensions; its result types."""
        results = add_function(module, name, self.types, self.build)
        attributes = [
            ir.DictAttr.get({"pyc.dims": ir.ArrayAttr.get([ir.StringAttr.get(d) for d in dims])})
            for dims in self.dims
        ]
        entry_function(module, name).attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
        return results

    def module(self) -> ir.Module:
        """A module with the graph as `main`, in the current context."""
        module = ir.Module.create()
        self.add_to(module)
        return module

    def check(self, got: Sequence[np.ndarray], who: str) -> None:
        """Raise AssertionError, with the graph, unless `got` are the results."""
        assert len(got) == len(self.results), who
        for i, (array, value) in enumerate(zip(got, self.returned, strict=True)):
            problem = difference(array, value)
            assert not problem, f"{who}: result {i}: {problem}\n{self}\ninputs {self.inputs}"


def difference(got: np.ndarray, value: Value) -> str:
    """What is wrong with `got` as the contents of `value`; '' when nothing is."""
    want = value.array
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"expected {want.dtype}{want.shape}, got {got.dtype}{got.shape}"
    wide = got.astype(np.float64) if is_float(got.dtype) else got
    with np.errstate(all="ignore"):
        wrong = np.abs(wide - want.astype(np.float64)) > value.error if value.error else got != want
        wrong = wrong | (np.isnan(wide) if is_float(got.dtype) else False)
    return f"expected\n{want}\ngot\n{got}\nallowed error {value.error}" if np.any(wrong) else ""


class Drawing:
    """A graph that grows. Proposals pick values, make constants and add ops."""

    def __init__(self, random: Random, dynamic: bool) -> None:
        self.random = random
        self.dynamic = dynamic
        self.graph = Graph()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def array(self, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
        """Quarters, small integers or booleans."""
        rng = np.random.default_rng(self.random.getrandbits(32))
        if dtype == DTYPES["i1"]:
            return rng.integers(0, 2, shape).astype(bool)
        if is_float(dtype):
            return (rng.integers(-8, 9, shape) / 4).astype(dtype)
        return rng.integers(-4, 5, shape).astype(dtype)

    def argument(
        self, dtype: np.dtype, shape: Sequence[int], array: np.ndarray | None = None
    ) -> None:
        """An argument; some of its dimensions become dynamic, those of one size under one name."""
        names = [f"n{s}" if s > 1 and self.dynamic and self.chance(0.5) else "" for s in shape]
        declared = tuple(None if n else s for n, s in zip(names, shape, strict=True))
        array = self.array(dtype, shape) if array is None else array
        self.graph.dims.append(tuple(names))
        shadow = array.astype(np.float64) if is_float(dtype) else array
        self.graph.values.append(Value(TensorType(declared, dtype), array, shadow, True, 0.0, 0))

    def value(self, index: int) -> Value:
        return self.graph.values[index]

    def pick(self, wanted: Callable[[Value], bool]) -> int:
        """One of the values that fit, a late one more likely. Raises Rejected."""
        fitting = [i for i, v in enumerate(self.graph.values) if wanted(v)]
        if not fitting:
            raise Rejected
        return self.random.choice(fitting[-3:] if self.chance(0.6) else fitting)

    def constant(self, dtype: np.dtype, shape: Sequence[int]) -> int:
        """A constant, often of one value that an identity may wait for."""
        array = self.array(dtype, shape)
        if self.chance(0.3):
            splat = self.random.choice([0, 1, 2, -0.0, -1])
            array = np.full(shape, bool(splat) if dtype == DTYPES["i1"] else splat, dtype)
        return self.add("constant", value=array)

    def add(self, op: str, *operands: int, **params: Any) -> int:
        """Append an op; its position. Raises Rejected when it does not fit or behave."""
        value = self._evaluate(op, [self.value(i) for i in operands], params)
        self.graph.values.append(value)
        self.graph.nodes.append(Node(op, operands, params))
        return len(self.graph.values) - 1

    def _evaluate(self, op: str, operands: Sequence[Value], params: dict[str, Any]) -> Value:
        definition = OPS[op]
        shadow_params = {k: _as_f64(v) for k, v in params.items()}
        try:
            declared = definition.infer(*(v.declared for v in operands), **definition.bind(params))
            array = evaluate(definition, [v.array for v in operands], **params)
            shadow = evaluate(definition, [v.shadow for v in operands], **shadow_params)
        except (VerificationError, ValueError, IndexError):
            raise Rejected from None
        exact = op not in INEXACT and all(v.exact for v in operands)
        exact = exact and bool(np.array_equal(array.astype(shadow.dtype), shadow))
        _require(op not in DISCONTINUOUS or all(v.exact for v in operands))
        _require(op != "cast" or is_float(declared.dtype) or all(v.exact for v in operands))
        _require(array.size <= MAX_ELEMENTS)
        # A dynamic dimension is never stretched, also when its size turns out to be 1.
        sizes = zip(declared.shape, array.shape, strict=True)
        _require(all(d is not None or s != 1 for d, s in sizes))
        if is_float(declared.dtype):
            _require_well_behaved(array, shadow)
        own = RELATIVE.get(dtype_name(declared.dtype), 0.0)
        noise = 0.0 if exact else max([own, *(v.noise for v in operands)])
        depth = 1 + max((v.depth for v in operands), default=0)
        return Value(declared, array, shadow, exact, noise, depth)


def _require(condition: bool) -> None:
    if not condition:
        raise Rejected


def _as_f64(param: Any) -> Any:
    """A parameter of the graph's f64 twin: float types and float constants become f64."""
    if isinstance(param, np.dtype):
        return F64 if is_float(param) else param
    is_data = isinstance(param, np.ndarray) and is_float(param.dtype)
    return param.astype(np.float64) if is_data else param


def _require_well_behaved(array: np.ndarray, shadow: np.ndarray) -> None:
    """Finite, within the type's limit, and close to the f64 twin."""
    wide = array.astype(np.float64)
    _require(bool(np.isfinite(wide).all() and np.isfinite(shadow).all()))
    if wide.size:
        name = dtype_name(array.dtype)
        largest = float(np.abs(wide).max())
        _require(largest < LIMITS[name])
        _require(float(np.abs(wide - shadow).max()) <= 4 * RELATIVE[name] * max(1.0, largest))
