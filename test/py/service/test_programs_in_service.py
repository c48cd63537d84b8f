"""Programs in service: swaps, targets, comparisons in the background, health, telemetry."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from clocked import Clocked
from refusals import refused

import pyc_mlir
from pyc_mlir import Array, Program, PycError, ReasonCode, Service, Shadow, Targets
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.runtime.array import to_device
from pyc_mlir.service.capsule import Capsule
from pyc_mlir.service.shadow import Mismatch, Sampled
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
    answers, ended = [], threading.Event()

    def call() -> None:
        while not ended.is_set():
            answers.append(np.unique(service(X) - X).tolist())

    with Service(programs[0]) as service:
        threads = together(3, call)
        for i in range(1000):
            service.swap(programs[(i + 1) % 2])
        ended.set()
        for thread in threads:
            thread.join()
        found = service.snapshot()
    assert all(len(added) == 1 and added[0] in allowed for added in answers)
    assert len(answers) == found.calls > 0
    assert found.swaps == 1000 and found.build == 1001 and found.health == "ok"


def test_a_build_of_another_signature_is_refused(artifacts):
    with Service(artifacts[1]) as service:
        refused(
            ReasonCode.BAD_ARGUMENT,
            service.swap,
            artifacts["two"],
            match="swap: expected a program with the signature",
        )
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


def test_a_new_build_is_not_judged_by_fewer_calls_than_a_window(artifacts, monkeypatch):
    with Service(artifacts[1], targets=Targets(window=8, p99_seconds=60)) as service:
        for _ in range(7):
            service(X)
        service.swap(slowed(artifacts[2], monkeypatch), slower=0.001)
        assert "slower: not judged" in "\n".join(map(str, service.log()))
        for _ in range(9):
            assert (service(X) == X + 2).all()


def test_a_quarantine_is_not_ended_by_calls_on_the_way(artifacts, monkeypatch):
    """Calls that began before answer, and are no proof that the build is right."""
    free, inside, held = threading.Event(), threading.Semaphore(0), [False]

    def hold(run, arrays):
        if held[0]:
            inside.release()
            free.wait(10)
        return run(arrays)

    program = running(artifacts[2], monkeypatch, hold)
    shadow = Shadow(lambda x: x + 1, share=1)
    targets = Targets(window=2, p99_seconds=60)
    with Service(program, targets=targets, shadow=shadow, fallbacks=["refuse"]) as service:
        held[0] = True
        threads = together(4, service, X)
        for _ in threads:
            inside.acquire()
        service._distrust(Mismatch(Sampled(service._build, [X], [X], 0), [X], "another answer"))
        free.set()
        for thread in threads:
            thread.join()
        assert service.health().state == "refusing"
        with pytest.raises(PycError, match="refuses: a compared call differs"):
            service(X)


def running(artifact, monkeypatch, run) -> Program:
    """A program whose calls go through `run(honest, arrays)`."""
    program = Program(artifact)
    honest = program._serving.run
    monkeypatch.setattr(program._serving, "run", lambda arrays: run(honest, arrays))
    return program


def slowed(artifact, monkeypatch, seconds: float = 0.01) -> Program:
    """A program whose calls take longer."""
    return running(artifact, monkeypatch, lambda run, a: (time.sleep(seconds), run(a))[1])


def together(count: int, call, *arguments) -> list[threading.Thread]:
    """Threads that make the same call at once."""
    threads = [threading.Thread(target=call, args=arguments) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_failures_lead_to_refusals_and_back(artifacts, monkeypatch):
    targets = Targets(error_rate=0.1, window=4, actions=["refuse"], refuse_seconds=0.05)
    device = [False]

    def fail(run, arrays):
        if not device[0]:
            raise PycError(ReasonCode.RUNTIME_FAILED, "the device is gone")
        return run(arrays)

    program = running(artifacts[1], monkeypatch, fail)
    with Service(program, targets=targets) as service:
        for _ in range(4):
            with pytest.raises(PycError, match="the device is gone"):
                service(X)
        assert service.health().state == "refusing"
        refused(ReasonCode.SERVICE_REFUSING, service, X, match="error_rate: 4 of 4 calls failed")
        device[0] = True
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


def test_calls_by_name_and_with_out_are_compared(artifacts):
    """Arguments that were overwritten or given away cannot be: they are counted."""
    out, same, gone = np.empty_like(X), X.copy(), to_device(X, Program(artifacts[1]).device)
    with Service(artifacts[1], shadow=Shadow(lambda x: x + 1, share=1)) as service:
        assert (service(x=X) == X + 1).all()
        assert service(X, out=out) is out and (out == X + 1).all()
        assert service([[0, 1, 2], [3, 4, 5]]).tolist() == (X + 1).tolist()
        assert service.drain()
        assert (service.snapshot().comparisons, service.snapshot().dropped) == (3, 0)
        service(same, out=same)
        service(to_device(X, service.program.device))
        service(gone, donate=[0])
        assert service.drain() and service.health().state == "ok"
        found = service.snapshot()
    assert (found.comparisons, found.mismatches, found.dropped) == (4, 0, 2)


def test_what_cannot_be_copied_is_no_fault_of_the_call(artifacts, monkeypatch):
    monkeypatch.setattr("pyc_mlir.service.shadow.host_of", lambda v, d: 1 / 0)
    with Service(artifacts[1], shadow=Shadow(lambda x: x, share=1)) as service:
        for _ in range(2):
            assert (service(X) == X + 1).all()
        assert service.snapshot().dropped == 2
        assert sum("cannot be copied: ZeroDivisionError" in str(e) for e in service.log()) == 1
        assert service._comparisons is not None and service._comparisons._bytes == 0


def test_the_reference_answers_as_the_program(artifacts):
    """Arrays of a device come back as such; `out` of numpy is written."""
    with Service(artifacts[2], shadow=Shadow(lambda x: x + 1, share=1)) as service:
        service(X)
        assert service.drain() and service.health().state == "degraded"
        out, there = np.empty_like(X), to_device(X, service.program.device)
        assert service(X, out=out) is out and (out == X + 1).all()
        answer = service(there, donate=[0])
        assert isinstance(answer, Array) and (answer.numpy() == X + 1).all()
        with pytest.raises(PycError, match="out: expected arrays of numpy while"):
            service(X, out=there)


def test_a_service_that_is_closed_while_it_is_called(artifacts):
    errors, ended = [], threading.Event()

    def call(service: Service) -> None:
        while not ended.is_set():
            try:
                service(X)
            except Exception as error:  # noqa: BLE001
                errors.append(error)

    for _ in range(20):
        ended.clear()
        service = Service(artifacts[1], shadow=Shadow(lambda x: x + 1, share=1), hang_seconds=1)
        threads = together(2, call, service)
        service.close()
        service.close()
        ended.set()
        for thread in threads:
            thread.join()
        assert not errors and service.drain()


def test_events_are_words(artifacts):
    with Service(artifacts[1]) as service:
        service.swap(artifacts[2])
        words = [str(event) for event in service.log()]
    assert words[0] == (
        "build: build 2 in place of build 1; BUILD_SWAPPED: build 2 in place of build 1"
    )
    assert words[-1].startswith("calls: answered; calls 2, ")


def test_a_reference_that_fails_says_nothing_of_the_program(artifacts):
    def refuse(x):
        raise ValueError("no")

    with Service(artifacts[1], shadow=Shadow(refuse, share=1)) as service:
        service(X)
        service(X)
        assert service.drain() and service.health().state == "ok"
        assert service.snapshot().dropped == 2
        told = [str(e) for e in service.log() if e.outcome == "not compared"]
        assert len(told) == 1 and "the reference does not answer: ValueError: no" in told[0]


def test_a_call_that_hangs_is_told(artifacts, monkeypatch):
    free = threading.Event()
    program = running(artifacts[1], monkeypatch, lambda run, a: (free.wait(10), run(a))[1])
    with Service(program, hang_seconds=0.02) as service:
        (thread,) = together(1, service, X)
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


@pytest.mark.parametrize("seconds", (0, -1.0, float("nan"), True))
def test_a_watchdog_needs_seconds(artifacts, seconds):
    with pytest.raises(PycError, match="hang_seconds: expected seconds above 0"):
        Service(artifacts[1], hang_seconds=seconds)


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


def test_an_arm_that_answers_wrongly_is_taken_no_more(tmp_path):
    """Two builds agree on the samples that they are compared on, and not on large inputs."""
    spec = [pyc_mlir.TensorSpec("f32", 2, 3)]
    right = pyc_mlir.compile(lambda x: x + 1, inputs=spec).artifact
    wrong = pyc_mlir.compile(lambda x: x + 1 + np.maximum(x - 1000, 0), inputs=spec)
    (tmp_path / "wrong.vmfb").write_bytes(b"")
    wrong.save(tmp_path / "wrong.vmfb")
    shadow = Shadow(lambda x: x + 1, share=1.0)
    with Service(Program(right), shadow=shadow, fallbacks=["refuse"]) as service:
        selector = Clocked({"plain": 1.0, "balanced": 1.0, "": 1.0, "other": 0.5})
        service.adapt(selector, builds={"other": tmp_path / "wrong.vmfb"})
        for _ in range(300):
            service(X)
        assert service.drain() and service.health().state == "ok"
        (route,) = service.program.stats().routes
        assert next(iter(route.serving.values())).startswith("other@")
        service(X + 5000)
        assert service.drain()
        for _ in range(300):
            assert (service(X + 5000) == X + 5001).all()
        assert service.drain()
        counted = service.snapshot()
        assert counted.mismatches == 1 and counted.fallbacks == 1
        assert {"WRONG_RESULT", "FALLBACK_TAKEN", "ARM_CHANGED"} <= set(codes(service))
        assert [e.kind for e in selector.events()] == ["promoted", "quarantined"]
        service.swap(Program(right))
        assert service.program.stats().routes == (), "a selector stays with its build"
