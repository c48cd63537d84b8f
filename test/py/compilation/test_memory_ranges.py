"""Dimensions with declared ranges: checked at each call, and a budget holds up to the largest."""

import random
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import pytest
from conftest import FULL
from stream_programs import Program as Linalg
from stream_programs import bits, branches, layered

import pyc_mlir.nn as nn
from pyc_mlir import jit
from pyc_mlir.api import build, compile
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.manifest import read_origin
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.compilation.build import plan_only
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import emit, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.iree.compiler import IreeSession
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.streams.ir import find
from pyc_mlir.pipelines.streams.sizes import interval_of, size_of
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.load import load
from pyc_mlir.runtime.program import Program

_rng = np.random.default_rng(5)
W, V = (_rng.normal(0, 0.2, s).astype(np.float32) for s in ((16, 64), (64, 16)))
SPECS = [TensorSpec("f32", "batch", 16), TensorSpec("f32", None, 16)]
DIMS = {"batch": (1, 50), "y[0]": (2, 9)}


def model(x, y):
    """Products of several widths, a square of the batch, results of computed sizes."""
    z = np.tanh(np.maximum(x @ W, 0) @ V) + x
    q = z @ z.T
    return np.concatenate([z, y], 0), (q @ z).sum(0), z.reshape(-1), np.exp(z) @ V.T


def arrays(*rows: int) -> list[np.ndarray]:
    return [_rng.normal(0, 0.2, (n, 16)).astype(np.float32) for n in rows]


def budget(total: int | None, concurrency: int = 1) -> Contract:
    return Contract(memory_budget_bytes=total, max_concurrency=concurrency)


def peak(artifact: Artifact, inputs: Sequence[np.ndarray]) -> tuple[list[bytes], int]:
    """Results and the device's peak, of a fresh device."""
    device = Device("local-sync")
    program = Program(artifact, device)
    given = [to_device(a, device) for a in inputs]
    program(*given)
    return bits(program(*given)), device.memory().peak_bytes


@pytest.mark.full
def test_a_call_outside_of_a_range_is_refused():
    device = Device("local-sync")
    p = compile(model, SPECS, dims=DIMS, device=device)
    assert p.signature.ranges == DIMS
    p(*arrays(1, 2))
    p(*arrays(50, 9))
    for rows, text in (
        ((51, 9), "`batch`: expected 1 to 50, got 51 on axis 0 of `x`; compile with a wider"),
        ((0, 9), "`batch`: expected 1 to 50, got 0"),
        ((7, 1), r"`y\[0\]`: expected 2 to 9, got 1 on axis 0 of `y`"),
    ):
        with pytest.raises(PycError, match=text) as caught:
            p(*arrays(*rows))
        assert caught.value.code is ReasonCode.DIMENSION_OUT_OF_RANGE
    assert p.stats().guard_failures == 3 and p.stats().calls == 2


def test_the_program_itself_checks_the_ranges():
    """For whoever runs it without PyC's guards."""
    p = compile(model, SPECS, dims=DIMS, device=Device("local-sync"))
    for rows in ((51, 9), (0, 9), (7, 1)):
        given = [to_device(a, p.device) for a in arrays(*rows)]
        with pytest.raises(PycError, match=r"input[01]: expected \d+ to \d+ in dimension 0"):
            p._serving.run(given)


@pytest.mark.full
def test_ranges_stay_in_the_artifact_and_in_the_text(tmp_path):
    options = make_options(dims={"batch": (1, 50)})
    made = build(model, SPECS, options)
    assert made.signature.ranges == {"batch": (1, 50)}
    path = tmp_path / "p.vmfb"
    Program(made, Device("local-sync")).save(path)
    assert load(path, Device("local-sync")).signature.ranges == {"batch": (1, 50)}
    text, _ = emit(Job.of(model, SPECS, options), "pyc")
    assert "pyc.ranges = {batch = array<i64: 1, 50>}" in text
    again = build(text, None, make_options(dims={"y[0]": (2, 9)}))
    assert again.signature.ranges == DIMS
    # A dimension that has become static needs none.
    settled = build(text, [(8, 16), (None, 16)], make_options())
    assert settled.signature.ranges == {} and settled.signature.inputs[0].shape == (8, 16)
    assert "pyc.ranges" not in emit(Job.of(model, SPECS, options), "linalg")[0]


