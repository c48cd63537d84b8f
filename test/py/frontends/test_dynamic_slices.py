"""Slices of ONNX models whose bounds are sizes known at run time, sums of such sizes, and
sizes that survive an op whose rule asks sizes to agree."""

from typing import Any, cast

import numpy as np
import onnx
import pytest
from modules import shared_context
from onnx import helper
from onnx_models import check, model

import pyc_mlir
from pyc_mlir.artifact.import_report import UnsupportedModel
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.importing.importer import Argument, Importer
from pyc_mlir.frontends.importing.shaping import vector
from pyc_mlir.frontends.importing.sizes import (
    Dimension,
    SymbolicSize,
    Untracked,
    bounds,
    divided,
    extremum,
    holds,
    quotient,
)
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.sources import Source

F = np.float32
NUMBERS = {"_3": -3, "_2": -2, "_1": -1, "0": 0, "1": 1, "2": 2, "3": 3}
VECTORS = {f"v{name}": np.array([value]) for name, value in NUMBERS.items()}
SCALARS = {f"s{name}": np.array(value) for name, value in NUMBERS.items()}


def n(op: str, inputs: str, output: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], output, **attributes)


def size(of: str, axis: int, name: str) -> onnx.NodeProto:
    return n("Shape", of, name, start=axis, end=axis + 1)


# x: [batch, seq], past: [batch, past].
LENGTHS = [size("x", 1, "seq"), size("past", 1, "before"), n("Add", "seq before", "all")]
TABLE = {"table": np.arange(256, dtype=F).reshape(16, 16)}
CASES: dict[str, list[onnx.NodeProto]] = {
    # Differences of neighbours, as transformers finds packed sequences.
    "x[1 : 1 + seq]": [
        size("x", 1, "seq"), n("Slice", "x v0 v1 v1", "first"), n("Concat", "first x", "c", axis=1),
        n("Add", "v1 seq", "end"), n("Slice", "c v1 end v_1 v1", "late"),
        n("Slice", "c v0 seq v_1", "early"), n("Sub", "late early", "y"),
    ],
    # The mask of a decoder with a cache.
    "table[all - seq : all, :all]": [
        *LENGTHS, n("Sub", "all seq", "start"), n("Slice", "table start all v0", "rows"),
        n("Slice", "rows v0 all v1", "part"), n("Concat", "past x", "c", axis=1),
        n("Transpose", "c", "ct"), n("MatMul", "part ct", "y"),
    ],
    "table[1 : all : 2]": [*LENGTHS, n("Slice", "table v1 all v0 v2", "y")],
    "c[-seq:]": [
        *LENGTHS, n("Concat", "past x", "c", axis=1), n("Neg", "seq", "start"),
        n("Slice", "c start far v1", "back"), n("Sub", "back x", "y"),
    ],
    "c[: all - seq]": [
        *LENGTHS, n("Concat", "past x", "c", axis=1), n("Sub", "all seq", "end"),
        n("Slice", "c v0 end v1", "front"), n("Sub", "front past", "y"),
    ],
    "x[seq - 1]": [
        size("x", 1, "seq"), n("Sub", "seq v1", "last"), n("Gather", "x last", "y", axis=1),
    ],
    "arange(seq + 1)": [
        size("x", 1, "seq"), n("Add", "seq v1", "more"), n("Squeeze", "more", "end"),
        n("Range", "s0 end s1", "r"), n("Concat", "v2 more", "to", axis=0),
        n("Expand", "r to", "y"),
    ],
    # x[:, seq - 2:] of one element is x[-1:], x[:, : seq - 2] of two is empty.
    "x[seq - 2 :]": [size("x", 1, "seq"), n("Sub", "seq v2", "at"), n("Slice", "x at far v1", "y")],
    "x[: seq - 2]": [size("x", 1, "seq"), n("Sub", "seq v2", "at"), n("Slice", "x v0 at v1", "y")],
    "table[seq :]": [
        size("x", 1, "seq"), n("Slice", "table seq far v0", "t"), n("Slice", "x v0 v1 v1", "c"),
        n("ReduceSum", "c", "sum", keepdims=0), n("Add", "t sum", "y"),
    ],
    "x[: seq // 2]": [size("x", 1, "seq"), n("Div", "seq v2", "h"), n("Slice", "x v0 h v1", "y")],
    "x[seq % 3 :]": [size("x", 1, "seq"), n("Mod", "seq v3", "m"), n("Slice", "x m far v1", "y")],
    "x[-3::2]": [size("x", 1, "seq"), n("Slice", "x v_3 seq v1 v2", "y")],
    "the three greatest, or all": [
        size("x", 1, "seq"), n("Min", "seq v3", "k"),
        helper.make_node("TopK", ["x", "k"], ["y", "at"], axis=1),
    ],
    "where seq < 3": [
        size("x", 1, "seq"), n("Less", "seq v3", "few"), n("Where", "few seq v3", "k"),
        n("Slice", "x v0 k v1", "y"),
    ],
    "range(seq, 0, -2)": [
        size("x", 1, "seq"), n("Squeeze", "seq", "s"), n("Range", "s s0 s_2", "r"),
        n("Cast", "r", "c", to=1), n("ReduceSum", "x", "sum", keepdims=0), n("Add", "c sum", "y"),
    ],
    "halves": [
        size("x", 1, "seq"), n("Div", "seq v2", "h"), n("Sub", "seq h", "rest"),
        n("Concat", "h rest", "parts", axis=0),
        helper.make_node("Split", ["x", "parts"], ["a", "y"], axis=1),
    ],
    # A size by floats, and one of values.
    "int(seq * 0.5)": [
        size("x", 1, "seq"), n("Cast", "seq", "f", to=1), n("Mul", "f f05", "half"),
        n("Cast", "half", "h", to=7), n("Slice", "x v0 h v1", "y"),
    ],
    "range(argmax)": [
        n("ArgMax", "x", "at", axis=1, keepdims=0), n("ReduceMax", "at", "most", keepdims=0),
        n("Range", "s0 most s1", "r"), n("Cast", "r", "c", to=1),
        n("ReduceSum", "x", "sum", keepdims=0), n("Add", "c sum", "y"),
    ],
    "padded": [
        size("x", 1, "seq"), n("Add", "seq v3", "more"), n("Pad", "x pads", "p"),
        size("x", 0, "batch"), n("Concat", "more batch", "to", axis=0),
        n("Reshape", "p to", "y"),
    ],
}  # fmt: skip


