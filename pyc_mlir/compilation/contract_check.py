"""Check an artifact under its contract by runs on this machine; refuse it if a clause fails.

Clauses that the compile itself cannot prove are checked if the machine has a device for the target:
the samples under `max_error`, equal bits under strict determinism, the median call under a latency
goal. The artifact's bytes do not depend on that; the results stand in its `checks`.
"""

import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Generic, TypeVar

import numpy as np

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.contract_status import STRICT_RUNS, latency
from pyc_mlir.artifact.test_vectors import Samples, candidate_sizes, make_inputs
from pyc_mlir.artifact.verification import (
    Expectation,
    SelfCheck,
    Unchecked,
    VerificationStore,
)
from pyc_mlir.compilation.approximation import APPROXIMATE, EXACT
from pyc_mlir.compilation.build import with_choices
from pyc_mlir.compilation.options import NO_KERNELS, Options
from pyc_mlir.compilation.references import check_plans, self_check
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import FALLBACK, Alternative, Decision, Policy, Recipe, Site
from pyc_mlir.pipelines.choices.contract import (
    IREE_CODE,
    NO_FALLBACK,
    ClauseReport,
    Contract,
    Status,
    uncheckable,
)
from pyc_mlir.pipelines.choices.evidence import Evidence, Note, Reason
from pyc_mlir.pipelines.choices.wisdom import CALIBRATION_SITE
from pyc_mlir.pipelines.kernels.lang.attributes import IREE, SELECT
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import require_fit
from pyc_mlir.runtime.program import Program, serving

# Find the decisions that make a program wrong: its choices against the plainest ones.
#
# Comes in: a program that fails its comparison, and how to compile and compare it again. Goes out:
# the decisions that suffice to make it wrong. In the plainest program every op is on its own, with
# IREE's code.
#
# `find_culprits` does so for any changes in order with a test of some of them together. For one
# culprit among n that is 3 + ceil(log2 n) tests: nothing applied, all applied, a bisection of the
# prefixes, and the culprit alone. Changes may depend on each other: as long as those found do not
# suffice, the next one is searched for below the last, in the same way (the search for a minimal
# failing set of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE
# TSE 28(2), 2002, with prefixes in place of partitions).

Change = TypeVar("Change", bound=Hashable)
# True: bad; False: good; None: it cannot be told, such as where these do not go together.
Test = Callable[[Sequence[Change]], bool | None]
# The site of a stand-in for a wrong program (contract_check.py).
ORACLE = "oracle"
# Where a program enters is no decision that makes it wrong.
_FIRST = ("raise",)
# What passes call the alternative that changes nothing; elsewhere it is the last one.
_PLAIN = ("keep", "iree", "none", "unfused")


class WrongResult(PycError):
    """A program that its own compile found wrong; `blamed` are the decisions that make it so."""

    def __init__(self, found: str, blamed: Sequence[Decision]) -> None:
        """found: what differs; none is blamed where the plainest program is wrong too."""
        named = ", ".join(f"{d.chosen!r} at {d.site.key}" for d in blamed)
        cause = f"made wrong by {named}" if blamed else "no single decision is to blame"
        super().__init__(
            ReasonCode.WRONG_RESULT,
            f"{found}; {cause}; report it, choose otherwise with a recipe, or compile with "
            "`check=False` to have the program as it is",
        )
        self.blamed = tuple(blamed)


