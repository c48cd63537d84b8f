"""The pyc dialect as MLIR sees it, generated from the op definitions.

`load(context)` registers the dialect; each op gets operands, required attributes, one result,
`Pure`, and a verifier that runs the definition's own `infer` rule on the operand types and
compares. The package that holds this module is announced to the bindings, which is what makes
``"pyc.relu"`` resolve to a Python class.
"""

import threading
import weakref
from collections.abc import Hashable
from types import new_class
from typing import Any, Optional

from pyc_mlir.dialects import ops  # noqa: F401  (defines every op)
from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.attributes import attributes_of, params_of
from pyc_mlir.dialects.ir.bindings import ext, ir, register_dialect_package
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import OPS, OpDef
from pyc_mlir.dialects.types import TensorType

register_dialect_package("pyc_mlir.dialects.ir")
_lock = threading.Lock()


class Pyc(ext.Dialect, name="pyc"):
    """Tensor-level operations with numpy's meaning."""


def compatible(declared: TensorType, inferred: TensorType) -> bool:
    """Return True when no static dimension of one contradicts the other."""
    return (
        declared.dtype == inferred.dtype
        and declared.rank == inferred.rank
        and all(
            a is None or b is None or a == b
            for a, b in zip(declared.shape, inferred.shape, strict=True)
        )
    )


def infer_op(definition: type[OpDef], op: ir.Operation) -> TensorType:
    """Return the result type that the definition gives to `op`. Raises VerificationError."""
    definition.check_arity(len(op.operands))
    types = [from_mlir(v.type, f"operand {i}") for i, v in enumerate(op.operands)]
    return definition.infer(*types, **params_of(definition, op))


# Verdicts of ops that verified. Types and attributes are unique in their context for as long as it
# lives, and hash by address: the numbers name them exactly and keep nothing alive.
_accepted: weakref.WeakKeyDictionary[ir.Context, set[tuple[Hashable, ...]]]
_accepted = weakref.WeakKeyDictionary()


def _form(definition: type[OpDef], op: ir.Operation) -> tuple[Hashable, ...]:
    operands = [hash(v.type) for v in op.operands]
    attributes = [(name, hash(attr)) for name, attr in attributes_of(op)]
    results = [hash(r.type) for r in op.results]
    return definition.name, *operands, None, *attributes, *results


def _verify(definition: type[OpDef], op: ir.Operation) -> bool:
    """Report the first violated rule at the op's own location."""
    known = _accepted.setdefault(op.context, set())
    try:
        form = _form(definition, op)
    except VerificationError as error:
        op.location.emit_error(error.message.removeprefix(f"{op.location}: "))
        return False
    if form not in known and _check(definition, op):
        known.add(form)
    return form in known


def _check(definition: type[OpDef], op: ir.Operation) -> bool:
    try:
        if len(op.results) != 1:
            raise VerificationError(f"expected 1 result, got {len(op.results)}")
        inferred = infer_op(definition, op)
        declared = from_mlir(op.results[0].type, "result")
        if not compatible(declared, inferred):
            raise VerificationError(f"expected a result of type {inferred}, got {declared}")
    except VerificationError as error:
        text = error.message
        prefix = f"pyc.{definition.name}: "
        op.location.emit_error(text if text.startswith(prefix) else prefix + text)
        return False
    except Exception as error:  # noqa: BLE001  (a verifier must answer; the reason is reported)
        op.location.emit_error(f"pyc.{definition.name}: internal error in the verifier: {error!r}")
        return False
    return True


def _define(definition: type[OpDef]) -> type:
    tensor_type = ir.RankedTensorType
    annotations: dict[str, Any] = {n: ext.Operand[tensor_type] for n in definition.operands}
    if definition.optional:
        annotations[definition.optional] = Optional[ext.Operand[tensor_type]]  # noqa: UP045
    annotations |= {p.name: Any for p in definition.params if p.is_required}
    annotations["out"] = ext.Result[tensor_type]
    body = {
        "__annotations__": annotations,
        "__doc__": definition.__doc__,
        "__module__": __name__,
        "verify_invariants": staticmethod(lambda op: _verify(definition, op.operation)),
    }
    name = definition.name.title().replace("_", "") + "Op"
    bases = (Pyc.Operation,)
    options = {"name": definition.name, "traits": [ext.Pure]}
    return new_class(name, bases, options, lambda namespace: namespace.update(body))


OP_CLASSES: dict[str, type] = {name: _define(definition) for name, definition in OPS.items()}


def _group_problem(op: ir.Operation) -> str:
    if len(op.regions) != 1 or len(op.regions[0].blocks) != 1:
        return "expected one region with one block"
    block = op.regions[0].blocks[0]
    if len(block.arguments) != 0 or len(op.operands) != 0:
        return "expected no operands and no block arguments (values are captured)"
    if len(op.results) != 1:
        return f"expected 1 result, got {len(op.results)}"
    count = len(block.operations)
    last = block.operations[count - 1].operation if count else None
    if last is None or last.name != "pyc.yield":
        return "expected the region to end in pyc.yield"
    if [v.type for v in last.operands] != [op.results[0].type]:
        yielded = ", ".join(str(v.type) for v in last.operands)
        return f"expected pyc.yield of {op.results[0].type}, got ({yielded})"
    return ""


class GroupOp(Pyc.Operation, name="group", traits=[ext.Pure]):
    """A fusion region: ops that are meant to become one kernel. Values are captured implicitly."""

    kind: Any
    out: ext.Result[ir.RankedTensorType]
    body: ext.Region

    @staticmethod
    def verify_invariants(op: Any) -> bool:
        """Check the shape of the region."""
        problem = _group_problem(op.operation)
        if problem:
            op.location.emit_error(f"pyc.group: {problem}")
        return not problem


class YieldOp(Pyc.Operation, name="yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """Ends a group with its result."""

    value: ext.Operand[ir.RankedTensorType]


def load(context: ir.Context) -> None:
    """Register the dialect in `context`; a second call does nothing. Safe from many threads."""
    with _lock, context, ir.Location.unknown():
        if not context.is_dialect_loaded("pyc"):
            Pyc.load()


def new_context() -> ir.Context:
    """Return a context with the pyc dialect and every upstream dialect, one thread of its own."""
    context = ir.Context()
    context.enable_multithreading(False)
    load(context)
    return context
