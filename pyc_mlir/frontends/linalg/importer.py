"""Raise modules of linalg on tensors to pyc programs, operation by operation.

    module = import_linalg(parsed, "model.mlir")

Named operations become generic ones first, so that one reader serves all (structured.py). tensor
and arith around them become reshapes, slices, pads and constants. TOSA is lowered to linalg by
MLIR's own passes before. Shapes must be static; one function.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyc_mlir.artifact.import_report import ImportReport, UnsupportedModel
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import filled
from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.names import name_in
from pyc_mlir.frontends.hlo.call import made_by
from pyc_mlir.frontends.hlo.functions import check_depth, check_visited, entry_of, functions_of
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import MISSING, Argument, Importer, Lift, SourceNode
from pyc_mlir.frontends.importing.shaping import chain, expand_to, reshape_to
from pyc_mlir.frontends.linalg.bodies import constant, scalar
from pyc_mlir.frontends.linalg.structured import UNDEFINED, Structured, captured, lower
from pyc_mlir.frontends.stablehlo.op import tensor_type

_GENERALIZE = "builtin.module(func.func(linalg-generalize-named-ops))"
_FROM_TOSA = (
    "builtin.module(func.func(tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith,tosa-to-tensor))"
)
_DYNAMIC = -(2**63)


def import_linalg(module: ir.Module, source: str) -> ir.Module:
    """Raise the entry function of a verified module, which is changed on the way.

    Functions that it calls are written out. Raises UnsupportedModel for operations that PyC cannot
    express, all of them listed; PycError (INVALID_IR) for a module without an entry.
    """
    with module.context, ir.Location.unknown():
        for pipeline in (_FROM_TOSA, _GENERALIZE):
            try:
                passmanager.PassManager.parse(pipeline).run(module.operation)
            except ir.MLIRError as error:
                why = f"{source}: MLIR's lowering to linalg failed: {error}"
                raise PycError(ReasonCode.UNSUPPORTED_OP, why[:500]) from None
        return _LinalgImporter(module, source).run()


class _LinalgImporter:
    """State of one import."""

    def __init__(self, module: ir.Module, source: str) -> None:
        self.source = source
        self.functions = functions_of(module)
        self.importer = Importer(source)
        self.values: dict[Any, Any] = {}
        self.count = 0
        self.depth = 0

    def run(self) -> ir.Module:
        """Build the module; raise UnsupportedModel after all operations were tried."""
        name, function = entry_of(self.functions, self.source)
        block = function.regions[0].blocks[0]
        arguments = []
        for i, value in enumerate(block.arguments):
            type_ = tensor_type(value.type)
            if None in type_.shape:
                raise unsupported("an argument of dynamic shape: expected static ones")
            dims = tuple(d for d in type_.shape if d is not None)
            arguments.append(Argument(f"arg{i}", type_.dtype, dims))

        def body(values: Sequence[ir.Value]) -> list[tuple[str, ir.Value]]:
            self.values.update(zip(block.arguments, values, strict=True))
            results = self._block(block)
            if self.importer.findings:
                raise self._refused()
            if any(v is UNDEFINED for v in results):
                raise unsupported("a result that is undefined")
            return [(f"result{i}", self.importer.emitted(v)) for i, v in enumerate(results)]

        return self.importer.function(name, arguments, body)

    def _refused(self) -> UnsupportedModel:
        found, untried = tuple(self.importer.findings), len(self.importer.untried)
        return UnsupportedModel(ImportReport(self.count, "nodes", self.source, found, untried))

    def _block(self, block: Any) -> list[Any]:
        for view in block.operations:
            op = view.operation
            if op.name == "func.return":
                return [self.values[v] for v in op.operands]
            self.count += 1
            check_visited(self.count, self.source)
            outputs = self._operation(op)
            for i, result in enumerate(op.results):
                self.values[result] = outputs[i] if i < len(outputs) else MISSING
        raise PycError(ReasonCode.INVALID_IR, f"{self.source}: a block without a return")

    def _operation(self, op: ir.Operation) -> Sequence[Any]:
        site = SourceNode(name_in(str(op.location)) or op.name, op.name, self.count, op.location)
        try:
            if op.name == "arith.constant":
                return (_constant(op),)
            if op.name == "tensor.empty":
                return (UNDEFINED,)
            operands = [self.values[v] for v in op.operands]
            if op.name == "func.call":
                return self._call(op, operands)
            if op.name == "linalg.generic":
                return self._generic(site, op, operands)
            if op.name == "tensor.pad":
                return self._pad(site, op, operands)
            scalars = op.name.startswith(("arith.", "math."))
            handler = _whole if scalars else _HANDLERS.get(op.name)
            if handler is None:
                raise unsupported("no rule for this operation", ReasonCode.UNSUPPORTED_OP)
        except PycError as error:
            self.importer.record(site, error)
            return ()
        known = [None if o is UNDEFINED else o for o in operands]
        return self.importer.node(
            site, known, lambda b, lift: handler(b, op, _Operands(known, lift))
        )

    def _call(self, op: ir.Operation, operands: Sequence[Any]) -> Sequence[Any]:
        name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        check_depth(self.depth, name, self.source)
        if name not in self.functions:
            raise unsupported(f"a call of `{name}`: expected a function of one block")
        block = self.functions[name].regions[0].blocks[0]
        self.values.update(zip(block.arguments, operands, strict=True))
        self.depth += 1
        try:
            return self._block(block)
        finally:
            self.depth -= 1

    def _generic(
        self, site: SourceNode, op: ir.Operation, operands: Sequence[Any]
    ) -> Sequence[Any]:
        """Build a structured operation: undefined operands stay so, a filled start is known."""
        s = Structured.of(op)
        names = captured(s)
        if any(v not in self.values for v in names):
            raise unsupported("a body that reads values of another one")
        given = [*operands, *(self.values[v] for v in names)]
        known = [None if o is UNDEFINED else o for o in given]
        start = operands[s.inputs]

        def apply(b: Any, lift: Lift) -> Any:
            lifted = [UNDEFINED if o is None else lift(i) for i, o in enumerate(known)]
            outer = dict(zip(names, lifted[len(operands) :], strict=True))
            begins = start if isinstance(start, np.ndarray) else None
            return lower(b, s, lifted[: len(operands)], outer, begins)

        return self.importer.node(site, known, apply)

    def _pad(self, site: SourceNode, op: ir.Operation, operands: Sequence[Any]) -> Sequence[Any]:
        """tensor.pad by a constant, of its body or from outside."""
        end = list(op.regions[0].blocks[0].operations)[-1].operation
        made = made_by(end.operands[0])
        value = self.values.get(end.operands[0])
        if value is None and made is not None and made.name == "arith.constant":
            value = constant(made)
        if not isinstance(value, np.ndarray):
            raise unsupported("a pad by a value that is no constant")
        low, high = _static(op, "static_low"), _static(op, "static_high")

        def apply(b: Any, lift: Lift) -> Any:
            return filled(b, lift(0), low, high, value)

        return self.importer.node(site, operands, apply)


class _Operands:
    """The operands of an operation as values of a builder."""

    def __init__(self, given: Sequence[Any], lift: Lift) -> None:
        self._given = given
        self._lift = lift

    def __getitem__(self, index: int) -> Any:
        if self._given[index] is None:
            raise unsupported("undefined elements that are read")
        return self._lift(index)

    def __len__(self) -> int:
        return len(self._given)


def _constant(op: ir.Operation) -> np.ndarray:
    if isinstance(op.results[0].type, ir.RankedTensorType):
        return np.asarray(array_of(op.attributes["value"]))
    return constant(op)


def _shape(op: ir.Operation) -> tuple[int, ...]:
    shape = tensor_type(op.results[0].type).shape
    if None in shape:
        raise unsupported("a result of dynamic shape: expected a static one")
    return tuple(d for d in shape if d is not None)


def _static(op: ir.Operation, name: str) -> tuple[int, ...]:
    values = tuple(ir.DenseI64ArrayAttr(op.attributes[name]))
    if _DYNAMIC in values:
        raise unsupported(f"`{name}` computed when the program runs: expected constants")
    return values


def _fill(b: Any, op: ir.Operation, x: _Operands) -> Any:
    """fill and splat: the result's shape filled with operand 0."""
    return expand_to(b, reshape_to(b, x[0], ()), _shape(op))