@dataclass(frozen=True)
class Plainest(Policy):
    """A policy that prefers what changes a program least."""

    name: str = "plainest"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the name of the plain alternative; of the first one where a program enters."""
        names = [a.name for a in alternatives]
        if site.pass_name in _FIRST:
            return names[0]
        return next((n for n in _PLAIN if n in names), names[-1])


def differing(good: Mapping[str, str], bad: Mapping[str, str]) -> list[str]:
    """Return the sites of choices that differ, those of the bad choices first, in their order."""
    apart = (CALIBRATION_SITE.key, f"{ORACLE}:")
    sites = [s for s in dict.fromkeys((*bad, *good)) if good.get(s) != bad.get(s)]
    return [s for s in sites if not s.startswith(apart)]


def mixed(
    good: Mapping[str, str], bad: Mapping[str, str], sites: Sequence[str], applied: Sequence[str]
) -> Recipe:
    """Return the good choices, but for the sites in `applied`, and what both chose alike."""
    found = {s: c for s, c in bad.items() if good.get(s) == c}
    for site in sites:
        chosen = (bad if site in applied else good).get(site)
        if chosen is not None:
            found[site] = chosen
    return Recipe(found, tolerant=True)


def blamed(
    wrong: Artifact,
    options: Options,
    build: Callable[[Options], Artifact],
    is_wrong: Callable[[Artifact], bool],
) -> tuple[Decision, ...]:
    """Return the decisions that make a program wrong; none where the plainest one is wrong too.

    build: compiles under other options. is_wrong: whether a program fails the comparison.
    """
    tried = replace(options, check=False, policy=Plainest(), recipe=None)
    try:
        good = Recipe.from_log(build(tried).decisions).choices
    except PycError:
        return ()
    bad = Recipe.from_log(wrong.decisions).choices
    sites = differing(good, bad)

    def is_bad(applied: Sequence[str]) -> bool | None:
        try:
            return is_wrong(build(replace(tried, recipe=mixed(good, bad, sites, applied))))
        except PycError:
            return None

    try:
        found = find_culprits(sites, is_bad).changes
    except NothingToFind:
        return ()
    return tuple(d for d in wrong.decisions if d.site.key in found)


@dataclass(frozen=True)
class Culprits(Generic[Change]):
    """The changes that make it bad together; for a monotone test none can be left out.

    Where tests could not tell, a change has neighbours that could not be told from it. `tests` is
    how many were asked, `untold` how many of them had no answer.
    """

    changes: tuple[Change, ...]
    tests: int
    untold: int


class NothingToFind(ValueError):
    """The test says nothing of the changes: it is not good without them, or not bad with all."""

    def __init__(self, applied: str, answer: bool | None) -> None:
        super().__init__(applied)
        self.applied, self.answer = applied, answer


def find_culprits(changes: Sequence[Change], is_bad: Test[Change]) -> Culprits[Change]:
    """Return the changes that make it bad. Raises NothingToFind unless none is good, all bad."""
    every = tuple(changes)
    answers: dict[tuple[Change, ...], bool | None] = {}

    def ask(*applied: Change) -> bool | None:
        if applied not in answers:
            answers[applied] = is_bad(applied)
        return answers[applied]

    for name, applied, wanted in (("none", (), False), ("all", every, True)):
        if (answer := ask(*applied)) is not wanted:
            raise NothingToFind(name, answer)
    found: tuple[Change, ...] = ()
    rest = every
    while rest:
        low, high = _turn(rest, found, ask)
        found, rest = (*rest[low:high], *found), rest[:low]
        if ask(*found):
            break
    return Culprits(found, len(answers), sum(a is None for a in answers.values()))


def _turn(
    rest: Sequence[Change], found: Sequence[Change], ask: Callable[..., bool | None]
) -> tuple[int, int]:
    """Find the prefixes of `rest` between which, beside the culprits found, good turns bad.

    All of `rest` is bad and none of it is not; they are next to each other, but for prefixes
    that cannot be told.
    """
    low, high = 0, len(rest)
    untold: set[int] = set()
    while open_ := [k for k in range(low + 1, high) if k not in untold]:
        middle = min(open_, key=lambda k: (abs(2 * k - low - high), k))
        answer = ask(*rest[:middle], *found)
        if answer is None:
            untold.add(middle)
        elif answer:
            high = middle
        else:
            low = middle
    return low, high


# How a program ends that is wrong for inputs which the references answer.
_WRONG = (ReasonCode.WRONG_RESULT, ReasonCode.DIMENSION_MISMATCH)
_LONGEST_REASON = 300
_LATENCY_CALLS, _LATENCY_SECONDS, _WARM_UP = 51, 2.0, 3


def exact_instead(artifact: Artifact, options: Options, error: PycError) -> Options | None:
    """Return options under which no product is approximate, where those may be what is wrong."""
    sites = [
        d.site.key
        for d in artifact.decisions
        if d.site.pass_name == APPROXIMATE and d.chosen != EXACT
    ]
    if error.code is not ReasonCode.WRONG_RESULT or options.recipe is not None or not sites:
        return None
    why = "the samples' errors are larger than those predicted of approximate products"
    exact, grounds = dict.fromkeys(sites, EXACT), dict.fromkeys(sites, why)
    return with_choices(options, exact, grounds, by="comparison")


def plain_instead(options: Options, error: PycError) -> Options | None:
    """Return options under which IREE's code takes the place of kernels that are found wrong.

    They may be wrong together with a layout or a fusion that they need, which stays. None where no
    kernel is to blame, or a recipe has chosen.
    """
    blamed = error.blamed if isinstance(error, WrongResult) and options.recipe is None else ()
    found = [d for d in blamed if d.site.pass_name == SELECT]
    if not found:
        return None
    sites = {d.site.key: IREE for d in found}
    grounds = {d.site.key: f"{d.chosen}: {error.message}" for d in found}
    return with_choices(options, sites, grounds, by=FALLBACK)


def checked(
    artifact: Artifact,
    options: Options,
    build: Callable[[Options], Artifact],
    records: VerificationStore | None = None,
) -> Artifact:
    """Check an artifact under the contract of its options, and return it.

    build: compiles the program under other options, for comparisons and for stand-ins. records: of
    earlier comparisons of this artifact, which are not repeated where they hold.

    Raises what `build` raises, and PycError: FALLBACK_REFUSED, WRONG_RESULT, NOT_DETERMINISTIC,
    LATENCY_MISSED, UNCHECKABLE_CLAUSE where a binding clause cannot be tried here.
    """
    contract = options.contract
    _refuse_fallbacks(contract, artifact.decisions)
    expected = None if artifact.checks is None else artifact.checks.expected
    runs = needs_runs(contract)
    has_samples = expected is not None and expected.unchecked is None
    of_plans = () if artifact.checks is None else artifact.checks.of_plans
    device = _device_for(artifact) if runs or has_samples or of_plans else None
    if expected is not None:
        check = _self_checked(artifact, expected, device, options, build)
        artifact = artifact.with_checks(check=check)
    elif not options.check and not contract.compares:
        artifact = artifact.with_checks(check=SelfCheck.without(Unchecked.OFF))
    if device is not None and of_plans:
        artifact = _with_plans_checked(artifact, device)
    if not runs:
        return artifact
    if device is None:
        if contract.latency_binding:
            raise uncheckable(
                "latency_binding",
                f"a device for target `{options.target.name}` to measure on",
                "none on this machine",
            )
        return artifact.with_checks(stand_ins=_stand_ins(options, build))
    if contract.compares:
        known = None if records is None else records.known(device)
        artifact = artifact.with_checks(stand_ins=_stand_ins(options, build), verification=known)
        artifact = _check_samples(artifact, device, records)
    clauses = []
    if contract.is_strict:
        clauses.append(_check_same_bits(artifact))
    if contract.latency_goal_seconds is not None:
        clauses.append(_check_latency(artifact, contract))
    return artifact.with_checks(clauses=tuple(clauses))


def _with_plans_checked(artifact: Artifact, device: Device) -> Artifact:
    checks = artifact.checks
    assert checks is not None, "its plans are in there"
    limit = artifact.manifest.contract.max_error
    done = check_plans(
        serving(Program(artifact.unbound, device)),
        checks.of_plans,
        limit if isinstance(limit, int | float) else None,
    )
    check = checks.check
    if check is not None and check.unchecked is None:
        check = replace(check, plans=(done, len(checks.of_plans)))
    return artifact.with_checks(check=check, of_plans=())


def _self_checked(
    artifact: Artifact,
    expected: Expectation,
    device: Device | None,
    options: Options,
    build: Callable[[Options], Artifact],
) -> SelfCheck:
    """Return the outcome of a program's own check. Raises WrongResult with the decisions to blame.

    Under a limit of seconds there is no time to look for those.
    """
    try:
        return self_check(artifact, expected, device)
    except PycError as error:
        if error.code is ReasonCode.OUT_OF_MEMORY:
            return SelfCheck.without(Unchecked.NO_DEVICE, error.message)
        if error.code not in _WRONG:
            raise
        refused = error

    def is_wrong(other: Artifact) -> bool:
        try:
            self_check(other, expected, device)
        except PycError as error:
            return error.code in _WRONG
        return False

    searched = options.contract.max_compile_seconds is None
    raise WrongResult(
        refused.message, blamed(artifact, options, build, is_wrong) if searched else ()
    )


def without_stand_in(
    options: Options, recipe: Recipe
) -> tuple[Options, tuple[str, Sequence[Evidence]] | None]:
    """Return the options of the stand-in that a recipe names, and who chose it, and why.

    The program that it replaces is not made; None where the recipe names none.
    """
    sites = [s for s in recipe.choices if s.startswith(f"{ORACLE}:")]
    if not sites:
        return options, None
    (site,) = sites
    others = {name: choice for name, choice in recipe.choices.items() if name != site}
    requested = replace(options, kernels=NO_KERNELS, recipe=replace(recipe, choices=others))
    return requested, recipe.origins.get(site, ("recipe", ()))


def as_stand_in(artifact: Artifact, by: str, why: Sequence[Evidence]) -> Artifact:
    """Return IREE's code with the decision that it stands in for a program with kernels."""
    offered = (Alternative("all kernels"), Alternative(IREE_CODE))
    site = Site(ORACLE, artifact.manifest.graph_id or "module")
    decision = Decision(site, IREE_CODE, offered, by, grounds=tuple(why))
    return replace(artifact, decisions=(*artifact.decisions, decision))


