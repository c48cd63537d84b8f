"""Import StableHLO modules as pyc programs, operation by operation.

    module = import_stablehlo(parsed, "model.mlir")

Functions called are inlined, loops whose condition is known at import are unrolled, of branches
that are not known all are computed and one is selected. A composite whose name PyC knows becomes
its op, others are imported by their decomposition. Locations are those of the source.

Text is read, and portable artifacts: the bytes that `jax.export` serializes, MLIR bytecode of the
versioned dialect VHLO. Damaged ones may end the process, so that only a worker reads them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir, stablehlo
from pyc_mlir.dialects.ir.pyc import load
from pyc_mlir.dialects.names import name_in
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.importer import ModuleImporter
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import MISSING, Argument, SourceNode
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.stablehlo.operations import (
    HANDLERS,
    REGIONED,
    StablehloOp,
    python,
    tensor_type,
)

# MLIR's magic number, then the length and the beginning of the producer's name.
ARTIFACT_MAGIC = b"ML\xefR\rStableHLO_v"


def is_artifact(data: bytes) -> bool:
    """Return True for the bytes of a portable artifact."""
    return data.startswith(ARTIFACT_MAGIC)


def embedded_artifact(data: bytes) -> bytes | None:
    """Return the artifact within ``jax.export.Exported.serialize``'s bytes; None for other bytes.

    These are a flatbuffer which holds the artifact as a vector of bytes, its length before it.
    """
    start = data.find(ARTIFACT_MAGIC)
    if start < 4:
        return None
    length = int.from_bytes(data[start - 4 : start], "little")
    end = start + length
    return data[start:end] if length and end <= len(data) else None


def read_artifact(data: bytes, name: str, context: ir.Context) -> ir.Module:
    """Read a portable artifact as a StableHLO module. Raises PycError (INVALID_IR)."""
    enter(context)
    try:
        return stablehlo.deserialize_portable_artifact(context, data)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise PycError(
            ReasonCode.INVALID_IR,
            f"{name}: expected a StableHLO artifact of a version up to "
            f"{stablehlo.get_current_version()}: {error}",
        ) from None


def enter(context: ir.Context) -> None:
    """Let a context hold StableHLO beside pyc."""
    load(context)
    stablehlo.register_dialect(context)


_MAY_HAVE_EFFECTS = frozenset(
    {"return", "while", "if", "case", "composite", "infeed", "outfeed", "send", "recv"}
)
# Custom calls that compute nothing: checks of dynamic sizes, which PyC's guards make themselves.
_CHECKS = frozenset({"shape_assertion"})
_IDENTITIES = frozenset({"Sharding", "annotate_device_placement"})


def import_stablehlo(module: ir.Module, source: str) -> ir.Module:
    """Return the pyc module with the entry function of a verified StableHLO module, in its context.

    source: the module's name in messages.
    Raises UnsupportedModel for operations that PyC lacks, all of them listed; PycError (INVALID_IR)
    for a module without an entry.
    """
    with module.context, ir.Location.unknown():
        return StableHloImporter(module, source).run()


class StableHloImporter(ModuleImporter):
    """State of one import."""

    def __init__(self, module: ir.Module, source: str) -> None:
        super().__init__(module, source)
        self._constants: dict[ir.Attribute, np.ndarray] = {}
        self._blocks: dict[Any, list[ir.Operation]] = {}

    def argument(self, index: int, value: Any) -> Argument:
        """Name an argument by its location, and dynamic dimensions after it."""
        type_ = tensor_type(value.type)
        label = name_in(str(value.location)) or f"arg{index}"
        dims: list[Extent] = [
            SymbolicSize(1, (f"{label}#{axis}",)) if d is None else d
            for axis, d in enumerate(type_.shape)
        ]
        return Argument(label, type_.dtype, tuple(dims))

    def live(self, block: Any) -> list[ir.Operation]:
        """Return the operations of a block that a result needs, or that may have effects."""
        if block in self._blocks:
            return self._blocks[block]
        operations = [view.operation for view in block.operations]
        dead: set[ir.Operation] = set()
        for operation in reversed(operations):
            users = (use.owner.operation for result in operation.results for use in result.uses)
            if _is_pure(operation) and all(user in dead for user in users):
                dead.add(operation)
        live = [operation for operation in operations if operation not in dead]
        return self._blocks.setdefault(block, live)

    def operation(
        self, site: SourceNode, operation: ir.Operation, operands: Sequence[Any],
        values: dict[Any, Any],
    ) -> Sequence[Any]:  # fmt: skip
        """Import an operation by its handler, or as control flow."""
        op = StablehloOp(operation, site, operands, values)
        if op.name == "constant":
            attribute = operation.attributes["value"]
            if attribute not in self._constants:
                self._constants[attribute] = np.asarray(array_of(attribute))
            return (self._constants[attribute],)
        try:
            if operation.name in ("func.call", "call"):
                return self.call(op["callee"], operands)
            structured = _STRUCTURED.get(op.name)
            if structured is not None:
                if any(o is MISSING for o in operands):
                    self.importer.untried.append(site.place)
                    return ()
                out = structured(self, op)
                op.attributes.require_all_read()
                return out
        except PycError as error:
            return self.refused(site, error)
        handler = HANDLERS.get(op.name)
        if handler is None:
            return self.unknown(site, "operation")
        return self.importer.node(
            site, operands, lambda b, lift: handler(Call(b, operands, lift), op), op.attributes
        )

    def region(self, region: Any, operands: Sequence[Any], outer: Mapping[Any, Any]) -> list[Any]:
        """Return the results of a region of one block for its arguments."""
        block = region.blocks[0]
        return self.block(block, {**outer, **dict(zip(block.arguments, operands, strict=True))})

    def _composite(self, op: StablehloOp) -> Sequence[Any]:
        """Build the op of that name, or the decomposition."""
        name, decomposition = op["name"], str(op.attributes["decomposition"]).strip('@"')
        given = op.attributes.get("composite_attributes", ())
        attributes = {a.name: python(a.attr) for a in given and ir.DictAttr(given)}
        out = self.composite(op.site, op.operands, name, attributes)
        return out or self.call(decomposition, op.operands)

    def _custom_call(self, op: StablehloOp) -> Sequence[Any]:
        target = op["call_target_name"]
        if target in _CHECKS or target in _IDENTITIES:
            # What else a call states is for its target: it changes no result of these.
            dict(op.attributes)
            return () if target in _CHECKS else op.operands
        raise unsupported(f"a call of `{target}`: expected StableHLO's own operations")

    def _size(self, op: StablehloOp) -> Sequence[Any]:
        """Return the size of a dimension, followed as a `SymbolicSize` if it is dynamic."""
        value, axis = op.operands[0], op["dimension"]
        dims = value.shape if isinstance(value, np.ndarray) else self.importer.b.dims(value)
        return (self.size(op.site, dims[axis]),)

    def _while(self, op: StablehloOp) -> Sequence[Any]:
        """Repeat the body as long as the condition, which must be known at import, holds."""
        condition, body = op.regions()
        state = list(op.operands)
        while True:
            (goes_on,) = self.region(condition, state, op.around)
            if not self.loops.goes_on(goes_on):
                return state
            self.loops.step(len(body.blocks[0].operations))
            state = self.region(body, state, op.around)

    def _branch(self, op: StablehloOp) -> Sequence[Any]:
        """Return the known branch's results of an `if` or `case`, or select among all branches'."""
        which, regions = op.operands[0], op.regions()
        if op.name == "if":
            # An `if` names the true branch first.
            regions.reverse()
        if isinstance(which, np.ndarray):
            index = int(which)
            inside = 0 <= index < len(regions)
            return self.region(regions[index if inside else -1], [], op.around)
        made = [self.region(r, [], op.around) for r in regions]
        site = op.site
        which = self.one(site, [which], lambda b, lift: b.convert(lift(0), np.dtype(np.int32)))
        return self.selected(site, which, made)

    def probe(self, region: Any, operands: Sequence[np.ndarray]) -> list[Any]:
        """Compute a region's results for known operands."""
        before = len(self.importer.findings)
        out = self.region(region, operands, {})
        del self.importer.findings[before:]
        return out


_STRUCTURED: dict[str, Callable[..., Sequence[Any]]] = {
    "composite": StableHloImporter._composite,
    "custom_call": StableHloImporter._custom_call,
    "get_dimension_size": StableHloImporter._size,
    "while": StableHloImporter._while,
    "if": StableHloImporter._branch,
    "case": StableHloImporter._branch,
    **REGIONED,
}


def _is_pure(operation: ir.Operation) -> bool:
    """Return False for terminators, and for calls and control flow, which may have effects."""
    if "has_side_effect" in operation.attributes:
        return not ir.BoolAttr(operation.attributes["has_side_effect"]).value
    dialect, _, name = operation.name.partition(".")
    return dialect in ("stablehlo", "chlo") and name not in _MAY_HAVE_EFFECTS
