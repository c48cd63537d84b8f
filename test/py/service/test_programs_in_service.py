"""Programs in service: swaps, targets, comparisons in the background, health, telemetry."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import Program, PycError, ReasonCode, Service, Shadow, Targets
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.service.capsule import Capsule
from pyc_mlir.service.telemetry import BOUNDS, JsonLines
from pyc_mlir.tools.cli.capsule_run import replay_capsule

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def artifacts():
    """Programs of one signature that answer x + n, and one of another signature."""
    spec = pyc_mlir.TensorSpec("f32", 2, 3)
    made: dict[int | str, Artifact] = {
        n: pyc_mlir.compile(lambda x, n=n: x + n, inputs=[spec]).artifact for n in (1, 2, 3)
    }
    two = [spec, spec]
    made["two"] = pyc_mlir.compile(lambda x, y: x + y, inputs=two).artifact
    return made


def codes(service: Service) -> list[str]:
    return [e.reasons[0].code for e in service.log() if e.reasons and e.reasons[0].code]


def test_a_swap_loses_and_tears_no_call(artifacts):
    """Every call under load is answered whole by one of the builds."""
    programs = [Program(artifacts[n]) for n in (1, 2)]
    allowed = {float(n) for n in (1, 2)}
    wrong, calls, ended = [], [0] * 3, threading.Event()

    def call(number: int) -> None:
        while not ended.is_set():
            added = np.unique(service(X) - X)
            calls[number] += 1
            if len(added) != 1 or added[0] not in allowed:
                wrong.append(added)

    with Service(programs[0]) as service:
        threads = [threading.Thread(target=call, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for i in range(1000):
            service.swap(programs[(i + 1) % 2])
        ended.set()
        for thread in threads:
            thread.join()
        found = service.snapshot()
    assert not wrong and sum(calls) == found.calls > 0
    assert found.swaps == 1000 and found.build == 1001 and found.health == "ok"


def test_a_build_of_another_signature_is_refused(artifacts):
    with Service(artifacts[1]) as service:
        with pytest.raises(PycError, match="swap: expected a program with the signature") as error:
            service.swap(artifacts["two"])
        assert error.value.code is ReasonCode.BAD_ARGUMENT
        assert (service(X) == X + 1).all() and service.snapshot().build == 1


def test_a_missed_target_returns_to_the_build_before(artifacts, monkeypatch):
    with Service(artifacts[1], targets=Targets(p95_seconds=5e-3, window=8)) as service:
        for _ in range(8):
            service(X)
        service.swap(slowed(artifacts[2], monkeypatch))
        answers = [float((service(X) - X)[0, 0]) for _ in range(9)]
        assert answers == [2.0] * 8 + [1.0]
        assert "TARGET_MISSED" in codes(service) and service.snapshot().returns == 1
        assert "p95_seconds" in str(service.health())
        for _ in range(8):
            service(X)
        assert service.health().state == "ok"


def test_a_new_build_that_is_slower_than_the_one_before_goes(artifacts, monkeypatch):
    """By the share that the swap allows, without any target."""
    with Service(artifacts[1]) as service:
        for _ in range(256):
            service(X)
        service.swap(slowed(artifacts[2], monkeypatch, 1e-3), slower=2.0)
        for _ in range(256):
            service(X)
        assert (service(X) == X + 1).all()


def slowed(artifact, monkeypatch, seconds: float = 0.01) -> Program:
    """A program whose calls take longer."""
    program = Program(artifact)
    run = program._serving.run
    monkeypatch.setattr(program._serving, "run", lambda a: (time.sleep(seconds), run(a))[1])
    return program


def failing(artifact, monkeypatch) -> Program:
    program = Program(artifact)

    def fail(arrays):
        raise PycError(ReasonCode.RUNTIME_FAILED, "the device is gone")

    monkeypatch.setattr(program._serving, "run", fail)
    return program


def test_failures_lead_to_refusals_and_back(artifacts, monkeypatch):
    targets = Targets(error_rate=0.1, window=4, actions=["refuse"], refuse_seconds=0.05)
    program = failing(artifacts[1], monkeypatch)
    with Service(program, targets=targets) as service:
        for _ in range(4):
            with pytest.raises(PycError, match="the device is gone"):
                service(X)
        assert service.health().state == "refusing"
        with pytest.raises(PycError, match="error_rate: 4 of 4 calls failed") as error:
            service(X)
        assert error.value.code is ReasonCode.SERVICE_REFUSING
        monkeypatch.setattr(program._serving, "run", Program(artifacts[1])._serving.run)
        time.sleep(0.06)
        assert [float(service(X)[0, 0]) for _ in range(4)] == [1.0] * 4
        assert service.health().state == "ok"
        found = service.snapshot()
    assert found.failures == {"RUNTIME_FAILED": 4} and found.refusals == {"SERVICE_REFUSING": 1}


def test_a_callers_mistake_is_no_failure(artifacts):
    with Service(artifacts[1], targets=Targets(error_rate=0.0, window=1)) as service:
        with pytest.raises(PycError):
            service(X[0])
        assert service.health().state == "ok"
        assert service.snapshot().refusals == {"ARGUMENT_SHAPE": 1}


@pytest.mark.parametrize("consent", (False, True))
def test_a_wrong_answer_is_kept_and_the_next_one_is_right(artifacts, tmp_path, consent):
    shadow = Shadow(lambda x: x + 1, share=1, capsules=tmp_path, keep_inputs=consent)
    with Service(artifacts[1], shadow=shadow, name="m") as service:
        service(X)
        assert service.drain() and service.health().state == "ok"
        service.swap(artifacts[2])
        assert (service(X) == X + 2).all()
        assert service.drain()
        assert (service(X) == X + 1).all()
        health = service.health()
        assert health.state == "degraded" and "WRONG_RESULT" in str(health)
        assert service.snapshot().mismatches == 1 and service.snapshot().returns == 1
    capsule = Capsule.load(tmp_path / "m-1.capsule.zip")
    assert "expected 1" in capsule.head["why"] and capsule.head["build"] == 2
    assert capsule.artifact is not None
    assert set(capsule.arrays) == ({"inputs", "answers", "expected"} if consent else set())
    if consent:
        text, there = replay_capsule(tmp_path / "m-1.capsule.zip", None)
        assert there and "greatest difference from the expected 1" in text
        assert "the same bits as the answers: yes" in text
    else:
        with pytest.raises(PycError, match="did not consent to store inputs"):
            replay_capsule(tmp_path / "m-1.capsule.zip", None)


@pytest.mark.parametrize(
    ("fallbacks", "state"),
    [(("reference",), "degraded"), (("refuse",), "refusing"), ((), "refusing")],
)
def test_without_a_build_before(artifacts, fallbacks, state):
    shadow = Shadow(lambda x: x + 1, share=1)
    with Service(artifacts[2], shadow=shadow, fallbacks=fallbacks) as service:
        service(X)
        assert service.drain() and service.health().state == state
        if state == "degraded":
            assert (service(X) == X + 1).all() and (service(x=X) == X + 1).all()
            with pytest.raises(PycError):
                service(X[0])
            service.swap(artifacts[1])
            assert (service(X) == X + 1).all()
        else:
            with pytest.raises(PycError, match="refuses: a compared call differs"):
                service(X)
            service.swap(artifacts[1])
            assert (service(X) == X + 1).all()


def test_a_full_queue_drops_comparisons_and_delays_no_call(artifacts):
    free = threading.Event()

    def slow(x):
        free.wait(10)
        return x + 1

    shadow = Shadow(slow, share=1, queue_bytes=3 * 2 * X.nbytes)
    with Service(artifacts[1], shadow=shadow) as service:
        for _ in range(10):
            service(X)
        free.set()
        assert service.drain()
        found = service.snapshot()
    assert found.comparisons + found.dropped == 10 and found.dropped >= 6 and not found.mismatches


def test_a_reference_that_fails_says_nothing_of_the_program(artifacts):
    def refuse(x):
        raise ValueError("no")

    with Service(artifacts[1], shadow=Shadow(refuse, share=1)) as service:
        service(X)
        assert service.drain() and service.health().state == "ok"
        assert service.snapshot().dropped == 1


def test_a_call_that_hangs_is_told(artifacts, monkeypatch):
    free = threading.Event()
    program = Program(artifacts[1])
    run = program._serving.run
    monkeypatch.setattr(program._serving, "run", lambda a: (free.wait(10), run(a))[1])
    with Service(program, hang_seconds=0.02) as service:
        thread = threading.Thread(target=service, args=(X,))
        thread.start()
        until(lambda: service.health().state == "degraded")
        assert "CALL_HANGS" in str(service.health()) and "CALL_HANGS" in codes(service)
        free.set()
        thread.join()
        until(lambda: service.health().state == "ok")


def until(holds, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_snapshots_are_lines_of_json(artifacts, tmp_path: Path):
    path = tmp_path / "telemetry.jsonl"
    with Service(artifacts[1], name="m") as service:
        lines = JsonLines(lambda: [service.snapshot()], path, seconds=60)
        service(X)
        lines.close()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert line["name"] == "m" and line["calls"] == 1 and sum(line["buckets"].values()) == 1
    assert list(line["buckets"])[:-1] == list(map(str, BOUNDS))
    with pytest.raises(PycError, match="expected a file to append telemetry to"):
        JsonLines(lambda: [], tmp_path / "none" / "x")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"p99_seconds": 0}, "p99_seconds: expected seconds above 0"),
        ({"error_rate": 1.5}, "error_rate: expected a share"),
        ({"window": 0}, "window: expected 1 to"),
        ({"actions": ["explode"]}, "actions: expected `previous`"),
        ({"refuse_seconds": float("nan")}, "refuse_seconds: expected"),
    ],
)
def test_targets_that_are_none_are_refused(wrong, message):
    with pytest.raises(PycError, match=message):
        Targets(**wrong)
