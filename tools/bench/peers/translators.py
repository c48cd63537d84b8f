"""A `PeerGraph` in the languages of the peers: an ONNX model, a torch module, a function of jax.

One translator a language, each a table of rules: op name -> function of (result type, operands,
parameters) that gives the language's own value. An op without a rule is built from its
decomposition. Composite ops that a peer has are one call or node (layer norm, gelu, softmax), as a
person or an exporter writes them, so that no peer is held back by its program.
"""

import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.tools.bench.peers.graph import PeerGraph

Rule = Callable[..., Any]
Rules = Mapping[str, Rule]


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the other language, and its type."""

    handle: Any
    type: TensorType


class Translator(Builder):
    """Builds each op by its rule, else by its decomposition."""

    rules: Rules

    @abstractmethod
    def stored(self, array: np.ndarray) -> Any:
        """Return an array that is part of the program, as a value of the language."""

    def constant(self, value: Any) -> Value:
        """Return a constant with the array's own type."""
        array = np.array(value, order="C")
        return Value(self.stored(array), TensorType(array.shape, array.dtype))

    def emit(self, op: type[OpDef], operands: Sequence[Value], params: dict[str, Any]) -> Value:
        """Translate one op. Raises PycError (UNSUPPORTED_OP)."""
        out = op.infer(*map(self.type_of, operands), **params)
        if (rule := self.rules.get(op.name)) is not None:
            return Value(rule(out, *operands, **params), out)
        made = op.decompose(self, *operands, **params) if op.decompose is not None else None
        if made is None:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"{type(self).__name__}: expected an op with a rule, got pyc.{op.name}; add one "
                f"to {type(self).__module__}",
            )
        return made

    def type_of(self, value: Value) -> TensorType:
        """Return the type that was inferred when the value was made."""
        return value.type


def plain(function: Callable[..., Any]) -> Rule:
    """Make the rule of an op that is a function of its operands alone."""
    return lambda out, *operands: function(*(v.handle for v in operands))


# ONNX's first opset with Gelu as one node; LayerNormalization is older.
OPSET = 20
_NODES = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min",
    "pow": "Pow", "neg": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log", "sin": "Sin",
    "cos": "Cos", "sqrt": "Sqrt", "tanh": "Tanh", "erf": "Erf", "sigmoid": "Sigmoid",
    "relu": "Relu", "select": "Where", "matmul": "MatMul", "floor": "Floor", "ceil": "Ceil",
}  # fmt: skip
_NODE_REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}
_NODES_ALONG = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}
_NODE_COMPARISONS = {"eq": "Equal", "ne": "Equal", "lt": "Less", "le": "LessOrEqual",
                     "gt": "Greater", "ge": "GreaterOrEqual"}  # fmt: skip
_MASKED = np.finfo(np.float32).min


def onnx_model(graph: PeerGraph) -> bytes:
    """Make a checked model x0, x1, ... -> y0, y1, ...; unknown sizes are named dimensions.

    Raises PycError (UNSUPPORTED_OP). Needs the package `onnx`.
    """
    import onnx
    from onnx import helper

    def info(value: Value) -> Any:
        sizes = [d if d is not None else f"d{i}" for i, d in enumerate(value.type.shape)]
        return helper.make_tensor_value_info(value.handle, _element(value.type.dtype), sizes)

    builder = OnnxTranslator()
    arguments = [Value(f"x{i}", t) for i, t in enumerate(graph.arguments)]
    outputs = []
    for i, result in enumerate(graph.build(builder, arguments)):
        outputs.append(Value(f"y{i}", result.type))
        builder.nodes.append(helper.make_node("Identity", [result.handle], [f"y{i}"], f"y{i}"))
    made = helper.make_graph(
        builder.nodes, "program", [info(v) for v in arguments], [info(v) for v in outputs],
        builder.weights,
    )  # fmt: skip
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opset, ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _element(dtype: np.dtype) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(dtype)


