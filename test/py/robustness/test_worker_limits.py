"""Workers under a limit of seconds: it is kept, and cheaper programs stand in."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest
from conftest import sample
from worker_calls import LONG, TEXT, X, chain, compiled, refusal
from worker_hooks import (
    ASKED_SLEEPS,
    SLEEPS,
    Clock,
    hook,
    second_is_done,
    with_clock,
)

import pyc_mlir
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import to_bytes
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.choices.contract import Contract, Status
from pyc_mlir.runtime.program import Program
from pyc_mlir.worker import process

__all__ = ["hook"]
# What a limit may be exceeded by, in seconds.
SLACK = 0.5


@pytest.fixture(autouse=True)
def none_left():
    """No test inherits a worker that another one has hooked."""
    yield
    assert all(w.alive for w in process.idle())
    assert len(process.idle()) <= process.MOST_IDLE


# Limits.
def took(source, inputs, limit: float, **asked) -> tuple[float, ReasonCode | None]:
    """Seconds of a whole `compile`, and the code if it was refused."""
    contract = Contract(max_compile_seconds=limit, **asked)
    began, code = time.monotonic(), None
    try:
        pyc_mlir.compile(source, inputs, contract=contract)
    except PycError as error:
        code = error.code
    return time.monotonic() - began, code


def quickest(source, inputs, limit: float, **asked) -> tuple[float, ReasonCode | None]:
    """The best of three: what the machine does besides is no fault of a limit."""
    found: tuple[float, ReasonCode | None] = (float("inf"), None)
    for _ in range(3):
        found = min(found, took(source, inputs, limit, **asked), key=lambda f: f[0])
        if found[0] <= limit + SLACK:
            break
    return found


@pytest.mark.alone
@pytest.mark.parametrize("limit", sample([0.2, 0.35, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0], 3))
@pytest.mark.full
def test_a_limit_is_kept(limit):
    pyc_mlir.compile(TEXT)  # a first compile imports modules
    seconds, code = quickest(chain, [X], limit)
    assert seconds <= limit + SLACK
    assert code in (None, ReasonCode.COMPILE_TIMEOUT)


@pytest.mark.alone
@pytest.mark.parametrize("limit", sample([0.2, 0.5, 1.0, 2.0], 2))
@pytest.mark.full
def test_a_hung_worker_is_ended_at_the_limit(hook, limit):
    hook(SLEEPS)
    seconds, code = quickest(TEXT, None, limit)
    assert limit <= seconds <= limit + SLACK
    assert code is ReasonCode.COMPILE_TIMEOUT


@pytest.mark.alone
@pytest.mark.parametrize("jump", [-1e7, 1e7])
def test_the_clock_of_the_day_is_not_asked(hook, monkeypatch, jump):
    hook(SLEEPS)
    real, asked = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + jump * (next(asked) % 2))
    seconds, code = quickest(TEXT, None, 0.5)
    assert 0.5 <= seconds <= 0.5 + SLACK
    assert code is ReasonCode.COMPILE_TIMEOUT


@pytest.mark.parametrize("clause", [{"determinism": "strict"}, {"fallbacks": ("none",)}])
def test_some_contracts_refuse_at_the_limit(hook, monkeypatch, clause):
    hook(ASKED_SLEEPS)
    taken, take = [], process.take
    monkeypatch.setattr(process, "take", lambda: taken.append(take()) or taken[-1])
    error = refusal(contract=Contract(max_compile_seconds=0.5, **clause))
    assert error.code is ReasonCode.COMPILE_TIMEOUT
    assert "allows no cheaper program" in error.message
    assert len(taken) == 1, "nothing else was compiled"


@pytest.fixture
def degraded(hook, monkeypatch):
    """Compiles whose time is over once the second worker has answered all."""
    hook(ASKED_SLEEPS)
    with_clock(monkeypatch, Clock(100, 600, second_is_done))


@pytest.mark.parametrize(
    ("asked", "stage"), [({}, "cheapest"), ({"also_modes": ["memory_first"]}, "default")]
)
@pytest.mark.full
def test_a_cheaper_program_stands_in(degraded, asked, stage):
    contract = Contract(max_compile_seconds=600, max_error="rounding")
    artifact = compiled(contract=contract, **asked)
    decision = artifact.decisions[0]
    assert (decision.site.key, decision.chosen) == ("compile-stage:module", stage)
    assert [a.name for a in decision.alternatives] == ["requested", "default", "cheapest"]
    assert str(decision.grounds[0]) == "COMPILE_DEGRADED: `requested` was ended after 600 s"
    (ended,) = set(decision.measured) - {"cheapest", stage}
    assert ended.startswith("requested, while ") and stage in decision.measured
    program = Program(artifact)
    np.testing.assert_allclose(program(X), np.tanh(X), rtol=1e-5)
    report = program.stats().contract
    assert report["max_compile_seconds"].code == "COMPILE_DEGRADED"
    assert report["max_compile_seconds"].measured["seconds"] > 0
    assert report["max_error"].done == report["max_error"].of > 0, "it is compared as well"


@pytest.mark.full
def test_a_program_that_comes_late_breaks_its_clause_or_is_refused(monkeypatch):
    """No limit ends what this process does."""
    with_clock(monkeypatch, Clock(1, 601, lambda job: job._first.done))
    clause = Program(compiled(contract=LONG)).stats().contract["max_compile_seconds"]
    assert (clause.status, clause.code) == (Status.BROKEN, "COMPILE_TIMEOUT")
    assert clause.measured == {"seconds": 601}
    for more in ({"determinism": "strict"}, {"fallbacks": ("none",)}):
        error = refusal(contract=replace(LONG, **more))
        assert error.code is ReasonCode.COMPILE_TIMEOUT and "got one after 601 s" in error.message


def test_keeping_a_program_counts(monkeypatch, tmp_path):
    kept, keep = [], Cache.keep
    monkeypatch.setattr(Cache, "keep", lambda *a: (kept.append(1), keep(*a))[1])
    with_clock(monkeypatch, Clock(1, 601, lambda job: bool(kept)))
    made = build(TEXT, None, make_options(contract=LONG), cache=Cache(CacheStore(tmp_path)))
    assert Program(made).stats().contract["max_compile_seconds"].status is Status.BROKEN


@pytest.mark.full
def test_a_stand_in_is_made_again_by_its_recipe(degraded, monkeypatch):
    asked = make_options(contract=Contract(max_compile_seconds=600))
    made = build(TEXT, None, asked)
    monkeypatch.undo()
    process.end_all()
    again = build(TEXT, None, replace(asked, recipe=Recipe.from_log(made.decisions)))
    assert to_bytes(again) == to_bytes(made)


@pytest.mark.full
def test_a_clock_leaves_nothing_in_the_cache(degraded, tmp_path):
    cache = Cache(CacheStore(tmp_path))
    contract = Contract(max_compile_seconds=600)
    for _ in range(2):
        made = build(TEXT, None, make_options(contract=contract), cache=cache)
        assert made.cached is not None
        assert made.cached.outcome == "miss"
        assert "COMPILE_DEGRADED" in {e.code.name for e in made.cached.events}
    assert list(cache.store.entries()) == []


def test_what_was_made_in_time_is_found_again(tmp_path):
    path = tmp_path / "model.mlir"
    path.write_text(TEXT)
    os.utime(path, (1e9, 1e9))
    contract = Contract(max_compile_seconds=600, max_error="rounding")
    cache, options = Cache(CacheStore(tmp_path / "cache")), make_options(contract=contract)
    first = build(path, None, options, cache=cache)
    second = build(path, None, options, cache=Cache(CacheStore(tmp_path / "cache")))
    assert first.cached is not None
    assert second.cached is not None
    assert (first.cached.outcome, second.cached.outcome) == ("miss", "hit")
    assert to_bytes(second) == to_bytes(first)
    assert second.checks is not None
    assert second.checks.verification is not None, "tried, in the worker"
