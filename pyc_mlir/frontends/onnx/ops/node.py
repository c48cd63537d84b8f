"""The nodes that handlers import, and the table of handlers: parameters say what a node may state.

    @node("Elu")
    def elu(b: Any, x: Any, *, alpha: float = 1.0) -> Any:
        '''out = alpha * (e^x - 1) where x < 0, else x.'''

The first parameter is the builder `b`, or the node `n` where more of it is read. Positional ones
are the node's inputs, in order: values of the builder, or what their annotation names (`Ints`). One
with a default may be left out; a dataclass stands for as many inputs as it has fields after `b`.
Keywords are attributes with their defaults; a dataclass is a group of attributes; `axes_` is the
attribute `axes` beside an input of that name. What a node states beyond that is refused: passing
over it could change the result.

A handler returns its node's output, or a tuple of outputs (leading ones, in order). It raises
`unsupported(why)` for a form that PyC cannot express.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, signature
from itertools import islice
from typing import Annotated, Any, get_args

import numpy as np
import onnx

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.frontends.importing.builders import GraphBuilder
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import Ignored, not_read
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSizes, Untracked

# Annotations of inputs that are no values of the builder: the method of `OnnxNode` that reads them.
Known = Annotated[Any, "known"]
Number = Annotated[Any, "scalar"]
Ints = Annotated[Any, "ints"]
Extents = Annotated[Any, "extents"]
Operand = Annotated[Any, "operand"]
# An input that may be left out before one that may not.
Maybe = Annotated[Any, "x"]

# Elements of a range or of indices that a handler writes out as a constant.
MAX_WRITTEN = 1 << 24
_TRAINING = "read by training only, whose modes are refused"
# Attributes that change no result.
IGNORED: Ignored = {
    **dict.fromkeys(("seed", "ratio", "momentum"), _TRAINING),
    **dict.fromkeys(("precision", "stash_type"), "allows less exact results than PyC's"),
    "saturate": "of casts to f8, a type that PyC lacks",
}
# `nearest_mode` of a Resize of opset 10: floor where it enlarges, ceil where it shrinks. No mode of
# ONNX's: only the conversion of older opsets (model.py) writes it.
SIMPLE = "simple"
_UNDEFINED = onnx.AttributeProto.UNDEFINED


def pyc_dtype(data_type: int) -> np.dtype:
    """Return the numpy dtype of an ONNX element type. Raises PycError (UNSUPPORTED_DTYPE)."""
    name = onnx.TensorProto.DataType.Name(data_type)
    if name in ("STRING", "UNDEFINED"):
        raise unsupported(f"element type {name}", ReasonCode.UNSUPPORTED_DTYPE)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    if dtype_name(dtype) not in DTYPES:
        raise unsupported(
            f"element type {name}: expected one of {', '.join(DTYPES)}",
            ReasonCode.UNSUPPORTED_DTYPE,
        )
    return dtype


def attributes_of(proto: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as Python values: int, float, str, list, TensorProto, GraphProto.

    Raises PycError (BAD_MODEL) for one that refers to an attribute of a function.
    """
    return {a.name: _value(a) for a in proto.attribute}


