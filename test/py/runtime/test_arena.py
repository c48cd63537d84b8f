"""The entry `main$arena`: equal to `main`, in memory that the program or its caller owns."""

import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import sample
from modules import add_program, host_target, ramp
from stream_programs import LOOP, Writer, branches

from pyc_mlir import TensorSpec, compile
from pyc_mlir.artifact.manifest import ARENA, EntryPoint
from pyc_mlir.artifact.memory import Account
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.iree.compiler import opened
from pyc_mlir.iree.memory.arena_entry import make_entry
from pyc_mlir.iree.memory.calls import EntryRequest
from pyc_mlir.iree.memory.versions import iree_alone
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.arenas import (
    SMALLER_CALLS,
    Arena,
    ArenaCall,
    ArenaFacts,
    ArenaPool,
    read_facts,
)
from pyc_mlir.runtime.array import Array, import_dlpack, overlap, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.load import load
from pyc_mlir.runtime.program import Program

W = np.linspace(-1, 1, 64 * 48, dtype=np.float32).reshape(64, 48)
STABLEHLO = b"""func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = stablehlo.dot %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = stablehlo.dot %a, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %b : tensor<8x8xf32>
}"""


def two_products(x: Any) -> Any:
    return (np.tanh((x @ W) + 1) @ W.T, (x @ W) * 2)


@cache
def program(rows: int | str = 8, concurrency: int = 1, kind: str = "local-sync") -> Program:
    contract = Contract(max_concurrency=concurrency)
    device = Device(kind)
    return compile(two_products, [TensorSpec("f32", rows, 64)], contract=contract, device=device)


def inputs(rows: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 64)).astype(np.float32)


def arena_of(p: Program) -> ArenaCall:
    assert p._plans.current.arena is not None
    return p._plans.current.arena


def plain(p: Program, *arrays: np.ndarray) -> list[np.ndarray]:
    """The results of `main`."""
    return [r.numpy() for r in p._serving.run([to_device(a, p.device) for a in arrays])]


def fresh(p: Program, *arrays: np.ndarray) -> list[Array]:
    """An array for each result, filled with what no result is."""
    return [to_device(np.full_like(r, 7), p.device) for r in plain(p, *arrays)]


def refused(code: ReasonCode, p: Program, *args: Any, **keywords: Any) -> str:
    with pytest.raises(PycError) as caught:
        p(*args, **keywords)
    assert caught.value.code is code
    return str(caught.value)


@dataclass(frozen=True)
class Case:
    function: Any
    arrays: tuple[np.ndarray, ...]
    dims: tuple[tuple[Any, ...], ...] | None = None

    def compile(self) -> Program:
        shapes = self.dims or tuple(a.shape for a in self.arrays)
        pairs = zip(shapes, self.arrays, strict=True)
        specs = [TensorSpec(NAMES.get(a.dtype.name, a.dtype.name), *s) for s, a in pairs]
        return compile(self.function, specs, device=Device("local-sync"))


NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "i1", "int8": "i8"}
CASES = {
    "several results": Case(two_products, (inputs(),)),
    "dynamic": Case(two_products, (inputs(5),), (("n", 64),)),
    "two dynamic": Case(
        lambda x, y: ((x @ W) @ W.T) @ y, (inputs(3), ramp(64, 7)), (("n", 64), (64, "m"))
    ),
    "zero size": Case(two_products, (inputs(0),), (("n", 64),)),
    "scalars": Case(lambda x, y: (x * y, np.sum(x + y)), (np.float32(3) + ramp(), ramp() + 2)),
    "f16": Case(lambda x: (x @ x) @ (x + 1), (inputs(64).astype(np.float16) / 8,)),
    "bf16": Case(lambda x: x * x - 1, (inputs(4).astype(ml_dtypes.bfloat16),)),
    "i1": Case(lambda x, y: x < y, (inputs(4), inputs(4, 1))),
    "i8": Case(lambda x: (x + x, x), (ramp(5, dtype="i8"),)),
    "twice the same": Case(lambda x: (x @ W,) * 2, (inputs(4),)),
}