def test_wrong_ranges_are_refused():
    for dims, text in (
        ({"n": (1, 2)}, r"dynamic dimensions of the inputs \(batch, y\[0\]\), got 'n'"),
        ({"batch": (5, 1)}, r"smallest and the largest size of `batch`.*got \(5, 1\)"),
        ({"batch": 8}, "got 8"),
        ({"batch": (-1, 8)}, "got"),
        ({"batch": (1, 2.5)}, "got"),
        ({"batch": (False, 8)}, "got"),
        ({"batch": (1, 1 << 63)}, "got"),
    ):
        with pytest.raises(PycError, match=text) as caught:
            compile(model, SPECS, dims=dims)  # type: ignore[arg-type]
        assert caught.value.code is ReasonCode.BAD_ARGUMENT
    data = to_data(build(model, SPECS, make_options()).manifest.origin)
    data["signature"]["ranges"] = {"n": [1, 2]}
    with pytest.raises(ValueError, match=r"manifest.signature.ranges: dims: expected"):
        read_origin(data)


def test_a_signature_knows_its_ranges():
    x = SignatureEntry("x", np.dtype(np.float32), ("n", 3, None))
    signature = Signature((x, x), ()).with_ranges({"n": (1, 4), "x[2]": (0, 7)})
    assert signature.ranges_of_inputs == {
        (i, axis): ends for i in (0, 1) for axis, ends in ((0, (1, 4)), (2, (0, 7)))
    }
    assert signature.undeclared == [] and x.largest(signature.ranges).shape == (4, 3, 7)
    assert from_data(Signature, to_data(signature)) == signature
    assert Signature((x,), ()).undeclared == [("n", "axis 0 of `x`"), ("x[2]", "axis 2 of `x`")]


def test_jit_takes_ranges():
    @jit(dims={"batch": (1, 4)})
    def f(x: Annotated[np.ndarray, TensorSpec("f32", "batch", 16)]):
        return nn.relu(x @ W)

    np.testing.assert_allclose(f(arrays(4)[0]).shape, (4, 64))
    with pytest.raises(PycError, match="expected 1 to 4, got 5"):
        f(arrays(5)[0])


def test_a_budget_names_the_dimension_without_a_range():
    """All of them at once: each was told in a compile of its own."""
    for dims, name in (({}, "batch"), ({}, "y[0]"), ({"batch": (1, 50)}, "y[0]")):
        with pytest.raises(PycError) as caught:
            build(model, SPECS, make_options(contract=budget(1 << 30), dims=dims))
        assert caught.value.code is ReasonCode.BUDGET_NOT_FOUND
        assert ("`batch`" in caught.value.message) == (not dims)
        assert f"`{name}` (axis 0 of " in caught.value.message
        assert f"--dim {name}=1:64" in caught.value.message


def test_a_refused_budget_names_the_sizes_that_it_is_for():
    with pytest.raises(BudgetNotKept, match=r"plan found for batch=\d+, .*declare narrower ranges"):
        build(model, SPECS, make_options(contract=budget(10), dims=DIMS))


@pytest.mark.full
def test_the_account_is_that_of_the_largest_call():
    account = build(model, SPECS, make_options(dims=DIMS)).account
    outputs = 4 * (59 * 16 + 16 + 50 * 16 + 50 * 64)
    assert account.inputs == 4 * 16 * 59 and account.outputs == outputs
    open_ = build(model, SPECS, make_options(dims={"batch": (1, 50)})).account
    assert open_.inputs is open_.outputs is open_.transients is None


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.full
def test_a_budget_is_kept_up_to_the_largest_sizes(concurrency):
    options = make_options(dims=DIMS)
    free = plan_only(lower(Job.of(model, SPECS, options)), options).account.total(concurrency)
    assert free is not None
    with pytest.raises(BudgetNotKept) as caught:
        build(model, SPECS, make_options(contract=budget(1000, concurrency), dims=DIMS))
    smallest = caught.value.smallest
    # IREE's plan of computed sizes shares between equal ones only; a budget packs the largest.
    assert smallest < free
    plain = compile(model, SPECS, device=Device("local-sync"), planner_mode="iree")
    made = build(model, SPECS, make_options(contract=budget(smallest, concurrency), dims=DIMS))
    assert made.account.total(concurrency) == smallest
    assert made.manifest.entries["main$arena"].arena_bytes == made.account.transients
    for rows in ((1, 2), (50, 9), (33, 5), (50, 2)):
        inputs = arrays(*rows)
        results, used = peak(made, inputs)
        assert used <= smallest and results == bits(plain(*inputs))
    with pytest.raises(BudgetNotKept):
        build(model, SPECS, make_options(contract=budget(smallest - 1, concurrency), dims=DIMS))


