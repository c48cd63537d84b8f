"""pyc to linalg: every pyc op becomes structured ops on tensors, and none remains.

Composite ops are decomposed on the way. The elementwise ops of a group, and those inside a
composite op, become one op; a group's anchor stays an op of its own. Each emitted op carries the
location ``pyc:<canonical id>`` around the source location. Sizes that must agree at run time and
are not known to become `cf.assert`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.irtypes import from_mlir, stored_as, to_mlir
from pyc_mlir.dialects.names import place_of
from pyc_mlir.dialects.opdef import OPS, OpDef
from pyc_mlir.dialects.types import TensorType, storage
from pyc_mlir.pipelines.driver.base import PassContext, option
from pyc_mlir.pipelines.kernels.lang.attributes import ATTRIBUTE
from pyc_mlir.pipelines.linalg import (  # noqa: F401  (register the rules)
    movement,
    ordering,
    products,
    reduction,
    resize,
)
from pyc_mlir.pipelines.linalg.elementwise import emit
from pyc_mlir.pipelines.linalg.kernel_call import KernelCalls
from pyc_mlir.pipelines.linalg.lowering import (
    RULES,
    LoweredDim,
    LoweredTensor,
    Lowering,
    constant_tensor,
)
from pyc_mlir.pipelines.pyc.groups import AttachedKernel, Members
from pyc_mlir.pipelines.pyc.rewriting import functions_of, params_of


class LinalgBuilder(Builder):
    """Emits linalg for each pyc op that is built."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering

    def emit(
        self, op: type[OpDef], operands: Sequence[LoweredTensor], params: dict[str, Any]
    ) -> LoweredTensor:
        """Lower the op at once."""
        return lower(self.lowering, op.name, operands, params)

    def constant(self, value: np.ndarray) -> LoweredTensor:
        """Return a constant tensor."""
        return self.lowering.constant(np.asarray(value))

    def scalar(self, value: float, like: LoweredTensor) -> LoweredTensor:
        """Return a rank-0 constant of the element type of `like`; equal ones are one."""
        return self.lowering.rank_0(value, like.dtype)

    def type_of(self, value: LoweredTensor) -> TensorType:
        """Return the type of a lowered tensor."""
        return value.type


def lower(
    b: Lowering, name: str, operands: Sequence[LoweredTensor], params: dict[str, Any]
) -> LoweredTensor:
    """Emit the op at the current insertion point. Raises PycError if nothing lowers it."""
    definition = OPS[name]
    if definition.decompose is not None:
        out = definition.decompose(LinalgBuilder(b), *operands, **params)
        if out is not None:
            return out
    rule = RULES.get(name)
    if rule is None:
        raise PycError(ReasonCode.UNSUPPORTED_OP, f"pyc.{name} has no lowering to linalg")
    return rule(b, *operands, **params)


# The statistic of how many bytes constants take more in the forms that kernels read.
LARGER = "bytes of larger constants"


