"""One StableHLO operation: its attributes as Python data, by the names that jaxprs give them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir, stablehlo
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import SourceNode
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


class StablehloOp(Mapping[str, Any]):
    """An operation; attributes by name, with the default where StableHLO leaves one out.

    attributes: with the regions, whose names are `region 0`, `region 1`; looking one up counts as
        reading it.
    site, operands: and what regions around it define (`around`), where it is imported.
    """

    def __init__(
        self, operation: ir.Operation, site: SourceNode | None = None,
        operands: Sequence[Any] = (), values: Mapping[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self.operation = operation
        self.site: Any = site
        self.operands = operands
        self.around = values or {}
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

    def __getitem__(self, name: str) -> Any:
        """Return a parameter as Python data, by the name that jaxprs give it."""
        derived = _DERIVED.get((self.name, name), _DERIVED.get(("", name)))
        if derived is not None:
            return derived(self)
        own = _RENAMED.get((self.name, name), _RENAMED.get(("", name), name))
        return python(self.attributes[own])

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    def region(self, index: int) -> Any:
        """Return a region."""
        return self.attributes[f"region {index}"]

    def regions(self) -> list[Any]:
        """Return every region."""
        return [self.region(i) for i in range(len(self.operation.regions))]


def _dtype(op: StablehloOp) -> np.dtype:
    return op.type().dtype


# Of an operation ("": any) a parameter by its name in jaxprs: what StableHLO calls it, or how it
# follows from the result's type and other attributes.
_RENAMED = {
    ("iota", "dimension"): "iota_dimension",
    ("dynamic_iota", "dimension"): "iota_dimension",
    ("dot_general", "dimension_numbers"): "dot_dimension_numbers",
    ("", "base_dilation"): "base_dilations",
    ("", "window_dilation"): "window_dilations",
}
_DERIVED: dict[tuple[str, str], Callable[[StablehloOp], Any]] = {
    ("", "shape"): StablehloOp.shape,
    ("", "new_sizes"): StablehloOp.shape,
    ("", "dtype"): _dtype,
    ("", "new_dtype"): _dtype,
    ("", "preferred_element_type"): _dtype,
    ("pad", "padding_config"): lambda op: tuple(
        zip(op["edge_padding_low"], op["edge_padding_high"], op["interior_padding"], strict=True)
    ),
}
# Dimension numbers that jaxprs have as tuples.
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "DotDimensionNumbers": lambda d: (
        (d.lhs_contracting_dimensions, d.rhs_contracting_dimensions),
        (d.lhs_batching_dimensions, d.rhs_batching_dimensions),
    ),
    "ConvDimensionNumbers": lambda d: (
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (
            d.kernel_output_feature_dimension,
            d.kernel_input_feature_dimension,
            *d.kernel_spatial_dimensions,
        ),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    ),
    "GatherDimensionNumbers": lambda d: d,
    "ScatterDimensionNumbers": lambda d: d,
    "ComparisonDirectionAttr": lambda d: d.value,
    "ComparisonTypeAttr": lambda d: d.value,
}


def python(attribute: ir.Attribute) -> Any:
    """Return an attribute as Python data: arrays as tuples, single elements as numbers."""
    for kind in (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr, ir.FlatSymbolRefAttr):
        if isinstance(attribute, kind):
            return kind(attribute).value
    for kind in (ir.DenseI64ArrayAttr, ir.DenseBoolArrayAttr):
        if isinstance(attribute, kind):
            return tuple(kind(attribute))
    if isinstance(attribute, ir.DenseElementsAttr):
        return _tuples(np.asarray(array_of(attribute)).tolist())
    for name, read in _NUMBERS.items():
        kind = getattr(stablehlo, name)
        if kind.isinstance(attribute):
            return read(kind(attribute))
    return attribute


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def tensor_type(type_: ir.Type) -> TensorType:
    """Return an MLIR type as data. Raises PycError (UNSUPPORTED_DTYPE) for types that PyC lacks."""
    try:
        return from_mlir(type_)
    except PycError as error:
        raise PycError(ReasonCode.UNSUPPORTED_DTYPE, error.message) from error
