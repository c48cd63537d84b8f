"""Small tools that the pyc passes share: walking functions, replacing ops, reading operands."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.attributes import array_of, attributes_of
from pyc_mlir.dialects.ir.attributes import definition_of as definition_of
from pyc_mlir.dialects.ir.attributes import params_of as params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir, to_mlir
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.driver.base import Relation


@dataclass(frozen=True, eq=False)
class Exact:
    """A constant that a pass made, as what it is rounded from: floats times fractions.

    fractions: an array of `Fraction`s, which broadcasts to the floats.
    """

    floats: np.ndarray
    fractions: np.ndarray


Exacts = Mapping[ir.Value, Exact]
# What sees each replacement before it is made; None but while rewrites are verified.
replacements: ContextVar[Callable[[ir.Operation, ir.Value, Relation, str, Exacts], None] | None]
replacements = ContextVar("replacements", default=None)


def functions_of(module: ir.Module) -> list[ir.Operation]:
    """Return the functions of a module that have a body."""
    return [
        op.operation
        for op in module.body.operations
        if op.operation.name == "func.func" and len(op.operation.regions[0].blocks)
    ]


def all_ops(module: ir.Module) -> list[ir.Operation]:
    """Return all ops of a module, those within others too.

    Errors must not leave a walk: what is done with the ops is done after it.
    """
    ops: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        ops.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return ops


def pyc_ops(block: ir.Block) -> Iterator[ir.Operation]:
    """Yield the pyc ops of a block, group bodies first, as they stand when asked for."""
    for op in list(block.operations):
        operation = op.operation
        for region in operation.regions:
            for inner in region.blocks:
                yield from pyc_ops(inner)
        if operation.name.startswith("pyc."):
            yield operation


def defining_op(value: ir.Value) -> ir.Operation | None:
    """Return the op that makes a value; None for block arguments."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def made_by(value: ir.Value, *names: str) -> ir.Operation | None:
    """Return the op that makes a value, if it is a pyc op of one of these names."""
    op = defining_op(value)
    return op if op is not None and op.name in {f"pyc.{name}" for name in names} else None


def is_unused(op: ir.Operation) -> bool:
    """Return whether no other op reads a result of an op."""
    return not any(True for result in op.results for _ in result.uses)


def only_user(value: ir.Value) -> ir.Operation | None:
    """Return the op of one result in the same block that alone reads a value, once."""
    users = [use.owner.operation for use in value.uses]
    alone = len(users) == 1 and users[0].block == value.owner.operation.block
    return users[0] if alone and len(users[0].results) == 1 else None


def values_read(op: ir.Operation) -> list[ir.Value]:
    """Return the operands of `op`, then those of the ops inside its regions."""
    read = list(op.operands)
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                read += values_read(inner.operation)
    return read


def constant_array(value: ir.Value) -> np.ndarray | None:
    """Return the contents of a pyc.constant, None for other values."""
    op = made_by(value, "constant")
    return None if op is None else array_of(op.attributes["value"])


def splat_of(value: ir.Value) -> Any | None:
    """Return the one element that a pyc.constant repeats, None if there is no such element."""
    op = made_by(value, "constant")
    if op is None:
        return None
    attr = op.attributes["value"]
    if not isinstance(attr, ir.DenseElementsAttr) or not attr.is_splat:
        return None
    array = array_of(attr)
    return array.reshape(-1)[0] if array.size else None


def tensor_types(values: Iterable[ir.Value]) -> dict[ir.Type, TensorType]:
    """Return our view of those types of `values` that are tensors: programs have few types."""
    found = {}
    for type_ in {v.type for v in values}:
        with suppress(VerificationError):
            found[type_] = from_mlir(type_)
    return found


def as_type(value: ir.Value, declared: TensorType) -> ir.Value:
    """Return the value under a compatible type, with a tensor.cast if the types differ."""
    if from_mlir(value.type) == declared:
        return value
    return ir.Operation.create("tensor.cast", results=[to_mlir(declared)], operands=[value]).result


def carry_marks(op: ir.Operation, made: ir.Operation) -> None:
    """Give the `pyc.*` attributes of an op to the one that takes its place."""
    for name, attribute in attributes_of(op):
        if name.startswith("pyc."):
            made.attributes[name] = attribute


def replace(
    op: ir.Operation, value: ir.Value, keeps: Relation, by: str, exacts: Callable[[], Exacts] = dict
) -> None:
    """Give every use of the op's result to `value`, cast to the same type, and erase the op.

    keeps: the equality that the rewrite `by` keeps, which a verifier checks. exacts: the constants
    that the rewrite has rounded, for verifiers.
    """
    if (checks := replacements.get()) is not None:
        checks(op, value, keeps, by, exacts())
    with ir.InsertionPoint(op), op.location:
        settled = as_type(value, from_mlir(op.result.type))
    op.result.replace_all_uses_with(settled)
    op.erase()