def with_requested_options(artifact: Artifact, options: Options) -> Artifact:
    """Return the artifact with a manifest that records the requested options."""
    return artifact.noted(options=options.replayed)


def needs_runs(contract: Contract) -> bool:
    """Return whether a clause needs runs of the program before the artifact is returned."""
    return contract.compares or contract.is_strict or contract.latency_goal_seconds is not None


def _refuse_fallbacks(contract: Contract, decisions: Sequence[Decision]) -> None:
    taken = [d for d in decisions if d.decided_by == FALLBACK]
    if taken and NO_FALLBACK in contract.fallbacks:
        why = "; ".join(map(str, taken[0].grounds))[:_LONGEST_REASON]
        raise PycError(
            ReasonCode.FALLBACK_REFUSED,
            f"contract clause `fallbacks`: expected a compile without any, got "
            f"{taken[0].chosen!r} at {taken[0].site.key} ({why}); choose it with a recipe, "
            "or drop the clause",
        )


def _stand_ins(
    options: Options, build: Callable[[Options], Artifact]
) -> Mapping[str, Callable[[], Artifact]]:
    if IREE_CODE not in options.contract.fallbacks:
        return {}
    return {IREE_CODE: lambda: build(replace(options, kernels=NO_KERNELS, recipe=None))}


