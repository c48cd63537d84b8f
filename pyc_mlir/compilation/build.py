"""From a model to a program: front end, pyc passes, linalg, IREE, artifact.

    program = compile("model.onnx", target="cpu")
    y = program(x)

`lower` stops at MLIR, `build` at the artifact (for targets without a device here), `compile`
loads the artifact on a device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyc_mlir.artifact.account import Account
from pyc_mlir.artifact.artifact import Artifact, Mode, make_manifest
from pyc_mlir.artifact.contract_status import Facts, compile_report
from pyc_mlir.artifact.memory_report import to_bytes as report_bytes
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import Checks, Oracle
from pyc_mlir.compilation.attempts import SITE as BUDGET_SITE
from pyc_mlir.compilation.attempts import (
    Attempt,
    Failure,
    alone,
    attempts_of,
    attempts_under,
    fallback_reasons,
    follows,
    may_be_followed,
    refusal,
    retry_reasons,
    unselected,
    with_choices,
)
from pyc_mlir.compilation.contract_check import check_contract, with_requested_options
from pyc_mlir.compilation.generate import (
    CONSTANTS,
    CONSTANTS_SITE,
    Generated,
    Request,
    offered,
    places_for_constants,
)
from pyc_mlir.compilation.generate import SITE as FUSION_SITE
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower, structure_of_parts
from pyc_mlir.compilation.options import Options
from pyc_mlir.compilation.plan_memory import UNPLANNED, PlanRequest, planner_of
from pyc_mlir.compilation.reference.oracles import ForeignOracle, PycOracle, make_samples
from pyc_mlir.compilation.stages import record_stage, stage_of_recipe
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.fold_work import MAX_FOLDED_WORK
from pyc_mlir.iree.memory.arena_choice import MADE, NONE, ArenaEntry
from pyc_mlir.iree.memory.arena_choice import SITE as ARENA_SITE
from pyc_mlir.iree.memory.budget import BudgetNotKept, ByteBudget
from pyc_mlir.iree.memory.needs import account_of, formulas_of, reference_of, require_kept
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Decision, Site
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.pipelines.choices.wisdom import SITE as WISDOM_SITE
from pyc_mlir.pipelines.choices.wisdom import for_program
from pyc_mlir.pipelines.memory.selection.rounds import Checked, CutProgram, co_select
from pyc_mlir.runtime.arenas import read_facts
from pyc_mlir.util.logs import Stage, logged
from pyc_mlir.util.temp_dir import require_room


def build_here(job: Job, stage: Stage = logged) -> Artifact:
    """Compile in this process, without a cache or a limit of time. Raises as `compile`."""
    options = job.options
    if options.target.device == "local":
        require_room()
    at, decision = stage_of_recipe(options)
    made = check_contract(at, lambda options: first_artifact(job.under(options), stage))
    return with_requested_options(
        made if decision is None else record_stage(made, decision), options
    )


def first_artifact(job: Job, stage: Stage = logged) -> Artifact:
    """Return the artifact of the first attempt that succeeds. Raises as `compile`."""
    choices = Choices(job.options.policy, job.options.recipe)
    return _first_of(attempts_of(job.options, choices), choices, job, stage)


def finish(lowered: Lowered, options: Options) -> Artifact:
    """Compile a lowered program by IREE and make its artifact. Raises as `compile`."""
    choices = Choices(options.policy, options.recipe)
    return _first_of(attempts_under(options), choices, lowered)


def _first_of(
    attempts: Sequence[Attempt],
    choices: Choices,
    source: Job | Lowered,
    stage: Stage = logged,
) -> Artifact:
    """Go through the attempts."""
    failures: list[Failure] = []
    notes: list[str] = []
    begun: Begun | None = None
    for attempt in attempts:
        if not follows(attempt, failures):
            continue
        if begun is None or begun.attempt.way != attempt.way:
            if attempt.options.co_selected and failures and isinstance(source, Job):
                try:
                    with stage("PyC chooses kernels and parts together"):
                        attempt, note = together(attempt, source)
                    notes.append(note)
                except PycError as error:
                    notes.append(error.message)
                    failures.append(unselected(attempt, failures))
                    continue
            if failures:
                reasons = retry_reasons(failures, notes)
                choices.record_fallback(BUDGET_SITE, attempt.way, reasons)
            with stage("PyC lowers to linalg"):
                given = source.under(attempt.options) if isinstance(source, Job) else source
                lowered = _lowered(given) if isinstance(given, Job) else given
                begun = begin(lowered, attempt, choices.log)
        setting = attempt.setting or begun.setting
        with stage(f"IREE compiles for {attempt.options.target.name}"):
            try:
                made = begun.request.compile(setting)
            except PycError as error:
                if not may_be_followed(error):
                    raise
                failures.append(Failure(replace(attempt, setting=setting), error))
                continue
            return complete(begun, made, setting, failures)
    raise refusal(failures)


def _lowered(job: Job) -> Lowered:
    # Under `max_error` the contract's own samples are compared.
    return lower(job, job.options.check and not job.options.contract.compares)


@dataclass(frozen=True)
class Begun:
    """A program that is lowered for one way to keep the budget: what all its settings share.

    `setting` is the chosen setting of IREE's fusion.
    """

    attempt: Attempt
    lowered: Lowered
    choices: Choices
    request: Request
    setting: str
    samples: Samples
    oracle: Oracle | None = None

    @property
    def options(self) -> Options:
        """The options of the way."""
        return self.attempt.options

    @property
    def wants_entry(self) -> bool:
        """Whether the second entry is to be made."""
        return self.request.arena is not None and self.request.arena.wanted

    def site(self, pass_name: str) -> Site:
        """Where a decision about the whole module is made."""
        return Site(pass_name, self.lowered.graph_id or "module", work=self.lowered.structure_id)


def begin(lowered: Lowered, attempt: Attempt, before: Sequence[Decision]) -> Begun:
    """Choose what every setting of fusion shares, and the one that comes first.

    before: decisions made before the program was lowered.
    """
    options, module = attempt.options, lowered.graph_id or "module"
    # The decision is the lowering's, whose log follows; the policy is that of its other choices.
    policy, _ = for_program(options.policy, None, module, lowered.structure_id)
    options = replace(options, policy=policy)
    oracle = oracle_of(lowered) if options.contract.compares else None
    samples = Samples() if oracle is None else make_samples(oracle, lowered.signature)
    choices = Choices(options.policy, options.recipe)
    choices.record(*before, *lowered.decisions)
    made = Alternative(MADE, reason="the caller can own scratch and outputs")
    none = Alternative(NONE, reason="only the plain ABI")
    entry = Site(ARENA_SITE, module, work=lowered.structure_id)
    wanted = choices.choose(entry, (made, none)).name == MADE
    ranges = lowered.signature.ranges_of_inputs
    arena = ArenaEntry(lowered.entry, wanted, options.also_modes, ranges)
    folder = options.dump_phases
    at: tuple[str, ...] = ()
    if lowered.constant_work > MAX_FOLDED_WORK:
        offers = places_for_constants()
        at = CONSTANTS[choices.choose(Site(CONSTANTS_SITE, module), offers).name]
    request = Request(
        lowered.code,
        options.target,
        (*at, *options.iree_flags),
        None if folder is None else str(folder),
        lowered.locations,
        arena,
        ranges,
        _plans(lowered, options, arena.modes),
    )
    first = "plain" if lowered.mixes_rows else "aggressive"
    fusion = Site(FUSION_SITE, module, work=lowered.structure_id)
    setting = choices.choose(fusion, offered(first)).name
    return Begun(attempt, lowered, choices, request, setting, samples, oracle)


def _plans(lowered: Lowered, options: Options, only: Mapping[str, str]) -> PlanRequest | None:
    """Memory plans of PyC's, where they are asked for."""
    if not options.planner_modes:
        return None
    planner = planner_of(options.planner_modes, options.also_modes)
    budget = _budget(lowered, options.contract)
    name = lowered.graph_id or "module"
    policy, recipe, structure = options.policy, options.recipe, lowered.structure_id
    return PlanRequest(name, planner, policy, recipe, only, budget, structure)


