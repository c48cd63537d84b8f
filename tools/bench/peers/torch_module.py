"""A program as a torch module: a `PeerGraph` recorded with torch's own functions (torch.fx).

The module is what a person would have written (`F.layer_norm`, `addmm` for a product with bias),
so that it serves eager torch and `torch.compile` alike. Constants are parameters, which
`torch.compile` may fold when it freezes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import TensorType
from pyc_mlir.tools.bench.peers.graph import PeerGraph, Recorder, Rule, Value

_PLAIN = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "maximum",
    "minimum": "minimum", "pow": "pow", "neg": "neg", "abs": "abs", "exp": "exp", "log": "log",
    "sin": "sin", "cos": "cos", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh", "erf": "erf",
    "sigmoid": "sigmoid", "relu": "relu", "select": "where", "matmul": "matmul",
}  # fmt: skip
_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


def torch_module(graph: PeerGraph) -> Any:
    """Make a `torch.fx.GraphModule` from tensors to tensors. Raises PycError (UNSUPPORTED_OP)."""
    import torch  # pyright: ignore[reportMissingImports]

    builder = TorchBuilder(torch)
    arguments = [builder.argument(i, type_) for i, type_ in enumerate(graph.arguments)]
    results = graph.build(builder, arguments)
    return builder.finish(results)


class TorchBuilder(Recorder):
    """Records calls of torch's functions on proxies."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.root = torch, torch.nn.Module()
        self.graph = torch.fx.Graph()
        self.tracer = torch.fx.proxy.GraphAppendingTracer(self.graph)
        self.rules = {**_elementwise(torch), **_others(torch, torch.nn.functional)}
        self.rules["add"] = self._add

    def argument(self, index: int, type_: TensorType) -> Value:
        """Return the argument of that position."""
        return self._value(self.graph.placeholder(f"x{index}"), type_)

    def constant(self, value: np.ndarray) -> Value:
        """Record a parameter if gradients could exist, else a buffer."""
        array = np.array(value, order="C")
        tensor, name = self.torch.from_numpy(array), f"c{len(list(self.graph.nodes))}"
        if tensor.is_floating_point():
            parameter = self.torch.nn.Parameter(tensor, requires_grad=False)
            self.root.register_parameter(name, parameter)
        else:
            self.root.register_buffer(name, tensor)
        return self._value(self.graph.get_attr(name), TensorType(array.shape, array.dtype))

    def finish(self, results: Sequence[Value]) -> Any:
        """Return the module that gives `results` as a tuple, row by row: views compute nothing."""
        handles = (r.handle for r in results)
        self.graph.output(
            tuple((h.contiguous() if h.node.target == "permute" else h).node for h in handles)
        )
        self.graph.eliminate_dead_code()
        return self.torch.fx.GraphModule(self.root, self.graph).eval()

    def _value(self, node: Any, type_: TensorType) -> Value:
        return Value(self.torch.fx.Proxy(node, self.tracer), type_)

    def _add(self, out: TensorType, x: Value, y: Value) -> Any:
        """Add; a product of matrices and a bias become one call."""
        node = x.handle.node
        if node.target is self.torch.matmul and (x.type.rank, y.type.rank) == (2, 1):
            left, right = (self.torch.fx.Proxy(a, self.tracer) for a in node.args)
            return self.torch.addmm(y.handle, left, right)
        return self.torch.add(x.handle, y.handle)


def _elementwise(torch: Any) -> dict[str, Rule]:
    def plain(name: str) -> Rule:
        return lambda out, *operands: getattr(torch, name)(*(v.handle for v in operands))

    def compare(out: TensorType, x: Value, y: Value, *, predicate: str) -> Any:
        assert predicate in _PREDICATES
        return getattr(torch, predicate)(x.handle, y.handle)

    rules: dict[str, Rule] = {op: plain(name) for op, name in _PLAIN.items()}
    return rules | {
        "compare": compare,
        "cast": lambda out, x, *, dtype: x.handle.to(_dtype(torch, dtype)),
    }


def _dtype(torch: Any, dtype: np.dtype) -> Any:
    return torch.from_numpy(np.zeros(1, dtype)).dtype


