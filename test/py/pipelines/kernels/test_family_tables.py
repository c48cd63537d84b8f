"""Families by tables: knobs that make no kernel, lone ops that are offered, loops that spill."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_runs import spills
from kernel_works import lone

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.kernels.counts import MOST_WORKGROUPS
from pyc_mlir.pipelines.kernels.families.approximate import ApproximateGemm
from pyc_mlir.pipelines.kernels.families.batch import BatchGemm, Gemv
from pyc_mlir.pipelines.kernels.families.checked import CheckedGemm
from pyc_mlir.pipelines.kernels.families.conv.channelwise import Depthwise, Geometry
from pyc_mlir.pipelines.kernels.families.conv.direct import DirectConv
from pyc_mlir.pipelines.kernels.families.conv.winograd import Winograd
from pyc_mlir.pipelines.kernels.families.elementwise import ByteElementwise, Elementwise
from pyc_mlir.pipelines.kernels.families.gemm import Gemm, HalfGemm
from pyc_mlir.pipelines.kernels.families.moves import Concat, Phases, Resize, Transpose
from pyc_mlir.pipelines.kernels.families.reduce import Argmax, Columns, FullReduce
from pyc_mlir.pipelines.kernels.families.rows import Rows
from pyc_mlir.pipelines.kernels.families.window import ConvAxis
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel
from pyc_mlir.pipelines.kernels.lang.pointwise import FULL, ROW, Pointwise, PointwiseStep
from pyc_mlir.pipelines.kernels.match import Contraction, Feed
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.target.target import TARGETS, Target

AVX2, AVX512, NEON = map(Target.named, ("cpu-avx2", "cpu-avx512", "cpu-neon"))
DOUBLE = Pointwise((), (2.0,), (PointwiseStep("mul", (0, 1)),))
ADD_ROW = Pointwise((ROW,), (), (PointwiseStep("add", (0, 1)),))
MATRICES = {"batch": (2,), "rows": 1, "columns": 4, "depth": 4}
SINGLE = {"batch": (), "left": "mk", "right": "kn", "result": "mn"}
TURNED = Contraction((2,), 4, 4, 4, right="bnk")
DEEP = Contraction((), 8, 8, 64, "mk", "kn", "mn")
ONCE = Phases()


def streamed(**what: Any) -> Contraction:
    return Contraction(**{**MATRICES, **what})


# By kind of knobs, fields that make a kernel, and others of which each makes none.
REFUSED: dict[Any, tuple[Any, ...]] = {
    ApproximateGemm: (
        {"product": Gemm(8, 64, 64), "way": "int16", "allowed": 0.1, "form": "pairs"},
        [{"way": "int4"}, {"form": "bytes"}, {"allowed": 0.0}, {"block": 0}],
    ),
    Argmax: (
        {"rows": 4, "columns": 4},
        [{"columns": 0}, {"rows": 0}, {"chunk": 0}, {"chunk": (1 << 24) + 1}],
    ),
    BatchGemm: (
        {"what": TURNED},
        [{"local": False}, {"depth_block": 130}, {"depth_block": 132}, {"height": 0}],
        # It would round sums.
        [{"what": DEEP, "dtype": "f16", "depth_block": 32}],
    ),
    ByteElementwise: (
        {"rows": 5, "columns": 5, "program": Pointwise(), "dtypes": ("i8",)},
        [{"rows": 0}, {"dtypes": ("f64",)}, {"program": Pointwise((FULL,))}, {"result": "ui8"}],
    ),
    CheckedGemm: (
        {"product": Gemm(4, 64, 64)},
        [{"product": Gemm(4, 64, 64, workgroups=(MOST_WORKGROUPS, 2))}],
    ),
    Columns: (
        {"operation": "sum", "outer": 2, "reduced": 3, "columns": 4},
        [{"operation": "median"}, {"columns": 0}, {"reduced": 0}, {"at_once": 0}],
        [{"columns": "c", "registers": True}, {"strip": 3, "registers": True}],
    ),
    Concat: (
        {"rows": 4, "widths": (3, 4)},
        [{"widths": ()}, {"widths": (3, 0)}, {"rows": 0}, {"unroll": 0}],
    ),
    Elementwise: (
        {"rows": 4, "columns": 4, "program": DOUBLE},
        [{"rows": 0}, {"unroll": 0}, {"columns_part": 40}, {"columns": 33, "streaming": True}],
    ),
    FullReduce: (
        {"operation": "sum", "rows": 4, "numbers": 4},
        [{"operation": "median"}, {"numbers": 0}, {"chunk": 0}, {"rows": 0}],
    ),
    Gemm: (
        {"rows": 4, "columns": 4, "depth": 4},
        [{"depth": 0}, {"rows": 0}, {"panel": 24}, {"strip": 0}, {"row_block": 0}],
        [{"depth_block": 6}],
    ),
    Gemv: (
        {"what": streamed()},
        [{"what": streamed(rows=7)}, {"what": streamed(rows="m")}, {"strip": 100}],
        [{"what": streamed(left="bkm", right="bnk")}, {"at_once": 0}, {"workgroups": (0, 1)}],
        [{"what": streamed(**SINGLE), "workgroups": (2, 1)}],
        # It would round sums in c.
        [{"what": Contraction((), 1, 8, 8, "mk", "kn", "mn"), "dtype": "bf16"}],
    ),
    HalfGemm: ({"rows": 4, "columns": 4, "depth": 4, "dtype": "f16"}, [{"dtype": "f32"}]),
    Resize: (
        {"images": 1, "rows": 1, "columns": 1, "channels": 1, "down": ONCE, "along": ONCE},
        [{"images": 0}, {"rows": 0}, {"channels": 0}, {"down": Phases((((0, 1.0),),) * 17)}],
        [{"down": Phases((((3, 1.0),),))}],
    ),
    Rows: (
        {"operation": "softmax", "rows": 4, "columns": 4},
        [{"operation": "median"}, {"columns": 0}, {"unroll": 0}, {"ahead": -1}],
        [{"epsilon": math.inf}, {"operation": "max", "epilogue": ADD_ROW}],
    ),
    Transpose: (
        {"batch": 1, "rows": 20, "columns": 20},
        [{"rows": 0}, {"tile_rows": 8}, {"tile_columns": 0}, {"batches": 0}, {"streaming": True}],
        [{"rows": "m", "streaming": True}, {"inner": 24, "streaming": True}],
    ),
}


@pytest.mark.parametrize(
    ("kind", "fields", "wrong"),
    [
        (kind, fields, wrong)
        for kind, (fields, *groups) in REFUSED.items()
        for group in groups
        for wrong in group
    ],
    ids=str,
)
def test_knobs_that_make_no_kernel_are_refused(kind, fields, wrong):
    kind(**fields)
    with pytest.raises(PycError, match=f"{kind.family} kernel: expected"):
        kind(**{**fields, **wrong})


WIDE = Gemm.on(AVX512, 8, 64, 8)
SIDE = ConvAxis(14, 3, 1, 1, 1)
CHANNELS = replace(Geometry.on(AVX512, 1, SIDE, SIDE, 32), width=9)
RESULTS = Columns("sum", 1, 8, 64, registers=True)


@pytest.mark.parametrize(
    ("name", "knobs", "target", "reason"),
    [
        ("gemm", WIDE, AVX512, ""),
        ("gemm", WIDE, AVX2, "registers"),
        ("gemm", replace(WIDE, height=7), AVX512, "registers"),
        ("gemm", WIDE, TARGETS["vulkan"], "expected a CPU with AVX2"),
        ("approximate_gemm", ApproximateGemm(WIDE, "int8", 0.1, "bytes"), AVX512, "of 'bytes'"),
        ("checked_gemm", CheckedGemm(Gemm.on(NEON, 13, 64, 64)), NEON, "at most 4 rows a tile"),
        ("columns", RESULTS, AVX512, ""),
        ("columns", RESULTS, AVX2, "registers"),
        ("depthwise", Depthwise(CHANNELS), AVX512, "at most 8 outputs"),
        ("rows", Rows("sum", 4, 1024), AVX2, ""),
        ("rows", Rows("sum", 4, 1 << 20), AVX2, "L2"),
        ("transpose", Transpose(1, 3, 1000), AVX2, "sides"),
        ("transpose", Transpose(1, 8, 1000), AVX512, "sides"),
        ("transpose", Transpose(1, 100, 100, 3), AVX2, "at least 8"),
        ("transpose", Transpose(1, 100, 100), TARGETS["vulkan"], "expected a CPU with AVX2"),
    ],
)
def test_kernels_that_a_target_does_not_have(name, knobs, target, reason):
    assert FAMILIES[name].offers(knobs, target) == (not reason)
    assert reason in FAMILIES[name].refusal(knobs, target)


@pytest.mark.parametrize(
    "what",
    [
        *({"rows": 0}, {"batch": ()}, {"batch": (2, 2)}, {"left": "bm"}, {"left": "bmmk"}),
        *({"left": "bmkx"}, {"right": "knb"}, {"result": "bnm"}),
    ],
)
def test_orders_that_make_no_product_are_refused(what):
    with pytest.raises(PycError, match="product kernel: expected"):
        Contraction(**{**MATRICES, "rows": 4, **what})


def reduced(name: str, shape: tuple, axes: tuple, keepdims: bool = False, dtype: Any = np.float32):
    return lone(f"reduce_{name}", shape, dtype=dtype, axes=axes, keepdims=keepdims)


def place(shape: tuple, axis: int, keepdims: bool = False, dtype: Any = np.float32):
    return lone("argmax", shape, dtype=dtype, axis=axis, keepdims=keepdims)


def turned(shape: tuple, *permutation: int, dtype: Any = np.float32):
    return lone("transpose", shape, dtype=dtype, permutation=permutation)


SIZES = {
    "argmax": ("rows", "columns"),
    "columns": ("outer", "reduced", "columns"),
    "full_reduce": ("rows", "numbers"),
    "transpose": ("batch", "rows", "columns", "inner"),
}
# A family, an op alone, the cuts of its operand and the sizes of the kernel.
OFFERED = [
    ("argmax", place((8, 9), 1), (1,), (8, 9)),
    ("argmax", place((2, 8, 9), -1, True), (2,), (16, 9)),
    ("argmax", place((9,), 0), (0,), (1, 9)),
    ("argmax", place((8, 9, 1), 1, True), (1,), (8, 9)),
    ("argmax", place((None, 9), 1), (1,), ("m", 9)),
    ("columns", reduced("mean", (8, 9), (0,)), (0, 1), (1, 8, 9)),
    ("columns", reduced("mean", (8, 9), (-2,), True), (0, 1), (1, 8, 9)),
    ("columns", reduced("mean", (2, 3, 4, 5), (1, 2)), (1, 3), (2, 12, 5)),
    ("columns", reduced("mean", (2, 3, 1, 5), (1,), True), (1, 2), (2, 3, 5)),
    ("columns", reduced("mean", (2, 3, 1, 4, 5), (3, 1), True), (1, 4), (2, 12, 5)),
    ("columns", reduced("mean", (None, 3, 5), (1,)), (1, 2), ("o", 3, 5)),
    ("columns", reduced("mean", (2, None, 5), (1,)), (1, 2), (2, "n", 5)),
    ("columns", reduced("mean", (2, 3, None), (1,), True), (1, 2), (2, 3, "c")),
    ("full_reduce", reduced("max", (20, 30), (0, 1)), (0,), (1, 600)),
    ("full_reduce", reduced("max", (20, 30), (1, 0), True), (0,), (1, 600)),
    ("full_reduce", reduced("max", (2, 20, 30), (1, 2)), (1,), (2, 600)),
    ("full_reduce", reduced("max", (2, 1 << 20), (1,)), (1,), (2, 1 << 20)),
    ("full_reduce", reduced("max", (2, 20, 30, 1), (1, 2)), (1,), (2, 600)),
    ("full_reduce", reduced("max", (None, 20, 30), (1, 2)), (1,), ("m", 600)),
    ("full_reduce", reduced("max", (2, None), (1,), True), (1,), (2, "n")),
    ("transpose", turned((20, 30), 1, 0), (0, 1), (1, 20, 30, 1)),
    ("transpose", turned((2, 20, 30), 0, 2, 1), (1, 2), (2, 20, 30, 1)),
    ("transpose", turned((20, 3, 10), 2, 0, 1), (0, 2), (1, 60, 10, 1)),
    ("transpose", turned((2, 12, 128, 64), 0, 2, 1, 3), (1, 2, 3), (2, 12, 128, 64)),
    ("transpose", turned((128, 12, 64), 1, 0, 2), (0, 1, 2), (1, 128, 12, 64)),
    ("transpose", turned((1, 20, 30), 2, 1, 0), (1, 2), (1, 20, 30, 1)),
    ("transpose", turned((20, 1, 30, 1), 2, 1, 3, 0), (0, 2), (1, 20, 30, 1)),
    ("transpose", turned((None, 12, 128, 64), 0, 2, 1, 3), (1, 2, 3), ("b", 12, 128, 64)),
    ("transpose", turned((None, 20, 30), 0, 2, 1), (1, 2), ("b", 20, 30, 1)),
    ("transpose", turned((None, 30), 1, 0), (0, 1), (1, "m", 30, 1)),
    ("transpose", turned((None, 20, None, None), 0, 2, 3, 1), (1, 2), ("b", 20, "n", 1)),
]


@pytest.mark.parametrize(("name", "work", "cuts", "sizes"), OFFERED, ids=str)
def test_a_lone_op_is_offered(name, work, cuts, sizes):
    (offer,) = FAMILIES[name].match(work, AVX2)
    assert offer.feeds == (Feed(0, cuts),) and offer.covers == 1 and offer.cost.seconds > 0
    assert tuple(getattr(offer.knobs, field) for field in SIZES[name]) == sizes
    operation = work.nodes[0].name.removeprefix("reduce_")
    assert getattr(offer.knobs, "operation", operation) == operation
    assert FAMILIES[name].match(work, TARGETS["cuda"]) == []


LEFT = [
    ("argmax", place((8, 9), 0)),
    ("argmax", place((0, 9), 1)),
    ("argmax", place((3, None), 1)),
    ("argmax", place((8, 9), 1, dtype="int32")),
    ("columns", reduced("sum", (8, 9), (1,))),  # rows
    ("columns", reduced("sum", (8, 9, 1), (1,))),
    ("columns", reduced("sum", (2, 3, 4, 5), (0, 2))),  # not neighbours
    ("columns", reduced("sum", (2, 3, None), (1,))),  # a dynamic dimension moves
    ("columns", reduced("sum", (1, 4), (0,))),  # nothing to combine
    ("columns", reduced("sum", (0, 4), (0,))),
    ("columns", reduced("sum", (8, 9), (0,), dtype="int32")),
    ("columns", reduced("prod", (8, 9), (0,))),
    ("full_reduce", reduced("sum", (8, 900), (1,))),
    ("full_reduce", reduced("sum", (8, 9), (0,))),
    ("full_reduce", reduced("sum", (8, 9, 10), (0, 2))),
    ("full_reduce", reduced("sum", (8, 0), (0, 1))),
    ("transpose", turned((20, 30), 0, 1)),
    ("transpose", turned((20, 30, 40), 2, 1, 0)),
    ("transpose", turned((20, 1, 30), 1, 0, 2)),
    ("transpose", turned((0, 30), 1, 0)),
    ("transpose", turned((3, 20, 10), 1, 2, 0)),  # narrow
    ("transpose", turned((20, 30), 1, 0, dtype="int32")),
]


@pytest.mark.parametrize(("name", "work"), LEFT, ids=str)
def test_other_ops_are_left_to_iree(name, work):
    assert FAMILIES[name].match(work, AVX2) == []


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("name", "on", "arguments"),
    [
        *[
            ("columns", Columns.on, ("sum", 1, 100, columns))
            for columns in (1, 3, 64, 300, 1000, 4096, 100_000, "c")
        ],
        *[
            ("transpose", Transpose.on, shape)
            for shape in ((1, 4096, 4096), (64, 16, 16), ("b", 64, 64), (1, 4096, 500, 64))
        ],
    ],
    ids=lambda value: getattr(value, "__qualname__", str(value)),
)
def test_the_targets_knobs_are_legal(target, name, on, arguments):
    assert FAMILIES[name].offers(on(target, *arguments), target)


def _convolutions(target: Target) -> list[Kernel]:
    axis, wide = ConvAxis(28, 3, 1, 1, 1), ConvAxis(56)
    return [
        DirectConv.on(target, 1, axis, axis, 64, 128).kernel("window"),
        DirectConv.on(target, 1, ConvAxis(1), wide, 64, 128).kernel("point"),
        Winograd.on(target, 4, 1, axis, axis, 64, 128).kernel("filtered"),
    ]


def _columns(target: Target) -> list[Kernel]:
    widths = {"wide": 4096, "narrow": 256, "few": target.vector_bytes}
    return [
        Columns.on(target, operation, 1, 4096, width).kernel(f"{name}_{operation}")
        for name, width in widths.items()
        for operation in ("sum", "max")
    ]


def _functions(target: Target) -> list[Kernel]:
    names = ("exp", "log", "tanh", "erf", "sigmoid", "silu", "gelu", "gelu_tanh")
    steps = {name: Pointwise((), (), (PointwiseStep(name, (0,)),)) for name in names}
    return [Elementwise.on(target, 1, 4096, p).kernel(f"row_{n}") for n, p in steps.items()]


def _transposes(target: Target) -> list[Kernel]:
    shapes = {"blocks": (1, 512, 512), "streamed": (1, 4096, 4096), "copies": (1, 128, 12, 64)}
    return [Transpose.on(target, *shape).kernel(name) for name, shape in shapes.items()]


HOT: dict[str, Callable[[Target], list[Kernel]]] = {
    "argmax": lambda _: [Argmax(64, 1000).kernel("known"), Argmax("m", "n").kernel("any")],
    "columns": _columns,
    "conv": _convolutions,
    "elementwise": _functions,
    "full_reduce": lambda _: [
        FullReduce("sum", 1, 1 << 20).kernel("known"),
        FullReduce("max", "m", "n").kernel("any"),
    ],
    "transpose": _transposes,
}


@pytest.mark.parametrize("name", HOT)
@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
@pytest.mark.full
def test_hot_loops_have_no_spill(target, name, tmp_path):
    """Needs no such machine: LLVM's assembly is read."""
    for loop in spills(target, HOT[name](target), tmp_path):
        # Transforms have more numbers than registers; a product may keep one for a turn or two.
        assert name == "conv", loop
        assert loop.function == "filtered" or 10 * len(loop.spills) <= loop.fmas, loop
