"""Candidates to artifacts: each compile in a worker process, its failure a status with a reason.

    compiler = Compiler(subject, timeout_seconds)
    compiler.compile(candidate) -> Compiled

A candidate's recipe may name sites, works or passes; the sites of the subject's own compile
determine which ones are meant.
"""

import hashlib
import time
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyc_mlir.artifact.artifact import Artifact, to_bytes
from pyc_mlir.artifact.manifest import ARENA
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import Options, resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.rows import CRASH, REFUSED, TIMEOUT
from pyc_mlir.lab.sessions.session import ChoiceResult, MeasuredChoice, MeasuredProgram
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.util.logs import logged
from pyc_mlir.worker.compile import WorkerCompile
from pyc_mlir.worker.messages import WorkerFault

_STATUSES = {ReasonCode.NATIVE_CRASH: CRASH, ReasonCode.COMPILE_TIMEOUT: TIMEOUT}
_SAID = 500


@dataclass(frozen=True)
class Compiled:
    """A candidate with its artifact's bytes, empty where there is none; no times yet.

    artifact: what was compiled, without which the result has a status and a reason.
    """

    result: ChoiceResult
    artifact: Artifact | None = None

    @cached_property
    def data(self) -> bytes:
        """The artifact's bytes."""
        assert self.artifact is not None
        return to_bytes(self.artifact)


@dataclass
class Compiler:
    """Compiles candidates of one subject.

    timeout_seconds: after which a compile is ended. threads: of the predicted call.
    """

    subject: MeasuredProgram
    timeout_seconds: float
    threads: int = 1
    _own: Compiled | None = field(default=None, init=False)

    def compile(self, candidate: MeasuredChoice) -> Compiled:
        """Compile the candidate; return its artifact, or why there is none; a bad candidate never
        raises.
        """
        try:
            recipe = self._recipe(candidate) if candidate.recipe else None
        except PycError as error:
            return Compiled(ChoiceResult(candidate, REFUSED, _said(error)))
        # The incumbent of most sessions is PyC's own choice.
        if recipe is None or recipe.choices.items() <= self._default.result.chosen.items():
            own = self._default
            return replace(own, result=replace(own.result, candidate=candidate))
        return self._compiled(candidate, recipe)

    @property
    def _default(self) -> Compiled:
        """The default compile of the subject."""
        if self._own is None:
            self._own = self._compiled(MeasuredChoice(), None)
        return self._own

    def _compiled(self, candidate: MeasuredChoice, recipe: Recipe | None) -> Compiled:
        began, subject = time.monotonic(), self.subject
        job = Job.of(subject.source, subject.inputs, replace(self._options, recipe=recipe))
        try:
            with WorkerCompile(job, logged, give_up_seconds=self.timeout_seconds) as work:
                made = work.compile()
        except (PycError, WorkerFault, MemoryError) as error:
            code = error.code if isinstance(error, PycError) else None
            crashed = CRASH if isinstance(error, WorkerFault) else REFUSED
            status = _STATUSES.get(code, crashed) if code is not None else crashed
            seconds = time.monotonic() - began
            return Compiled(ChoiceResult(candidate, status, _said(error), compile_seconds=seconds))
        seconds = time.monotonic() - began
        entry = made.manifest.entries.get(ARENA)
        result = ChoiceResult(
            candidate,
            compile_seconds=seconds,
            arena_bytes=None if entry is None else entry.arena_bytes,
            constant_bytes=made.account.constants,
            chosen={d.site.key: d.chosen for d in made.decisions},
            # By the costs in the compile's log: no measured row.
            predicted=Simulator.of(made, threads=self.threads).estimate(),
        )
        found = Compiled(result, made)
        key = hashlib.sha256(found.data).hexdigest()
        return replace(found, result=replace(result, artifact_key=key))

    @cached_property
    def _options(self) -> Options:
        options = resolve(self.subject.options)
        return replace(options, passes=self.subject.passes) if self.subject.passes else options

    def _recipe(self, candidate: MeasuredChoice) -> Recipe:
        """Return the candidate's choices by site. Raises PycError (RECIPE_MISMATCH)."""
        choices: dict[str, str] = {}
        for key, choice in candidate.recipe.items():
            for site in self._sites(key):
                choices[site] = choice
        return Recipe(choices)

    def _sites(self, key: str) -> list[str]:
        """Return the sites that a key names: one itself, those of a work, or all of a pass.

        A key that names nothing of PyC's own compile is one of another compile's sites.
        """
        name, _, rest = key.partition(":")
        made = self._default.artifact
        sites = [] if made is None else [d.site for d in made.decisions]
        if any(site.key == key for site in sites):
            return [key]
        if not rest:
            found = [site.key for site in sites if site.pass_name == name]
        else:
            found = [site.key for site in sites if site.work_key == key]
        if found or rest:
            return list(dict.fromkeys(found)) or [key]
        raise PycError(
            ReasonCode.RECIPE_MISMATCH,
            f"recipe: expected a pass with a site in this program, got {name!r}",
        )


def _said(error: BaseException) -> str:
    return f"{error}"[:_SAID] or type(error).__name__
