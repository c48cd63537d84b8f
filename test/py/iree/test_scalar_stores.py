"""One element of a tensor is replaced, and no other."""

import numpy as np
import pytest
from iree.compiler import ir

import pyc_mlir
from pyc_mlir.iree.session import IreeSession
from pyc_mlir.iree.wrong_code import flatten_stores

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