def _others(torch: Any, functional: Any) -> dict[str, Rule]:
    """Return rules of row-wise ops, movement and contractions under torch's own names."""

    def reduction(name: str) -> Rule:
        def reduce(out: TensorType, x: Value, *, axes: Sequence[int], keepdims: bool) -> Any:
            return getattr(torch, name)(x.handle, dim=tuple(axes), keepdim=keepdims)

        return reduce

    def layernorm(out: TensorType, x: Value, w: Value, b: Value, **params: Any) -> Any:
        handles = (w.type.shape, w.handle, b.handle)
        return functional.layer_norm(x.handle, *handles, params["epsilon"])

    def attention(out: TensorType, *operands: Value, scale: float, is_causal: bool) -> Any:
        # The fused kernels of torch take [batch, heads, length, depth].
        q, k, v, *mask = (o.handle for o in operands)
        flat = operands[0].type.rank == 3
        q, k, v = (t.unsqueeze(0) if flat else t for t in (q, k, v))
        made = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask[0] if mask else None, is_causal=is_causal, scale=scale
        )
        return made.squeeze(0) if flat else made

    return {
        "reduce_sum": reduction("sum"),
        "reduce_max": reduction("amax"),
        "reduce_min": reduction("amin"),
        "softmax": lambda out, x, *, axis: torch.softmax(x.handle, axis),
        "log_softmax": lambda out, x, *, axis: torch.log_softmax(x.handle, axis),
        "gelu": lambda out, x, *, approximate: functional.gelu(x.handle, approximate=approximate),
        "silu": lambda out, x: functional.silu(x.handle),
        "layernorm": layernorm,
        "attention": attention,
        "transpose": lambda out, x, *, permutation: x.handle.permute(*permutation),
        "reshape": lambda out, x, *, shape: x.handle.reshape(_sizes(x, out)),
        "broadcast_to": lambda out, x, *like, shape: x.handle.expand(_sizes(x, out)),
        "concat": lambda out, x, y, *, axis: torch.cat([x.handle, y.handle], axis),
        "iota": lambda out, *like, shape, axis, dtype: _iota(torch, out, axis, dtype),
        "conv2d": lambda out, x, w, **p: _convolution(functional, x, w, p),
        "max_pool2d": lambda out, x, **p: _max_pool(functional, x, p),
    }


def _sizes(x: Value, out: TensorType) -> list[int]:
    return [-1 if d is None else d for d in out.shape]


def _iota(torch: Any, out: TensorType, axis: int, dtype: np.dtype) -> Any:
    sizes = [1] * out.rank
    sizes[axis] = out.shape[axis] or 1
    return torch.arange(sizes[axis], dtype=_dtype(torch, dtype)).reshape(sizes).expand(out.shape)


def _convolution(functional: Any, x: Value, w: Value, p: Mapping[str, Any]) -> Any:
    """Convolve; padding that differs between sides becomes a pad before torch's own operator."""
    channels_last = p["layout"] == "NHWC"
    data = x.handle.permute(0, 3, 1, 2) if channels_last else x.handle
    weight = w.handle.permute(3, 2, 0, 1) if channels_last else w.handle
    data, pads = _padded(functional, data, p["pads"], 0.0)
    made = functional.conv2d(data, weight, None, p["strides"], pads, p["dilations"], p["groups"])
    return made.permute(0, 2, 3, 1) if channels_last else made


def _max_pool(functional: Any, x: Value, p: Mapping[str, Any]) -> Any:
    channels_last = p["layout"] == "NHWC"
    data = x.handle.permute(0, 3, 1, 2) if channels_last else x.handle
    data, pads = _padded(functional, data, p["pads"], float("-inf"))
    made = functional.max_pool2d(data, p["kernel"], p["strides"], pads, p["dilations"])
    return made.permute(0, 2, 3, 1) if channels_last else made


def _padded(functional: Any, x: Any, pads: Sequence[int], value: float) -> tuple[Any, Any]:
    top, left, bottom, right = pads
    if (top, left) == (bottom, right):
        return x, (top, left)
    return functional.pad(x, (left, right, top, bottom), value=value), (0, 0)
