"""NaN and infinities through every op of every family, against the numpy references.

One program holds many calls. Each is compiled with the kernels that are chosen by default, with
PyC's own wherever there is one, with these and all operands but the first as constants (which are
packed and folded), and by IREE alone.

An array is plain but for some rows, which have one kind of special value each, so that what a row
may not touch is seen too. Elementwise ops also have every pair of special values.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from compiled import OpCall, OwnKernels, add_function, assert_close, expected_of
from conftest import ALL_CASES
from op_cases import CASES, FLOATS, Case, Operand, case, make

import pyc_mlir
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.runtime.device import Device

INF, NAN = np.inf, np.nan
# What a row has besides plain values; in turn.
ROWS = ((), (NAN,), (INF,), (-INF,), (), (INF, -INF), (NAN, -INF), (-0.0, INF))
# Cases of the common table that are taken of each op, where not all are.
PER_OP = 100 if ALL_CASES else 3
# iota, constant and size take no values.
FAMILIES = sorted({op.family for op in OPS.values()} - {"creation"})
ALL_PAIRS = (37, 131)
# Compiled, it is x * factor + offset, which is not the reference where the scale is infinite
# (docs/dialect.md).
FINITE = {"batchnorm": (1, 4)}


def _f32(*shape: int) -> Operand:
    return Operand("f32", shape)


_POOL = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
# Sizes with tails that PyC's own kernels take.
LARGE: tuple[Case, ...] = (
    case("matmul", _f32(37, 70), _f32(70, 41)),
    case("matmul", _f32(1, 130), _f32(130, 65)),
    case("matmul", _f32(2, 19, 33), _f32(2, 33, 40)),
    case("conv2d", _f32(1, 3, 17, 19), _f32(8, 3, 3, 3), pads=(1, 1, 1, 1)),
    case("conv2d", _f32(1, 8, 11, 13), _f32(8, 1, 3, 3), groups=8, pads=(1, 1, 1, 1)),
    case("conv2d", _f32(2, 16, 9, 9), _f32(24, 16, 1, 1)),
    case("max_pool2d", _f32(1, 3, 18, 22), **_POOL),
    case("avg_pool2d", _f32(1, 3, 18, 22), **_POOL),
    case("resize", _f32(1, 3, 18, 22), sizes=(36, 44), mode="linear"),
    case("resize", _f32(1, 3, 18, 22), sizes=(36, 44)),
    *(
        case(f"reduce_{kind}", _f32(37, 131), axes=axes)
        for kind, axes in product(("sum", "prod", "max", "min", "mean"), ((0,), (1,), (0, 1)))
    ),
    *(
        case(op, _f32(37, 131), axis=axis)
        for op, axis in product(("argmax", "softmax", "log_softmax"), (0, 1))
    ),
    case("layernorm", _f32(37, 131), _f32(131), _f32(131)),
    case("rmsnorm", _f32(37, 131), _f32(131)),
    case("batchnorm", _f32(2, 5, 9, 7), *[_f32(5)] * 3, Operand("f32", (5,), "positive")),
    case("attention", _f32(2, 37, 16), _f32(2, 45, 16), _f32(2, 45, 24), scale=0.3),
    case("attention", *[_f32(2, 37, 16)] * 3, scale=0.3, is_causal=True),
    case("transpose", _f32(65, 37), permutation=(1, 0)),
)


def takes_values(row: Case) -> bool:
    """True if a case has f32 operands, and elements in all of them."""
    f32 = any(o.dtype == "f32" for o in row.operands)
    return f32 and all(0 not in o.shape for o in row.operands) and row.op not in ("iota", "size")


@cache
def calls_of(family: str, dtype: str) -> tuple[OpCall, ...]:
    """The calls of a family's ops, with f32 replaced by `dtype`."""
    rows: list[Case] = []
    for name in (o.name for o in OPS.values() if o.family == family):
        own = [c for c in CASES if c.op == name and takes_values(c)]
        rows += own[:: max(1, len(own) // PER_OP)][:PER_OP]
        if family == "elementwise":
            rows += [_all_pairs(own[0])] if own else []
    rows += [c for c in LARGE if OPS[c.op].family == family]
    return tuple(_call(_of_type(row, dtype), seed) for seed, row in enumerate(rows))


def _of_type(row: Case, dtype: str) -> Case:
    operands = [replace(o, dtype=dtype) if o.dtype == "f32" else o for o in row.operands]
    return replace(row, operands=tuple(operands))


def _all_pairs(row: Case) -> Case:
    """The case with special values only, in all operands that can hold them."""
    values = ["special" if o.dtype == "f32" else o.values for o in row.operands]
    operands = zip(row.operands, values, strict=True)
    return replace(row, operands=tuple(replace(o, shape=ALL_PAIRS, values=v) for o, v in operands))


def _call(row: Case, seed: int) -> OpCall:
    draw, arrays = np.random.default_rng(seed), []
    for place, operand in enumerate(row.operands):
        array = make(operand, draw)
        takes = operand.dtype in FLOATS and operand.values != "special"
        if takes and place not in FINITE.get(row.op, ()):
            array = spiked(array, draw)
        arrays.append(array)
    return OpCall(row.op, tuple(arrays), row.keywords)


def spiked(array: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """The array with special values in some of its rows, at random places."""
    out = array.copy()
    first = int(draw.integers(len(ROWS)))
    for i, row in enumerate(out.reshape(-1, out.shape[-1] if out.ndim else 1)):
        kinds: Sequence[float] = ROWS[(first + i) % len(ROWS)]
        for place, value in zip(draw.permutation(len(row)), kinds, strict=False):
            row[place] = value
    return out


# Calls of one program: more make its compile long, fewer make more compiles.
AT_ONCE = 40
TYPES = FLOATS if ALL_CASES else FLOATS[:1]


class DirectKernels(OwnKernels):
    """Without minimal filtering, which spreads infinities over tiles (docs/kernels.md)."""

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """The first kernel that adds the numbers of the op's plain form."""
        return super().prefer(site, [a for a in alternatives if not a.name.startswith("winograd")])


# Several roundings, and sums of up to 131 terms.
SCALE = 8.0


WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "own": {"policy": OwnKernels()},
    "constants": {"policy": DirectKernels()},
    "iree": {"kernels": "iree"},
}
# Below these a kernel's silu and gelu are 0, also at minus infinity, where the reference's are NaN
# (docs/kernels.md).
ZERO_AT_MINUS_INFINITY = ("silu", "gelu")
GROUPS = [
    (family, dtype, part)
    for family in FAMILIES
    for dtype in TYPES
    for part in range(-(-len(calls_of(family, dtype)) // AT_ONCE))
]
# In a sampled run each group is compiled in one way, the next group in the next one.
SAMPLED_WAYS = [
    (*group, way)
    for place, group in enumerate(GROUPS)
    for way in (WAYS if ALL_CASES else [list(WAYS)[place % len(WAYS)]])
]


def answers(calls: Sequence[OpCall], way: str) -> Sequence[np.ndarray]:
    """The results of all calls, compiled as one program."""
    taken = [call.arrays[:1] if way == "constants" else call.arrays for call in calls]

    def body(b: IRBuilder, *arguments: ir.Value) -> list[ir.Value]:
        given, out = iter(arguments), []
        for call, arrays in zip(calls, taken, strict=True):
            held = call.arrays[len(arrays) :]
            values = [next(given) for _ in arrays]
            values += [b.build(OPS["constant"], value=array) for array in held]
            out.append(call.build(b, *values))
        return out

    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [t for c, a in zip(calls, taken, strict=True) for t in c.types()[: len(a)]]
        add_function(module, "main", types, body)
        program = pyc_mlir.compile(module, device=Device("local-sync"), **WAYS[way])
        found = program(*(a for arrays in taken for a in arrays))
    return found if isinstance(found, tuple) else [found]


def fault(call: OpCall, got: np.ndarray, way: str) -> str:
    """What is wrong with a result ('' when nothing is)."""
    wanted = expected_of(call)
    if call.op in ZERO_AT_MINUS_INFINITY and way != "iree":
        limit = np.isneginf(call.arrays[0].astype(np.float32)) & (got == 0)
        wanted = np.where(limit, got, wanted)
    try:
        assert_close(got, wanted, str(call), SCALE)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("family", "dtype", "part", "way"), SAMPLED_WAYS)
@pytest.mark.sampled(5)
def test_special_values(family: str, dtype: str, part: int, way: str):
    calls = calls_of(family, dtype)[part * AT_ONCE :][:AT_ONCE]
    found = zip(calls, answers(calls, way), strict=True)
    wrong = [reported for call, got in found if (reported := fault(call, got, way))]
    assert not wrong, f"{len(wrong)} of {len(calls)}:\n" + "\n".join(wrong)


def test_every_way_is_sampled():
    assert {way for *_, way in SAMPLED_WAYS} == set(WAYS)


def test_every_op_that_takes_floats_is_there():
    taken = {call.op for family in FAMILIES for call in calls_of(family, "f32")}
    assert taken == {c.op for c in CASES if takes_values(c)}
