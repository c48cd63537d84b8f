"""The selector of a program: routes, freezing, files, replays, faults, and what is refused."""

import json
import threading
from functools import cache
from typing import Any

import numpy as np
import pytest
from clocked import Clocked
from modules import two_plans

import pyc_mlir
from pyc_mlir import Contract, Device, Selector, nn
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.program import Program
from pyc_mlir.runtime.selection.engine import Paired
from pyc_mlir.runtime.selection.selector import replay
from pyc_mlir.tools import pyc_run

SYNC = Device("local-sync")
X = np.ones((8, 64), np.float32)


def fresh() -> Program:
    return Program(two_plans().artifact, SYNC)


@cache
def by_shapes() -> Program:
    def rows(x):
        return nn.softmax(x)

    spec = pyc_mlir.TensorSpec("f32", 4, "n")
    return pyc_mlir.compile(rows, [spec], plans="n=8;n=9:32", device=SYNC, cache=False)


def refused(call):
    with pytest.raises(PycError) as caught:
        call()
    return caught.value


def test_the_faster_mode_comes_to_serve():
    program, want = fresh(), fresh()(X)
    selector = Clocked({"balanced": 1.0, "memory_first": 0.6})
    program.adapt(selector)
    for _ in range(400):
        for got, expected in zip(program(X), want, strict=True):
            assert got.tobytes() == expected.tobytes()
    (count,) = program.stats().routes
    assert count.serving == {"quiet": "memory_first"}
    assert sum(count.calls.values()) >= 400 and count.tries >= 3
    assert program.stats().served["memory_first"] > 200
    (event,) = [e for e in program.log() if e.name == "arm"]
    assert event.reasons[0].code == "ARM_CHANGED" and "promoted" in event.reasons[0].message
    assert "balanced -> memory_first" in str(selector.events()[0])
    counted = program.log()[-1].measured
    assert counted["served by memory_first"] == program.stats().served["memory_first"]
    assert counted["tries of balanced, 2^10"] == count.tries
    shown = pyc_run.statistics(program.stats(), program)
    assert "calls by plan  balanced: " in shown and "quiet: memory_first; " in shown
    program.adapt(None)
    program(X)
    assert program.stats().routes == ()


def test_shapes_learn_apart():
    program = Program(by_shapes().artifact, SYNC)
    selector = Clocked({"n=8": 1.0, "n=9:32": 1.0, "balanced": 0.5})
    program.adapt(selector)
    for n in (8, 16, 40):
        x = np.random.default_rng(n).normal(size=(4, n)).astype(np.float32)
        for _ in range(300):
            assert np.allclose(program(x), nn.softmax(x), atol=1e-6)
    routes = {r.route: r for r in program.stats().routes}
    assert sorted(routes) == ["balanced, 2^8", "n=8, 2^6", "n=9:32, 2^7"]
    assert all(r.serving == {"quiet": "balanced"} for r in routes.values())
    assert list(routes["balanced, 2^8"].calls) == ["balanced"]


def test_decisions_are_replayed_from_the_log(tmp_path):
    program = fresh()
    selector = Clocked({"balanced": 1.0, "memory_first": 0.6})
    program.adapt(selector)
    for at in range(3000):
        if at == 1500:
            selector.seconds["memory_first"] = 2.5
        program(X)
    kinds = [e.kind for e in selector.events()]
    assert kinds[0] == "promoted" and selector.events()[-1].after == "balanced"
    selector.export(tmp_path / "log.jsonl")
    assert replay(tmp_path / "log.jsonl") == selector.events()
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    row = json.loads(lines[40])
    row[3] = 1 - row[3]
    lines[40] = json.dumps(row)
    (tmp_path / "other.jsonl").write_text("\n".join(lines))
    code = refused(lambda: replay(tmp_path / "other.jsonl")).code
    assert code in (ReasonCode.REPLAY_MISMATCH, ReasonCode.BAD_ARGUMENT)
    for text in ("", "{}", "[]", "x", lines[0] + "\n[1]"):
        (tmp_path / "none.jsonl").write_text(text)
        assert refused(lambda: replay(tmp_path / "none.jsonl")).code is ReasonCode.BAD_ARGUMENT
    small = Clocked({"balanced": 1.0, "memory_first": 0.6}, most_rows=10)
    again = fresh()
    again.adapt(small)
    for _ in range(200):
        again(X)
    small.export(tmp_path / "cut.jsonl")
    assert "raise `most_rows`" in str(refused(lambda: replay(tmp_path / "cut.jsonl")))


