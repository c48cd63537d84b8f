"""What carried kernels say of themselves: their operations are counted, their pairs are used."""

import re

import numpy as np
import pytest
from kernel_runs import FLOAT, pointwise, targets
from stream_programs import at_stream

from pyc_mlir.compilation.assign_memory import MemoryRequest, planner_of
from pyc_mlir.compilation.build import Plan, build
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.compiler import opened
from pyc_mlir.pipelines.kernels.lang.carrier import Carrier
from pyc_mlir.pipelines.memory.stream_alias import POINTS, ROWS, Bodies, Pairs
from pyc_mlir.pipelines.memory.stream_problem import DispatchCosts
from pyc_mlir.pipelines.streams.ir import (
    DISPATCH,
    declared_flops,
    declared_in_place,
    find,
    ir,
    symbol_of,
)
from pyc_mlir.pipelines.streams.ir import FLOPS as FLOPS_NAME
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable

SIZE, STEPS = 4096, 5
FLOPS = 10**12
IN_PLACE = "pyc.in_place = [[1, 0]]"
CPU = Target.named("cpu")


def steps(target: Target, *attributes: str) -> str:
    """x = 2 x, several times, each by a kernel whose function has `attributes`."""
    kernel = pointwise("double", lambda x: x + x, SIZE)
    carrier = Carrier(target)
    carrier.add(kernel)
    carrier.call(kernel)
    text = str(carrier.module).replace(
        "func.func @double(%arg0: t", "func.func private @double(%arg0: t"
    )
    inner = ", ".join([*attributes, "translation_info = #translation"])
    text, count = re.subn(
        r"(@double\([^)]*!stream.binding\) attributes) \{[^}]*\}", rf"\1 {{{inner}}}", text
    )
    assert count == 1
    vector = f"tensor<{SIZE}xf32>"
    lines = [f"func.func @main(%x0: {vector}) -> {vector} {{"]
    for i in range(STEPS):
        lines.append(f"%x{i + 1} = func.call @double(%x{i}) : ({vector}) -> {vector}")
    lines += [f"return %x{STEPS} : {vector}", "}", "}"]
    return text.rstrip().removesuffix("}") + "\n".join(lines)


def read(*attributes: str, forms: frozenset[str] = frozenset({POINTS})) -> tuple[Pairs, float]:
    """The pairs of the kernel, and the seconds of one run without its traffic."""
    with at_stream(steps(CPU, *attributes).encode()) as session, session.context:
        (symbol,) = {symbol_of(op) for op in find(session.module, DISPATCH)}
        pairs = Bodies.of(session.module, forms)(symbol)
        return pairs, DispatchCosts(session.module, CPU)(symbol, 0).seconds


def test_declared_operations_are_counted():
    model = CostModel(CPU)
    alone = model.dispatch_seconds
    assert read()[1] == pytest.approx(alone)
    declared = read(f"pyc.flops = {FLOPS} : i64")[1]
    assert declared == pytest.approx(alone + model.dispatch("pointwise", FLOPS, 0).seconds)


@pytest.mark.parametrize("form", [POINTS, ROWS])
def test_declared_pairs_need_a_target_that_accepts_some_form(form):
    assert read(IN_PLACE, forms=frozenset({form}))[0] == {(1, 0)}
    assert not read(IN_PLACE, forms=frozenset())[0]
    assert not read(forms=frozenset({form}))[0]


@pytest.mark.parametrize("target", targets(), ids=lambda t: t.name)
@pytest.mark.full
def test_declared_pairs_save_memory_and_change_no_bit(target):
    """The result and one buffer of the arena are all; without the pairs there are two."""
    x = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    arenas = []
    for attributes in ((), (IN_PLACE,)):
        code = steps(target, *attributes).encode()
        made = build(
            Plan(
                lowered=Lowered(code=code),
                options=Options(target=target),
                memory=MemoryRequest(name="module", planner=planner_of(["balanced"])),
            )
        )
        device = Device("local-sync")
        entry = Executable(made.vmfb, device).entry("main", [FLOAT])
        (result,) = entry([to_device(x, device)])
        assert np.array_equal(result.numpy(), x * 2**STEPS)
        (region,) = made.memory.report.regions
        arenas.append(region.layouts[region.chosen].arena_bytes)
    assert arenas == [2 * SIZE * 4, SIZE * 4]


def test_kernels_declare_operations_not_time():
    """A product whose time is its traffic's: operations that take as long would be many more."""
    rows, depth, columns = 4, 256, 128
    w = np.ones((depth, columns), np.float32)
    options = make_options(target="cpu-avx2")
    lowered = lower(Job.of(lambda x: x @ w, [np.ones((rows, depth), np.float32)], options))
    with opened(lowered.code, options.target, ()) as session:
        session.run(to="flow")
        with session.context:
            kernels = [f for f in find(session.module, "func.func") if FLOPS_NAME in f.attributes]
            declared = [declared_flops(f) for f in kernels]
    assert max(declared) == 2 * rows * depth * columns


def inner(attribute: str) -> ir.Operation:
    arguments = "%a: !stream.binding, %b: !stream.binding"
    text = f"func.func @k({arguments}) attributes {{{attribute}}} {{ return }}"
    return ir.Module.parse(text).body.operations[0].operation


@pytest.mark.parametrize("value", ["-1 : i64", '"many"', "1.5 : f32", "[1]"])
def test_wrong_operations_are_refused(value):
    with ir.Context(), pytest.raises(PycError, match=r"kernel @k: expected `pyc.flops`") as error:
        declared_flops(inner(f"pyc.flops = {value}"))
    assert error.value.code is ReasonCode.INVALID_IR


@pytest.mark.parametrize(
    "value",
    [
        "1 : i64",
        "[1, 0]",
        "[[1]]",
        "[[1, 0, 0]]",
        '[[1, "x"]]',
        "[[2, 0]]",
        "[[-1, 0]]",
        "[[1, 1]]",
    ],
)
def test_wrong_pairs_are_refused(value):
    with ir.Context(), pytest.raises(PycError, match=r"expected `pyc.in_place`") as error:
        declared_in_place(inner(f"pyc.in_place = {value}"), 2)
    assert error.value.code is ReasonCode.INVALID_IR


def test_nothing_declared_is_nothing():
    with ir.Context():
        assert declared_in_place(inner("pyc.in_place = []"), 2) == frozenset()
        assert declared_in_place(inner("a.b"), 2) == frozenset()
        assert declared_flops(inner("a.b")) == 0