class OnnxTranslator(Translator):
    """Adds nodes; a value is its name. Attention is two products with a softmax between."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        node = self.node
        self.rules = {
            **{op: plain(partial(node, name)) for op, name in _NODES.items()},
            **{op: self._reduction(name) for op, name in _NODE_REDUCTIONS.items()},
            **{op: self._along(name) for op, name in _NODES_ALONG.items()},
            "compare": self._compare,
            "rsqrt": lambda out, x: node("Reciprocal", node("Sqrt", x.handle)),
            "cast": lambda out, x, *, dtype: node("Cast", x.handle, to=_element(dtype)),
            "gelu": lambda out, x, **params: node("Gelu", x.handle, **params),
            "layernorm": lambda out, *xs, **params: node(
                "LayerNormalization", *(x.handle for x in xs), **params
            ),
            "attention": self._attention,
            "transpose": lambda out, x, *, permutation: node(
                "Transpose", x.handle, perm=list(permutation)
            ),
            "reshape": lambda out, x, *like, shape: node("Reshape", x.handle, _sizes(out)),
            "broadcast_to": lambda out, x, *_, shape: node("Expand", x.handle, _sizes(out)),
            "concat": lambda out, x, y, *, axis: node("Concat", x.handle, y.handle, axis=axis),
            "iota": lambda out, *_, axis, **params: self.stored(_iota(out, axis)),
            "conv2d": self._convolution,
            "max_pool2d": lambda out, x, *, kernel, layout, **params: self._channels_first(
                "MaxPool", layout, x.handle, kernel_shape=list(kernel), **params
            ),
        }

    def node(self, op: str, *operands: Any, **attributes: Any) -> str:
        """Add one node, with its name the name of its result; arrays among operands are stored."""
        from onnx import helper

        names = [o if isinstance(o, str) else self.stored(np.asarray(o)) for o in operands]
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [name], name, **attributes))
        return name

    def stored(self, array: np.ndarray) -> str:
        """Store an initializer and return its name."""
        from onnx import numpy_helper

        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def _along(self, op: str) -> Rule:
        return lambda out, x, *, axis: self.node(op, x.handle, axis=axis)

    def _reduction(self, op: str) -> Rule:
        # ReduceMax and ReduceMin take their axes as an input since opset 18 as well.
        return lambda out, x, *, axes, keepdims: self.node(
            op, x.handle, np.array(axes, np.int64), keepdims=int(keepdims)
        )

    def _compare(self, out: TensorType, x: Value, y: Value, *, predicate: str) -> str:
        made = self.node(_NODE_COMPARISONS[predicate], x.handle, y.handle)
        return self.node("Not", made) if predicate == "ne" else made

    def _attention(self, out: TensorType, *operands: Value, scale: float, is_causal: bool) -> str:
        q, k, v, *mask = operands
        order = [*range(k.type.rank - 2), k.type.rank - 1, k.type.rank - 2]
        scores = self.node("MatMul", q.handle, self.node("Transpose", k.handle, perm=order))
        scores = self.node("Mul", scores, np.float32(scale))
        if is_causal:
            rows, columns = q.type.shape[-2], k.type.shape[-2]
            assert rows is not None and columns is not None, "a causal mask of known sizes"
            allowed = np.tri(rows, columns, columns - rows, dtype=bool)
            scores = self.node("Add", scores, np.where(allowed, 0, _MASKED).astype(np.float32))
        if mask:
            scores = self.node("Add", scores, mask[0].handle)
        return self.node("MatMul", self.node("Softmax", scores, axis=-1), v.handle)

    def _convolution(
        self, out: TensorType, x: Value, w: Value, *, groups: int, layout: str, **params: Any
    ) -> str:
        weight = w.handle
        if layout == "NHWC":
            weight = self.node("Transpose", weight, perm=[3, 2, 0, 1])
        return self._channels_first("Conv", layout, x.handle, weight, group=groups, **params)

    def _channels_first(self, op: str, layout: str, x: str, *more: str, **params: Any) -> str:
        """Add an op between transposes, which the peers move or cancel: ONNX has one layout."""
        params = {n: list(p) if isinstance(p, tuple) else p for n, p in params.items()}
        if layout == "NCHW":
            return self.node(op, x, *more, **params)
        made = self.node(op, self.node("Transpose", x, perm=[0, 3, 1, 2]), *more, **params)
        return self.node("Transpose", made, perm=[0, 2, 3, 1])


def _sizes(out: TensorType) -> np.ndarray:
    assert sum(d is None for d in out.shape) <= 1, "a reshape can leave one size open"
    return np.array(_open(out), np.int64)


def _open(out: TensorType) -> list[int]:
    return [-1 if d is None else d for d in out.shape]


def _iota(out: TensorType, axis: int) -> np.ndarray:
    sizes = tuple(d or 1 for d in out.shape)
    assert math.prod(sizes) == math.prod(d or 0 for d in out.shape), "iota of a known size"
    along = [-1 if i == axis else 1 for i in range(out.rank)]
    return np.broadcast_to(np.arange(sizes[axis]).reshape(along), sizes).astype(out.dtype)


# What arrays of torch and of jax have as an operator, and what both libraries call alike.
_OPERATORS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "pow": operator.pow, "neg": operator.neg, "abs": operator.abs, "matmul": operator.matmul,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.invert,
}  # fmt: skip
_ALIKE = ("maximum", "minimum", "exp", "log", "sin", "cos", "sqrt", "tanh", "floor", "ceil")


def _array_rules(
    library: Any,
    cast: Callable[[Any, np.dtype], Any],
    dtype_of: Callable[[np.dtype], Any],
    **reductions: str,
) -> dict[str, Rule]:
    """Return the rules that torch and `jax.numpy` share; what is spelled otherwise is given."""

    def reduction(name: str) -> Rule:
        return lambda out, x, *, axes, keepdims: getattr(library, name)(
            x.handle, axis=tuple(axes), keepdims=keepdims
        )

    def iota(out: TensorType, *_: Value, axis: int, dtype: np.dtype, **params: Any) -> Any:
        sizes = [1] * out.rank
        sizes[axis] = out.shape[axis] or 1
        counted = library.arange(sizes[axis], dtype=dtype_of(dtype)).reshape(sizes)
        return library.broadcast_to(counted, tuple(d or 1 for d in out.shape))

    rules = {op: plain(function) for op, function in _OPERATORS.items()}
    rules |= {op: plain(getattr(library, op)) for op in (*_ALIKE, "round")}
    rules |= {f"reduce_{op}": reduction(name) for op, name in reductions.items()}
    return rules | {
        "select": plain(library.where),
        "compare": lambda out, x, y, *, predicate: getattr(operator, predicate)(x.handle, y.handle),
        "cast": lambda out, x, *, dtype: cast(x.handle, dtype),
        "reshape": lambda out, x, *like, shape: x.handle.reshape(_open(out)),
        "broadcast_to": lambda out, x, *_, shape: library.broadcast_to(x.handle, _open(out)),
        "concat": lambda out, x, y, *, axis: library.concatenate((x.handle, y.handle), axis),
        "iota": iota,
    }


def torch_module(graph: PeerGraph) -> Any:
    """Make a `torch.fx.GraphModule` from tensors to tensors. Raises PycError (UNSUPPORTED_OP).

    The module is what a person would have written (`F.layer_norm`, `addmm` for a product with
    bias), so that it serves eager torch and `torch.compile` alike. It gives its results as a tuple,
    row by row, since views compute nothing. Constants are parameters, which `torch.compile` may
    fold when it freezes.
    """
    import torch  # pyright: ignore[reportMissingImports]

    builder = TorchTranslator(torch)
    arguments = [
        Value(builder.proxy(builder.graph.placeholder(f"x{i}")), type_)
        for i, type_ in enumerate(graph.arguments)
    ]
    handles = [r.handle for r in graph.build(builder, arguments)]
    builder.graph.output(
        tuple((h.contiguous() if h.node.target == "permute" else h).node for h in handles)
    )
    builder.graph.eliminate_dead_code()
    return torch.fx.GraphModule(builder.root, builder.graph).eval()


class TorchTranslator(Translator):
    """Records calls of torch's functions on proxies (torch.fx)."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.root = torch, torch.nn.Module()
        self.graph = torch.fx.Graph()
        self.tracer = torch.fx.proxy.GraphAppendingTracer(self.graph)
        functional = torch.nn.functional
        own = ("rsqrt", "erf", "sigmoid", "relu", "matmul")
        self.rules = {
            **_array_rules(
                torch, lambda x, dtype: x.to(self._dtype(dtype)), self._dtype,
                sum="sum", max="amax", min="amin",
            ),
            **{op: plain(getattr(torch, op)) for op in own},
            "add": self._add,
            "softmax": lambda out, x, *, axis: torch.softmax(x.handle, axis),
            "log_softmax": lambda out, x, *, axis: torch.log_softmax(x.handle, axis),
            "gelu": lambda out, x, **params: functional.gelu(x.handle, **params),
            "silu": lambda out, x: functional.silu(x.handle),
            "layernorm": lambda out, x, w, b, *, axis, epsilon: functional.layer_norm(
                x.handle, w.type.shape, w.handle, b.handle, epsilon
            ),
            "attention": self._attention,
            "transpose": lambda out, x, *, permutation: x.handle.permute(*permutation),
            "conv2d": self._convolution,
            "max_pool2d": lambda out, x, *, kernel, **params: self._channels_first(
                x.handle, float("-inf"), params,
                lambda data, pads: functional.max_pool2d(
                    data, kernel, params["strides"], pads, params["dilations"]
                ),
            ),
        }  # fmt: skip

    def proxy(self, node: Any) -> Any:
        """Return a node of the graph as a value that functions take."""
        return self.torch.fx.Proxy(node, self.tracer)

    def stored(self, array: np.ndarray) -> Any:
        """Record a parameter if gradients could exist, else a buffer."""
        tensor, name = self.torch.from_numpy(array), f"c{len(list(self.graph.nodes))}"
        if tensor.is_floating_point():
            parameter = self.torch.nn.Parameter(tensor, requires_grad=False)
            self.root.register_parameter(name, parameter)
        else:
            self.root.register_buffer(name, tensor)
        return self.proxy(self.graph.get_attr(name))

    def _dtype(self, dtype: np.dtype) -> Any:
        return self.torch.from_numpy(np.zeros(1, dtype)).dtype

    def _add(self, out: TensorType, x: Value, y: Value) -> Any:
        """Add; a product of matrices and a bias become one call."""
        node = x.handle.node
        if node.target is self.torch.matmul and (x.type.rank, y.type.rank) == (2, 1):
            return self.torch.addmm(y.handle, *map(self.proxy, node.args))
        return self.torch.add(x.handle, y.handle)

    def _attention(self, out: TensorType, *operands: Value, scale: float, is_causal: bool) -> Any:
        # The fused kernels of torch take [batch, heads, length, depth].
        q, k, v, *mask = (o.handle for o in operands)
        flat = operands[0].type.rank == 3
        q, k, v = (t.unsqueeze(0) if flat else t for t in (q, k, v))
        made = self.torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask[0] if mask else None, is_causal=is_causal, scale=scale
        )
        return made.squeeze(0) if flat else made

    def _convolution(
        self, out: TensorType, x: Value, w: Value, *, groups: int, **params: Any
    ) -> Any:
        last = params["layout"] == "NHWC"
        weight = w.handle.permute(3, 2, 0, 1) if last else w.handle
        return self._channels_first(
            x.handle, 0.0, params,
            lambda data, pads: self.torch.nn.functional.conv2d(
                data, weight, None, params["strides"], pads, params["dilations"], groups
            ),
        )  # fmt: skip

    def _channels_first(
        self, data: Any, fill: float, params: Mapping[str, Any], window: Callable[[Any, Any], Any]
    ) -> Any:
        """Apply a window between permutations; padding that differs between sides comes before."""
        last = params["layout"] == "NHWC"
        data = data.permute(0, 3, 1, 2) if last else data
        top, left, bottom, right = params["pads"]
        pads = (top, left)
        if pads != (bottom, right):
            data = self.torch.nn.functional.pad(data, (left, right, top, bottom), value=fill)
            pads = (0, 0)
        made = window(data, pads)
        return made.permute(0, 2, 3, 1) if last else made


