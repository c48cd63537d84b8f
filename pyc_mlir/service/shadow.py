"""Compare a sampled share of the answers with an independent implementation, in the background.

One thread asks the reference; calls never wait for it. Inputs and answers of a sampled call are
copied into a queue with a limit of bytes: what finds it full is counted and not compared.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Signature, flat
from pyc_mlir.artifact.test_vectors import ExpectedResult, compare
from pyc_mlir.artifact.verification import Oracle
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import is_float
from pyc_mlir.runtime.array import Array, is_on_device, readable, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.outputs import fill, on_host
from pyc_mlir.runtime.program import Program, structured

# A function of numpy arrays, in the order of the program's inputs; its results in any tree.
Reference = Callable[..., Any]
_LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, eq=False)
class Sampled:
    """A call to compare: by which build, its inputs and answers; expected comes later.

    arm: which arm of the build's selector answered, and whether that is the owner's plan.
    """

    build: Any
    inputs: Sequence[np.ndarray]
    answers: Sequence[np.ndarray]
    nbytes: int
    arm: tuple[str, bool] | None = None


@dataclass(frozen=True)
class Mismatch:
    """An answer that differs from the reference, and why it cannot be right."""

    sampled: Sampled
    expected: Sequence[np.ndarray]
    why: str


class Shadow:
    """The reference of a service, which calls are compared with it, and what is kept of faults.

    reference: an `Oracle`, or a function of numpy arrays (another program, a session of another
    runtime, numpy itself) that answers independently. share: of the calls, 0 to 1.
    max_error: the greatest difference of a function's floats as a share of the greatest finite
    element of the result; integers must be equal. queue_bytes: of copies that wait. capsules: a
    folder for capsules of wrong answers (`capsule.py`), at most `most_capsules` of them.
    keep_inputs: the consent to store the inputs of a wrong answer there.

    Raises PycError (BAD_ARGUMENT).
    """

    def __init__(
        self,
        reference: Oracle | Reference,
        share: float = 0.01,
        max_error: float = 1e-4,
        *,
        queue_bytes: int = 64 << 20,
        capsules: str | Path | None = None,
        most_capsules: int = 8,
        keep_inputs: bool = False,
        seed: int = 0,
    ) -> None:
        if not (isinstance(share, int | float) and 0 < share <= 1):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                where="shadow: share",
                expected="a share of the calls above 0, at most 1",
                got=repr(share),
            )
        self.reference, self.share, self.max_error = reference, share, max_error
        self.queue_bytes, self.most_capsules = queue_bytes, most_capsules
        self.capsules = None if capsules is None else Path(capsules)
        self.keep_inputs = keep_inputs
        self.random = Random(seed).random

    def expect(self, inputs: Sequence[np.ndarray]) -> list[ExpectedResult]:
        """Ask the reference. Raises what it raises."""
        if isinstance(self.reference, Oracle):
            return self.reference.expect(inputs)
        values = [np.asarray(v) for v in flat(self.reference(*inputs))]
        return [
            ExpectedResult(v, np.full(v.shape, _LARGEST if is_float(v.dtype) else 0.0))
            for v in values
        ]

    def judge(self, answers: Sequence[np.ndarray], expected: Sequence[ExpectedResult]) -> str:
        """Return why answers cannot be right; "" where nothing contradicts them."""
        if len(answers) != len(expected):
            return f"expected {len(expected)} results, got {len(answers)}"
        limit = None if isinstance(self.reference, Oracle) else self.max_error
        return compare(answers, expected, limit).wrong

    def answer(self, program: Program, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Answer a call by the reference, behind the guards of a program and as it would.

        Inputs that are donated are kept. Raises PycError (NO_ARENA_ENTRY) for `out` on a device.
        """
        device, signature = program.device, program.signature
        arranged = signature.arranged(args, _inputs_of(named))
        arrays = [host_of(a, device) for a in arranged]
        signature.check([(a.shape, a.dtype) for a in arrays])
        memory, hosts = on_host(named.get("out"), signature)
        if memory is not None:
            raise PycError(
                ReasonCode.NO_ARENA_ENTRY,
                where="out",
                expected="arrays of numpy while the reference answers",
                got="memory of a device",
                remedy="call without `out`",
            )
        values: list[Any] = [e.value for e in self.expect(arrays)]
        if any(map(is_on_device, arranged)):
            values = [to_device(v, device) for v in values]
        return structured(program, fill(hosts, values))


