"""A program in service: its owner's targets, swaps of builds, and a background comparison.

    service = Service(load("model.vmfb"), targets=Targets(p99_seconds=0.02),
                      shadow=Shadow(reference, share=0.01))
    service(x)                      # as the program itself
    service.swap("newer.vmfb")      # calls that began before answer by the build before
    service.health()                # ok, degraded or refusing, with reasons

A build is replaced by one assignment: a call reads it once and is answered by it alone, so no call
is lost or sees two builds. What goes wrong leads through the fallbacks, each one logged with its
code: `plan` (another plan of the same program), `previous` (the build before), `reference` (the
shadow's reference answers), `refuse`.
"""

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import get_ident
from time import monotonic, perf_counter
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.signature import require_same
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.pipelines.choices.log import Event
from pyc_mlir.runtime.events import RunLog
from pyc_mlir.runtime.program import Program
from pyc_mlir.runtime.selection.engine import quantile
from pyc_mlir.runtime.selection.selector import Selector
from pyc_mlir.service.builds import FAILED, FAULTS, Build, Refusal, loaded, warm
from pyc_mlir.service.capsule import written
from pyc_mlir.service.shadow import Comparisons, Mismatch, Shadow
from pyc_mlir.service.targets import (
    JUDGED,
    MODE,
    PREVIOUS,
    REFUSE,
    Targets,
    require_seconds,
)
from pyc_mlir.service.telemetry import Histogram, Snapshot
from pyc_mlir.service.watch import Watch
from pyc_mlir.util import logs

OK, DEGRADED, REFUSING = "ok", "degraded", "refusing"
PLAN, REFERENCE = "plan", "reference"
FALLBACKS = (PLAN, PREVIOUS, REFERENCE, REFUSE)
_MOST_BACKOFF = 16
_WINDOW = 256


@dataclass(frozen=True)
class Health:
    """The state of a service, `ok`, `degraded` or `refusing`, and what led to it."""

    state: str
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return "; ".join([self.state, *map(str, self.reasons)])


