"""Check an artifact under its contract by runs on this machine; refuse it if a clause fails.

Clauses that the compile itself cannot prove are checked if the machine has a device for the target:
the samples under `max_error`, equal bits under strict determinism, the median call under a latency
goal. The artifact's bytes do not depend on that; the results stand in its `checks`.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.contract_status import STRICT_RUNS, latency
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import Samples, candidate_sizes, make_inputs
from pyc_mlir.artifact.verification import (
    Checks,
    Expectation,
    SelfCheck,
    Unchecked,
    VerificationStore,
)
from pyc_mlir.compilation.blame import ORACLE as SITE
from pyc_mlir.compilation.blame import WrongResult, blamed
from pyc_mlir.compilation.build import with_choices
from pyc_mlir.compilation.options import NO_KERNELS, Options
from pyc_mlir.compilation.reference.approximation import APPROXIMATE, EXACT
from pyc_mlir.compilation.reference.self_check import check_plans, self_check
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import FALLBACK, Alternative, Decision, Site
from pyc_mlir.pipelines.choices.contract import (
    IREE_CODE,
    NO_FALLBACK,
    Contract,
    uncheckable,
)
from pyc_mlir.pipelines.choices.contract_report import ClauseReport, Status
from pyc_mlir.pipelines.choices.evidence import Evidence, Note, Reason
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program, serving

_LONGEST_REASON = 300
_LATENCY_CALLS, _LATENCY_SECONDS, _WARM_UP = 51, 2.0, 3


def check_contract(
    options: Options,
    build: Callable[[Options], Artifact],
    records: VerificationStore | None = None,
) -> Artifact:
    """Check the artifact that `build` makes under the contract of `options`, and return it.

    records: of earlier comparisons of this artifact, which are not repeated where they hold.

    Raises what `build` raises, and PycError: FALLBACK_REFUSED, WRONG_RESULT, NOT_DETERMINISTIC,
    LATENCY_MISSED, UNCHECKABLE_CLAUSE where a binding clause cannot be tried here.
    """
    artifact = _replay_stand_in(options, build) or build(options)
    try:
        return _checked(artifact, options, build, records)
    except PycError as error:
        exact = _exact_instead(artifact, options, error)
        if exact is None:
            raise
    return _checked(build(exact), exact, build, records)


def _exact_instead(artifact: Artifact, options: Options, error: PycError) -> Options | None:
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


def _checked(
    artifact: Artifact,
    options: Options,
    build: Callable[[Options], Artifact],
    records: VerificationStore | None,
) -> Artifact:
    contract = options.contract
    _refuse_fallbacks(contract, artifact.decisions)
    expected = _expected(artifact)
    runs = needs_runs(contract)
    has_samples = expected is not None and expected.unchecked is None
    of_plans = _of_plans(artifact)
    device = _device_for(artifact) if runs or has_samples or of_plans else None
    if expected is not None:
        check = _self_checked(artifact, expected, device, options, build)
        artifact = _with_checks(artifact, check=check)
    elif not options.check and not contract.compares:
        artifact = _with_checks(artifact, check=SelfCheck.without(Unchecked.OFF))
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
        return _with_checks(artifact, stand_ins=_stand_ins(options, build))
    if contract.compares:
        known = None if records is None else records.known(device)
        artifact = _with_checks(artifact, stand_ins=_stand_ins(options, build), verification=known)
        artifact = _check_samples(artifact, device, records)
    clauses = []
    if contract.is_strict:
        clauses.append(_check_same_bits(artifact))
    if contract.latency_goal_seconds is not None:
        clauses.append(_check_latency(artifact, contract))
    return _with_checks(artifact, clauses=tuple(clauses))


def _expected(artifact: Artifact) -> Expectation | None:
    """Return what the references say of a program that was compiled just now, if asked."""
    return None if artifact.checks is None else artifact.checks.expected


def _of_plans(artifact: Artifact) -> tuple[tuple[Signature, Expectation], ...]:
    """Return what the references say of plans for certain shapes."""
    return () if artifact.checks is None else artifact.checks.of_plans


def _with_plans_checked(artifact: Artifact, device: Device) -> Artifact:
    """Return the artifact with its plans compared. Raises PycError (WRONG_RESULT)."""
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
    return _with_checks(artifact, check=check, of_plans=())


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
        if error.code is not ReasonCode.WRONG_RESULT:
            raise
        refused = error

    def is_wrong(other: Artifact) -> bool:
        try:
            self_check(other, expected, device)
        except PycError as error:
            return error.code is ReasonCode.WRONG_RESULT
        return False

    searched = options.contract.max_compile_seconds is None
    raise WrongResult(
        refused.message, blamed(artifact, options, build, is_wrong) if searched else ()
    )


def _replay_stand_in(options: Options, build: Callable[[Options], Artifact]) -> Artifact | None:
    """Make the stand-in that a recipe names, if it does, without the program that it replaces."""
    recipe = options.recipe
    sites = [] if recipe is None else [s for s in recipe.choices if s.startswith(f"{SITE}:")]
    if recipe is None or not sites:
        return None
    (site,) = sites
    others = {name: choice for name, choice in recipe.choices.items() if name != site}
    requested = replace(options, kernels=NO_KERNELS, recipe=replace(recipe, choices=others))
    by, why = recipe.origins.get(site, ("recipe", ()))
    return _as_stand_in(build(requested), by, why)


def _as_stand_in(artifact: Artifact, by: str, why: Sequence[Evidence]) -> Artifact:
    """Return IREE's code with the decision that it stands in for a program with kernels."""
    offered = (Alternative("all kernels"), Alternative(IREE_CODE))
    site = Site(SITE, artifact.manifest.graph_id or "module")
    decision = Decision(site, IREE_CODE, offered, by, grounds=tuple(why))
    return replace(artifact, decisions=(*artifact.decisions, decision))