@pytest.mark.parametrize("name", sample(list(CASES), 7))
@pytest.mark.full
def test_both_entries_give_the_same_bits(name):
    case = CASES[name]
    p = case.compile()
    expected = plain(p, *case.arrays)
    got = p(*case.arrays)
    shapes = arena_of(p).facts.outputs
    out = [None if s is None else o for s, o in zip(shapes, fresh(p, *case.arrays), strict=True)]
    given = p(*case.arrays, out=out)
    for want, default, into, array in zip(
        expected, as_tuple(got), as_tuple(given), out, strict=True
    ):
        np.testing.assert_array_equal(default, want)
        assert array is None or into is array
        np.testing.assert_array_equal(into.numpy(), want)
    oracle = as_tuple(case.function(*case.arrays))
    for want, reference in zip(expected, oracle, strict=True):
        assert want.shape == np.shape(reference)
        tolerance = {1: 0, 2: 2e-2, 4: 1e-4}[want.dtype.itemsize]
        np.testing.assert_allclose(
            want.astype(float), np.asarray(reference).astype(float), rtol=tolerance, atol=tolerance
        )


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.full
def test_programs_that_enter_at_iree_have_the_entry_too():
    x = inputs(8)[:, :8].copy()
    for code in (STABLEHLO, branches(3).code):
        p = compile(code.decode(), device=Device("local-sync"))
        arrays = [x] if code is STABLEHLO else branches(3).inputs()
        assert arena_of(p).facts.arena_bytes
        np.testing.assert_array_equal(p(*arrays), plain(p, *arrays)[0])
    # A dynamic result of a foreign module: the compiler itself says whose size it has.
    foreign = branches(3, rows=None)
    p = compile(foreign.code.decode(), device=Device("local-sync"))
    (shape,) = arena_of(p).facts.outputs
    assert shape is not None and shape[0] == (0, 0)
    arrays = foreign.inputs()
    (expected,), (out,) = plain(p, *arrays), fresh(p, *arrays)
    np.testing.assert_array_equal(p(*arrays, out=out).numpy(), expected)


def test_code_is_generated_once():
    counts = []
    for wanted in (False, True):
        with opened(branches(3).code, host_target()) as session:
            session.run(to="flow")
            entry, _ = make_entry(session, EntryRequest(wanted=wanted), iree_alone)
            assert not entry.missing and (entry.second is not None) == wanted
            counts.append(session.text().count(b"stream.executable private"))
    assert counts[0] == counts[1] > 0


def test_the_account_is_exact():
    p = program()
    account = p.stats().memory
    assert account == p.artifact.account
    assert account.inputs == 8 * 64 * 4 and account.outputs == 8 * (64 + 48) * 4
    assert account.constants is not None and account.constants >= W.nbytes
    scratch = 8 * 48 * 4
    assert account.transients == arena_of(p).facts.arena_bytes == scratch
    device = Device("local-sync")
    counted = Program(p.artifact, device)
    x = to_device(inputs(), device)
    for _ in range(3):
        counted(x)
    needed = account.inputs + account.outputs + scratch
    assert counted.stats().device_memory.peak_bytes == needed
    assert counted.stats().arena_bytes == scratch
    assert account.total() == account.constants + needed
    assert account.total(3) == account.constants + needed + 2 * scratch


def test_dynamic_parts_of_the_account_are_open():
    account = program("n").stats().memory
    assert account.inputs is account.outputs is account.transients is account.total() is None
    assert account.constants is not None


def test_account_round_trip():
    for account in (Account(), Account(1, 2, 3, 4, 5)):
        assert from_data(Account, to_data(account)) == account
    for wrong in ({}, {**to_data(Account()), "inputs": 1.5}, {**to_data(Account()), "more": 1}):
        with pytest.raises(ValueError, match=r"Account.*: expected"):
            from_data(Account, wrong)


def test_a_dynamic_arena_grows_and_stays():
    p = Program(program("n").artifact, Device("local-sync"))
    assert p.stats().arena_bytes == 0
    p(inputs(4))
    # One value of 48 columns or two, by whether the product is a kernel.
    four_rows = p.stats().arena_bytes
    assert four_rows in (4 * 48 * 4, 2 * 4 * 48 * 4)
    for rows, held in ((4, 4), (16, 16), (2, 16), (0, 16)):
        x = inputs(rows)
        for got, want in zip(p(x), plain(p, x), strict=True):
            np.testing.assert_array_equal(got, want)
        assert p.stats().arena_bytes == held // 4 * four_rows


