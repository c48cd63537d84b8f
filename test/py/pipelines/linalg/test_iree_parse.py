"""Every upstream op that the lowering emits is one that IREE's compiler reads.

IREE holds another version of MLIR than the bindings: an op may be missing there, or have another
syntax. A module for each op name, as text and as bytecode.
"""

from functools import cache
from io import BytesIO
from typing import Any

import pytest
from compiled import add_function
from conftest import sample
from iree.compiler import ir as iree_ir
from op_cases import Case, cases_of, dynamic_types

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.linalg.convert_to_linalg import ConvertToLinalg

# What the lowering is known to emit; a new op is added here by the one who emits it.
EMITTED = """
arith.addf arith.addi arith.andi arith.bitcast arith.ceildivsi arith.cmpf arith.cmpi
arith.constant arith.divf arith.divsi arith.divui arith.extf arith.extsi arith.extui
arith.floordivsi arith.fptosi arith.fptoui arith.index_cast arith.index_castui arith.maximumf
arith.maxsi arith.maxui arith.minimumf arith.minsi arith.minui arith.mulf arith.muli
arith.negf arith.ori arith.remf arith.remui arith.select arith.shli arith.shrsi
arith.shrui arith.sitofp arith.subf arith.subi arith.truncf arith.trunci arith.uitofp arith.xori
cf.assert func.func func.return linalg.batch_matmul linalg.conv_2d_nchw_fchw
linalg.conv_2d_nhwc_hwcf linalg.fill linalg.generic linalg.index linalg.matmul linalg.yield
math.absf math.absi math.ceil math.copysign math.erf math.exp math.floor math.log math.roundeven
math.rsqrt math.sqrt math.tanh scf.for scf.yield tensor.cast tensor.collapse_shape tensor.dim
tensor.empty tensor.expand_shape tensor.extract tensor.extract_slice tensor.from_elements
tensor.insert_slice tensor.pad tensor.yield
""".split()  # noqa: SIM905  (a list of words reads best as words)
# Of a cast every pair of types is another op.
CASES = {"cast": 80}
OTHERS = 12
DECLARED = """
func.func @main(%x: tensor<?xf32>) -> tensor<4xf32> {
  %0 = "pyc.neg"(%x) : (tensor<?xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"""


def add_case(module: ir.Module, name: str, case: Case, dynamic: bool) -> None:
    def body(b: IRBuilder, *operands: ir.Value) -> ir.Value:
        return b.build(OPS[case.op], *operands, **case.keywords)

    add_function(module, name, dynamic_types(case) if dynamic else case.types, body)


def module_of_op(op: str) -> ir.Module:
    """Cases of one op as functions, static and dynamic."""
    module = ir.Module.create()
    for i, case in enumerate(sample(cases_of(op), CASES.get(op, OTHERS))):
        for dynamic in (False, True) if case.dynamic else (False,):
            add_case(module, f"f{i}_{dynamic}", case, dynamic)
    return module


@cache
def modules() -> dict[str, tuple[str, bytes]]:
    """For each op name a module that holds it, as text and as bytecode."""
    found: dict[str, tuple[str, bytes]] = {}
    for op in (*OPS, None):
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(DECLARED) if op is None else module_of_op(op)
            ConvertToLinalg().run(module, PassContext())
            buffer = BytesIO()
            module.operation.write_bytecode(buffer)
            for name in names_in(module):
                found.setdefault(name, (str(module), buffer.getvalue()))
    return found


def names_in(module: ir.Module) -> set[str]:
    names: set[str] = set()

    def visit(op: Any) -> Any:
        names.add(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return names - {"builtin.module"}


@pytest.mark.parametrize("name", EMITTED)
def test_iree_reads(name):
    text, code = modules()[name]
    for source in (text, code):
        with iree_ir.Context():
            assert iree_ir.Module.parse(source).operation.verify()


def test_the_list_is_what_the_lowering_emits():
    assert sorted(modules()) == sorted(EMITTED)
