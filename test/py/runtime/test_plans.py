"""Several plans of one program in one artifact: equal results, and arenas that follow the mode."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from stream_programs import Program as Source
from stream_programs import Writer, bits, branches

from pyc_mlir import compile
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.manifest import EntryPoint
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.arenas import ArenaPool
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.events import RunLog
from pyc_mlir.runtime.plans import PlannedMode, Plans, memory_rule, parse_available
from pyc_mlir.runtime.program import Program

FIRST, SMALL = "balanced", "memory_first"


def sandwich(pairs: int = 4) -> Source:
    """Wide values made of one, used twice, in opposite orders: recomputing them saves memory."""
    w = Writer()
    x = w.argument(16)
    wide = [w.matmul(x, 16, 64, w.fresh_weight(16, 64)) for _ in range(pairs)]
    total = wide[0]
    for value in (*wide[1:], *wide[::-1]):
        y = w.matmul(total, 64, 64)
        total = w.add(y, value, 64)
    return w.finish([(total, 64)])


@cache
def program() -> Program:
    code = sandwich().code.decode()
    return compile(code, also_modes=(SMALL,), device=Device("local-sync"))


def fresh() -> Program:
    return Program(program().artifact, Device("local-sync"))


def refused(call) -> PycError:
    with pytest.raises(PycError) as caught:
        call()
    return caught.value


@pytest.mark.full
def test_every_mode_gives_the_same_bits_in_its_own_arena():
    p, inputs = fresh(), sandwich().inputs()
    assert list(p.modes) == [FIRST, SMALL] and p.mode == FIRST
    large, small = p.modes.values()
    assert large is not None and small is not None and 0 < small < large
    want = bits(tuple(r.numpy() for r in p._serving.run([to_device(a, p.device) for a in inputs])))
    for mode in (FIRST, SMALL, FIRST, SMALL):
        p.use_mode(mode)
        assert p.stats().arena_bytes == 0, "the old mode's arenas are let go"
        assert bits(p(*inputs)) == want
        assert p.mode == p.stats().mode == mode
        assert p.stats().arena_bytes == p.modes[mode]
    out = to_device(np.full((32, 64), 7, np.float32), p.device)
    assert p(*inputs, out=out) is out and bits(out) == want


def test_the_manifest_names_modes_and_arenas():
    entries = program().artifact.manifest.entries
    assert entries == {
        "main": EntryPoint("main"),
        **{
            name: EntryPoint(name, mode, program().modes[mode])
            for name, mode in (("main$arena", FIRST), (f"main$arena.{SMALL}", SMALL))
        },
    }
    again = artifacts.from_bytes(artifacts.to_bytes(program().artifact))
    assert Program(again, Device("local-sync")).modes == program().modes
    (decision,) = [d for d in program().artifact.decisions if d.site.pass_name == "arena-entry"]
    assert f"in mode {SMALL} " in " ".join(map(str, decision.evidence))


def test_switches_are_counted_and_told():
    p = fresh()
    p.use_mode(FIRST)
    assert p.stats().mode_switches == 0, "nothing changed"
    p.use_mode(SMALL)
    p.use_mode(FIRST)
    assert p.stats().mode_switches == 2
    first = p.stats().switches[0]
    assert (first.before, first.after, first.why) == (FIRST, SMALL, "asked for")
    assert first.code is ReasonCode.MODE_SWITCHED


def test_unknown_modes_are_refused():
    p = fresh()
    for call in (lambda: p.use_mode("fast"), lambda: p.switch_below(1, "fast", lambda: 0)):
        error = refused(call)
        assert error.code is ReasonCode.BAD_ARGUMENT
        assert f"expected one of the program's, {FIRST}, {SMALL}, got 'fast'" in str(error)
    assert p.stats().mode_switches == 0
    for modes, mode in ((["fast"], ""), ([SMALL], "iree")):
        error = refused(lambda m=modes, n=mode: make_options(also_modes=m, planner_mode=n))
        assert error.code is ReasonCode.BAD_ARGUMENT
    assert make_options(also_modes=[FIRST, SMALL, SMALL]).also_modes == (SMALL,)


def test_the_rule_switches_with_free_memory():
    p, inputs, free = fresh(), sandwich().inputs(), [100_000]
    want = bits(p(*inputs))
    p.switch_below(50_000, SMALL, lambda: free[0])
    modes = []
    for left in (100_000, 50_000, 10_000, 0, 60_000):
        free[0] = left - p.stats().arena_bytes
        assert bits(p(*inputs)) == want
        modes.append(p.mode)
    assert modes == [FIRST, FIRST, SMALL, SMALL, FIRST]
    assert [s.why for s in p.stats().switches] == [
        "10000 bytes free, below the limit of 50000",
        "60000 bytes free, not below the limit of 50000",
    ]
    free[0] = 0
    p(*inputs)
    p.switch_below(1_000, SMALL, lambda: free[0])
    free[0] = 100_000
    p(*inputs)
    assert p.mode == FIRST, "a rule that replaces another one returns to the same mode"
    p.use_mode(SMALL)
    p(*inputs)
    assert p.mode == SMALL, "a mode that was asked for ends the rule"


def test_what_is_free():
    lines = ["MemTotal:  100 kB\n", "MemAvailable:   12 kB\n"]
    assert parse_available(lines) == 12 * 1024
    assert refused(lambda: parse_available(lines[:1])).code is ReasonCode.RUNTIME_FAILED
    p = fresh()
    p.switch_below(0, SMALL)
    p(*sandwich().inputs())
    p.switch_below(1 << 60, SMALL)
    p(*sandwich().inputs())
    assert p.mode == SMALL
    wrong: Any
    for wrong in (-1, 0.5):
        assert refused(lambda w=wrong: p.switch_below(w, SMALL)).code is ReasonCode.BAD_ARGUMENT
    gpu: Any = SimpleNamespace(is_cpu=False)
    error = refused(lambda: memory_rule(1, SMALL, FIRST, None, gpu))
    assert "expected a function that tells the free bytes" in str(error)


def test_calls_and_switches_at_once():
    p, inputs = Program(program().artifact, Device("local-task")), sandwich().inputs()
    want = bits(p(*inputs))
    stop = threading.Event()

    def switch() -> None:
        while not stop.is_set():
            for mode in p.modes:
                p.use_mode(mode)
                stop.wait(0.0005)

    with ThreadPoolExecutor(4) as threads:
        switching = threads.submit(switch)
        calls = [threads.submit(lambda: bits(p(*inputs)) == want) for _ in range(200)]
        assert all(c.result() for c in calls)
        stop.set()
        switching.result()
    assert p.stats().mode_switches > 0
    p.use_mode(SMALL)
    p(*inputs)
    assert p.stats().arena_bytes == p.modes[SMALL]


def test_an_arena_of_the_old_plan_goes_when_it_is_given_back():
    pool = ArenaPool(Device("local-sync"), 2)
    pool.use("large")
    busy, idle = pool.take(4096, "large"), pool.take(4096, "large")
    pool.give(idle)
    assert pool.bytes == 8192
    pool.use("small")
    assert pool.bytes == 4096, "the idle one went at once"
    pool.give(busy)
    assert pool.bytes == 0
    late = pool.take(4096, "large")
    pool.give(late)
    assert pool.bytes == 0, "a call that began before the switch leaves nothing either"
    small = pool.take(64, "small")
    pool.give(small)
    assert pool.bytes == pool.take(64).size > 0


@pytest.mark.full
def test_a_program_without_more_plans_has_one_mode():
    p = compile(branches(2).code.decode(), device=Device("local-sync"))
    assert list(p.modes) == [FIRST] and refused(lambda: p.use_mode(SMALL))


@pytest.mark.full
def test_the_command_line(tmp_path):
    source, out = tmp_path / "m.mlir", tmp_path / "m.vmfb"
    source.write_bytes(sandwich().code)
    # A process of its own: the tool forks, which this one, with threads of devices, must not.
    command = [sys.executable, "-m", "pyc_mlir.tools.pyc_compile", str(source)]
    subprocess.run([*command, "--also-mode", SMALL, "-o", str(out)], check=True, timeout=120)
    made = Program(artifacts.read(out), Device("local-sync"))
    assert made.modes == program().modes


@pytest.mark.full
def test_what_is_written_to_the_caller_is_what_was_compared(monkeypatch):
    """Another thread switches the plan while the first one's answer is compared."""
    code = sandwich().code.decode()
    contract = Contract(max_error="rounding")
    p = compile(code, contract=contract, also_modes=(SMALL,), device=Device("local-sync"))
    assert p._monitor is not None
    honest, requested = p._monitor.compared, []

    def compared(arrays, values, reported):
        requested.append(reported.plan)
        if len(requested) == 1:
            p.use_mode(SMALL)
        return honest(arrays, values, reported)

    monkeypatch.setattr(p._monitor, "compared", compared)
    inputs = sandwich().inputs()
    expected = program()(*inputs)
    out = to_device(np.zeros_like(expected), p.device)
    p(*inputs, out=out)
    assert requested == [FIRST, SMALL]
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)
    stats = p.stats()
    assert (stats.comparisons, stats.contract["max_error"].of) == (1, 1)


