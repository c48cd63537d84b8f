"""Raise modules of linalg on tensors to pyc programs, operation by operation.

    module = import_linalg(parsed, "model.mlir")

Named operations become generic ones first, so that one reader serves all (structured.py). tensor
and arith around them become reshapes, slices, pads and constants. TOSA is lowered to linalg by
MLIR's own passes before. Shapes must be static; one function.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import filled
from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.hlo.call import made_by
from pyc_mlir.frontends.hlo.importer import ModuleImporter
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import Argument, Lift, SourceNode
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


class _LinalgImporter(ModuleImporter):
    """State of one import."""

    def argument(self, index: int, value: Any) -> Argument:
        """Name an argument after its place; a dynamic shape is refused."""
        type_ = tensor_type(value.type)
        return Argument(f"arg{index}", type_.dtype, _static_shape(type_, "an argument"))

    def function(
        self, name: str, arguments: Sequence[Argument], results: Callable[[Any], Any]
    ) -> ir.Module:
        """Make the module. Raises PycError (UNSUPPORTED_ATTRIBUTE) for an undefined result."""

        def defined(values: Any) -> Any:
            named = results(values)
            if not self.importer.findings and any(v is UNDEFINED for _, v in named):
                raise unsupported("a result that is undefined")
            return named

        return super().function(name, arguments, defined)

    def operation(
        self, site: SourceNode, operation: ir.Operation, operands: Sequence[Any],
        values: dict[Any, Any],
    ) -> Sequence[Any]:  # fmt: skip
        """Import an operation by its handler, or as a structured one."""
        op = operation
        try:
            if op.name == "arith.constant":
                return (_constant(op),)
            if op.name == "tensor.empty":
                return (UNDEFINED,)
            if op.name == "func.call":
                return self.call(op.attributes["callee"].value, operands)
            if op.name == "linalg.generic":
                return self._generic(site, op, operands, values)
            if op.name == "tensor.pad":
                return self._pad(site, op, operands, values)
            handler = _HANDLERS.get(op.name)
            if op.name.startswith(("arith.", "math.")):
                handler = _whole
            if handler is None:
                raise unsupported("no rule for this operation", ReasonCode.UNSUPPORTED_OP)
        except PycError as error:
            return self.refused(site, error)
        known = [None if o is UNDEFINED else o for o in operands]

        def apply(b: Any, lift: Lift) -> Any:
            def operand(index: int) -> Any:
                if known[index] is None:
                    raise unsupported("undefined elements that are read")
                return lift(index)

            return handler(b, op, operand)

        return self.importer.node(site, known, apply)

    def _generic(
        self, site: SourceNode, op: ir.Operation, operands: Sequence[Any], values: dict[Any, Any]
    ) -> Sequence[Any]:
        """Build a structured operation: undefined operands stay so, a filled start is known."""
        s = Structured.of(op)
        names = captured(s)
        if any(v not in values for v in names):
            raise unsupported("a body that reads values of another one")
        given = [*operands, *(values[v] for v in names)]
        known = [None if o is UNDEFINED else o for o in given]
        start = operands[s.inputs] if isinstance(operands[s.inputs], np.ndarray) else None

        def apply(b: Any, lift: Lift) -> Any:
            lifted = [UNDEFINED if o is None else lift(i) for i, o in enumerate(known)]
            outer = dict(zip(names, lifted[len(operands) :], strict=True))
            return lower(b, s, lifted[: len(operands)], outer, start)

        return self.importer.node(site, known, apply)

    def _pad(
        self, site: SourceNode, op: ir.Operation, operands: Sequence[Any], values: dict[Any, Any]
    ) -> Sequence[Any]:
        """tensor.pad by a constant, of its body or from outside."""
        end = list(op.regions[0].blocks[0].operations)[-1].operation
        made, value = made_by(end.operands[0]), values.get(end.operands[0])
        if value is None and made is not None and made.name == "arith.constant":
            value = constant(made)
        if not isinstance(value, np.ndarray):
            raise unsupported("a pad by a value that is no constant")
        low, high = _static(op, "static_low"), _static(op, "static_high")
        return self.importer.node(site, operands, lambda b, x: filled(b, x(0), low, high, value))


def _constant(op: ir.Operation) -> np.ndarray:
    if isinstance(op.results[0].type, ir.RankedTensorType):
        return np.asarray(array_of(op.attributes["value"]))
    return constant(op)


def _static_shape(type_: TensorType, what: str) -> tuple[int, ...]:
    if None in type_.shape:
        raise unsupported(f"{what} of dynamic shape: expected a static one")
    return tuple(d for d in type_.shape if d is not None)


def _shape(op: ir.Operation) -> tuple[int, ...]:
    return _static_shape(tensor_type(op.results[0].type), "a result")


def _static(op: ir.Operation, name: str) -> tuple[int, ...]:
    values = tuple(ir.DenseI64ArrayAttr(op.attributes[name]))
    if _DYNAMIC in values:
        raise unsupported(f"`{name}` computed when the program runs: expected constants")
    return values


def _sliced(op: ir.Operation) -> list[tuple[int, ...]]:
    """Return the offsets, sizes and strides of a slice."""
    return [_static(op, f"static_{name}") for name in ("offsets", "sizes", "strides")]


def _extract(b: Any, op: ir.Operation, x: Lift) -> Any:
    """extract_slice with constant offsets, sizes and strides."""
    starts, sizes, steps = _sliced(op)
    stops = tuple(
        o + (n - 1) * s + 1 if n else o for o, n, s in zip(starts, sizes, steps, strict=True)
    )
    return reshape_to(b, b.slice(x(0), starts=starts, stops=stops, steps=steps), _shape(op))


def _insert(b: Any, op: ir.Operation, x: Lift) -> Any:
    """insert_slice with constant offsets and strides of 1."""
    starts, sizes, steps = _sliced(op)
    if set(steps) - {1}:
        raise unsupported("insert_slice with strides: expected 1")
    update = reshape_to(b, x(0), sizes)
    if tuple(sizes) == _shape(op):
        return update
    return b.update_slice(x(1), update, np.array(starts, np.int64))


def _extract_scalar(b: Any, op: ir.Operation, x: Lift) -> Any:
    """tensor.extract from a tensor of rank 0."""
    if len(op.operands) > 1:
        raise unsupported("an element at a computed place", ReasonCode.UNSUPPORTED_OP)
    return x(0)


def _all(op: ir.Operation, x: Lift) -> list[Any]:
    return [x(i) for i in range(len(op.operands))]


def _whole(b: Any, op: ir.Operation, x: Lift) -> Any:
    """Build an operation of arith or math on whole tensors."""
    return scalar(b, op, _all(op, x))


_Handler = Callable[[Any, ir.Operation, Lift], Any]
_FILL: _Handler = lambda b, op, x: expand_to(b, reshape_to(b, x(0), ()), _shape(op))  # noqa: E731
_RESHAPE: _Handler = lambda b, op, x: reshape_to(b, x(0), _shape(op))  # noqa: E731
_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(("linalg.fill", "tensor.splat"), _FILL),
    **dict.fromkeys(("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"), _RESHAPE),
    "tensor.extract_slice": _extract,
    "tensor.insert_slice": _insert,
    "tensor.extract": _extract_scalar,
    "tensor.concat": lambda b, op, x: chain(b, _all(op, x), op.attributes["dim"].value),
}
