"""NaN and infinities through every op of every family, against the numpy references.

One program holds many calls. Each is compiled with the kernels that are chosen by default, with
PyC's own wherever there is one, with these and all operands but the first as constants (which are
packed and folded), and by IREE alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from compiled import OpCall, OwnKernels, add_function, assert_close, expected_of
from conftest import ALL_CASES
from op_cases import CASES, FLOATS
from special_cases import FAMILIES, calls_of, takes_values

import pyc_mlir
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.runtime.device import Device

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