def with_requested_options(artifact: Artifact, options: Options) -> Artifact:
    """Return the artifact with a manifest that records the requested options."""
    return artifact.noted(options=options.replayed)


def needs_runs(contract: Contract) -> bool:
    """Return whether a clause needs runs of the program before the artifact is returned."""
    return contract.compares or contract.is_strict or contract.latency_goal_seconds is not None


def _with_checks(artifact: Artifact, **more: Any) -> Artifact:
    return replace(artifact, checks=replace(artifact.checks or Checks(), **more))


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
    """Return ways to make the artifacts of fallbacks, when they are needed."""
    if IREE_CODE not in options.contract.fallbacks:
        return {}
    return {IREE_CODE: lambda: build(replace(options, kernels=NO_KERNELS, recipe=None))}


def _device_for(artifact: Artifact) -> Device | None:
    """Return a device that can run the artifact, on CPUs the caller's own thread; None: none."""
    kind = artifact.manifest.device
    try:
        device = Device("local-sync") if kind == "local" else Device.default_for(kind)
        Program(artifact.unbound, device)
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
        return _with_checks(artifact, verification=verification)
    assert artifact.checks is not None
    stand_in = artifact.checks.stand_ins[IREE_CODE]()
    why = Reason.of(ReasonCode.FALLBACK_TAKEN, taken[-1].why)
    verification = Program(stand_in, device).verification
    return _with_checks(_as_stand_in(stand_in, FALLBACK, (why,)), verification=verification)


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
    """Compare runs with one thread and with two. Raises PycError (NOT_DETERMINISTIC)."""
    clause = artifact.contract_report["determinism"]
    bare = artifact.unbound
    results: list[list[bytes]] = []
    inputs: list[np.ndarray] | None = None
    for threads in (1, 2):
        answer = serving(Program(bare, Device("local-task", threads=threads))).answer
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
    made = check_contract(
        options,
        lambda requested: found if requested is options else again(requested),
        records,
    )
    return with_requested_options(made, options)
