"""Does a program answer what its reference does? Asked before the first answer leaves.

When it is loaded a program computes the artifact's samples; in the process that compiled it, the
first call with each shape, and every nth if asked for, is compared with the oracle too. A program
that differs is replaced by the next fallback of its contract, or the call raises: no answer that
failed its comparison is given out.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pyc_mlir.artifact import Artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.evidence import Evidence, Verdict, environment_of, hash_of
from pyc_mlir.iree.array import Array, to_device
from pyc_mlir.iree.device import Device
from pyc_mlir.pipelines.contract import IREE_CODE, OTHER_PLANS, REFERENCE, Contract
from pyc_mlir.promises import Counts
from pyc_mlir.run_log import REFUSED
from pyc_mlir.samples import Samples, compare, make_inputs

Run = Callable[[Sequence[Array]], list[Array]]


class Watched(Protocol):
    """A program, as its watch needs it."""

    artifact: Artifact
    device: Device

    @property
    def mode(self) -> str:
        """The plan in use."""
        ...

    @property
    def modes(self) -> dict[str, int | None]:
        """All plans."""
        ...

    def take_plan(self, name: str, why: str, code: ReasonCode) -> None:
        """Use another plan."""
        ...

    def take_code(self, run: Run) -> None:
        """Let something else answer from now on."""
        ...

    def tell_fallback(self, name: str, why: str, code: ReasonCode) -> None:
        """Log a fallback that was taken, or refused."""
        ...

    def answer(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Compute, by whatever is in use."""
        ...


@dataclass(frozen=True)
class Fallback:
    """A fallback that was taken: its name, and what was wrong before it."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}, since {self.why}"


class Watch:
    """Compares one program's answers, and keeps count."""

    def __init__(self, program: Watched, contract: Contract, load: Callable[..., Any]) -> None:
        """Nothing is compared yet. `load` makes a program of a stand-in's artifact and a device."""
        artifact = program.artifact
        self._program = program
        self._limit = contract.max_error if isinstance(contract.max_error, int | float) else None
        self._evidence = artifact.evidence or Evidence()
        self._samples = Samples.from_bytes(artifact.samples, artifact.signature)
        self._hash = hash_of(artifact.vmfb, artifact.samples, contract.max_error)
        self._load = load
        self._lock = threading.RLock()
        self._seen: set[Any] = set()
        self._chain = self._fallbacks(contract.fallbacks)
        self.every = 0
        self.calls = self.compared = self.wrong = 0
        self.taken: list[Fallback] = []
        self.verdict: Verdict | None = None

    def counts(self) -> Counts:
        """What was done so far."""
        with self._lock:
            taken = tuple(map(str, self.taken))
            return Counts(self.verdict, self.calls, self.compared, taken)

    def judge(self, known: Verdict | None) -> None:
        """Compute the samples, unless a verdict says that this was done here.

        Raises PycError (WRONG_RESULT) if they differ, and no fallback is left.
        """
        for verdict in filter(None, (known, self._evidence.verdict)):
            if verdict.passed and verdict.fits(self._hash, self._program.device):
                self.verdict = verdict
                return
        while not (verdict := self._compare_samples()).passed:
            self.wrong += 1
            self._fall_back(verdict.wrong)
        self.verdict = verdict

    def _compare_samples(self) -> Verdict:
        worst, done, wrong = 0.0, 0, ""
        samples, program = self._samples.samples, self._program
        for sample in samples:
            inputs = make_inputs(program.artifact.signature, sample.seed, sample.sizes)
            try:
                found = compare(program.answer(inputs), sample.outputs, self._limit)
            except PycError as error:
                wrong = wrong or f"sample {sample.seed}: {error.message}"
                continue
            worst, done = max(worst, found.worst), done + 1
            if found.wrong and not wrong:
                wrong = f"sample {sample.seed}: {found.wrong}"
        environment = environment_of(program.device)
        return Verdict(self._hash, environment, done, len(samples), worst, wrong)

    @property
    def compares_calls(self) -> bool:
        """Whether the inputs of a call are read again after it, by the reference."""
        return self._evidence.oracle is not None

    def see(self, arrays: Sequence[Array], values: Sequence[Any]) -> Sequence[Any]:
        """The values of a call, or those of a fallback where they are wrong.

        Raises PycError (WRONG_RESULT) if no fallback is left.
        """
        oracle = self._evidence.oracle
        with self._lock:
            self.calls += 1
            key = tuple(a.spec[:2] for a in arrays)
            due = key not in self._seen or (self.every and self.calls % self.every == 0)
            if oracle is None or not due:
                return values
            inputs = [a.numpy() for a in arrays]
            expected = oracle.expect(inputs)
            got = [v.numpy() if isinstance(v, Array) else v for v in values]
            replaced = False
            while (found := compare(got, expected, self._limit)).wrong:
                self.wrong += 1
                self._fall_back(found.wrong)
                got, replaced = self._program.answer(inputs), True
            self.compared += 1
            self._seen.add(key)
        if not replaced:
            return values
        on_device = any(isinstance(v, Array) for v in values)
        return [to_device(v, self._program.device) for v in got] if on_device else got

    def _fall_back(self, why: str) -> None:
        """Put the next fallback in place. Raises PycError (WRONG_RESULT) if there is none."""
        name = next(self._chain, None)
        if name is None:
            self._program.tell_fallback(REFUSED, why, ReasonCode.WRONG_RESULT)
            past = f"; fallbacks that were tried: {', '.join(f.name for f in self.taken)}"
            raise PycError(
                ReasonCode.WRONG_RESULT,
                f"program: expected the results of its reference, got {why}"
                f"{past if self.taken else ''}; the answer was not given out",
            )
        self._program.tell_fallback(name, why, ReasonCode.FALLBACK_TAKEN)
        self.taken.append(Fallback(name, why))

    def _fallbacks(self, chain: Sequence[str]) -> Iterator[str]:
        """Each fallback in turn, put in place when it is asked for; those not here are left out."""
        program, evidence = self._program, self._evidence
        for name in chain:
            if name == OTHER_PLANS:
                for mode in [m for m in program.modes if m != program.mode]:
                    program.take_plan(mode, "results differ", ReasonCode.FALLBACK_TAKEN)
                    yield f"{OTHER_PLANS}: {mode}"
            elif name == IREE_CODE and IREE_CODE in evidence.stand_ins:
                program.take_code(self._load(evidence.stand_ins[name](), program.device))
                yield name
            elif name == REFERENCE and evidence.oracle is not None:
                program.take_code(self._reference)
                yield name

    def _reference(self, arrays: Sequence[Array]) -> list[Array]:
        oracle = self._evidence.oracle
        assert oracle is not None
        expected = oracle.expect([a.numpy() for a in arrays])
        return [to_device(np.ascontiguousarray(e.value), self._program.device) for e in expected]
