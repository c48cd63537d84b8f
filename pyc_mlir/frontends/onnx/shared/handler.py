"""The base of node handlers, and their table.

    @node("Relu")
    def relu(n: Node) -> Any:
        '''out = max(x, 0).'''
        return n.b.relu(n.x())

A handler returns its node's output, or a tuple of outputs (leading ones, in order). It raises
`unsupported(why)` for a form that PyC cannot express.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, TensorType, dtype_name
from pyc_mlir.frontends.importing.builders import GraphBuilder
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSizes, Untracked
from pyc_mlir.frontends.importing.stated import Ignored, Stated

Handler = Callable[["OnnxNode"], Any]
# `Node` has a method of the name `type`.
_Class = type
HANDLERS: dict[str, Handler] = {}
_UNDEFINED = onnx.AttributeProto.UNDEFINED


def node(*op_types: str) -> Callable[[Handler], Handler]:
    """Enter a handler under the names of the ops of ONNX's default domain that it imports."""

    def enter(handler: Handler) -> Handler:
        for op_type in op_types:
            assert op_type not in HANDLERS, op_type
            HANDLERS[op_type] = handler
        return handler

    return enter


def contrib(*op_types: str) -> Callable[[Handler], Handler]:
    """Enter a handler under names of onnxruntime's domain, `com.microsoft`."""
    return node(*(f"com.microsoft.{op_type}" for op_type in op_types))


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


def stated_attributes(proto: onnx.NodeProto) -> Stated:
    """Return a node's attributes as Python values: int, float, str, list, TensorProto, GraphProto.

    An attribute equal to the operator's default has no effect: exporters write them all. Raises
    PycError (BAD_MODEL) for one that refers to an attribute of a function.
    """
    entries = {a.name: _value(a) for a in proto.attribute}
    return Stated(entries, "attribute", IGNORED, lambda name, v: v == _default(proto, name))


def _value(attribute: onnx.AttributeProto) -> Any:
    if attribute.ref_attr_name:
        raise PycError(
            ReasonCode.BAD_MODEL,
            f"attribute `{attribute.name}`: expected a value outside of functions, got a reference "
            f"to `{attribute.ref_attr_name}`",
        )
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _default(proto: onnx.NodeProto, name: str) -> Any:
    """Return what ONNX takes for an attribute that is left out; None if it has no such default."""
    kind = proto.op_type, onnx.defs.onnx_opset_version(), proto.domain
    stated = onnx.defs.get_schema(*kind).attributes.get(name) if onnx.defs.has(*kind) else None
    value = stated.default_value if stated is not None else None
    return None if value is None or value.type == _UNDEFINED else _value(value)


def _other_type(name: str, kind: type, value: Any) -> PycError:
    got = "none" if value is None else type(value).__name__
    return PycError(
        ReasonCode.BAD_MODEL, f"attribute `{name}`: expected {kind.__name__}, got {got}"
    )


class OnnxNode:
    """One ONNX node, its operands as values of the builder `b` that the handler is to use.

    `operands` holds for each input a numpy array (known), `SymbolicSizes`, a value of `b`, or None
    where an optional input is missing.
    """

    def __init__(
        self,
        proto: onnx.NodeProto,
        builder: Any,
        operands: Sequence[Any],
        lift: Callable[[int], Any],
        attributes: Stated,
    ) -> None:
        self.proto = proto
        self.b = builder
        self.operands = operands
        self._lift = lift
        self._attributes = attributes
        self._seen: set[int] = set()

    @property
    def op(self) -> str:
        """The op type."""
        return self.proto.op_type

    @property
    def count(self) -> int:
        """The number of inputs."""
        return len(self.operands)

    @property
    def emits(self) -> bool:
        """True when ops are emitted, False when the result is computed now."""
        return isinstance(self.b, GraphBuilder)

    def has(self, index: int) -> bool:
        """Return True when an (optional) input is given."""
        self._seen.add(index)
        return index < len(self.operands) and self.operands[index] is not None

    def wants(self, index: int) -> bool:
        """Return True when the node names output `index`."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def x(self, index: int = 0) -> Any:
        """Return input `index` as a builder's value. Raises PycError (BAD_MODEL) if missing."""
        if not self.has(index):
            raise PycError(ReasonCode.BAD_MODEL, f"expected an input {index}, got none")
        return self._lift(index)

    def require_inputs_read(self) -> None:
        """Raise unsupported for an input that the handler did not look at.

        So that what a newer version of an operator adds is never passed over.
        """
        for index, operand in enumerate(self.operands):
            if operand is not None and index not in self._seen:
                name = self.proto.input[index]
                raise unsupported(f"input {index}, `{name}`: expected none, since PyC lacks it")

    def all(self) -> list[Any]:
        """Return every input as a value of the builder."""
        return [self.x(i) for i in range(self.count)]

    def type(self, index: int = 0) -> TensorType:
        """Return the type of input `index`."""
        return self.b.type_of(self.x(index))

    def dims(self, index: int = 0) -> tuple[Extent, ...]:
        """Return the sizes of input `index`: ints, and `Size` for dynamic dimensions."""
        return self.b.dims(self.x(index))

    def known(self, index: int, what: str) -> np.ndarray:
        """Return an input that must be a constant of the model."""
        self._seen.add(index)
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
        self._seen.add(index)
        value = self.operands[index]
        if isinstance(value, SymbolicSizes):
            if not self.emits:
                raise Untracked(what)
            return tuple(value.entries.reshape(-1))
        return self.ints(index, what)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a Python value: int, float, str, list or TensorProto. int, float,
        str, list or TensorProto.

        Raises PycError (BAD_MODEL) for one of another type than its default in domains that are not
        ONNX's, whose operators its checker does not know.
        """
        value = self._attributes.get(name)
        if value is None:
            return default
        foreign = self.proto.domain and default is not None
        if foreign and not isinstance(value, type(default)):
            raise _other_type(name, type(default), value)
        return value

    def stated(self, name: str, kind: _Class = int) -> Any:
        """Return a required attribute. Raises PycError (BAD_MODEL) without one of type `kind`."""
        value = self.attr(name)
        if not isinstance(value, kind):
            raise _other_type(name, kind, value)
        return value

    def attributes(self) -> list[str]:
        """Return the names of the attributes that are present."""
        return list(dict(self._attributes))

    def number(self, value: float, index: int = 0) -> Any:
        """Build a scalar constant of the element type of input `index`."""
        return self.b.scalar(value, self.x(index))