def complete(begun: Begun, made: Generated, setting: str, failures: Sequence[Failure]) -> Artifact:
    """The artifact of what a setting gave. Raises PycError where it breaks the contract."""
    choices, lowered, options = begun.choices, begun.lowered, begun.options
    arena = _recorded(begun, made, setting, failures)
    choices.require_recipe_used(lowered.graph_id)
    account = account_of(lowered.signature, arena, options.contract, options.target.device)
    require_kept(account, options.contract, arena)
    manifest = _manifest(begun, made, arena, account)
    memory = report_bytes(made.memory) if made.memory.regions else b""
    samples = begun.samples
    return Artifact(
        made.vmfb,
        manifest,
        choices.log,
        lowered.pyc_text.encode(),
        memory,
        samples.to_bytes() if samples.samples else b"",
        Checks(begun.oracle, expected=lowered.expected),
    )


def _recorded(
    begun: Begun, made: Generated, setting: str, failures: Sequence[Failure] = ()
) -> ArenaEntry:
    """Record the decisions of what a setting gave; what came of the second entry."""
    choices, arena = begun.choices, made.arena
    assert arena is not None, "a compile always reads the account"
    if setting != begun.setting:
        reasons = fallback_reasons(failures, begun.attempt.way)
        choices.record_fallback(begun.site(FUSION_SITE), setting, reasons)
    choices.record(*made.decisions)
    if begun.wants_entry and arena.missing:
        reason = Reason.of(ReasonCode.NO_ARENA_ENTRY, arena.missing)
        choices.record_fallback(begun.site(ARENA_SITE), NONE, [reason])
    elif begun.wants_entry:
        choices.annotate(begun.site(ARENA_SITE), *arena.evidence)
    return arena


