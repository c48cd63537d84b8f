"""The common part of builders that record a program for another system: typed values."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.types import TensorType


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the other system, and its type."""

    handle: Any
    type: TensorType


# (result type, operands, parameters) -> the other system's name of the result.
Rule = Callable[..., Any]


class Recorder(Builder):
    """Records each op by its rule, else by its decomposition."""

    rules: Mapping[str, Rule]

    @abstractmethod
    def constant(self, value: Any) -> Value:
        """Record an array that is part of the program."""

    def emit(self, op: type[OpDef], operands: Sequence[Value], params: dict[str, Any]) -> Value:
        """Record one op. Raises PycError (UNSUPPORTED_OP)."""
        out = op.infer(*(v.type for v in operands), **params)
        rule = self.rules.get(op.name)
        if rule is not None:
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
        """Return the type that was inferred when the value was recorded."""
        return value.type