def _reshape(b: Any, op: ir.Operation, x: _Operands) -> Any:
    """expand_shape, collapse_shape and cast."""
    return reshape_to(b, x[0], _shape(op))


def _extract(b: Any, op: ir.Operation, x: _Operands) -> Any:
    """extract_slice with constant offsets, sizes and strides."""
    starts, sizes, steps = (
        _static(op, n) for n in ("static_offsets", "static_sizes", "static_strides")
    )
    stops = tuple(
        o + (n - 1) * s + 1 if n else o for o, n, s in zip(starts, sizes, steps, strict=True)
    )
    out = b.slice(x[0], starts=starts, stops=stops, steps=steps)
    return reshape_to(b, out, _shape(op))


def _insert(b: Any, op: ir.Operation, x: _Operands) -> Any:
    """insert_slice with constant offsets and strides of 1."""
    starts, sizes, steps = (
        _static(op, n) for n in ("static_offsets", "static_sizes", "static_strides")
    )
    if set(steps) - {1}:
        raise unsupported("insert_slice with strides: expected 1")
    update = reshape_to(b, x[0], sizes)
    if tuple(sizes) == _shape(op):
        return update
    return b.update_slice(x[1], update, np.array(starts, np.int64))


def _extract_scalar(b: Any, op: ir.Operation, x: _Operands) -> Any:
    """tensor.extract from a tensor of rank 0."""
    if len(x) > 1:
        raise unsupported("an element at a computed place", ReasonCode.UNSUPPORTED_OP)
    return x[0]


def _concat(b: Any, op: ir.Operation, x: _Operands) -> Any:
    """tensor.concat."""
    axis = ir.IntegerAttr(op.attributes["dim"]).value
    return chain(b, [x[i] for i in range(len(x))], axis)


def _whole(b: Any, op: ir.Operation, x: _Operands) -> Any:
    """Build an operation of arith or math on whole tensors."""
    return scalar(b, op, [x[i] for i in range(len(x))])


_HANDLERS: dict[str, Callable[[Any, ir.Operation, _Operands], Any]] = {
    "linalg.fill": _fill,
    "tensor.splat": _fill,
    "tensor.expand_shape": _reshape,
    "tensor.collapse_shape": _reshape,
    "tensor.cast": _reshape,
    "tensor.extract_slice": _extract,
    "tensor.insert_slice": _insert,
    "tensor.extract": _extract_scalar,
    "tensor.concat": _concat,
}