@dataclass(frozen=True)
class Planned:
    """A program up to its memory plan: decisions, the account, the report; no code.

    A compile states the same, unless IREE has no code for the chosen setting of fusion and another
    one takes its place.
    """

    decisions: tuple[Decision, ...]
    account: Account
    memory: bytes
    added_seconds: float = 0.0


def plan_only(lowered: Lowered, options: Options) -> Planned:
    """Plan the memory of a lowered program and generate no code. Raises as `compile`."""
    begun = begin(lowered, attempts_under(options)[0], ())
    made = begun.request.plan(begun.setting)
    arena = _recorded(begun, made, begun.setting)
    memory = report_bytes(made.memory) if made.memory.regions else b""
    device = options.target.device
    account = account_of(lowered.signature, arena, options.contract, device)
    return Planned(begun.choices.log, account, memory, made.added_seconds)


def together(attempt: Attempt, job: Job) -> tuple[Attempt, str]:
    """Return the attempt with kernels and parts chosen together, and a note for the log.

    Raises PycError where that gives nothing: see `co_select` and `structure_of_parts`.
    """
    contract = attempt.options.contract
    limit, calls = contract.memory_budget_bytes, contract.max_concurrency
    assert limit is not None, "chosen together for a budget"
    program = _Selectable(job.under(attempt.options), limit, calls)
    rivals = [_Rival(program, options) for options in alone(attempt)]
    found = co_select(program, limit, calls, rivals)
    options = with_choices(attempt.options, found.choices, found.grounds)
    return replace(attempt, options=options), f"co-selection: {found}"