class Service:
    """A program that serves. Several threads may call it, swap it and ask it."""

    def __init__(
        self,
        program: Program | Artifact | str | Path,
        *,
        targets: Targets | None = None,
        shadow: Shadow | None = None,
        fallbacks: Sequence[str] = FALLBACKS,
        hang_seconds: float | None = None,
        name: str = "program",
    ) -> None:
        """Put a program in service.

        targets: limits, and what a miss leads to; None judges nothing. shadow: compares a share of
        the answers. fallbacks: what may answer after a wrong answer, of `FALLBACKS` in this order.
        hang_seconds: a call that takes longer makes the health `degraded`. name: of the metrics.

        Raises PycError: BAD_ARGUMENT, and as `load` does.
        """
        if hang_seconds is not None:
            require_seconds("service: hang_seconds", hang_seconds)
        unknown = [f for f in fallbacks if f not in FALLBACKS]
        if unknown:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                where="service: fallbacks",
                expected=", ".join(FALLBACKS),
                got=repr(unknown[0]),
            )
        self.name, self.targets, self.fallbacks = name, targets, tuple(fallbacks)
        self._window = _WINDOW if targets is None else targets.window
        self._numbers = count(1)
        self._lock, self._change = threading.Lock(), threading.RLock()
        self._log = RunLog()
        self._build = self._made(loaded(program))
        self._before: Build | None = None
        self._actions = () if targets is None else tuple(targets.actions)
        self._missed = ""
        self._refusal: Refusal | None = None
        self._trying = 0
        self._failures: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._histogram = Histogram()
        self._calls = self._swaps = self._returns = self._fallbacks_taken = 0
        self._shadow = shadow
        self._share = 0.0 if shadow is None else shadow.share
        self._random = None if shadow is None else shadow.random
        self._comparisons = None
        if shadow is not None:
            self._comparisons = Comparisons(shadow, self._distrust, self._not_compared)
        self._capsules = 0
        self._watch = None if hang_seconds is None else Watch(hang_seconds, self._hangs)

    @property
    def program(self) -> Program:
        """The program of the build in place."""
        return self._build.program

    @property
    def signature(self) -> Any:
        """The signature, which all builds share."""
        return self._build.program.signature

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Call the build in place. Raises as the program does, and PycError (SERVICE_REFUSING)."""
        if logs.tracer is None:
            return self._called(args, named)
        with logs.span("pyc.call", **{"pyc.model": self.name, "pyc.build": self._build.number}):
            return self._called(args, named)

    def _called(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        build = self._build
        if self._refusal is not None:
            self._require_open()
        watch = self._watch
        began = perf_counter()
        if watch is not None:
            watch.running[get_ident()] = began
        try:
            values = (
                self._shadow.answer(build.program, args, named)
                if build.by_reference and self._shadow is not None
                else build.program(*args, **named)
            )
        except Exception as error:
            self._failed(build, error, began)
            raise
        finally:
            if watch is not None:
                watch.running.pop(get_ident(), None)
        seconds = perf_counter() - began
        with self._lock:
            self._calls += 1
            self._histogram.add(seconds)
            # A call that began before the last change says nothing of it.
            due = began >= build.since
            if due:
                build.calls += 1
                build.recent.append(seconds)
                due = build.calls >= build.judged_at
        if due:
            self._judge(build)
        random = self._random
        if random is not None and random() < self._share and not build.by_reference:
            assert self._comparisons is not None
            self._comparisons.offer(build, args, named, values)
        return values

    def swap(self, program: Program | Artifact | str | Path, *, slower: float | None = None) -> int:
        """Put another build in place, loaded and warm; return its number.

        slower: its p95 over the first window may be so many times that of the build before, else
        the service returns to that one; the targets hold besides. It is not judged, which the log
        says, where the build before has answered less than a window since its last change.

        Raises PycError: as `load` does, and BAD_ARGUMENT for a program with another signature. The
        build in place stays then.
        """
        made = loaded(program)
        require_same(self.signature, made.signature)
        warm(made)
        with self._change:
            after = self._made(made)
            if slower is not None:
                after.slowest = self._slowest(slower)
            self._put(after, f"build {after.number} in place of build {self._build.number}")
            self._swaps += 1
            self._actions = () if self.targets is None else tuple(self.targets.actions)
            self._missed = ""
            self._refusal = None
        return after.number

    def adapt(
        self,
        selector: Selector | None,
        *,
        modes: bool = True,
        builds: Mapping[str, Program | Artifact | str | Path] | None = None,
    ) -> None:
        """Let a selector choose in the build in place, as `Program.adapt`, until another one is.

        An arm that answers wrongly is taken no more. Raises PycError as `Program.adapt` and `load`.
        """
        with self._change:
            build, others = self._build, {n: loaded(b) for n, b in (builds or {}).items()}
            build.program.adapt(selector, modes=modes, builds=others)
            build.selector = selector
            if selector is not None and self._shadow is not None:
                selector.latest = {}

    def health(self) -> Health:
        """Return the state now, with its reasons."""
        with self._change:
            reasons = []
            refusal, build = self._refusal, self._build
            if refusal is not None:
                reasons.append(Reason(ReasonCode.SERVICE_REFUSING.name, refusal.why))
            if self._missed:
                reasons.append(Reason(ReasonCode.TARGET_MISSED.name, self._missed))
            if build.by_reference:
                reasons.append(Reason(ReasonCode.FALLBACK_TAKEN.name, "the reference answers"))
            if self._before is not None and self._before.distrusted:
                why = f"build {self._before.number}: {self._before.distrusted}"
                reasons.append(Reason(ReasonCode.WRONG_RESULT.name, why))
            taken = build.program.stats().fallbacks
            reasons += [Reason(ReasonCode.FALLBACK_TAKEN.name, str(f)) for f in taken]
            watch = self._watch
            if watch is not None and watch.hung:
                text = f"{len(watch.hung)} calls run longer than {watch.seconds:g} s"
                reasons.append(Reason(ReasonCode.CALL_HANGS.name, text))
        shut = refusal is not None and (refusal.until is None or monotonic() < refusal.until)
        state = REFUSING if shut else DEGRADED if reasons else OK
        return Health(state, tuple(reasons))

    def log(self) -> tuple[Event, ...]:
        """List the latest events of the service, then those of the program in place."""
        return (*self._log.latest(), *self.program.log())

    def snapshot(self) -> Snapshot:
        """Return the numbers at this time."""
        health = self.health().state
        build, done = self._build, self._comparisons
        stats = build.program.stats()
        memory = {
            "constants": build.program.artifact.account.constants or 0,
            "arenas": stats.arena_bytes,
        }
        with self._lock:
            return Snapshot(
                name=self.name,
                build=build.number,
                mode=stats.mode,
                health=health,
                calls=self._calls,
                failures=dict(self._failures),
                refusals=dict(self._refusals),
                buckets=tuple(self._histogram.counts),
                seconds_total=self._histogram.sum,
                swaps=self._swaps,
                returns=self._returns,
                fallbacks=self._fallbacks_taken + len(stats.fallbacks),
                comparisons=0 if done is None else done.compared,
                mismatches=0 if done is None else done.mismatches,
                dropped=0 if done is None else done.dropped + done.failed,
                memory=memory,
            )

    def drain(self, seconds: float = 10.0) -> bool:
        """Wait for comparisons that are queued; return whether they ended in time."""
        return self._comparisons is None or self._comparisons.drain(seconds)

    def close(self) -> None:
        """End the threads of the service; calls still answer, nothing is compared any more."""
        # A call on the way may have read it before; it is counted as dropped then.
        self._random = None
        if self._comparisons is not None:
            self._comparisons.close()
        if self._watch is not None:
            self._watch.close()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # What a call meets.

    def _require_open(self) -> None:
        """Raise PycError (SERVICE_REFUSING) while calls are refused; else let a window try."""
        with self._change:
            refusal = self._refusal
            if refusal is None:
                return
            if refusal.until is not None and monotonic() >= refusal.until:
                return
        with self._lock:
            self._refusals[ReasonCode.SERVICE_REFUSING.name] += 1
        raise PycError(
            ReasonCode.SERVICE_REFUSING,
            where=self.name,
            expected="a service that answers",
            got=f"one that refuses: {refusal.why}",
            remedy="swap in another build, or wait until the service tries again",
        )

    def _failed(self, build: Build, error: Exception, began: float) -> None:
        code = error.code if isinstance(error, PycError) else ReasonCode.INTERNAL_ERROR
        fault = code in FAULTS
        with self._lock:
            (self._failures if fault else self._refusals)[code.name] += 1
            fault = fault and began >= build.since
            if fault:
                build.calls += 1
                build.recent.append(FAILED)
            due = fault and build.calls >= build.judged_at
        if due:
            self._judge(build)

    # What is judged, and what follows.

    def _judge(self, build: Build) -> None:
        """Judge a whole window of the build in place."""
        with self._change:
            with self._lock:
                if build is not self._build or build.calls < build.judged_at:
                    return
                build.judged_at = build.calls + max(self._window // JUDGED, 1)
                recent = list(build.recent)
                first, build.slowest = build.slowest, None
            seconds = [s for s in recent if s != FAILED]
            missed = ""
            if self.targets is not None:
                missed = self.targets.missed(seconds, len(recent) - len(seconds))
            if not missed and first is not None and seconds:
                p95 = quantile(seconds, 0.95)
                if p95 > first and self._before is not None:
                    missed = f"p95 {p95:.4g} s of the new build, at most {first:.4g} s"
                    self._missed = missed
                    self._return(missed, ReasonCode.TARGET_MISSED)
                    return
            if missed:
                self._act(missed)
            else:
                self._missed = ""
                # A build that is refused for good stays so, whatever its calls come to.
                if self._refusal is not None and self._refusal.until is not None:
                    self._refusal = None

    def _act(self, missed: str) -> None:
        """Take the next action that is possible."""
        assert self.targets is not None
        self._missed = missed
        if self._refusal is not None:
            if self._refusal.until is None:
                return
            self._refuse(missed, min(self._refusal.seconds * 2, self._most_seconds))
            return
        while self._actions:
            action, self._actions = self._actions[0], self._actions[1:]
            if action == PREVIOUS and self._return(missed, ReasonCode.TARGET_MISSED):
                return
            if action.startswith(MODE) and self._switch(action.removeprefix(MODE), missed):
                return
            if action == REFUSE:
                self._refuse(missed, self.targets.refuse_seconds)
                return

    @property
    def _most_seconds(self) -> float:
        assert self.targets is not None
        return self.targets.refuse_seconds * _MOST_BACKOFF

    def _slowest(self, slower: float) -> float | None:
        """Return the seconds that the next build's p95 may have; None, logged, if unknown."""
        now = self._build
        done = [s for s in now.recent if s != FAILED]
        if len(done) >= self._window:
            return slower * quantile(done, 0.95)
        why = f"build {now.number} answered {len(done)} calls of a window of {self._window}"
        self._log.add("slower", "not judged", why, ReasonCode.BUILD_SWAPPED)
        return None

    def _not_compared(self, why: str) -> None:
        self._log.add("comparison", "not compared", why, ReasonCode.NO_ORACLE)

    def _hangs(self, thread: int, seconds: float) -> None:
        why = f"a call of thread {thread} runs for {seconds:.3g} s"
        self._log.add("watchdog", DEGRADED, why, ReasonCode.CALL_HANGS)

    def _switch(self, mode: str, why: str) -> bool:
        program = self._build.program
        if mode not in program.modes or mode == program.mode:
            return False
        program.use_mode(mode)
        self._log.add("targets", f"mode {mode}", why, ReasonCode.MODE_SWITCHED)
        self._fresh(self._build)
        return True

    def _return(self, why: str, code: ReasonCode) -> bool:
        """Return to the build before, unless it is distrusted too."""
        before = self._before
        if before is None or before.distrusted:
            return False
        self._put(before, why, code)
        self._returns += 1
        return True

    def _refuse(self, why: str, seconds: float | None) -> None:
        until = None if seconds is None else monotonic() + seconds
        self._refusal = Refusal(why, until, seconds or 0.0)
        self._log.add("service", REFUSING, why, ReasonCode.SERVICE_REFUSING)
        self._fresh(self._build)

    def _put(self, after: Build, why: str, code: ReasonCode = ReasonCode.BUILD_SWAPPED) -> None:
        before = self._build
        self._fresh(after)
        self._before, self._build = before, after
        self._log.add("build", f"build {after.number}", why, code, f"build {before.number}")

    def _fresh(self, build: Build) -> None:
        """Judge a build by calls from now on."""
        with self._lock:
            build.recent.clear()
            build.since = perf_counter()
            build.judged_at = build.calls + self._window

    def _made(self, program: Program) -> Build:
        others = [m for m in program.modes if m != program.mode]
        recent: deque[float] = deque(maxlen=self._window)
        return Build(next(self._numbers), program, recent, self._window, modes_left=others)

    def _distrust(self, mismatch: Mismatch) -> None:
        """Quarantine the build that answered wrongly; the next answer comes from elsewhere."""
        build: Build = mismatch.sampled.build
        with self._change:
            why = f"a compared call differs: {mismatch.why}"
            self._keep(mismatch)
            mode = build.program.mode
            self._log.add(
                "comparison", f"build {build.number} {mode}".rstrip(), why, ReasonCode.WRONG_RESULT
            )
            if mismatch.sampled.arm is not None and build.selector is not None:
                arm, is_owners = mismatch.sampled.arm
                build.selector.withdraw(arm, f"{ReasonCode.WRONG_RESULT.name}: {why}", fault=True)
                if not is_owners:
                    self._taken(f"{PLAN}: without arm {arm}", why)
                    return
            if build is not self._build or build.by_reference:
                build.distrusted = why
                return
            for fallback in self.fallbacks:
                if fallback == PLAN and build.modes_left:
                    self._taken(f"{PLAN}: {build.modes_left[0]}", why)
                    build.program.use_mode(build.modes_left.pop(0))
                    self._fresh(build)
                    return
                build.distrusted = build.distrusted or why
                if fallback == PREVIOUS and self._return(why, ReasonCode.FALLBACK_TAKEN):
                    self._fallbacks_taken += 1
                    return
                if fallback == REFERENCE:
                    self._taken(REFERENCE, why)
                    after = self._made(build.program)
                    after.by_reference = True
                    self._put(after, why, ReasonCode.FALLBACK_TAKEN)
                    return
                if fallback == REFUSE:
                    break
            build.distrusted = why
            self._refuse(why, None)

    def _taken(self, name: str, why: str) -> None:
        self._fallbacks_taken += 1
        self._log.add("fallback", name, why, ReasonCode.FALLBACK_TAKEN)

    def _keep(self, mismatch: Mismatch) -> None:
        """Write a capsule, if there is a folder and room for one more."""
        shadow = self._shadow
        assert shadow is not None
        if shadow.capsules is None or self._capsules >= shadow.most_capsules:
            return
        self._capsules += 1
        path = shadow.capsules / f"{self.name}-{self._capsules}.capsule.zip"
        self._log.add("capsule", *written(mismatch, path, shadow.keep_inputs))