def _device_for(artifact: Artifact) -> Device | None:
    """Return a device that can run the artifact, on CPUs the caller's own thread; None: none."""
    kind = artifact.manifest.device
    try:
        device = Device("local-sync") if kind == "local" else Device.default_for(kind)
        require_fit(artifact.manifest, device)
    except PycError as error:
        if error.code is ReasonCode.DEVICE_UNAVAILABLE:
            return None
        raise
    return device


def _check_samples(
    artifact: Artifact, device: Device, records: VerificationStore | None
) -> Artifact:
    """Return the artifact with its verification record, which is kept; or IREE's code in its place.

    Raises PycError (WRONG_RESULT).
    """
    program = Program(artifact, device)
    taken = program.stats().fallbacks
    if not taken or taken[-1].name != IREE_CODE:
        verification = None if taken else program.verification
        if records is not None and verification is not None:
            records.keep(verification)
        return artifact.with_checks(verification=verification)
    assert artifact.checks is not None
    stand_in = artifact.checks.stand_ins[IREE_CODE]()
    why = Reason.of(ReasonCode.FALLBACK_TAKEN, taken[-1].why)
    verification = Program(stand_in, device).verification
    return as_stand_in(stand_in, FALLBACK, (why,)).with_checks(verification=verification)


def some_inputs(
    artifact: Artifact, call: Callable[[Sequence[np.ndarray]], Any]
) -> list[np.ndarray]:
    """Make seeded inputs that the program takes: the first sample's, or those of sizes that fit.

    Raises PycError (UNCHECKABLE_CLAUSE) where no sizes do.
    """
    signature = artifact.signature
    known = Samples.from_bytes(artifact.samples, signature).samples
    refused: PycError | None = None
    for sizes in [s.sizes for s in known[:1]] or candidate_sizes(signature):
        inputs = make_inputs(signature, 0, sizes)
        try:
            call(inputs)
        except PycError as error:
            refused = error
            continue
        return inputs
    why = refused.message if refused else "none"
    raise uncheckable("determinism", "sizes of dynamic dimensions to try the program with", why)


