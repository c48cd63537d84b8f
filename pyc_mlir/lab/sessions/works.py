"""A kernel group's work as a program of its own.

    work_module(work, constants) -> MLIR text

The inputs that are no constants are the function's arguments, in their order; constants stay
constants. What it computes is what the group computes, so that it may be timed by itself.
"""

from collections.abc import Sequence

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import encode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import create
from pyc_mlir.dialects.ir.irtypes import to_mlir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.pipelines.target.work import Work

# The passes of such a program: it is fused already, and must stay what it is.
PASSES = "pyc-infer-shapes"
_ELEMENTWISE = "elementwise"


def work_module(work: Work, constants: Sequence[np.ndarray]) -> str:
    """Return the text of the module. constants: contents of the constant inputs, in their order.

    Raises PycError (BAD_ARGUMENT) for a work of which nothing is an argument.
    """
    arguments = [i.type for i in work.inputs if i.array is None]
    if not arguments:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            "work: expected an input that is no constant, got a work that a compile computes",
        )
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        ins, out = [to_mlir(t) for t in arguments], to_mlir(work.nodes[-1].type)
        kind = ir.FunctionType.get(ins, [out])
        with ir.InsertionPoint(module.body):
            function = ir.Operation.create(
                "func.func",
                regions=1,
                attributes={
                    "sym_name": ir.StringAttr.get("main"),
                    "function_type": ir.TypeAttr.get(kind),
                },
            )
        block = function.regions[0].blocks.append(*ins, arg_locs=[ir.Location.unknown()] * len(ins))
        with ir.InsertionPoint(block):
            given, known = iter(block.arguments), iter(constants)
            values = [
                next(given) if i.array is None else _constant(next(known)) for i in work.inputs
            ]
            ir.Operation.create("func.return", operands=[_body(work, values)])
        is_valid = module.operation.verify()
        assert is_valid
        return str(module)


def _constant(array: np.ndarray) -> ir.Value:
    definition = OPS["constant"]
    value = encode(array, np.ndarray)
    made = ir.Operation.create(
        f"pyc.{definition.name}", results=[value.type], attributes={"value": value}
    )
    return made.result


def _body(work: Work, inputs: Sequence[ir.Value]) -> ir.Value:
    """Build the op, several of them in a group, at the insertion point; return the value that they
    make.
    """
    if len(work.nodes) == 1:
        return _ops(work, inputs)
    names = [node.name for node in work.nodes]
    kind = next((anchor for n in names if (anchor := OPS[n].anchor)), _ELEMENTWISE)
    group = ir.Operation.create(
        "pyc.group",
        results=[to_mlir(work.nodes[-1].type)],
        attributes={
            "kind": ir.StringAttr.get(kind),
            "pyc.fused": ir.ArrayAttr.get([ir.StringAttr.get(n) for n in names]),
        },
        regions=1,
    )
    with ir.InsertionPoint(group.regions[0].blocks.append()):
        ir.Operation.create("pyc.yield", operands=[_ops(work, inputs)])
    return group.result


def _ops(work: Work, inputs: Sequence[ir.Value]) -> ir.Value:
    values = list(inputs)
    for node in work.nodes:
        params = OPS[node.name].bind(node.params)
        operands = [values[o] for o in node.operands]
        values.append(create(OPS[node.name], operands, params, node.type))
    return values[-1]