def jax_function(
    graph: PeerGraph, least_bytes: int = 0
) -> tuple[Callable[[Sequence[Any], Sequence[Any]], list[Any]], list[np.ndarray]]:
    """Return the program as a function of (arguments, constants), and those constants.

    Constants of less than `least_bytes` are part of the function. Traced by `jax.jit` it gives XLA
    the program that PyC compiles. The function raises PycError (UNSUPPORTED_OP).
    """
    given = [a for a in graph.constants.values() if a.nbytes >= least_bytes]

    def run(arguments: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        builder = JaxTranslator()
        at = {id(a): c for a, c in zip(given, constants, strict=True)}
        values = [Value(a, t) for a, t in zip(arguments, graph.arguments, strict=True)]

        def constant(array: np.ndarray) -> Value:
            if id(array) in at:
                return Value(at[id(array)], TensorType(array.shape, array.dtype))
            return builder.constant(array)

        return [r.handle for r in graph.build(builder, values, constant)]

    return run, given


class JaxTranslator(Translator):
    """Computes each op with jax, composite ops by their decompositions."""

    def __init__(self) -> None:
        import jax  # pyright: ignore[reportMissingImports]

        self.jnp, self.lax = jnp, lax = jax.numpy, jax.lax
        self.rules = {
            **_array_rules(
                jnp, lambda x, dtype: x.astype(dtype), jax.dtypes.canonicalize_dtype,
                sum="sum", max="max", min="min", prod="prod",
            ),
            **{op: plain(getattr(lax, op)) for op in ("rsqrt", "erf")},
            "transpose": lambda out, x, *, permutation: jnp.transpose(x.handle, permutation),
            "conv2d": self._convolution,
            "max_pool2d": self._max_pool,
        }  # fmt: skip

    def stored(self, array: np.ndarray) -> Any:
        """Return an array of jax."""
        return self.jnp.asarray(array)

    def type_of(self, value: Value) -> TensorType:
        """Return the type that the array has: jax may take fewer bits than were asked for."""
        return TensorType(tuple(value.handle.shape), np.dtype(value.handle.dtype))

    def _convolution(
        self, out: TensorType, x: Value, w: Value, *, groups: int, layout: str, **params: Any
    ) -> Any:
        top, left, bottom, right = params["pads"]
        return self.lax.conv_general_dilated(
            x.handle, w.handle, params["strides"], ((top, bottom), (left, right)),
            rhs_dilation=params["dilations"], feature_group_count=groups,
            dimension_numbers=(layout, "OIHW" if layout == "NCHW" else "HWIO", layout),
        )  # fmt: skip

    def _max_pool(self, out: TensorType, x: Value, *, layout: str, **params: Any) -> Any:
        top, left, bottom, right = params["pads"]

        def spread(pair: Sequence[Any], other: Any) -> tuple[Any, ...]:
            return (other, other, *pair) if layout == "NCHW" else (other, *pair, other)

        sizes = [spread(params[name], 1) for name in ("kernel", "strides", "dilations")]
        return self.lax.reduce_window(
            x.handle, -np.inf, self.lax.max, *sizes[:2],
            spread(((top, bottom), (left, right)), (0, 0)), window_dilation=sizes[2],
        )  # fmt: skip
