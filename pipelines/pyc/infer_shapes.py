"""Push what is known about input shapes through a program with dynamic dimensions.

Each op's result type is recomputed by the op's own rule and merged with what it declared;
function signatures follow. `shapes` refines the arguments first, e.g. ``2x784,?x10``.
"""

from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import attributes_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.irtypes import from_mlir, to_mlir
from pyc_mlir.dialects.ir.pyc import compatible, infer_op
from pyc_mlir.dialects.ops.shapes import merge
from pyc_mlir.dialects.types import Shape, TensorType
from pyc_mlir.pipelines.driver.base import PassContext, Relation, option
from pyc_mlir.pipelines.pyc.rewriting import all_ops, definition_of, functions_of


@dataclass(frozen=True)
class InferShapes:
    """Refine dynamic dimensions from the arguments and the ops' own rules."""

    name: ClassVar[str] = "pyc-infer-shapes"
    relation: ClassVar[Relation] = Relation.BITS
    shapes: str = option("", "shapes of main's arguments, e.g. 2x784,?x10 (scalar for rank 0)")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Refine every function. Raises PycError for shapes that contradict the program."""
        refined = 0
        attributes = (attribute for op in all_ops(module) for _, attribute in attributes_of(op))
        # Somebody else relies on the type of what is called.
        called = {a.value for a in attributes if isinstance(a, ir.FlatSymbolRefAttr)}
        entry = entry_function(module) if self.shapes else None
        for function in functions_of(module):
            blocks = function.regions[0].blocks
            name = ir.StringAttr(function.attributes["sym_name"]).value
            may_return = len(blocks) == 1 and name not in called
            if entry is not None and function == entry:
                refined += _refine_arguments(blocks[0], parse_shapes(self.shapes), may_return)
            for block in blocks:
                refined += _refine_block(block, may_return, changed=refined > 0)
            if may_return:
                returned = list(blocks[0].operations)[-1].operation.operands
                types = [a.type for a in blocks[0].arguments], [v.type for v in returned]
                type_ = ir.FunctionType.get(*types, function.context)
                function.attributes["function_type"] = ir.TypeAttr.get(type_)
        return {"refined": refined}


def parse_shapes(text: str) -> list[Shape]:
    """``"2x?,scalar"`` as [(2, None), ()]. Raises PycError."""
    shapes: list[Shape] = []
    for part in map(str.strip, text.split(",")):
        words = [] if part == "scalar" else part.split("x")
        if not all(w == "?" or w.isdigit() for w in words):
            raise _refused(f"expected sizes or ? joined by x, got {part!r}")
        shapes.append(tuple(None if w == "?" else int(w) for w in words))
    return shapes


def _refused(text: str) -> PycError:
    return PycError(ReasonCode.INVALID_PIPELINE, f"pyc-infer-shapes: `shapes`: {text}")


def _fixed_by(value: ir.Value, may_return: bool) -> str:
    """Return the name of an op that needs `value` to keep its exact type; '' when there is none.

    Only pyc ops are known to take any refinement of an operand.
    """
    for use in value.uses:
        user = use.owner.operation
        if user.name == "pyc.yield":
            fixed = _fixed_by(user.parent.results[0], may_return)
        elif user.name == "func.return":
            fixed = "" if may_return else user.name
        else:
            fixed = "" if user.name.startswith("pyc.") else user.name
        if fixed:
            return fixed
    return ""


def _refine_arguments(block: ir.Block, shapes: list[Shape], may_return: bool) -> int:
    arguments = block.arguments
    if len(shapes) != len(arguments):
        raise _refused(f"expected {len(arguments)} shapes, got {len(shapes)}")
    for i, value in enumerate(arguments):
        if fixed := _fixed_by(value, may_return):
            raise _refused(
                f"argument {i} is used by `{fixed}`, which needs it as {value.type}; refine that "
                "op by hand"
            )
    return sum(_refine(arguments[i], shape, f"argument {i}") for i, shape in enumerate(shapes))


def _refine(value: ir.Value, shape: Shape, where: str) -> bool:
    """Merge `shape` into the value's type; True if that said something new."""
    declared = from_mlir(value.type, where)
    wanted = TensorType(shape, declared.dtype)
    if not compatible(declared, wanted):
        raise PycError(
            ReasonCode.INVALID_IR, f"{where}: expected a shape within {declared}, got {wanted}"
        )
    merged = TensorType(
        tuple(merge(a, b) for a, b in zip(declared.shape, shape, strict=True)), declared.dtype
    )
    if merged == declared:
        return False
    value.set_type(to_mlir(merged))
    return True


def _refine_block(block: ir.Block, may_return: bool, changed: bool) -> int:
    """Refine the results of a block's ops; `changed` tells that types before it were refined."""
    refined = 0
    for op in block.operations:
        operation = op.operation
        definition = definition_of(operation)
        changed = changed or refined > 0
        if definition is not None and not changed and operation.result.type.has_static_shape:
            # The verifier compared it with the op's rule, and nothing is new since.
            continue
        if operation.name == "pyc.group":
            inner = operation.regions[0].blocks[0]
            refined += _refine_block(inner, may_return, changed)
            (yielded,) = list(inner.operations)[-1].operation.operands
            shape = from_mlir(yielded.type).shape
        elif definition is not None:
            shape = infer_op(definition, operation).shape
        else:
            continue
        if not _fixed_by(operation.result, may_return):
            refined += _refine(operation.result, shape, f"{operation.location}: {operation.name}")
    return refined
