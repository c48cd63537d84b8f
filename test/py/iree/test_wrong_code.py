"""Rewrites of what IREE compiles to wrong numbers: repeated terms, stores, late clones."""

import numpy as np
import pytest
from compiled import run_function
from conftest import sample
from iree.compiler import ir

import pyc_mlir
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.iree import rewrites
from pyc_mlir.iree.compiler import IreeSession, compile_module
from pyc_mlir.iree.foreign import compile_plain, plain_flags
from pyc_mlir.iree.rewrites import flatten_stores, keep_repeats
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable

# A reduction adds a term that is one number as often as it has steps.

CPU = Target.named("cpu")
X = np.arange(35, dtype=np.int32).reshape(5, 7)
# What is added to the sum of each row; `%in` is an element, `%s` one of the arguments.
CLIPPED = "%a = arith.maxsi %in, %c5 : i32\n%t = arith.minsi %a, %c5 : i32"
ROWS = """
func.func @main(%x: tensor<5x7xi32>, %v: tensor<1xi32>) -> tensor<5xi32> {{
  %c0 = arith.constant 0 : i32
  %z = arith.constant 0 : index
  %s = tensor.extract %v[%z] : tensor<1xi32>
  %c5 = arith.constant 5 : i32
  %e = tensor.empty() : tensor<5xi32>
  %f = linalg.fill ins(%c0 : i32) outs(%e : tensor<5xi32>) -> tensor<5xi32>
  %r = linalg.generic {{
    indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
    iterator_types = ["parallel", "reduction"]
  }} ins(%x : tensor<5x7xi32>) outs(%f : tensor<5xi32>) {{
  ^bb0(%in: i32, %acc: i32):
    {term}
    %next = arith.addi %acc, %t : i32
    linalg.yield %next : i32
  }} -> tensor<5xi32>
  return %r : tensor<5xi32>
}}
"""
POOLED = """
func.func @main(%x: tensor<5x7xi32>, %v: tensor<1xi32>) -> tensor<1x1x5x1xi32> {
  %c0 = arith.constant 0 : i32
  %z = arith.constant 0 : index
  %s = tensor.extract %v[%z] : tensor<1xi32>
  %i = tensor.empty() : tensor<1x1x35x1xi32>
  %fives = linalg.fill ins(%s : i32) outs(%i : tensor<1x1x35x1xi32>) -> tensor<1x1x35x1xi32>
  %w = tensor.empty() : tensor<1x7xi32>
  %e = tensor.empty() : tensor<1x1x5x1xi32>
  %f = linalg.fill ins(%c0 : i32) outs(%e : tensor<1x1x5x1xi32>) -> tensor<1x1x5x1xi32>
  %r = linalg.pooling_nhwc_sum {strides = dense<7> : tensor<2xi64>}
      ins(%fives, %w : tensor<1x1x35x1xi32>, tensor<1x7xi32>)
      outs(%f : tensor<1x1x5x1xi32>) -> tensor<1x1x5x1xi32>
  return %r : tensor<1x1x5x1xi32>
}
"""
CONSTANT = """
func.func @main(%x: tensor<5x7xi32>, %v: tensor<1xi32>) -> tensor<5xi32> {
  %c0 = arith.constant 0 : i32
  %z = arith.constant 0 : index
  %s = tensor.extract %v[%z] : tensor<1xi32>
  %c5 = arith.constant 5 : i32
  %i = tensor.empty() : tensor<5x7xi32>
  %fives = linalg.fill ins(%c5 : i32) outs(%i : tensor<5x7xi32>) -> tensor<5x7xi32>
  %e = tensor.empty() : tensor<5xi32>
  %f = linalg.fill ins(%c0 : i32) outs(%e : tensor<5xi32>) -> tensor<5xi32>
  %r = linalg.reduce ins(%fives : tensor<5x7xi32>) outs(%f : tensor<5xi32>) dimensions = [1]
    (%a: i32, %b: i32) { %t = arith.addi %a, %b : i32 linalg.yield %t : i32 }
  return %r : tensor<5xi32>
}
"""
INDEX = "%i = linalg.index 0 : index\n%t = arith.index_cast %i : index to i32"
READ = "%t = arith.ori %in, %c5 : i32"
PROGRAMS = {
    "range": (ROWS.format(term=CLIPPED), [35] * 5),
    "number": (ROWS.format(term="%t = arith.addi %c5, %c0 : i32"), [35] * 5),
    "scalar": (ROWS.format(term="%t = arith.addi %s, %c0 : i32"), [35] * 5),
    "index": (ROWS.format(term=INDEX), [0, 7, 14, 21, 28]),
    "pooled": (POOLED, [35] * 5),
    "constant": (CONSTANT, [35] * 5),
}