def made(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    weights = {**VECTORS, **SCALARS, **TABLE, "f05": np.array([0.5], F),
               "far": np.array([2**63 - 1]), "pads": np.array([0, 1, 0, 2])}  # fmt: skip
    used = {name for node in nodes for name in node.input}
    inputs = {"x": (F, ["batch", "seq"]), "past": (F, ["batch", "before"])}
    return model(
        nodes,
        {name: given for name, given in inputs.items() if name in used},
        ["y"],
        {name: value for name, value in weights.items() if name in used},
    )


@pytest.mark.parametrize("case", list(CASES))
def test_bounds_that_are_dynamic_sizes(case: str) -> None:
    proto = made(CASES[case])
    for batch, seq, past in ((2, 3, 4), (1, 5, 1), (3, 1, 0)):
        given = {"x": (batch, seq), "past": (batch, past)}
        arrays = {i.name: np.random.default_rng(0).random(given[i.name]).astype(F)
                  for i in proto.graph.input}  # fmt: skip
        check(proto, arrays)


def test_what_is_refused_with_dynamic_sizes_is_imported_at_those_of_the_inputs() -> None:
    proto = made([size("x", 1, "seq"), n("Slice", "x v3 seq v1 v_1", "y")])
    with pytest.raises(UnsupportedModel):
        import_onnx(proto, context=shared_context())
    x = np.arange(14, dtype=F).reshape(2, 7)
    with shared_context() as context:
        for inputs in ([x], [(2, 7)], [(None, 7)]):
            module = Source.of(proto).load(inputs, context).module
            assert module is not None
            np.testing.assert_array_equal(interpret(module, [x])[0], x[:, 3:7:-1])
        with pytest.raises(UnsupportedModel):
            Source.of(proto).load([(2, None)], context)


def test_declared_ranges_are_bounds_of_sizes() -> None:
    """The first min(4, n) elements are 4 of them where n is 4 or more."""
    nodes = [
        n("Shape", "x", "n", start=0, end=1),
        n("Min", "n four", "k"),
        helper.make_node("TopK", ["x", "k"], ["y", "places"], axis=0),
        n("Less", "n four", "few"),
        n("Where", "few zero x", "z"),
    ]
    weights = {"four": np.array([4]), "zero": np.zeros(1, F)}
    proto = model(nodes, {"x": (F, ("n",))}, ["y", "z"], weights)
    x = np.array([3, 1, 2, 5, 4], F)
    for ends, kept in ((None, None), ((4, 9), 4), ((0, 3), None)):
        given = x if kept else x[:3]
        dims = None if ends is None else {"n": ends}
        program = pyc_mlir.compile(
            proto, dims=dims, device=pyc_mlir.Device("local-sync"), cache=False
        )
        assert program.artifact.signature.outputs[0].shape == (kept,)
        top, same = program(given)
        np.testing.assert_array_equal(top, -np.sort(-given)[:4])
        np.testing.assert_array_equal(same, given * (len(given) >= 4))
    with shared_context() as context:
        free, bounded = (
            str(import_onnx(proto, context=context, ranges=r)) for r in ({}, {"n": (4, 9)})
        )
    assert free.count("pyc.compare") > bounded.count("pyc.compare")


def test_sums_of_sizes() -> None:
    length, past = (SymbolicSize(1, (name,)) for name in ("length", "past"))
    more = length + 1
    assert [str(s) for s in (more, past - 1, -past)] == ["length+1", "past-1", "-1*past"]
    assert more - 1 == length and past + length - past == length
    assert more * 2 - length - length == 2 and quotient(more * 64, 64) == more
    assert more == 1 + length and more != SymbolicSize(1, ("length+1",))
    assert more > -1 and past + length > -5
    for unknown in (length - 1, past - length):
        with pytest.raises(Untracked):
            bool(unknown > 2)


def test_functions_of_sizes() -> None:
    """They are functions of numbers for all sizes, and decided where bounds say so."""
    n, m = (SymbolicSize(1, (name,)) for name in ("n", "m"))
    most = SymbolicSize(1, (Dimension("k", 1, 8),))
    assert divided(2 * n + 3, 2) == (n + 1, 1) and divided(n * 6, 3) == (2 * n, 0)
    assert divided(divided(n, 2)[0], 3)[0] == divided(n, 6)[0]
    assert str(divided(n + m, 2)[0]) == "(m+n)//2"
    assert divided(n * most, most) == (n, 0) and divided(most - 1, 8) == (0, most - 1)
    assert extremum("min", (most, 9)) == most and extremum("max", (most, 1, n, n)) != most
    assert extremum("min", (extremum("min", (n, 8)), n + 1, 8)) == extremum("min", (8, n))
    assert most > 0 and most - 9 < 0 and holds("ne", most, 9) and not holds("eq", n, -1)
    assert bounds(divided(most - 5, 2)[0]) == (-2, 1) and bounds(divided(n, most)[1]) == (0, 7)
    for undecided in (lambda: holds("eq", n, 1), lambda: divided(n, m), lambda: bool(most > 1)):
        with pytest.raises(Untracked):
            undecided()


# Sizes of dynamic dimensions, found by probing.


def dims_of(shapes, build):
    """The sizes of what `build` makes of arguments with these dims; a text is a dynamic one."""
    found = []

    def body(values):
        out = build(importer.b, *values)
        found.extend(importer.b.dims(out))
        return [("out", out)]

    with shared_context(), ir.Location.unknown():
        importer = Importer("test")
        named = [[SymbolicSize(1, (d,)) if isinstance(d, str) else d for d in s] for s in shapes]
        arguments = [Argument(f"x{i}", np.dtype(F), tuple(d)) for i, d in enumerate(named)]
        importer.function("main", arguments, body)
    return [d.atoms[0] if isinstance(d, SymbolicSize) and d.factor == 1 else d for d in found]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([("b", "k"), (64, "m")], ["b", "m"]),
        ([("b", "k"), (64, 10)], ["b", 10]),
        ([("b", 8, "k"), ("b", "j", "m")], ["b", 8, "m"]),
        ([("b", "k"), ("k", "m")], ["b", "m"]),
    ],
)
def test_a_contraction_keeps_the_other_sizes(shapes, expected):
    """Static with dynamic, and two names, agree when the program runs or it raises."""
    assert dims_of(shapes, lambda b, x, y: b.matmul(x, y)) == expected