def test_an_undersized_arena_is_refused_before_the_launch():
    p = Program(program().artifact, Device("local-sync"))
    x, out = to_device(inputs(), p.device), fresh(p, inputs())
    p(x)
    pool = arena_of(p).pool
    pool._arenas[0].buffer = p.device.allocate(64)
    assert "expected an arena of 1536 bytes, got 64" in refused(
        ReasonCode.ARENA_TOO_SMALL, p, x, out=out
    )
    for array in out:
        np.testing.assert_array_equal(array.numpy(), np.full(array.shape, 7, np.float32))
    # The arena at fault is gone; the next call has a new one.
    for got, want in zip(p(inputs()), plain(p, inputs()), strict=True):
        np.testing.assert_array_equal(got, want)
    assert pool.bytes == 1536


@pytest.mark.parametrize("kind", ["local-sync", "local-task"])
def test_threads_wait_for_the_arena(kind):
    p = Program(program().artifact, Device(kind))
    cases = [inputs(seed=s) for s in range(6)]
    expected = [plain(p, x) for x in cases]
    held = arena_of(p).pool.take(0)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(p, x) for x in cases[:2]]
        spin_until(lambda: arena_of(p).pool.waits == 2)
        assert not any(c.done() for c in calls)
        arena_of(p).pool.give(held)
        for call, want in zip(calls, expected, strict=False):
            np.testing.assert_array_equal(call.result()[0], want[0])
    assert p.stats().arena_waits >= 2

    def work(n: int) -> bool:
        got, want = p(cases[n]), expected[n]
        return all(np.array_equal(g, w) for g, w in zip(got, want, strict=True))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, [n % len(cases) for n in range(400)]))
    assert p.stats().arena_bytes == 1536 and p.stats().calls == 402


def spin_until(condition: Any) -> None:
    event = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        event.wait(0.001)
    raise AssertionError("it never came about")


def test_the_contract_says_how_many_calls_overlap():
    p = program(concurrency=2)
    pool = arena_of(p).pool
    assert len(pool) == 2
    p(inputs())
    assert p.stats().arena_bytes == 1536, "an arena is allocated when it is first needed"
    held = pool.take(0)
    np.testing.assert_array_equal(p(inputs())[0], plain(p, inputs())[0])
    assert p.stats().arena_bytes == 2 * 1536 and p.stats().arena_waits == 0
    pool.give(held)


def test_pool_order_and_failures():
    device = Device("local-sync")
    pool = ArenaPool(device, 2)
    first = pool.take(100)
    pool.give(first)
    assert pool.take(50) is first, "the one given back last is taken first"
    pool.give(first)
    with pytest.raises(PycError) as caught:
        pool.take(1 << 60)
    assert caught.value.code is ReasonCode.RUNTIME_FAILED
    assert pool.bytes == 0
    taken = [pool.take(8), pool.take(8)]
    assert len(set(map(id, taken))) == 2, "a failed one went back to the pool"
    arena = Arena(device)
    arena.hold(0, device)
    assert arena.size >= 0 and arena.buffer is not None


def test_results_stay_when_the_arena_is_used_again():
    p = program()
    x = to_device(inputs(), p.device)
    kept = p(x)
    before = [k.numpy().copy() for k in kept]
    for seed in range(3):
        p(to_device(inputs(seed=seed + 1), p.device))
    for result, want in zip(kept, before, strict=True):
        np.testing.assert_array_equal(result.numpy(), want)