def with_rows(program: Linalg, rows: int) -> list[np.ndarray]:
    """Arrays with so many rows in place of the dynamic ones."""
    rng = np.random.default_rng(rows)
    types = program.code.decode().partition(") ->")[0].split(", ")
    return [
        rng.normal(0, 0.2, ((rows if "?" in type_ else shape[0]), *shape[1:])).astype(np.float32)
        for type_, shape in zip(types, program.shapes, strict=True)
    ]


@pytest.mark.parametrize("seed", range(40) if FULL else (0, 3))
@pytest.mark.full
def test_random_programs_ranges_and_budgets(seed):
    rng = random.Random(seed)
    program = branches(4, rows=None) if seed % 4 == 3 else layered(seed, dynamic=True)
    low = rng.randrange(12, 30)
    high = low + rng.choice((0, 1, 17, 40))
    text = program.code.decode()
    lowered = lower(Job.of(text, None, make_options()))
    names = [a.dynamic[0] for a in lowered.signature.inputs if a.dynamic]
    dims = dict.fromkeys(names, (low, high))
    options = make_options(dims=dims)
    free = plan_only(lower(Job.of(text, None, options)), options).account.total()
    assert free is not None
    total = int(free * rng.uniform(0.4, 1.1))
    try:
        made = build(text, None, make_options(contract=budget(total), dims=dims))
    except BudgetNotKept as refused:
        assert refused.smallest > total
        # What the refusal names is kept.
        total = refused.smallest
        made = build(text, None, make_options(contract=budget(total), dims=dims))
    assert made.account.total() is not None and (made.account.total() or 0) <= total
    plain = compile(text, device=Device("local-sync"), planner_mode="iree")
    for rows in {low, high, (low + high) // 2}:
        inputs = with_rows(program, rows)
        results, used = peak(made, inputs)
        assert used <= total
        assert results == bits(plain(*inputs))
    # Sizes that change from call to call, in one program.
    device = Device("local-sync")
    loaded = Program(made, device)
    for rows in (high, low, high):
        loaded(*(to_device(a, device) for a in with_rows(program, rows)))
    assert device.memory().peak_bytes <= total


OPS = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divui": lambda a, b: a // b,
    "arith.ceildivui": lambda a, b: -(-a // b),
    "arith.remui": lambda a, b: a % b,
    "arith.minui": min,
    "arith.maxsi": max,
    "util.align": lambda a, b: -(-a // b) * b,
}


@pytest.mark.parametrize("seed", range(200 if FULL else 20))
def test_intervals_hold_every_value(seed):
    rng = random.Random(seed)
    ranges = {(i, 0): tuple(sorted((rng.randrange(9), rng.randrange(9)))) for i in (0, 1)}
    lines, made = [], ["%n", "%m"]
    for number in range(rng.randrange(1, 7)):
        name = f"%v{number}"
        if rng.random() < 0.3:
            lines.append((name, "arith.constant", rng.choice((0, 1, 2, 3, 8)), None))
        else:
            lines.append((name, rng.choice(list(OPS)), rng.choice(made), rng.choice(made)))
        made.append(name)
    found = _interval(lines, ranges)
    values = set()
    for n in range(ranges[0, 0][0], ranges[0, 0][1] + 1):
        for m in range(ranges[1, 0][0], ranges[1, 0][1] + 1):
            known = {"%n": n, "%m": m}
            try:
                for name, op, a, b in lines:
                    known[name] = a if b is None else OPS[op](known[a], known[b])
            except ZeroDivisionError:
                continue
            if all(v >= 0 for v in known.values()):
                values.add(known[lines[-1][0]])
    if found is not None and values:
        assert found[0] <= min(values) and max(values) <= found[1]


def _interval(lines, ranges):
    body = [
        f"%{v} = hal.buffer_view.dim<%a{i} : !hal.buffer_view>[0] : index"
        for i, v in enumerate("nm")
    ]
    for name, op, a, b in lines:
        body.append(
            f"{name} = {op} {a} : index" if b is None else f"{name} = {op} {a}, {b} : index"
        )
    body.append(f"util.return {lines[-1][0]} : index")
    arguments = "%a0: !hal.buffer_view, %a1: !hal.buffer_view"
    code = f"util.func public @f({arguments}) -> index {{\n" + "\n".join(body) + "\n}"
    with IreeSession() as session:
        session.parse(code.encode(), "test")
        with session.context:
            (end,) = find(session.module, "util.return")
            value = end.operands[0]
            size, open_ = size_of(value, ranges), size_of(value)
            found = interval_of(value, ranges)
            assert interval_of(value, {}) is None or size.known or "hal" not in str(size)
            assert size.terms == open_.terms
            assert found is None or size.known or size.largest == found[1]
            return found
