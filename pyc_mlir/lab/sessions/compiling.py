"""Candidates to artifacts: each compile in a worker process, its failure a status with a reason.

    compiler = Compiler(subject, timeout_seconds)
    compiler.compile(candidate) -> Compiled

A candidate's recipe may name sites, works or passes; the sites of the subject's own compile
determine which ones are meant.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyc_mlir.artifact.artifact import Artifact, to_bytes
from pyc_mlir.artifact.manifest import ARENA
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import Options, resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.rows import CRASH, OK, REFUSED, TIMEOUT
from pyc_mlir.lab.sessions.session import MeasuredChoice, MeasuredProgram
from pyc_mlir.lab.simulation.estimate import Estimate
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.pipelines.choices.choices import Decision, Recipe
from pyc_mlir.util.logs import logged
from pyc_mlir.worker.compile import WorkerCompile
from pyc_mlir.worker.messages import WorkerFault

_STATUSES = {ReasonCode.NATIVE_CRASH: CRASH, ReasonCode.COMPILE_TIMEOUT: TIMEOUT}
_SAID = 500


@dataclass(frozen=True)
class CompileOutcome:
    """The outcome of a candidate's compile: an artifact, or a status and why there is none."""

    candidate: MeasuredChoice
    artifact: Artifact | None = None
    status: str = OK
    reason: str = ""
    seconds: float = 0.0

    @cached_property
    def data(self) -> bytes:
        """The artifact's bytes."""
        assert self.artifact is not None
        return to_bytes(self.artifact)

    @cached_property
    def key(self) -> str:
        """SHA-256 of the artifact's bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def chosen(self) -> dict[str, str]:
        """{site: choice} of the compile."""
        decisions: Sequence[Decision] = () if self.artifact is None else self.artifact.decisions
        return {d.site.key: d.chosen for d in decisions}

    @property
    def facts(self) -> Mapping[str, int | None]:
        """Bytes of the arena, where its size is known, and of constants."""
        if self.artifact is None:
            return {}
        arena = self.artifact.manifest.entries.get(ARENA)
        return {
            "arena_bytes": None if arena is None else arena.arena_bytes,
            "constant_bytes": self.artifact.account.constants,
        }

    def predicted(self, threads: int) -> Estimate | None:
        """Return the predicted call on so many threads, by the costs in the compile's log: no
        measured row.
        """
        if self.artifact is None:
            return None
        return Simulator.of(self.artifact, threads=threads).estimate()


@dataclass
class Compiler:
    """Compiles candidates of one subject. timeout_seconds: after which a compile is ended."""

    subject: MeasuredProgram
    timeout_seconds: float
    _own: CompileOutcome | None = field(default=None, init=False)

    def compile(self, candidate: MeasuredChoice) -> CompileOutcome:
        """Compile the candidate; return its artifact, or why there is none; a bad candidate never
        raises.
        """
        try:
            recipe = self._recipe(candidate) if candidate.recipe else None
        except PycError as error:
            return CompileOutcome(candidate, None, REFUSED, _said(error))
        if recipe is None or self._is_default(recipe):
            return replace(self._default(), candidate=candidate)
        return self._compiled(candidate, recipe)

    def _is_default(self, recipe: Recipe) -> bool:
        """Return whether a recipe equals PyC's own choices: the incumbent of most sessions."""
        own = self._default().chosen
        return all(own.get(site) == choice for site, choice in recipe.choices.items())

    def _default(self) -> CompileOutcome:
        """Return the default compile of the subject."""
        if self._own is None:
            self._own = self._compiled(MeasuredChoice(), None)
        return self._own

    def _compiled(self, candidate: MeasuredChoice, recipe: Recipe | None) -> CompileOutcome:
        began = time.monotonic()
        try:
            made = self._made(recipe)
        except (PycError, WorkerFault, MemoryError) as error:
            code = error.code if isinstance(error, PycError) else None
            crashed = CRASH if isinstance(error, WorkerFault) else REFUSED
            status = _STATUSES.get(code, crashed) if code is not None else crashed
            return CompileOutcome(candidate, None, status, _said(error), time.monotonic() - began)
        return CompileOutcome(candidate, made, seconds=time.monotonic() - began)

    def _made(self, recipe: Recipe | None) -> Artifact:
        subject, options = self.subject, self._options
        options = replace(options, recipe=recipe)
        limit = self.timeout_seconds
        job = Job.of(subject.source, subject.inputs, options)
        with WorkerCompile(job, logged, give_up_seconds=limit) as work:
            return work.compile()

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
        sites = [d.site for d in self._decisions]
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

    @property
    def _decisions(self) -> Sequence[Decision]:
        """Those of PyC's own compile; none where it fails."""
        made = self._default().artifact
        return () if made is None else made.decisions


def _said(error: BaseException) -> str:
    return f"{error}"[:_SAID] or type(error).__name__