def test_a_frozen_choice_is_repeated(tmp_path):
    program = fresh()
    selector = Clocked({"balanced": 1.0, "memory_first": 0.6})
    program.adapt(selector)
    for _ in range(400):
        program(X)
    recipe = selector.freeze(tmp_path / "recipe.json")
    assert set(recipe.values()) == {"memory_first"}
    tries = program.stats().routes[0].tries
    for _ in range(300):
        program(X)
    assert program.stats().routes[0].tries == tries, "nothing is tried any more"
    for given in (recipe, tmp_path / "recipe.json"):
        again = fresh()
        again.adapt(Selector(recipe=given, load=lambda: 0.0))
        for _ in range(100):
            again(X)
        assert again.stats().served == {"balanced": 0, "memory_first": 100}
    (tmp_path / "later.json").write_text(json.dumps({"schema": 99, "recipe": recipe}))
    code = refused(lambda: Selector(recipe=tmp_path / "later.json")).code
    assert code is ReasonCode.BAD_ARGUMENT
    unknown = fresh()
    unknown.adapt(Selector(recipe={"elsewhere": "fast"}, load=lambda: 0.0))
    unknown(X)
    assert unknown.stats().served["balanced"] == 1


def test_what_was_learned_outlives_the_process(tmp_path):
    path = tmp_path / "learned.json"
    first = fresh()
    first.adapt(Clocked({"balanced": 1.0, "memory_first": 0.6}, path=path))
    for _ in range(400):
        first(X)
    assert path.exists(), "kept at each change"
    again = fresh()
    again.adapt(Clocked({"balanced": 1.0, "memory_first": 0.6}, path=path))
    for _ in range(20):
        again(X)
    assert again.stats().served["memory_first"] >= 18
    other = Program(by_shapes().artifact, SYNC)
    ignoring = Clocked({"n=8": 1.0, "balanced": 1.0}, path=path)
    other.adapt(ignoring)
    assert "is of another program" in ignoring.events()[0].why
    data = json.loads(path.read_text())
    (route,) = data["routes"].values()
    route["contexts"]["quiet"]["incumbent"] = 7
    path.write_text(json.dumps(data))
    odd = Clocked({"balanced": 1.0, "memory_first": 0.6}, path=path)
    odd_program = fresh()
    odd_program.adapt(odd)
    odd_program(X)
    assert odd.events()[0].kind == "ignored" and odd_program.stats().served["balanced"] == 1
    path.write_text("{")
    code = refused(lambda: fresh().adapt(Clocked({}, path=path))).code
    assert code is ReasonCode.BAD_ARGUMENT


def test_an_arm_that_fails_is_put_in_quarantine():
    program, want = fresh(), fresh()(X)
    selector = Clocked({"balanced": 1.0, "memory_first": 0.6})
    program.adapt(selector)
    arena = program._plans.modes["memory_first"].arena

    def fail(*_):
        raise PycError(ReasonCode.RUNTIME_FAILED, "device: expected an answer, got none")

    class Failing:
        tag = facts = None

        def __init__(self, inner):
            self.inner = inner

        def needs(self, arrays):
            return self.inner.needs(arrays)

        call = fail

    program._plans.modes["memory_first"].arena = Failing(arena)  # pyright: ignore
    for _ in range(300):
        assert program(X)[0].tobytes() == want[0].tobytes()
    assert [e.kind for e in selector.events()] == ["quarantined"]
    assert program.stats().served["memory_first"] == 0


def test_context_parts_what_is_learned():
    load = [0.0]
    now = iter(range(1_000_000))
    selector = Selector(load=lambda: load[0], pressure=lambda: load[0] > 5, clock=lambda: next(now))
    program = fresh()
    program.adapt(selector)
    for value in (0.0, 3.0, 9.0):
        load[0] = value
        for _ in range(100):
            program(X)
    (count,) = program.stats().routes
    assert list(count.serving) == ["quiet", "busy", "busy, tight"]


