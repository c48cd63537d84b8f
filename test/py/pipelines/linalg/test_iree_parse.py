"""Every upstream op that the lowering emits is one that IREE's compiler reads.

IREE holds another version of MLIR than the bindings: an op may be missing there, or have another
syntax. A module for each op name, as text and as bytecode.
"""

from collections.abc import Iterator
from functools import cache
from io import BytesIO
from itertools import product
from typing import Any

import numpy as np
import pytest
from compiled import add_function
from conftest import sample
from iree.compiler import ir as iree_ir
from ml_dtypes import bfloat16
from op_cases import Case, cases_of, dynamic_types
from op_modules import case_module, module_of

import pyc_mlir
from pyc_mlir.compilation.lower import TO_LINALG
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import DTYPES, FLOATS, tensor
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
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
math.absf math.absi math.ceil math.copysign math.ctlz math.erf math.exp math.floor math.log
math.roundeven math.rsqrt math.sqrt math.tanh scf.for scf.yield tensor.cast tensor.collapse_shape
tensor.dim tensor.empty tensor.expand_shape tensor.extract tensor.extract_slice
tensor.from_elements tensor.insert_slice tensor.pad tensor.yield
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


# What pyc.resize becomes: repetitions are broadcasts, the rest gathers along an axis.


IMAGE = tensor("f32", 1, 3, 4, 5)
DYNAMIC = tensor("f32", None, 3, None, None)
TWICE = {"sizes": (-1, -1), "scales": (2.0, 2.0)}


def converted(x, **params) -> str:
    with new_context() as context, ir.Location.unknown():
        module = module_of(lambda b, v: b.resize(v, **params), [x], context)
        ConvertToLinalg().run(module, PassContext())
        return str(module)


@pytest.mark.parametrize("x", [IMAGE, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize("how", ["half_pixel", "asymmetric"])
def test_nearest_by_an_integer_is_a_broadcast(x, how) -> None:
    rounding = "floor" if how == "asymmetric" else "round_prefer_floor"
    text = converted(x, coordinates=how, rounding=rounding, **TWICE)
    assert text.count("linalg.generic") == 1 and "tensor.extract" not in text


def test_an_axis_that_stays_is_not_read_again() -> None:
    text = converted(IMAGE, sizes=(4, 9), mode="linear")
    assert text.count("linalg.generic") == 1 and text.count("tensor.extract ") == 2
    assert "linalg.generic" not in converted(IMAGE, sizes=(4, 5), mode="linear")


@pytest.mark.parametrize(
    ("sizes", "between"), [((8, 10), "4x10"), ((2, 10), "2x5"), ((8, 3), "4x3")]
)
def test_the_axis_that_makes_less_comes_first(sizes: tuple[int, int], between: str) -> None:
    text = converted(IMAGE, sizes=sizes, mode="linear")
    first, second = (line for line in text.splitlines() if "-> tensor<1x3x" in line and "}" in line)
    assert f"1x3x{between}xf32" in first
    assert f"1x3x{sizes[0]}x{sizes[1]}xf32" in second


def test_f16_is_rounded_once() -> None:
    text = converted(tensor("f16", 1, 3, 4, 5), sizes=(8, 10), mode="linear")
    assert "tensor<1x3x4x10xf32>" in text and "tensor<1x3x4x10xf16>" not in text
    assert text.count("arith.truncf") == 1


# Every place that data decides is clamped before memory is read or written there.


READERS = ("gather", "scatter", "update_slice")
CLAMPS = ("arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui")


def ops_within(op: ir.Operation) -> Iterator[ir.Operation]:
    yield op
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from ops_within(inner.operation)


def places(op: ir.Operation) -> list[ir.Value]:
    """The indices or offsets at which an op reads or writes."""
    if op.name == "tensor.extract":
        return list(op.operands)[1:]
    if op.name in ("tensor.extract_slice", "tensor.insert_slice"):
        counts = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        first = sum(counts[:-3])
        return list(op.operands)[first : first + counts[-3]]
    return []


def is_loose(value: ir.Value) -> bool:
    """Return if an element of an argument, or one that a loop gets, is a place without a clamp."""
    if isinstance(value.owner, ir.Block):
        return value.owner.owner.name == "linalg.generic"
    op = value.owner.operation if hasattr(value.owner, "operation") else value.owner
    if op.name in CLAMPS or op.name == "tensor.dim":
        return False
    if op.name == "tensor.extract":
        # What the loop of a sort carries is a permutation.
        source = op.operands[0].owner
        return isinstance(source, ir.Block) and source.owner.name != "scf.for"
    return any(map(is_loose, list(op.operands)[op.name == "arith.select" :]))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("op", READERS)
def test_a_place_that_data_decides_is_clamped(op: str, dynamic: bool) -> None:
    decided = 0
    # Many updates are sorted first: a permutation holds no place out of range.
    few = [c for c in cases_of(op) if op != "scatter" or c.operands[1].shape[0] < 16]
    for case in sample(few, 6, seed=5):
        with new_context() as context, ir.Location.unknown():
            module = case_module(case, context, dynamic and case.dynamic)
            run_pipeline(module, TO_LINALG, PassContext())
            for inner in ops_within(module.operation):
                found = places(inner)
                decided += len(found)
                assert not any(map(is_loose, found)), f"{case}: {inner}"
    assert decided


# Rounding happens where the program says so, also where the next op widens again.


BITS = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32)
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 3.4e38, -3.4e38, 1e-45, 1.00390625, 1.01171875],
    np.float32,
)
NARROW = ("f32", "f16", "bf16")
# Between two numbers of f32, f16 and bf16, and as near to that as f64 has it.
MIDDLES = np.array(
    [1 + u * side + more for u in (2.0**-24, 2.0**-11, 2.0**-8) for side in (1, 3)
     for more in (0, 2.0**-50, -(2.0**-50), 2.0**-30)]
)  # fmt: skip
# Subnormal numbers of f32 may be zero.
TINY = float(np.finfo(np.float32).tiny)