@dataclass(frozen=True)
class ConvertToLinalg:
    """Lower every pyc op to linalg, tensor, arith and math."""

    name: ClassVar[str] = "convert-pyc-to-linalg"
    f64_math: bool = option(True, "compute powers of smaller floats in f64, where the target can")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Convert each function. Raises PycError when a pyc op would remain."""
        counts = {"converted": 0, "run-time checks": 0, LARGER: 0}
        calls = KernelCalls(module)
        f64_math = self.f64_math and "f64" not in context.target.lacks()
        for function in functions_of(module):
            conversion = _Conversion(function, calls)
            conversion.lowering.f64_math = f64_math
            conversion.run()
            calls.return_counts(function, context.kernels.counts)
            counts["converted"] += conversion.converted
            counts["run-time checks"] += conversion.lowering.checks
        require_no_pyc(module)
        counts[LARGER] = calls.larger_bytes(context.target.alignment)
        return counts


def require_no_pyc(module: ir.Module) -> None:
    """Raise PycError if an op of the pyc dialect is left. Bodies of linalg ops hold none."""
    left: list[ir.Operation] = []

    def visit(op: ir.Operation) -> Any:
        name = op.name
        if name.startswith("pyc."):
            left.append(op)
        return ir.WalkResult.SKIP if name.startswith("linalg.") else ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    if left:
        raise PycError(
            ReasonCode.UNSUPPORTED_OP,
            f"{left[0].location}: {left[0].name} has no lowering to linalg here; "
            "pyc ops are lowered inside func.func only",
        )


class _Conversion:
    """One function: tensors by the pyc values that they stand for."""

    def __init__(self, function: ir.Operation, calls: KernelCalls) -> None:
        self.function = function
        self.calls = calls
        self.block = function.regions[0].blocks[0]
        self.ids = OpIds(function)
        self.lowering = Lowering(self.block, emit)
        self.tensors: dict[ir.Value, LoweredTensor] = {}
        self.dead: list[ir.Operation] = []
        self.converted = 0

    def run(self) -> None:
        """Emit, then drop the pyc ops, last first."""
        with ir.InsertionPoint.at_block_begin(self.block), self.function.location:
            self._arguments()
            # Unsigned arguments and results have the types that they are stored as.
            type_ = ir.FunctionType(ir.TypeAttr(self.function.attributes["function_type"]).value)
            for value in self.block.arguments:
                value.set_type(stored_as(value.type))
            stored = [[stored_as(t) for t in types] for types in (type_.inputs, type_.results)]
            made = ir.TypeAttr.get(ir.FunctionType.get(*stored))
            self.function.attributes["function_type"] = made
        for op in list(self.block.operations):
            with ir.InsertionPoint(op):
                self._visit(op.operation)
        for op in reversed(self.dead):
            op.erase()

    def _arguments(self) -> None:
        """Enter the arguments with their sizes; dimensions that share a name must agree."""
        named: dict[str, LoweredDim] = {}
        attributes = self.function.attributes
        told = ir.ArrayAttr(attributes["arg_attrs"]) if "arg_attrs" in attributes else None
        for number, value in enumerate(self.block.arguments):
            if not isinstance(value.type, ir.RankedTensorType):
                continue
            own = {} if told is None else ir.DictAttr(told[number])
            names = ir.ArrayAttr(own["pyc.dims"]) if "pyc.dims" in own else ()
            where = f"{self.block.owner.location}: argument {value.arg_number}"
            tensor = self.lowering.argument(value, from_mlir(value.type, where))
            dims = list(tensor.dims)
            for i, name in enumerate(ir.StringAttr(name).value for name in names):
                if name and dims[i].static is None:
                    first = named.setdefault(name, dims[i])
                    self.lowering.require_equal(first, dims[i], f"dimension `{name}`")
                    dims[i] = first
            self.tensors[value] = LoweredTensor(tensor.dtype, tuple(dims), value)

    def _visit(self, op: ir.Operation) -> None:
        """Convert one op of the function's own block; what is emitted stands before it."""
        if op.name == "pyc.group":
            self._dissolve(op)
        elif op.name.startswith("pyc."):
            with self._location(op):
                out = self.tensors[op.result] if self._by_kernel(op) else self._converted(op)
                self._force(out)
            self._finish(op, out)
        elif op.name == "tensor.cast" and op.operands[0] in self.tensors:
            with op.location:
                self._finish(op, self._recast(op))
        else:
            self._rewire(op)

    def _dissolve(self, group: ir.Operation) -> None:
        """Emit what is pending at the end of a group as one op, at the group's own id."""
        *members, end = [op.operation for op in group.regions[0].blocks[0].operations]
        for op in members[self._by_kernel(group) :]:
            with self._location(op):
                out = self._recast(op) if op.name == "tensor.cast" else self._converted(op)
            self.tensors[op.result] = out
        result = self._tensor(end.operands[0])
        with self._location(group):
            self._force(result)
        self._finish(group, result)

    def _by_kernel(self, op: ir.Operation) -> int:
        """Call the kernel that is attached to a group or a lone op; how many ops it computes."""
        attached = AttachedKernel.read(op)
        if attached is None:
            return 0
        members = Members.of(op)
        if members is None or not 0 < attached.covers <= len(members.ops):
            came = "other ops" if members is None else f"{len(members.ops)} ops"
            raise PycError(
                ReasonCode.INVALID_IR,
                f"{op.location}: {ATTRIBUTE}: expected pyc ops of which it covers 1 or more, got "
                f"{came}, {attached.covers} covered",
            )
        last = members.ops[attached.covers - 1].result
        values = [self._tensor(v) for v in members.inputs]
        try:
            with self._location(op):
                out = self.calls.emit(self.lowering, attached, values, from_mlir(last.type))
        except PycError as error:
            raise PycError(error.code, f"{op.location}: {error.message}") from None
        self.tensors[last] = out
        self.converted += attached.covers
        return attached.covers

    def _recast(self, op: ir.Operation) -> LoweredTensor:
        """Return the operand with the sizes that a tensor.cast declares."""
        declared = from_mlir(op.result.type)
        return self.lowering.reconcile(self._tensor(op.operands[0]), declared, op.name)

    def _force(self, out: LoweredTensor) -> None:
        """Emit a computation where its op stands; constants and reshapes come where needed."""
        if out.pending is not None or out.joined is not None:
            self.lowering.value(out)

    def _location(self, op: ir.Operation) -> ir.Location:
        return ir.Location.name(place_of(self.ids[op]), op.location)

    def _rewire(self, op: ir.Operation) -> None:
        """Give an op of another dialect the converted values."""
        for i, operand in enumerate(op.operands):
            tensor = self.tensors.get(operand)
            if tensor is None or (tensor.value is not None and tensor.value == operand):
                continue
            declared = from_mlir(operand.type)
            with op.location:
                settled = self.lowering.reconcile(tensor, declared, op.name)
                value = self.lowering.value(settled)
                # A cast may forget a size.
                if settled.type != declared:
                    type_ = to_mlir(declared.with_dtype(storage(declared.dtype)))
                    value = ir.Operation.create("tensor.cast", [type_], [value]).result
                op.operands[i] = value

    def _converted(self, op: ir.Operation) -> LoweredTensor:
        """Return the tensor that a pyc op computes, under the type that it declares."""
        name = op.name.removeprefix("pyc.")
        if name not in OPS:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"{op.location}: expected ops of the pyc dialect inside a group, got {op.name}",
            )
        params = params_of(OPS[name], op)
        self.converted += 1
        if name == "constant":
            return constant_tensor(op.attributes["value"], params["value"])
        operands = [self._tensor(v) for v in op.operands]
        out = lower(self.lowering, name, operands, params)
        declared = op.result.type
        if self.lowering.tensor_type(out.dims, out.dtype) == declared:
            return out
        return self.lowering.reconcile(out, from_mlir(declared), f"pyc.{name}")

    def _tensor(self, value: ir.Value) -> LoweredTensor:
        """Return the tensor of a value, also of one that another dialect's op has made."""
        if value not in self.tensors:
            maker = value.owner.operation
            with ir.InsertionPoint.after(maker), maker.location:
                where = f"{maker.location}: {maker.name}"
                made = self.lowering.argument(value, from_mlir(value.type, where))
            self.tensors[value] = made
        return self.tensors[value]

    def _finish(self, op: ir.Operation, out: LoweredTensor) -> None:
        self.tensors[op.result] = out
        self.dead.append(op)