def _check_same_bits(artifact: Artifact) -> ClauseReport:
    clause = artifact.contract_report["determinism"]
    bare = artifact.unbound
    results: list[list[bytes]] = []
    inputs: list[np.ndarray] | None = None
    for threads in (1, 2):
        answer = serving(Program(bare, Device("local", threads))).answer
        inputs = inputs if inputs is not None else some_inputs(artifact, answer)
        for _ in range(STRICT_RUNS // 2):
            results.append([r.tobytes() for r in answer(inputs)])
    if any(r != results[0] for r in results):
        raise PycError(
            ReasonCode.NOT_DETERMINISTIC,
            f"contract clause `determinism`: expected equal bits of {len(results)} runs with 1 and "
            "2 threads, got others; drop the clause",
        )
    evidence = (*clause.evidence, Note("1 and 2 threads gave equal bits"))
    return replace(clause, done=len(results), of=len(results), evidence=evidence)


def _check_latency(artifact: Artifact, contract: Contract) -> ClauseReport:
    """Measure the median call on the default device. Raises PycError (LATENCY_MISSED)."""
    manifest = artifact.manifest
    device = Device.default_for(manifest.device, manifest.seconds)
    program = Program(artifact.unbound, device)
    arrays = [to_device(a, device) for a in some_inputs(artifact, serving(program).answer)]
    seconds = list(call_seconds(lambda: program(*arrays)))
    clause = latency(artifact.contract_report["latency_goal_seconds"], seconds)
    shapes = ", ".join("x".join(map(str, a.shape)) or "scalar" for a in arrays)
    clause = replace(clause, evidence=(*clause.evidence, Note(f"measured with inputs {shapes}")))
    if clause.status is Status.BROKEN and contract.latency_binding:
        raise PycError(
            ReasonCode.LATENCY_MISSED,
            f"contract clause `latency_goal_seconds`: expected a median call of at most "
            f"{contract.latency_goal_seconds:g} s, got {statistics.median(seconds):.3g} s on "
            f"{device!r}; raise the goal, or drop `latency_binding`",
        )
    return clause


def call_seconds(
    call: Callable[[], object], clock: Callable[[], float] = perf_counter
) -> Iterator[float]:
    """Yield the seconds of single calls: a fixed number of them, fewer if they take long."""
    for _ in range(_WARM_UP):
        call()
    began = clock()
    for _ in range(_LATENCY_CALLS):
        start = clock()
        call()
        end = clock()
        yield end - start
        if end - began > _LATENCY_SECONDS:
            return


def check_cached(
    found: Artifact,
    options: Options,
    again: Callable[[Options], Artifact],
    records: VerificationStore | None = None,
) -> Artifact:
    """Check an artifact from a cache under the contract. Raises as `compile`.

    again: compiles the program under other options. records: of earlier comparisons.
    """
    try:
        made = checked(found, options, again, records)
    except PycError as error:
        exact = exact_instead(found, options, error)
        if exact is None:
            raise
        made = again(exact)
    return with_requested_options(made, options)