def _value(attribute: onnx.AttributeProto) -> Any:
    if attribute.ref_attr_name:
        raise PycError(
            ReasonCode.BAD_MODEL,
            f"attribute `{attribute.name}`: expected a value outside of functions, got a reference "
            f"to `{attribute.ref_attr_name}`",
        )
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class OnnxNode:
    """One ONNX node, its operands as values of the builder `b` that the handler is to use.

    `operands` holds for each input a numpy array (known), `SymbolicSizes`, a value of `b`, or None
    where an optional input is missing.
    """

    def __init__(
        self, proto: onnx.NodeProto, builder: Any, operands: Sequence[Any],
        lift: Callable[[int], Any],
    ) -> None:  # fmt: skip
        self.proto = proto
        self.b = builder
        self.operands = operands
        self._lift = lift

    @property
    def op(self) -> str:
        """The op type."""
        return self.proto.op_type

    @property
    def emits(self) -> bool:
        """True when ops are emitted, False when the result is computed now."""
        return isinstance(self.b, GraphBuilder)

    def wants(self, index: int) -> bool:
        """Return True when the node names output `index`."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def x(self, index: int, what: str = "") -> Any:
        """Return an input as a builder's value."""
        return self._lift(index)

    def operand(self, index: int, what: str = "") -> Any:
        """Return an operand as it is."""
        return self.operands[index]

    def known(self, index: int, what: str) -> np.ndarray:
        """Return an input that must be a constant of the model."""
        value = self.operands[index]
        if isinstance(value, SymbolicSizes):
            if not self.emits:
                raise Untracked(what)
            raise unsupported(f"`{what}` depends on a dynamic dimension: expected constants")
        if not isinstance(value, np.ndarray):
            raise unsupported(f"`{what}` is computed when the model runs: expected a constant")
        return value

    def scalar(self, index: int, what: str) -> Any:
        """Return a constant input of one element as a Python number."""
        value = self.known(index, what)
        if value.size != 1:
            raise PycError(
                ReasonCode.BAD_MODEL, f"`{what}`: expected one element, got shape {value.shape}"
            )
        return value.reshape(()).item()

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """Return a constant vector of integers."""
        return tuple(int(v) for v in self.known(index, what).reshape(-1))

    def extents(self, index: int, what: str) -> tuple[Extent, ...]:
        """Return a vector of sizes, static or dynamic, known at import."""
        value = self.operands[index]
        if self.emits and isinstance(value, ir.Value):
            value = self.b.numbers(value)
        if not isinstance(value, SymbolicSizes):
            return self.ints(index, what)
        if not self.emits:
            raise Untracked(what)
        return tuple(value.entries.reshape(-1))