@dataclass(frozen=True)
class _Selectable:
    """A program as `co_select` asks for it: lowered and planned, without code."""

    job: Job
    limit: int
    calls: int

    def read(self, parts: Mapping[str, str]) -> CutProgram:
        """The program's sites under choices of parts. Raises as `structure_of_parts`."""
        return structure_of_parts(self._with(parts))

    def check(self, choices: Mapping[str, str]) -> Checked:
        """The bytes of the whole program, inputs and outputs too. Raises as `compile`."""
        return self.planned(self._with(choices))

    def _with(self, choices: Mapping[str, str]) -> Job:
        return self.job.under(with_choices(self.job.options, choices, {}))

    def planned(self, job: Job) -> Checked:
        """Return the same for a job of the program under any options."""
        lowered = lower(job)
        # Nothing is compared: no reference answers are needed.
        bare = Contract(memory_budget_bytes=self.limit, max_concurrency=self.calls)
        try:
            made = plan_only(lowered, replace(job.options, contract=bare))
        except BudgetNotKept as error:
            return Checked(error.smallest, fits=False)
        total = made.account.total(self.calls)
        known = total is not None and total <= self.limit
        return Checked(self.limit if total is None else total, known, made.added_seconds)


@dataclass(frozen=True)
class _Rival:
    """A way in which kernels are chosen alone, for the same budget."""

    program: _Selectable
    options: Options

    @property
    def seconds(self) -> float:
        """The seconds predicted for its kernels; those that its plan adds are not counted."""
        sites = structure_of_parts(self.program.job.under(self.options)).sites
        return sites.seconds(sites.now)

    def fits(self) -> bool:
        """Return whether its plan is within the budget."""
        return self.program.planned(self.program.job.under(self.options)).fits


def _manifest(begun: Begun, made: Generated, arena: ArenaEntry, account: Account) -> dict[str, Any]:
    lowered, options, vmfb = begun.lowered, begun.options, made.vmfb
    by_iree = made.reference or arena.main
    facts = _facts(begun, account)
    return make_manifest(
        options.target,
        lowered.signature,
        lowered.graph_id,
        account,
        options.contract,
        entry=lowered.entry,
        arena_entry="" if read_facts(vmfb, arena.name) is None else arena.name,
        reference=reference_of(account, lowered.constants_bytes, by_iree),
        formulas=formulas_of(arena, by_iree, options.contract, options.target.device),
        modes=_modes(vmfb, options, arena),
        seconds=lowered.seconds,
        calibration=options.calibration,
        contract_report=compile_report(options.contract, facts),
        imported=lowered.imported,
    )


def oracle_of(lowered: Lowered) -> Oracle:
    """Who knows what the program should answer."""
    if lowered.graph_id:
        return PycOracle(lowered.reference, lowered.entry)
    return ForeignOracle(lowered.reference, lowered.entry, lowered.signature)


def _facts(begun: Begun, account: Account) -> Facts:
    calibration, oracle = begun.options.calibration, begun.oracle
    used = [d.chosen for d in begun.choices.log if d.site == WISDOM_SITE]
    if calibration is not None:
        used.insert(0, f"the calibration {calibration.name} ({calibration.hash[:12]})")
    return Facts(
        begun.options.target.name,
        account,
        len(begun.samples.samples),
        "" if oracle is None else oracle.name,
        tuple(used),
    )


def _modes(vmfb: bytes, options: Options, arena: ArenaEntry) -> dict[str, Mode]:
    """Each function with an arena of its own: the mode of its plan, the arena's bytes."""
    first = "+".join(options.planner_modes) or UNPLANNED
    found = {}
    for name, mode in {arena.name: first, **arena.modes}.items():
        facts = read_facts(vmfb, name)
        if facts is not None:
            found[name] = Mode(mode, facts.arena_bytes)
    return found


def _budget(lowered: Lowered, contract: Contract) -> ByteBudget | None:
    if contract.memory_budget_bytes is None:
        return None
    if undeclared := lowered.signature.undeclared:
        name, where = undeclared[0]
        raise PycError(
            ReasonCode.BUDGET_NOT_FOUND,
            f"memory budget: expected a range of every dynamic dimension, got none of `{name}` "
            f"({where}); declare it as in dims={{{name!r}: (1, 64)}} or --dim {name}=1:64, or give "
            "static shapes in `inputs`",
        )
    inputs = Account.of(lowered.signature).inputs
    return ByteBudget(contract.memory_budget_bytes, inputs, contract.max_concurrency)
