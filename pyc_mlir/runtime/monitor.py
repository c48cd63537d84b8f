"""Compare a program with its reference before the first answer is handed out.

When it is loaded a program computes the artifact's samples by all code that calls may take: each
plan, with and without memory of the caller. In the process that compiled it, the first call of each
code with each shape, and every nth if asked for, is compared with the oracle too. A program
that differs is replaced by the next fallback of its contract, or the call raises: no answer that
failed its comparison is given out.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from pyc_mlir.artifact.contract_status import Counts
from pyc_mlir.artifact.test_vectors import ExpectedResult, Samples, compare, make_inputs
from pyc_mlir.artifact.verification import Checks, Verification, hash_of
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import IREE_CODE, OTHER_PLANS, REFERENCE, Contract
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import environment_of
from pyc_mlir.runtime.events import REFUSED
from pyc_mlir.runtime.plans import Serving


@dataclass(frozen=True)
class Code:
    """The code that answered a call: since which fallback, by which plan, by which entry."""

    generation: int
    plan: str
    into: bool


@dataclass(frozen=True)
class Fallback:
    """A fallback that was taken: its name, and what was wrong before it."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}, since {self.why}"


class Monitor:
    """The comparison of one program's answers, with its counts."""

    def __init__(self, serving: Serving, contract: Contract, load: Callable[..., Any]) -> None:
        """Start without comparisons. `load` makes a program of a stand-in and a device."""
        artifact = serving.artifact
        self._serving = serving
        self._limit = contract.max_error if isinstance(contract.max_error, int | float) else None
        self._checks = artifact.checks or Checks()
        self._samples = Samples.from_bytes(artifact.samples, artifact.signature)
        self._hash = hash_of(artifact.vmfb, artifact.samples, contract.max_error)
        self._load = load
        self._lock = threading.RLock()
        self._asking = threading.Lock()
        self._seen: set[Any] = set()
        self._chain = self._fallbacks(contract.fallbacks)
        self._may_drop = OTHER_PLANS in contract.fallbacks
        # How often a fallback was taken: answers of code before the last one are not to be trusted.
        self.generation = 0
        self.every = 0
        self.calls = self.compared_calls = self.wrong = 0
        self.taken: list[Fallback] = []
        self._absent: list[str] = []
        self.verification: Verification | None = None

    def counts(self) -> Counts:
        """Return the counts so far."""
        with self._lock:
            taken = tuple(Note(str(fallback)) for fallback in self.taken)
            return Counts(self.verification, self.calls, self.compared_calls, taken)

    def check_samples(self, known: Verification | None) -> None:
        """Compute the samples, unless a verification record says that this was done here.

        Raises PycError (WRONG_RESULT) if they differ, and no fallback is left; with the code of
        the failure where they could not be computed.
        """
        for record in filter(None, (known, self._checks.verification)):
            if record.passed and record.fits(self._hash, environment_of(self._serving.device)):
                self.verification = record
                return
        while True:
            record, plan, cause = self._compare_samples()
            if record.passed:
                break
            self.wrong += 1
            if plan == self._serving.mode:
                self._fall_back(record.wrong, cause)
            else:
                # A plan that is not in use.
                if not self._may_drop:
                    self._refuse(record.wrong, cause)
                self._serving.plans.drop(plan)
                self._taken(f"{OTHER_PLANS}: all but {plan}", record.wrong)
        self.verification = record

    def _compare_samples(self) -> tuple[Verification, str, ReasonCode]:
        """Compare the samples by all code that calls may take; return the first wrong plan.

        The code says whether it answers wrongly or, with the failure's own, does not answer.
        """
        worst, done, wrong, bad = 0.0, 0, "", self._serving.mode
        cause = ReasonCode.WRONG_RESULT
        samples, serving = self._samples.samples, self._serving
        for sample in samples:
            inputs = make_inputs(serving.artifact.signature, sample.seed, sample.sizes)
            agree = True
            for (plan, entry), run in serving.ways(inputs).items():
                try:
                    found = compare(run(inputs), sample.outputs, self._limit)
                    worst, message, code = max(worst, found.worst), found.wrong, cause
                except PycError as error:
                    message, code = error.message, error.code
                agree = agree and not message
                if message and not wrong:
                    wrong, bad = f"sample {sample.seed}, {entry}: {message}", plan
                    cause = code
            done += agree
        environment = environment_of(serving.device)
        return Verification(self._hash, environment, done, len(samples), worst, wrong), bad, cause

    @property
    def compares_calls(self) -> bool:
        """True where the inputs of a call are read again after it, by the reference."""
        return self._checks.oracle is not None

    def due(self, arrays: Sequence[Array], code: Code, again: bool = False) -> bool:
        """Count a call; whether its answer has to be compared before it is given out."""
        with self._lock:
            self.calls += not again
            if self._checks.oracle is None:
                return False
            if code.generation != self.generation or (self.every and self.calls % self.every == 0):
                return True
            return (code, _shapes(arrays)) not in self._seen

    def checked(self, arrays: Sequence[Array], values: Sequence[Any], code: Code) -> Sequence[Any]:
        """Return the values of a call, compared before if the call is due, as `compared`."""
        return self.compared(arrays, values, code) if self.due(arrays, code) else values

    def compared(self, arrays: Sequence[Array], values: Sequence[Any], code: Code) -> Sequence[Any]:
        """Compare the values of a call that is due; return them, or a fallback's if they are wrong.

        Raises PycError (WRONG_RESULT) if no fallback is left.
        """
        oracle = self._checks.oracle
        assert oracle is not None, "nothing is due without it"
        key = code, _shapes(arrays)
        # One call at a time asks the reference; those that are not due wait for none.
        with self._asking:
            if not self.every and key in self._seen:
                return values
            inputs = [a.numpy() for a in arrays]
            expected = oracle.expect(inputs)
            got, replaced = self._judged(inputs, values, expected, code)
            if not replaced:
                self._seen.add(key)
        if not replaced:
            return values
        on_device = any(isinstance(v, Array) for v in values)
        return [to_device(v, self._serving.device) for v in got] if on_device else got

    def _judged(
        self,
        inputs: Sequence[np.ndarray],
        values: Sequence[Any],
        expected: Sequence[ExpectedResult],
        code: Code,
    ) -> tuple[Sequence[np.ndarray], bool]:
        """Return the values if they are right, or other code's; and whether it is other code's."""
        got = [v.numpy() if isinstance(v, Array) else v for v in values]
        found = compare(got, expected, self._limit)
        with self._lock:
            replaced = code.generation != self.generation or code.plan != self._serving.mode
            if replaced:
                # That code was left meanwhile, maybe since another call found it wrong.
                got = self._serving.answer(inputs)
                found = compare(got, expected, self._limit)
            while found.wrong:
                self.wrong += 1
                self._fall_back(found.wrong)
                got, replaced = self._serving.answer(inputs), True
                found = compare(got, expected, self._limit)
            # What is written to memory of the caller is computed, and compared, once more.
            self.compared_calls += not (replaced and code.into)
        return got, replaced

    def approves(
        self,
        arrays: Sequence[Array],
        code: Code,
        run: Callable[[], Sequence[Array]],
        again: bool = False,
    ) -> bool:
        """Return whether the code may write to memory of the caller; `run` gives it elsewhere.

        again: for a call that was counted, since it was asked for other code before.
        """
        if self.due(arrays, code, again):
            values = run()
            if self.compared(arrays, values, code) is not values:
                return False
        return code.generation == self.generation

    def _fall_back(self, why: str, cause: ReasonCode = ReasonCode.WRONG_RESULT) -> None:
        """Put the next fallback in place. Raises PycError (`cause`) if there is none."""
        name = next(self._chain, None)
        if name is None:
            self._refuse(why, cause)
        self.generation += 1
        self._seen.clear()
        self._taken(name, why)

    def _taken(self, name: str, why: str) -> None:
        self._serving.report_fallback(name, why, ReasonCode.FALLBACK_TAKEN)
        self.taken.append(Fallback(name, why))

    def _refuse(self, why: str, code: ReasonCode) -> NoReturn:
        self._serving.report_fallback(REFUSED, why, code)
        past = f"; fallbacks that were tried: {', '.join(f.name for f in self.taken)}"
        absent = f"; not there in this process: {', '.join(self._absent)}" if self._absent else ""
        raise PycError(
            code,
            f"program: expected the results of its reference, got {why}"
            f"{past if self.taken else ''}{absent}; the answer was not given out",
        )

    def _fallbacks(self, chain: Sequence[str]) -> Iterator[str]:
        """Yield each fallback in turn, put in place on demand; those not here are left out."""
        serving, checks = self._serving, self._checks
        for name in chain:
            if name == OTHER_PLANS:
                while others := [m for m in serving.plans.modes if m != serving.mode]:
                    code = ReasonCode.FALLBACK_TAKEN
                    serving.plans.take(others[0], "results differ", code, drop=serving.mode)
                    yield f"{OTHER_PLANS}: {others[0]}"
            elif name == IREE_CODE and IREE_CODE in checks.stand_ins:
                stand_in = self._load(checks.stand_ins[name](), serving.device)
                serving.take_code(name, stand_in)
                yield name
            elif name == REFERENCE and checks.oracle is not None:
                serving.take_code(name, self._reference)
                yield name
            elif name in (IREE_CODE, REFERENCE):
                self._absent.append(name)

    def _reference(self, arrays: Sequence[Array]) -> list[Array]:
        oracle = self._checks.oracle
        assert oracle is not None
        expected = oracle.expect([a.numpy() for a in arrays])
        return [to_device(np.ascontiguousarray(e.value), self._serving.device) for e in expected]


def _shapes(arrays: Sequence[Array]) -> tuple[Any, ...]:
    return tuple(a.spec[:2] for a in arrays)


def compare_every(monitor: Monitor | None, calls: int) -> None:
    """Compare every so many calls too. Raises PycError: NO_ORACLE, BAD_ARGUMENT."""
    if type(calls) is not int or calls < 1:
        message = f"compare_every: expected a whole number above 0, got {calls!r}"
        raise PycError(ReasonCode.BAD_ARGUMENT, message)
    if monitor is None or not monitor.compares_calls:
        raise PycError(
            ReasonCode.NO_ORACLE,
            "compare_every: expected a program compiled in this process under `max_error`, "
            "got one without a reference to ask",
        )
    monitor.every = calls
