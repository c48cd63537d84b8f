"""Bisect the decisions of two logs until one is found that makes a program wrong or slow.

Comes in: a source, the log of a good compile and that of a bad one, and a check. The sites where
the two chose differently are taken from the bad log or from the good one; everything else is as in
the bad compile. A choice may make other sites vanish, or their alternatives: what does not apply is
left to the policy, which nothing but a bisection does.
"""

import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact, write
from pyc_mlir.artifact.compile_log import CompileLog
from pyc_mlir.artifact.test_vectors import compare, make_inputs
from pyc_mlir.cache.store import differences
from pyc_mlir.compilation.build import oracle_of
from pyc_mlir.compilation.contract_check import (
    Culprits,
    NothingToFind,
    call_seconds,
    differing,
    find_culprits,
    mixed,
    some_inputs,
)
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import Options
from pyc_mlir.compilation.references import make_samples
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import Decision, Recipe
from pyc_mlir.pipelines.choices.contract import ROUNDING, Contract
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.util.children import run as run_child
from pyc_mlir.util.children import temporary_folder

# True: the program is bad; False: it is good; None: the check cannot tell.
Check = Callable[[Artifact], bool | None]
# Slower by less than this is not told from noise.
_SLOWER = 1.1
_SKIPPED = 125


@dataclass(frozen=True)
class Bisection:
    """The culprits by site, and each one's decision in the good and the bad log.

    differing: the number of sites in which the logs differ; vanished: choices that did not
    apply in some try.
    """

    culprits: Culprits[str]
    good: dict[str, Decision]
    bad: dict[str, Decision]
    differing: int
    vanished: int


def differing_sites(good: CompileLog, bad: CompileLog) -> list[str]:
    """Return the sites of choices that differ, those of the bad log first, in its order."""
    return differing(good.recipe.choices, bad.recipe.choices)


@dataclass
class _Mixing:
    """Compiles programs with some choices of the bad log, and checks them."""

    source: Any
    inputs: Sequence[Any] | None
    options: Options
    good: Recipe
    bad: Recipe
    sites: Sequence[str]
    check: Check
    tell: Callable[[str], None]
    vanished: set[str] = field(default_factory=set)
    tries: int = 0

    def recipe(self, applied: Sequence[str]) -> Recipe:
        """Return the good choices, with the bad ones at `applied`, and the common ones."""
        return mixed(self.good.choices, self.bad.choices, self.sites, applied)

    def is_bad(self, applied: Sequence[str]) -> bool | None:
        """Compile and check; None where it does not compile."""
        recipe = self.recipe(applied)
        try:
            artifact = build(self.source, self.inputs, replace(self.options, recipe=recipe))
        except PycError as error:
            answer, why = None, f" ({error.code.name})"
        else:
            chosen = {d.site.key: d.chosen for d in artifact.decisions}
            asked = [s for s in self.sites if s in recipe.choices]
            self.vanished |= {s for s in asked if chosen.get(s) != recipe.choices[s]}
            answer, why = self.check(artifact), ""
        self.tries += 1
        verdict = {True: "bad", False: "good", None: "cannot be told"}[answer]
        self.tell(f"{self.tries}: {len(applied)} of {len(self.sites)} bad choices: {verdict}{why}")
        return answer


def bisect(
    source: Any,
    inputs: Sequence[Any] | None,
    good: CompileLog,
    bad: CompileLog,
    options: Options,
    check: Check,
    tell: Callable[[str], None] = lambda line: None,
) -> Bisection:
    """Return the decisions of the bad log that make `check` fail.

    options: those of the bad compile (`replay_options`); clauses that end a compile are left out.
    tell: receives a line for each try. Raises PycError (BAD_ARGUMENT) if the logs do not differ, or
    the check does not tell the good program from the bad one.
    """
    sites = differing_sites(good, bad)
    if not sites:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"bisect: expected logs that differ in a choice, got {good.name} and {bad.name} with "
            "the same ones; `--diff` shows what else differs",
        )
    mixing = _Mixing(
        source, inputs, unchecked(options), good.recipe, bad.recipe, sites, check, tell
    )
    try:
        found = find_culprits(sites, mixing.is_bad)
    except NothingToFind as nothing:
        raise _useless(nothing, good, bad) from None
    before, after = _named(good, found.changes), _named(bad, found.changes)
    return Bisection(found, before, after, len(sites), len(mixing.vanished))