def there_and_back(x: Any) -> list[Any]:
    """x by way of each other type, of each pair of them, and of each one twice."""
    own = x.dtype
    others = [dtype for dtype in FLOATS if dtype != own]
    ways = [(a,) for a in others] + [(a, b) for a, b in product(others, others) if a != b]
    ways += [(a, own, a) for a in others]
    made = []
    for way in ways:
        y = x
        for dtype in (*way, own):
            y = y.astype(dtype)
        made.append(y)
    return made


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("target", ["cpu", pytest.param("cpu-avx2", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "dtype",
    [DTYPES["f64"], *(pytest.param(DTYPES[k], marks=pytest.mark.full) for k in NARROW)],
    ids=str,
)
def test_casts_there_and_back_round(dtype, target):
    drawn = np.random.default_rng(2).standard_normal(512) * 2.0 ** np.arange(-26, 38).repeat(8)
    x = np.concatenate([SPECIAL, MIDDLES, drawn, BITS.view(np.float32)]).astype(dtype)
    found = pyc_mlir.compile(there_and_back, [x], target=target)(x)
    for got, want in zip(found, there_and_back(x), strict=True):
        # Wider, since numpy takes no NaN of bf16 for one.
        got, want = (np.asarray(a).astype(np.float64) for a in (got, want))
        flushed = (np.abs(want) < TINY) & (np.abs(got) <= TINY)
        np.testing.assert_array_equal(np.where(flushed, 0, got), np.where(flushed, 0, want))


def test_each_op_of_a_chain_rounds():
    text = """func.func @main(%x: tensor<512xbf16>) -> tensor<512xbf16> {
      %0 = "pyc.add"(%x, %x) : (tensor<512xbf16>, tensor<512xbf16>) -> tensor<512xbf16>
      %1 = "pyc.mul"(%0, %x) : (tensor<512xbf16>, tensor<512xbf16>) -> tensor<512xbf16>
      %2 = "pyc.sub"(%1, %x) : (tensor<512xbf16>, tensor<512xbf16>) -> tensor<512xbf16>
      return %2 : tensor<512xbf16>
    }"""
    x = np.random.default_rng(1).standard_normal(512).astype(bfloat16)
    wanted = np.subtract(np.multiply(np.add(x, x), x), x)
    np.testing.assert_array_equal(np.asarray(pyc_mlir.compile(text)(x)), wanted)