@pytest.mark.parametrize("clauses, most", [({"max_concurrency": 2}, 2), ({}, 8)])
@pytest.mark.full
def test_calls_without_an_arena_wait_where_that_is_promised(clauses, most):
    contract = Contract(**clauses)
    x = np.ones((4, 4), np.float32)
    p = compile(np.tanh, [x], contract=contract, planner_mode="iree", device=Device("local-sync"))
    honest, inside, seen = p._serving.entry.__call__, [], []
    together = threading.Barrier(most)

    def run(arrays: Any) -> Any:
        inside.append(1)
        together.wait(60)
        seen.append(len(inside))
        together.wait(60)
        inside.pop()
        return honest(arrays)

    p._serving.take_code("other", run)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: p(x), range(16)))
    assert set(seen) == {most}


def test_a_plan_that_is_dropped_is_never_taken_again():
    """In another thread than the switch, and in the middle of it."""
    plans = [PlannedMode(name, None, False) for name in (FIRST, SMALL)]
    pool, why = ArenaPool(Device("local-sync"), 1), ("wrong", ReasonCode.FALLBACK_TAKEN)
    codes = set()
    for _ in range(200):
        found = Plans({p.name: p for p in plans}, pool, RunLog())
        found.take(SMALL, *why)
        start = threading.Barrier(3)

        def switch(found: Plans = found, start: threading.Barrier = start) -> None:
            start.wait(10)
            for name in (FIRST, SMALL) * 10:
                try:
                    found.take(name, *why)
                except PycError as error:
                    codes.add(error.code)
                assert set(found.modes) <= {FIRST, SMALL}

        with ThreadPoolExecutor(2) as threads:
            switching = [threads.submit(switch) for _ in range(2)]
            start.wait(10)
            found.take(FIRST, *why, drop=SMALL)
            for each in switching:
                each.result()
        assert found.current.name == FIRST and list(found.modes) == [FIRST]
    assert codes <= {ReasonCode.BAD_ARGUMENT}


def test_a_rule_whose_plan_is_dropped_ends():
    p, inputs = fresh(), sandwich().inputs()
    want = bits(p(*inputs))

    def drops() -> int:
        p._plans.take(FIRST, "wrong", ReasonCode.FALLBACK_TAKEN, drop=SMALL)
        return 0

    p.switch_below(1 << 60, SMALL, drops)
    assert bits(p(*inputs)) == want and (p.mode, list(p.modes)) == (FIRST, [FIRST])
    p.switch_below(1 << 60, FIRST, lambda: 0)
    assert bits(p(*inputs)) == want
    q = fresh()
    q.switch_below(1, SMALL, lambda: 1 << 60)
    q._plans.drop(SMALL)
    assert bits(q(*inputs)) == want and list(q.modes) == [FIRST]
    with pytest.raises(ValueError, match="not in use"):
        q._plans.drop(FIRST)