class Comparisons:
    """The thread that compares, with its queue and its counts."""

    def __init__(
        self,
        shadow: Shadow,
        report: Callable[[Mismatch], None],
        not_compared: Callable[[str], None],
    ) -> None:
        """Prepare it; the first offer starts the thread.

        report: told of each wrong answer. not_compared: told of the first sampled call that the
        reference does not answer, or that cannot be copied.
        """
        self.shadow, self._report, self._not_compared = shadow, report, not_compared
        self.compared = self.mismatches = self.dropped = self.failed = 0
        self._queue: deque[Sampled] = deque()
        self._bytes = 0
        self._busy = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    def offer(self, build: Any, args: Sequence[Any], named: Mapping[str, Any], values: Any) -> None:
        """Queue a copy of a call, unless the queue is full or the call changed its inputs.

        Never raises: the answer is right whether it is compared or not.
        """
        try:
            self._offer(build, args, named, values)
        except Exception as error:  # noqa: BLE001  (arguments may be anything that has an array)
            self._fails(f"a call cannot be copied: {type(error).__name__}: {error}")

    def _offer(
        self, build: Any, args: Sequence[Any], named: Mapping[str, Any], values: Any
    ) -> None:
        signature: Signature = build.program.signature
        inputs, answers = signature.arranged(args, _inputs_of(named)), flat(values)
        size = sum(int(getattr(a, "nbytes", 8)) for a in (*inputs, *answers))
        with self._changed:
            # Inputs that were given away, or that results were written to, cannot be read again.
            changed = named.get("donate") or _overlap(named.get("out"), inputs)
            if changed or self._bytes + size > self.shadow.queue_bytes or self._ended:
                self.dropped += 1
                return
            self._bytes += size
        try:
            device, latest = build.program.device, build.selector and build.selector.latest
            arm = latest.get(threading.get_ident()) if latest else None
            mine = [np.array(host_of(v, device)) for v in inputs]
            copies = [np.array(host_of(v, device)) for v in answers]
            sampled = Sampled(build, mine, copies, size, arm)
        except BaseException:
            with self._changed:
                self._bytes -= size
            raise
        with self._changed:
            if self._ended:
                self.dropped += 1
                return
            self._queue.append(sampled)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._compare, name="pyc-shadow", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _fails(self, why: str) -> None:
        """Count a call that is not compared, and tell of the first."""
        with self._changed:
            self.failed += 1
            first = self.failed == 1
        if first:
            self._not_compared(why)

    def drain(self, seconds: float = 10.0) -> bool:
        """Wait until all that is queued was compared; return whether that came in time."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._queue or self._busy:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """End the thread after the comparison that it is at."""
        with self._changed:
            self._ended = True
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _compare(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._ended:
                    self._changed.wait()
                if self._ended:
                    return
                sampled = self._queue.popleft()
                self._busy = True
            try:
                self._judge(sampled)
            finally:
                with self._changed:
                    self._busy = False
                    self._bytes -= sampled.nbytes
                    self._changed.notify_all()

    def _judge(self, sampled: Sampled) -> None:
        try:
            expected = self.shadow.expect(sampled.inputs)
        except Exception as error:  # noqa: BLE001  (a reference of the user raises whatever it likes)
            self._fails(f"the reference does not answer: {type(error).__name__}: {error}")
            return
        why = self.shadow.judge(sampled.answers, expected)
        self.compared += 1
        if why:
            self.mismatches += 1
            self._report(Mismatch(sampled, [e.value for e in expected], why))


def _inputs_of(named: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in named.items() if n not in ("out", "donate")}


def _overlap(out: Any, inputs: Sequence[Any]) -> bool:
    """Return whether an array of numpy for results may share memory with an input."""
    written = [o for o in flat(out) if isinstance(o, np.ndarray)]
    return any(
        np.may_share_memory(o, a) for o in written for a in inputs if isinstance(a, np.ndarray)
    )


def host_of(value: Any, device: Device) -> np.ndarray:
    """Return an argument or a result as an array of numpy, its memory shared where that can be.

    Raises PycError (BAD_ARGUMENT) for what is no array.
    """
    seen = readable(value, device)
    return seen.numpy() if isinstance(seen, Array) else seen