def _named(log: CompileLog, sites: Sequence[str]) -> dict[str, Decision]:
    return {d.site.key: d for d in log.decisions if d.site.key in sites}


def _useless(nothing: NothingToFind, good: CompileLog, bad: CompileLog) -> PycError:
    wanted, log = ("good", good) if nothing.applied == "none" else ("bad", bad)
    got = {True: "bad", False: "good", None: "one that cannot be told"}[nothing.answer]
    # Choices are mixed under the bad log's conditions: what these do, no choice undoes.
    others = [n for n in differences(good.conditions, bad.conditions) if n != "sha256"]
    also = f", and that its cause is not in what else differs: {', '.join(others)}"
    return PycError(
        ReasonCode.BAD_ARGUMENT,
        f"bisect: expected a {wanted} program from the choices of {log.name}, got {got}; see that "
        "both logs are of this model, that the check fails for the bad program alone"
        f"{also if others else ''}",
    )


def unchecked(options: Options) -> Options:
    """Return the options without the clauses that compare or refuse a program.

    The check of the bisection does that.
    """
    contract = options.contract
    kept = Contract(
        memory_budget_bytes=contract.memory_budget_bytes, max_concurrency=contract.max_concurrency
    )
    return replace(options, contract=kept, check=False)


# What can be asked of a program.


def command_check(command: str) -> Check:
    """Make a check of a shell command in which ``{}`` stands for the program's file.

    Status 0 says good, 125 that it cannot tell, any other bad. Raises PycError (BAD_ARGUMENT) for a
    command without ``{}``.
    """
    if "{}" not in command:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--check: expected a command with {{}} for the program's file, got {command!r}",
        )

    def check(artifact: Artifact) -> bool | None:
        with temporary_folder() as folder:
            path = folder / "program.vmfb"
            write(artifact, path)
            line = command.replace("{}", shlex.quote(str(path)))
            status = run_child(line).returncode
        return None if status == _SKIPPED else status != 0

    return check


def error_check(source: Any, inputs: Sequence[Any] | None, options: Options) -> Check:
    """Make a check that fails a program which differs from its reference beyond rounding.

    Raises PycError (NO_ORACLE) if there is no reference.
    """
    checked = replace(options, contract=Contract(max_error=ROUNDING), recipe=None)
    lowered = lower(Job.of(source, inputs, checked))
    samples = make_samples(oracle_of(lowered), lowered.signature)

    def check(artifact: Artifact) -> bool | None:
        device = Device("local-sync") if artifact.manifest.device == "local" else None
        program = Program(artifact, device)
        for sample in samples.samples:
            inputs = make_inputs(program.signature, sample.seed, sample.sizes)
            if compare(serving(program).answer(inputs), sample.outputs, None).wrong:
                return True
        return False

    return check


@dataclass
class LatencyCheck:
    """Bad is a program whose median call is nearer to the bad one's than to the good one's.

    The first two programs asked are the good one and the bad one. Sizes of dynamic dimensions are
    those of the first sample. Raises PycError (BAD_ARGUMENT) where these do not differ by a tenth.
    """

    measure: Callable[[Artifact], float]
    seconds: list[float] = field(default_factory=list)

    def __call__(self, artifact: Artifact) -> bool:
        """Measure one more program."""
        self.seconds.append(self.measure(artifact))
        if len(self.seconds) == 1:
            return False
        good, bad = self.seconds[:2]
        if bad < _SLOWER * good:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"bisect by latency: expected a bad program that is at least {_SLOWER} times as "
                f"slow as the good one, got {bad:.3g} s and {good:.3g} s a call",
            )
        return self.seconds[-1] ** 2 > good * bad


def latency_check() -> LatencyCheck:
    """Make a check by the median call on the program's default device."""
    return LatencyCheck(median_seconds)


def median_seconds(artifact: Artifact) -> float:
    """Return the median seconds of a call with seeded inputs that are on the device."""
    program = Program(artifact)
    inputs = some_inputs(artifact, serving(program).answer)
    arrays = [to_device(a, program.device) for a in inputs]
    return statistics.median(call_seconds(lambda: program(*arrays)))
