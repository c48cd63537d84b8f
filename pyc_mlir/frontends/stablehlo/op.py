"""One StableHLO operation: its attributes as Python data."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir, stablehlo
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.stated import Ignored, Stated

_ACCURACY = "allows less exact results than PyC's"
# Attributes that change no result.
IGNORED: Ignored = {
    **dict.fromkeys(("precision_config", "algorithm", "result_accuracy"), _ACCURACY),
    "indices_are_sorted": "a promise that lets a compiler be faster",
    "unique_indices": "a promise that lets a compiler be faster",
    "is_stable": "PyC's sort is always stable",
    "version": "composites are known by name, and their attributes are read",
}


def _is_annotation(name: str, value: Any) -> bool:
    """Return True for attributes that MLIR lets every pass discard: those of another dialect."""
    return "." in name


class StablehloOp:
    """An operation; attributes by name, with the default where StableHLO leaves one out.

    attributes: with the regions, whose names are `region 0`, `region 1`; looking one up counts as
        reading it.
    """

    def __init__(self, operation: ir.Operation) -> None:
        self.operation = operation
        entries: dict[str, Any] = {n: operation.attributes[n] for n in operation.attributes}
        entries |= {f"region {i}": r for i, r in enumerate(operation.regions)}
        self.attributes = Stated(entries, "attribute", IGNORED, _is_annotation)

    @property
    def name(self) -> str:
        """The name without its dialect, where that is StableHLO."""
        return self.operation.name.removeprefix("stablehlo.")

    def type(self, index: int = 0) -> TensorType:
        """Return the type of a result. Raises PycError (UNSUPPORTED_DTYPE)."""
        return tensor_type(self.operation.results[index].type)

    def shape(self, what: str = "the result") -> tuple[int, ...]:
        """Return the static shape of the result. Raises PycError (UNSUPPORTED_ATTRIBUTE)."""
        shape = self.type().shape
        if None in shape:
            raise unsupported(f"{what} of dynamic shape: expected a static one")
        return tuple(d for d in shape if d is not None)

    def has(self, name: str) -> bool:
        """Return whether an attribute is there."""
        return name in self.attributes

    def region(self, index: int) -> Any:
        """Return a region."""
        return self.attributes[f"region {index}"]

    def regions(self) -> list[Any]:
        """Return every region."""
        return [self.region(i) for i in range(len(self.operation.regions))]

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer."""
        return ir.IntegerAttr(self.attributes[name]).value if self.has(name) else default

    def text(self, name: str) -> str:
        """Return a string or a symbol's name."""
        attribute = self.attributes[name]
        return str(attribute).strip('@"') if name == "decomposition" else _text(attribute)

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the integers of an array attribute of either kind."""
        if not self.has(name):
            return tuple(default)
        attribute = self.attributes[name]
        if isinstance(attribute, ir.DenseI64ArrayAttr):
            return tuple(ir.DenseI64ArrayAttr(attribute))
        return tuple(int(v) for v in np.asarray(ir.DenseIntElementsAttr(attribute)).reshape(-1))

    def flags(self, name: str, default: Sequence[bool] = ()) -> tuple[bool, ...]:
        """Return booleans."""
        if not self.has(name):
            return tuple(default)
        attribute = self.attributes[name]
        if isinstance(attribute, ir.DenseBoolArrayAttr):
            return tuple(ir.DenseBoolArrayAttr(attribute))
        return tuple(bool(v) for v in ir.DenseIntElementsAttr(attribute))

    def pairs(self, name: str, count: int) -> tuple[tuple[int, int], ...]:
        """`count` pairs (low, high), by default zeros."""
        values = self.ints(name, (0,) * (2 * count))
        return tuple((values[2 * i], values[2 * i + 1]) for i in range(count))

    def enum(self, name: str, default: str = "") -> str:
        """Return the name of an enumeration's value, as StableHLO's text has it."""
        kinds = {
            "comparison_direction": "ComparisonDirectionAttr",
            "compare_type": "ComparisonTypeAttr",
        }
        if not self.has(name):
            return default
        return getattr(stablehlo, kinds[name])(self.attributes[name]).value

    def numbers(self, name: str, kind: str) -> Any:
        """Return dimension numbers, as the bindings of StableHLO hold them."""
        return getattr(stablehlo, kind)(self.attributes[name])


def _text(attribute: ir.Attribute) -> str:
    if isinstance(attribute, ir.StringAttr):
        return ir.StringAttr(attribute).value
    return ir.FlatSymbolRefAttr(attribute).value


def tensor_type(type_: ir.Type) -> TensorType:
    """Return an MLIR type as data. Raises PycError (UNSUPPORTED_DTYPE) for types that PyC lacks."""
    try:
        return from_mlir(type_)
    except PycError as error:
        raise PycError(ReasonCode.UNSUPPORTED_DTYPE, error.message) from error