class Handler:
    """A function that imports a node, and what its parameters say that the node may state."""

    def __init__(self, function: Callable[..., Any]) -> None:
        first, *rest = signature(function).parameters.values()
        self.function = function
        self.__doc__ = function.__doc__
        self._takes_builder = first.name == "b"
        given = [p for p in rest if p.kind is p.POSITIONAL_OR_KEYWORD]
        # Of each parameter its type, and the inputs that a dataclass stands for.
        self._given: list[tuple[Any, list[Parameter]]] = [
            (p.annotation, _fields_of(p)) for p in given
        ]
        self._inputs = [
            q for p, (_, own) in zip(given, self._given, strict=True) for q in own or [p]
        ]
        self._more = next((p for p in rest if p.kind is p.VAR_POSITIONAL), None)
        keywords = [p for p in rest if p.kind is p.KEYWORD_ONLY]
        self._groups: dict[str, Any] = {
            p.name: p.annotation for p in keywords if is_dataclass(p.annotation)
        }
        # Of each attribute the parameter, the default and the type that onnxruntime's own has.
        self._attributes: dict[str, tuple[str, Any, Any]] = {
            p.name.rstrip("_"): (p.name, p.default, _kind(p.default, p.annotation))
            for p in keywords
            if p.name not in self._groups
        }
        for group in self._groups.values():
            for f in fields(group):
                default = Parameter.empty if f.default is MISSING else f.default
                self._attributes[f.name] = f.name, default, _kind(default, f.type)

    def bound(self, proto: onnx.NodeProto, operands: Sequence[Any]) -> Callable[[Any, Any], Any]:
        """Return the handler of one node: from a builder and `Lift` to the node's outputs."""
        stated = attributes_of(proto)
        return lambda b, lift: self(OnnxNode(proto, b, operands, lift), stated)

    def __call__(self, n: OnnxNode, stated: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the outputs of a node that states these attributes.

        Raises PycError for what the parameters do not have, and for an output that is not given.
        """
        for name in sorted(stated.keys() - self._attributes.keys() - IGNORED.keys()):
            # Exporters write all defaults.
            if stated[name] != _default(n.proto, name):
                raise not_read("attribute", name, stated[name])
        foreign = bool(n.proto.domain)
        keywords = {
            parameter: _checked(name, stated.get(name), default, kind, foreign)
            for name, (parameter, default, kind) in self._attributes.items()
        }
        for name, group in self._groups.items():
            keywords[name] = group(**{f.name: keywords.pop(f.name) for f in fields(group)})
        out = self.function(n.b if self._takes_builder else n, *self._operands(n), **keywords)
        outputs = out if isinstance(out, tuple) else (out,)
        for i, name in enumerate(n.proto.output):
            if name and (i >= len(outputs) or outputs[i] is None):
                raise unsupported(f"output {i} (`{name}`): expected none, since PyC lacks it")
        return outputs

    def _operands(self, n: OnnxNode) -> list[Any]:
        count = len(n.operands)
        for i in range(len(self._inputs), 0 if self._more else count):
            if n.operands[i] is not None:
                name = n.proto.input[i]
                raise unsupported(f"input {i}, `{name}`: expected none, since PyC lacks it")
        more = [self._more] * max(0, count - len(self._inputs)) if self._more else []
        given = []
        for i, p in enumerate((*self._inputs, *more)):
            if i < count and n.operands[i] is not None:
                _, how = get_args(p.annotation) or ("", "x")
                given.append(getattr(n, how)(i, p.name))
            elif p.default is not Parameter.empty:
                given.append(p.default)
            elif p.annotation is Maybe:
                given.append(None)
            else:
                raise PycError(ReasonCode.BAD_MODEL, f"expected an input {i}, got none")
        left = iter(given)
        grouped = [
            kind(n.b, *islice(left, len(own))) if own else next(left) for kind, own in self._given
        ]
        return [*grouped, *left]


def _fields_of(p: Parameter) -> list[Parameter]:
    """Return the fields after `b` of a group of inputs, as parameters; none of one input."""
    own = fields(p.annotation)[1:] if is_dataclass(p.annotation) else ()
    return [p.replace(name=f.name, annotation=f.type) for f in own]


def _kind(default: Any, annotation: Any) -> Any:
    """Return the type that an attribute must have, if its parameter tells; () stands for a list."""
    if default is None or default is Parameter.empty:
        kinds = (annotation, *get_args(annotation))
        return next((k for k in kinds if k in (int, float, str, list)), None)
    return list if default == () else type(default)


def _checked(name: str, value: Any, default: Any, kind: Any, foreign: bool) -> Any:
    """Return an attribute's value, or its default.

    Raises PycError (BAD_MODEL) without one that has no default, and for one of another type in
    domains that are not ONNX's, whose operators its checker does not know.
    """
    if value is None and default is not Parameter.empty:
        return default
    if kind is not None and (foreign or value is None) and not isinstance(value, kind):
        got = "none" if value is None else type(value).__name__
        raise PycError(
            ReasonCode.BAD_MODEL, f"attribute `{name}`: expected {kind.__name__}, got {got}"
        )
    return value


def _default(proto: onnx.NodeProto, name: str) -> Any:
    """Return what ONNX takes for an attribute that is left out; None if it has no such default."""
    kind = proto.op_type, onnx.defs.onnx_opset_version(), proto.domain
    stated = onnx.defs.get_schema(*kind).attributes.get(name) if onnx.defs.has(*kind) else None
    value = stated.default_value if stated is not None else None
    return None if value is None or value.type == _UNDEFINED else _value(value)


HANDLERS: dict[str, Handler] = {}


def node(*op_types: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function under the names of the ops of ONNX's default domain that it imports."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        handler = Handler(function)
        for op_type in op_types:
            assert op_type not in HANDLERS, op_type
            HANDLERS[op_type] = handler
        return function

    return enter


def contrib(*op_types: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function under names of onnxruntime's domain, `com.microsoft`."""
    return node(*(f"com.microsoft.{op_type}" for op_type in op_types))


def formulas(table: Mapping[str, tuple[str, Callable[..., Any]]]) -> None:
    """Enter ops that are one formula: by name what they compute, in words, and the function."""
    for name, (computed, function) in table.items():
        node(name)(function)
        HANDLERS[name].__doc__ = computed
