"""Small pyc modules for tests of the dialect: one function around one op, or a body of choice."""

from collections.abc import Callable, Sequence
from typing import Any

from op_cases import Case, dynamic_types

from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.irtypes import to_mlir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType

Body = Callable[..., ir.Value]


def module_of(body: Body, types: Sequence[TensorType], context: ir.Context) -> ir.Module:
    """``func @main(types) { return body(builder, arguments...) }``."""
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", ([to_mlir(t) for t in types], []))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            out = body(IRBuilder(), *block.arguments)
            func.ReturnOp([out])
        inputs = [a.type for a in block.arguments]
        signature = ir.FunctionType.get(inputs, [out.type])
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
    return module


def case_module(case: Case, context: ir.Context, dynamic: bool = False) -> ir.Module:
    """The module of one case of op_cases."""

    def body(b: IRBuilder, *operands: ir.Value) -> ir.Value:
        return b.build(OPS[case.op], *operands, **case.keywords)

    return module_of(body, dynamic_types(case) if dynamic else case.types, context)


def ops_of(module: ir.Module) -> list[Any]:
    """The ops of the module's function, the return last. Keep the module alive beside them."""
    block = entry_function(module).regions[0].blocks[0]
    return [op.operation for op in block.operations]


def names_of(module: ir.Module) -> list[str]:
    """The ops of the function, without the dialect's name and the return."""
    return [op.name.removeprefix("pyc.") for op in ops_of(module)][:-1]


def computing(module: ir.Module) -> list[str]:
    """The same without constants."""
    return [name for name in names_of(module) if name != "constant"]