def run(vmfb: bytes) -> list[int]:
    executable = Executable(vmfb, Device("local-sync"))
    result = TensorType((5,), DTYPES["i32"])
    (out,) = run_function(executable, "main", [X, np.array([5], np.int32)], [result])
    return out.reshape(-1).tolist()


@pytest.mark.parametrize("name", PROGRAMS)
def test_terms_count_in_each_step(name):
    text, wanted = PROGRAMS[name]
    assert run(compile_module(text.encode(), CPU)) == wanted


@pytest.mark.parametrize("name", PROGRAMS)
def test_iree_alone_still_needs_it(name):
    """Fails once IREE is mended: then the workaround can go."""
    text, _ = PROGRAMS[name]
    assert run(compile_plain(text.encode(), plain_flags(CPU))) in ([5] * 5, [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (PROGRAMS["number"][0], 1),
        (POOLED, 1),
        (CONSTANT, 1),
        (ROWS.format(term=CLIPPED), 0),
        (ROWS.format(term=READ), 0),
    ],
)
def test_only_terms_that_read_nothing_are_guarded(text, count):
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        assert keep_repeats(module.operation) == count
        assert module.operation.verify()
        assert str(module).count("arith.select") == count


# Values of few numbers or of one, and what reduces them.
VALUES = [
    lambda v: np.clip(v, 3, 3),
    lambda v: np.clip(v, 2, 5),
    lambda v: np.minimum(np.maximum(v, 7), 7),
    lambda v: (v >= 0).astype(v.dtype),
    lambda v: (v == v).astype(v.dtype),
    lambda v: v * 0 + 2,
    lambda v: v | v.dtype.type(-1 if v.dtype.kind == "i" else 3),
    lambda v: np.where(v > 3, v.dtype.type(2), v.dtype.type(2)),
    lambda v: v % 1 + 3,
    lambda v: np.broadcast_to(np.clip(v[:, 0], 1, 2)[:, None], v.shape),
    lambda v: np.broadcast_to(v[0] >> 9, v.shape) + 1,
]
REDUCTIONS = [
    lambda v: v.sum(axis=1),
    lambda v: v.sum(axis=0),
    lambda v: v.sum(),
    lambda v: v.prod(axis=1),
    lambda v: v.max(axis=1) + v.sum(axis=1),
    lambda v: np.argmin(v, axis=1),
    lambda v: np.cumsum(v, axis=1),
    lambda v: v @ v.T,
    lambda v: (v > 0).all(axis=0),
    lambda v: v.astype(np.float32).mean(axis=1),
]
TYPES = ("int8", "uint8", "int32", "uint32", "int64")
DRAWN = [(i, j, k) for i in range(len(VALUES)) for j in range(len(REDUCTIONS)) for k in range(5)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_programs_on_few_numbers(dynamic):
    drawn = sample(DRAWN, 14, seed=2 + dynamic)
    arrays = [X.astype(name) - np.array(9).astype(name) for name in TYPES]
    for start in range(0, len(drawn), 14):
        part = drawn[start : start + 14]

        def program(*given, part=part):
            return tuple(REDUCTIONS[j](VALUES[i](given[k])) for i, j, k in part)

        specs = [pyc_mlir.spec(a.dtype, ("n", "m") if dynamic else a.shape) for a in arrays]
        got = pyc_mlir.compile(program, specs)(*arrays)
        for place, out, wanted in zip(part, got, program(*arrays), strict=True):
            np.testing.assert_array_equal(out, wanted.astype(out.dtype), err_msg=str(place))


# One element of a tensor is replaced, and no other.

TEXT = """
func.func @main(%t: tensor<{shape}x{kind}>, %at: tensor<2xi32>) -> tensor<{shape}x{kind}> {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %i32 = tensor.extract %at[%c0] : tensor<2xi32>
  %j32 = tensor.extract %at[%c1] : tensor<2xi32>
  %i = arith.index_cast %i32 : i32 to index
  %j = arith.index_cast %j32 : i32 to index
  %e = tensor.extract %t[{read}] : tensor<{shape}x{kind}>
  %r = tensor.insert %e into %t[{write}] : tensor<{shape}x{kind}>
  return %r : tensor<{shape}x{kind}>
}}
"""
PLACES = {1: ("%i", "%j"), 2: ("%i, %j", "%j, %i"), 3: ("%i, %c0, %j", "%j, %c1, %i")}


def text(shape, kind):
    read, write = PLACES[shape.count("x") + 1]
    return TEXT.format(shape=shape, kind=kind, read=read, write=write)


@pytest.mark.parametrize(
    ("shape", "kind", "sizes"),
    [
        ("12", "f32", (12,)),
        ("3x4", "f32", (3, 4)),
        ("?x4", "f32", (3, 4)),
        ("?x?", "f64", (3, 4)),
        ("4x2x3", "i8", (4, 2, 3)),
        ("?x2x?", "i64", (4, 2, 3)),
    ],
)
@pytest.mark.full
def test_one_element_changes(shape, kind, sizes, tmp_path):
    source = tmp_path / "insert.mlir"
    source.write_text(text(shape, kind))
    dtype = {"f": "float", "i": "int"}[kind[0]] + kind[1:]
    x = np.arange(np.prod(sizes)).reshape(sizes).astype(dtype)
    program = pyc_mlir.compile(source)
    for i, j in ((0, 2), (2, 0), (1, 1)):
        expected = x.copy()
        expected[{1: (j,), 2: (j, i), 3: (j, 1, i)}[len(sizes)]] = x[
            {1: (i,), 2: (i, j), 3: (i, 0, j)}[len(sizes)]
        ]
        assert np.array_equal(program(x, np.array([i, j], np.int32)), expected)


@pytest.mark.parametrize(("shape", "count"), [("12", 0), ("3x4", 1), ("?x?", 1)])
@pytest.mark.sampled(1)
def test_only_stores_into_several_dimensions_are_rewritten(shape, count):
    with IreeSession(("--iree-hal-target-backends=vmvx",)) as session:
        session.parse(text(shape, "f32").encode())
        session.run(to="flow")
        assert flatten_stores(session.module) == count
        assert session.module.verify()
        ranks = []

        def visit(op):
            if op.name == "flow.tensor.store":
                ranks.append(len(ir.RankedTensorType(op.results[0].type).shape))
            return ir.WalkResult.ADVANCE

        session.module.walk(visit)
        assert ranks == [1]


# A result that is returned beside its update keeps the value that it had before.

# The third result, a constant, is filled beside the update: IREE makes a wave of the two.
UPDATED = """func.func @main(%x: tensor<7x3x3xi32>)
    -> (tensor<7x3x3xi32>, tensor<1xi32>, tensor<7x3x3xi32>) {
  %0 = "pyc.abs"(%x) : (tensor<7x3x3xi32>) -> tensor<7x3x3xi32>
  %1 = "pyc.constant"() {value = dense<-1> : tensor<4x1x1xi32>} : () -> tensor<4x1x1xi32>
  %2 = "pyc.constant"() {value = dense<[4, 0, 3]> : tensor<3xi64>} : () -> tensor<3xi64>
  %3 = "pyc.update_slice"(%0, %1, %2) :
      (tensor<7x3x3xi32>, tensor<4x1x1xi32>, tensor<3xi64>) -> tensor<7x3x3xi32>
  %4 = "pyc.constant"() {value = dense<3> : tensor<1xi32>} : () -> tensor<1xi32>
  return %3, %4, %0 : tensor<7x3x3xi32>, tensor<1xi32>, tensor<7x3x3xi32>
}"""


def test_a_copy_is_made_before_the_update(monkeypatch):
    """Fails once IREE orders the two itself: no copy is late then, and the workaround may go."""
    moved, advance = [], rewrites.advance_clones
    monkeypatch.setattr(rewrites, "advance_clones", lambda m: moved.append(advance(m)) or moved[-1])
    program = pyc_mlir.compile(UPDATED, kernels="iree")
    assert sum(moved) > 0
    x = np.arange(-63, 0, dtype=np.int32).reshape(7, 3, 3)
    for outputs in ({}, {"out": [np.zeros_like(x), np.zeros(1, np.int32), np.zeros_like(x)]}):
        updated, _, kept = program(x, **outputs)
        np.testing.assert_array_equal(kept, np.abs(x))
        assert (updated == -1).sum() == 4 and (updated == np.abs(x)).sum() == 59