def test_out_is_checked():
    p = program()
    x = to_device(inputs(), p.device)
    wide, narrow = fresh(p, inputs())
    failures = p.stats().guard_failures
    assert "expected 2 arrays" in refused(ReasonCode.ARGUMENT_COUNT, p, x, out=wide)
    refused(ReasonCode.ARGUMENT_COUNT, p, x, out=[wide])
    refused(ReasonCode.BAD_ARGUMENT, p, x, out=[wide.numpy(), None])
    refused(ReasonCode.BAD_ARGUMENT, p, x, out=3)
    elsewhere = to_device(wide, Device("local-sync"))
    refused(ReasonCode.BAD_ARGUMENT, p, x, out=[elsewhere, None])
    assert "expected shape (8, 64), got (8, 48)" in refused(
        ReasonCode.ARGUMENT_SHAPE, p, x, out=[narrow, None]
    )
    integers = to_device(ramp(8, 64, dtype="i32"), p.device)
    refused(ReasonCode.ARGUMENT_DTYPE, p, x, out=[integers, None])
    assert "memory of input" in refused(ReasonCode.OUTPUT_OVERLAP, p, x, out=[x, None])
    shared = import_dlpack(x, p.device)
    refused(ReasonCode.OUTPUT_OVERLAP, p, x, out=[shared, None])
    assert p.stats().guard_failures == failures + 9
    partly = p(x, out=(None, narrow))
    assert partly[1] is narrow
    for got, want in zip(partly, plain(p, inputs()), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


def test_two_outputs_need_two_memories():
    p = compile(lambda x: (x + 1, x * 2), [ramp(4)], device=Device("local-sync"))
    one = to_device(ramp(4), p.device)
    assert "memory of output" in refused(ReasonCode.OUTPUT_OVERLAP, p, ramp(4), out=[one, one])


def test_overlap():
    device = Device("local-sync")
    a, b = to_device(ramp(4), device), to_device(ramp(4), device)
    empty = to_device(ramp(0), device)
    assert overlap(a, a) and not overlap(a, b)
    assert overlap(a, import_dlpack(a, device)) and not overlap(empty, import_dlpack(a, device))


def test_a_program_without_the_entry_says_so():
    p = compile(LOOP.decode(), device=Device("local-sync"))
    (decision,) = [d for d in p.artifact.decisions if d.site.pass_name == "arena-entry"]
    assert (decision.chosen, decision.decided_by) == ("none", "fallback")
    assert "NO_ARENA_ENTRY: the function has control flow" in str(decision.grounds[0])
    assert set(p.artifact.manifest.entries) == {"main"}
    x, n = inputs(16)[:, :16] / 8, np.array(2, np.int32)
    np.testing.assert_allclose(p(x, n), x @ x @ x, rtol=1e-4, atol=1e-5)
    assert p.stats().memory.transients is None
    out = to_device(x, p.device)
    refused(ReasonCode.NO_ARENA_ENTRY, p, x, n, out=out)
    refused(ReasonCode.NO_ARENA_ENTRY, add_program(), ramp(4), ramp(4), out=out)


def ending_in(what: str, rows: int | None = 32) -> Any:
    """A program of two products whose results are made, or used, in a certain way."""
    w = Writer(rows)
    x = w.argument(16)
    y = w.matmul(x, 16, 24)
    z = w.matmul(y, 24, 16)
    if what == "concat":
        return w.finish([(w.concat(y, z, (24, 16)), 40)])
    if what == "insert":
        return w.finish([(w.insert(y, y, 24), 24), (z, 16)])
    return w.finish([(y, 24), (z, 16)] if what == "read later" else [(z, 16), (z, 16)])


@pytest.mark.parametrize("rows", [32, None])
@pytest.mark.parametrize(
    ("what", "buffers"),
    [("concat", (0,)), ("insert", (1,)), ("read later", (0, 1)), ("twice", (0, 1))],
)
@pytest.mark.sampled(3)
def test_outputs_that_a_buffer_would_cost_a_copy_stay_fresh(what, buffers, rows):
    made = ending_in(what, rows)
    p = compile(made.code.decode(), device=Device("local-sync"))
    assert arena_of(p).facts.buffers == buffers
    arrays, peaks = made.inputs(), []
    for by_arena in (True, False):
        own = Program(p.artifact, Device("local-sync"))
        given = [to_device(a, own.device) for a in arrays]
        before = own.device.memory().live_bytes
        if by_arena:
            arena_of(own).call(given, arena_of(own).needs(given))
        else:
            own._serving.run(given)
        peaks.append(own.device.memory().peak_bytes - before)
    assert peaks[0] <= peaks[1]
    # Written where the caller wants it in any case.
    want, out = plain(p, *arrays), fresh(p, *arrays)
    got = p(*arrays, out=out)
    for result, into, expected in zip(as_tuple(got), out, want, strict=True):
        assert result is into
        np.testing.assert_array_equal(into.numpy(), expected)


def test_an_entry_that_needs_more_than_main_is_dropped():
    # IREE gives scratch from the arena only behind the last point that the host waits for.
    regions = branches(2, regions=2)
    p = compile(regions.code.decode(), device=Device("local-sync"))
    (decision,) = [d for d in p.artifact.decisions if d.site.pass_name == "arena-entry"]
    assert (decision.chosen, decision.decided_by) == ("none", "fallback")
    (why,) = decision.grounds
    reported = re.search(r"a call of it would need (\d+) bytes, one of `main` (\d+)", str(why))
    assert reported is not None and int(reported[1]) > int(reported[2])
    account = p.stats().memory
    assert account.transients == int(reported[2]) - (account.outputs or 0)
    device = Device("local-sync")
    counted, arrays = Program(p.artifact, device), regions.inputs()
    arrays = [to_device(a, device) for a in arrays]
    before = device.memory().live_bytes
    counted(*arrays)
    assert device.memory().peak_bytes - before == int(reported[2])


def test_a_policy_can_leave_the_entry_out():
    class Plain:
        name = "plain"

        def prefer(self, site: Any, alternatives: Any) -> str:
            wanted = "none" if site.pass_name == "arena-entry" else alternatives[0].name
            return next((a.name for a in alternatives if a.name == wanted), alternatives[0].name)

    p = compile(two_products, [inputs()], policy=Plain(), device=Device("local-sync"))
    assert p._plans.current.arena is None and p.stats().memory.constants is not None
    assert read_facts(p.artifact.vmfb, ["main$arena"]) == {}
    np.testing.assert_array_equal(p(inputs())[0], plain(program(), inputs())[0])


def test_an_argument_that_is_returned_takes_a_buffer():
    p = compile(lambda x: (x, x + 1), [ramp(4)], device=Device("local-sync"))
    assert arena_of(p).facts == ArenaFacts(0, arena_of(p).facts.query, ((4,), (4,)), (0, 1))
    same, more = p(ramp(4), out=fresh(p, ramp(4)))
    np.testing.assert_array_equal(same.numpy(), ramp(4))
    np.testing.assert_array_equal(more.numpy(), ramp(4) + 1)


@pytest.mark.full
def test_the_arena_has_the_planned_size():
    wide = branches(6)
    sizes = {}
    for mode in ("iree", "balanced"):
        p = compile(wide.code.decode(), planner_mode=mode, device=Device("local-sync"))
        sizes[mode] = arena_of(p).facts.arena_bytes or 0
        arrays = wide.inputs()
        got = p(*arrays)
        np.testing.assert_array_equal(got, plain(p, *arrays)[0])
        assert p.stats().memory.transients == sizes[mode]
    assert sizes["balanced"] * 3 < sizes["iree"]


def test_round_trip_and_iree_run_module(tmp_path):
    path = tmp_path / "p.vmfb"
    program().save(path)
    again = load(path, Device("local-sync"))
    assert again.artifact.manifest == program().artifact.manifest
    assert again.artifact.vmfb == program().artifact.vmfb
    np.testing.assert_array_equal(again(inputs())[0], plain(program(), inputs())[0])
    assert again.stats().arena_bytes == 1536
    tool = Path(sys.executable).with_name("iree-run-module")
    command = [tool, f"--module={path}", "--device=local-sync", "--function=main"]
    run = subprocess.run(
        [*command, "--input=8x64xf32=0"], capture_output=True, text=True, check=True
    )
    assert "8x48xf32=" in run.stdout


def test_what_a_damaged_reflection_says_is_refused():
    artifact = program().artifact
    wrong = artifact.noted(entries={**artifact.manifest.entries, ARENA: EntryPoint("main")})
    with pytest.raises(PycError, match="the arena's size and the outputs' shapes") as caught:
        Program(wrong, Device("local-sync"))
    assert caught.value.code is ReasonCode.BAD_ARTIFACT


def test_an_arena_that_is_too_large_for_many_calls_becomes_smaller():
    pool = ArenaPool(Device("local-sync"), 1)

    def held(size: int) -> int:
        arena = pool.take(size)
        pool.give(arena)
        return arena.size

    assert held(1 << 20) == 1 << 20
    assert {held(1 << 12) for _ in range(SMALLER_CALLS - 1)} == {1 << 20}
    # One that needs more than half keeps it for as many calls again.
    assert held(3 << 18) == 1 << 20
    assert {held(1 << 12) for _ in range(SMALLER_CALLS - 1)} == {1 << 20}
    assert held(1 << 13) == 1 << 13
    assert held(1 << 12) == 1 << 13 and held(1 << 14) == 1 << 14