@cache
def of_two_arenas() -> Program:
    """Four chains side by side: a mode that overlaps them holds more at once."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(64, 256)).astype(np.float32) / 16 for _ in range(4)]

    def chains(x):
        return sum(np.tanh(np.tanh(x @ w) @ w.T) @ w @ w.T for w in weights)

    x = np.ones((64, 64), np.float32)
    modes = {"planner_mode": "latency_first", "also_modes": ["memory_first"]}
    return pyc_mlir.compile(chains, [x], device=SYNC, **modes)


class Waits:
    """A pool of arenas that calls waited for, and that was told to free memory."""

    waits = trims = 0

    def trim(self) -> None:
        self.trims += 1


def test_waits_for_arenas_are_a_context_of_their_own():
    arenas, now = Waits(), iter(range(1_000_000))
    selector = Selector(load=lambda: 0.0, clock=lambda: next(now))
    selector.attach("program", arenas=arenas)
    route = selector.route("r", ["a", "b"])
    contexts = []
    for number in range(60):
        arenas.waits += 10 if 20 <= number < 25 else 0
        while route.left:
            route.next()
        route.next()
        contexts.append(route.context)
    assert set(contexts[:20]) == {"quiet"} == set(contexts[40:])
    assert "quiet, waiting" in contexts[20:30], "until the last readings have none"
    assert arenas.trims == 0


def test_the_smallest_arena_serves_while_memory_is_short(tmp_path):
    tight, now = [False], iter(range(1_000_000))
    selector = Selector(load=lambda: 0.0, pressure=lambda: tight[0], clock=lambda: next(now))
    program = Program(of_two_arenas().artifact, SYNC)
    sizes = program.modes
    large, small = sizes["latency_first"], sizes["memory_first"]
    assert small is not None and large is not None and small < large
    program.adapt(selector)
    x = np.ones((64, 64), np.float32)
    want = program(x)
    for _ in range(100):
        assert np.allclose(program(x), want, atol=1e-5)
    assert program.stats().arena_bytes >= large
    tight[0] = True
    before = program.stats().served["memory_first"]
    for _ in range(300):
        assert np.allclose(program(x), want, atol=1e-5)
    assert program.stats().served["memory_first"] >= before + 250
    assert program.stats().arena_bytes == small, "the larger arenas are let go"
    tight[0] = False
    # Which mode serves now is the policy's choice, by the time that calls take.
    for _ in range(300):
        program(x)
    assert program.stats().calls == 701
    selector.export(tmp_path / "log.jsonl")
    assert replay(tmp_path / "log.jsonl") == selector.events()


def test_many_threads_are_counted_and_replayed(tmp_path):
    program, want, wrong = fresh(), fresh()(X), []
    selector = Selector(load=lambda: 0.0)
    program.adapt(selector)

    def work():
        for _ in range(500):
            if program(X)[0].tobytes() != want[0].tobytes():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and program.stats().calls == 2000
    selector.export(tmp_path / "log.jsonl")
    assert replay(tmp_path / "log.jsonl") == selector.events()


def test_what_cannot_adapt_is_refused():
    for contract in (Contract(determinism="strict"), Contract(max_error="rounding")):
        strict = pyc_mlir.compile(np.tanh, [X], contract=contract, device=SYNC, cache=False)
        error = refused(lambda p=strict: p.adapt(Selector()))
        assert error.code is ReasonCode.CONTRACT_CONFLICT
    used = Selector()
    fresh().adapt(used)
    assert "of its own" in str(refused(lambda: fresh().adapt(used)))
    shares: list[Any] = [0, -1, 2, True, "x", float("nan")]
    for share in shares:
        assert refused(lambda s=share: Selector(s)).code is ReasonCode.BAD_ARGUMENT
    assert refused(lambda: Selector(policy="luck")).code is ReasonCode.BAD_ARGUMENT
    recipe: Any = {"a": 1}
    assert refused(lambda: Selector(recipe=recipe)).code is ReasonCode.BAD_ARGUMENT
    assert refused(lambda: Selector(recipe="/none/here")).code is ReasonCode.FILE_ACCESS


def test_a_policy_of_ones_own():
    program = fresh()
    program.adapt(Selector(policy=Paired(share=0.1, every=5), load=lambda: 0.0))
    for _ in range(50):
        program(X)
    assert program.stats().routes[0].tries > 0