def test_what_depends_on_the_agreed_size_is_a_new_one():
    """A sum of [b, k] and [b, 64] is as wide as one of them, by what k is."""
    first, second = dims_of([("b", "k"), ("b", 64)], lambda b, x, y: b.add(x, y))
    assert first == "b"
    assert second == 64 or second not in ("b", "k")


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads_to_a_multiple(mode: str) -> None:
    """As image networks ask for: (4 - n % 4) % 4 more columns."""
    nodes = [
        n("Shape", "x", "n", start=1, end=2),
        n("Mod", "n four", "over"),
        n("Sub", "four over", "rest"),
        n("Mod", "rest four", "more"),
        helper.make_node("Concat", ["v0", "v0", "v0", "more"], ["pads"], axis=0),
        n("Pad", "x pads", "y", mode=mode),
    ]
    proto = model(nodes, {"x": (F, (2, "n"))}, ["y"], {"four": np.array([4]), "v0": np.array([0])})
    for size in (1, 3, 4, 9) if mode in ("constant", "edge") else (3, 4, 9):
        x = np.random.default_rng(size).random((2, size)).astype(F)
        with shared_context() as context:
            found = interpret(import_onnx(proto, context=context), [x])[0]
        wanted = np.pad(x, ((0, 0), (0, -size % 4)), mode=cast("Any", mode))
        np.testing.assert_array_equal(found, wanted)


def test_distinct_elements_of_what_is_computed() -> None:
    names = ["y", "first", "rank", "count"]
    nodes = [n("Abs", "x", "a"), helper.make_node("Unique", ["a"], names)]
    proto = model(nodes, {"x": (np.int64, ("n",))}, names, {})
    for size in (1, 5, 40):
        x = np.random.default_rng(size).integers(-4, 5, size)
        with shared_context() as context:
            found = interpret(import_onnx(proto, context=context), [x])
        for f, w in zip(found, np.unique(np.abs(x), True, True, True), strict=True):
            np.testing.assert_array_equal(f, w)


def test_a_minimum_that_has_to_be_the_size_is_the_size():
    """A sum of [b, n] and [min(n, 512)] is as wide as the first one; of [min(n, 1)] it may not."""

    def dims(limit):
        least = extremum("min", [limit, SymbolicSize(1, ("n",))])
        return dims_of(
            [("b", "n")], lambda b, x: b.add(x, b.cast(vector(b, least), dtype=np.dtype(F)))
        )

    assert dims(512) == ["b", "n"]
    assert dims(1)[1] != "n"
