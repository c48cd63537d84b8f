"""From a lowered program to an artifact: what is chosen before IREE, IREE's part, the record.

    plan = plan_for(lowered, options)      # Plan: all that is chosen before IREE compiles
    built = build(plan)                    # Built: code, entries, memory, under one setting
    artifact = complete(built)

IREE's aggressive fusion makes row-wise programs and small ones up to three times faster, and fails
where it pulls a matrix product into a row reduction (its stack limit) or meets dynamic rows. So
`plain` comes first for programs that hold both. Where both fail, each op is compiled on its own.
Which setting follows which failure is said in `attempts.py`.

`plan_only` stops at the memory plan; `co_selection` chooses kernels and parts by such plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyc_mlir.artifact.artifact import Artifact, make_manifest
from pyc_mlir.artifact.contract_status import Facts, compile_report
from pyc_mlir.artifact.manifest import (
    ARENA,
    MAIN,
    CalibrationName,
    EntryPoint,
    Manifest,
    ShapeEntry,
)
from pyc_mlir.artifact.memory import Account
from pyc_mlir.artifact.memory import to_bytes as report_bytes
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import Checks, Oracle
from pyc_mlir.compilation.assign_memory import (
    UNPLANNED,
    AssignedMemory,
    MemoryRequest,
    assign_memory,
    planner_of,
)
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower, structure_of_parts
from pyc_mlir.compilation.options import Options
from pyc_mlir.compilation.references import ForeignOracle, PycOracle, make_samples
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.opdef import MAX_FOLDED_WORK
from pyc_mlir.frontends.signatures import predicted_sizes
from pyc_mlir.iree.barriers import unfuse
from pyc_mlir.iree.compiler import IreeSession, opened, run
from pyc_mlir.iree.memory.arena_entry import MADE, NONE, assert_ranges, make_entry
from pyc_mlir.iree.memory.arena_entry import SITE as ARENA_SITE
from pyc_mlir.iree.memory.budget import BudgetNotKept, ByteBudget
from pyc_mlir.iree.memory.calls import (
    Accounts,
    ArenaEntry,
    EntryRequest,
    accounts_of,
    require_kept,
)
from pyc_mlir.iree.memory.versions import iree_alone, to_async
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Decision, Recipe, Site
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Note, Reason, WithoutBudget
from pyc_mlir.pipelines.choices.wisdom import SITE as WISDOM_SITE
from pyc_mlir.pipelines.memory.selection.rounds import Checked, CutProgram, co_select
from pyc_mlir.pipelines.pyc.groups import KernelCoverage
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.runtime.arenas import read_facts

FUSION_SITE = "iree-fusion"
# IREE's settings of fusion, each with its flags and its reason; the last puts barriers in the
# module, which IREE cannot be told otherwise.
UNFUSED = "unfused"
_PLAIN = "--iree-dispatch-creation-enable-aggressive-fusion=false"
_SETTINGS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "aggressive": ((), "IREE's O3 default: fewer and larger dispatches"),
    "plain": ((_PLAIN,), "no products fused into row reductions: within IREE's stack limit"),
    UNFUSED: ((_PLAIN,), "every op on its own: for what IREE fuses and then has no code for"),
}
SETTINGS = {name: flags for name, (flags, _) in _SETTINGS.items() if name != UNFUSED}
# Where a lot of work on constants may be done, the preferred place first.
CONSTANTS_SITE = "constants"
_CONSTANTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "load": (
        ("--iree-opt-const-eval=false",),
        "when the program is loaded: too much work for a compile",
    ),
    "compile": ((), "by IREE, once for all"),
}
# Who decides, in the log, at sites that were changed for the budget.
_SIGNED = "co-selection"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A lowered program with all that is chosen before IREE compiles it.

    choices: the log so far. setting: of IREE's fusion; the other settings share all else. flags:
    for IREE, beside the setting's and the target's. entry: asks for a second entry. memory: asks
    for memory plans of PyC's. samples: the answers of the oracle, where the contract compares.
    """

    lowered: Lowered
    options: Options = field(default_factory=Options)
    choices: Choices = field(default_factory=Choices)
    setting: str = "aggressive"
    flags: tuple[str, ...] = ()
    entry: EntryRequest | None = None
    memory: MemoryRequest | None = None
    samples: Samples = field(default_factory=Samples)
    oracle: Oracle | None = None


@dataclass(frozen=True, kw_only=True)
class Built:
    """A planned program under one setting of fusion: its code, entries and memory plans.

    vmfb: empty where no code was asked for.
    """

    plan: Plan
    setting: str
    vmfb: bytes = b""
    entry: ArenaEntry | None = None
    memory: AssignedMemory = field(default_factory=AssignedMemory)


def plan_for(lowered: Lowered, options: Options, before: Sequence[Decision] = ()) -> Plan:
    """Choose what every setting of fusion shares, and the one that comes first.

    before: decisions made before the program was lowered.
    """
    oracle = oracle_of(lowered) if options.contract.compares else None
    samples = Samples() if oracle is None else make_samples(oracle, lowered.signature)
    choices = Choices(lowered.policy, options.recipe)
    choices.record(*before, *lowered.decisions)

    def chosen(pass_name: str, offered: Mapping[str, str], work: str = "") -> str:
        site = Site(pass_name, lowered.name, work=work)
        return choices.choose(site, [Alternative(n, reason=r) for n, r in offered.items()]).name

    entries = {MADE: "the caller can own scratch and outputs", NONE: "only the plain ABI"}
    entry = EntryRequest(
        lowered.entry,
        chosen(ARENA_SITE, entries, lowered.structure_id) == MADE,
        options.also_modes,
        tuple(lowered.shape_plans),
        lowered.signature.ranges_of_inputs,
    )
    flags: tuple[str, ...] = ()
    if lowered.facts.constant_work > MAX_FOLDED_WORK:
        places = {name: why for name, (_, why) in _CONSTANTS.items()}
        flags = _CONSTANTS[chosen(CONSTANTS_SITE, places)][0]
    first = "plain" if lowered.facts.mixes_rows else "aggressive"
    settings = {name: why for name, (_, why) in _SETTINGS.items()}
    settings = {first: settings[first], **settings}
    return Plan(
        lowered=lowered,
        options=options,
        choices=choices,
        setting=chosen(FUSION_SITE, settings, lowered.structure_id),
        flags=(*flags, *options.iree_flags),
        entry=entry,
        memory=_memory_request(lowered, options, entry.modes),
        samples=samples,
        oracle=oracle,
    )


def _memory_request(
    lowered: Lowered, options: Options, only: Mapping[str, str]
) -> MemoryRequest | None:
    if not options.planner_modes:
        return None
    return MemoryRequest(
        name=lowered.name,
        planner=planner_of(options.planner_modes, options.also_modes),
        policy=lowered.policy,
        recipe=options.recipe,
        only=only,
        budget=_budget(lowered, options.contract),
        structure_id=lowered.structure_id,
    )


def build(plan: Plan, setting: str = "", code: bool = True) -> Built:
    """Compile a planned program by IREE; without `code` up to its memory plan.

    setting: of fusion, in place of the plan's. Raises as `compile_module`, and PycError
    (BUDGET_IMPOSSIBLE, BUDGET_NOT_FOUND).
    """
    lowered, options, setting = plan.lowered, plan.options, setting or plan.setting
    target, ranges = options.target, {} if plan.entry is None else plan.entry.ranges

    def to_stream(session: IreeSession) -> AssignedMemory:
        if plan.memory is not None:
            return assign_memory(session, target, plan.memory, ranges)
        iree_alone(session)
        return AssignedMemory()

    flags, dumps = (*_SETTINGS[setting][0], *plan.flags), options.dump_phases
    # IREE always verifies the IR of programs that PyC knows nothing of.
    verify = options.verify_ir or not lowered.graph_id
    with opened(lowered.code, target, flags, dumps, lowered.locations, verify) as session:
        if setting == UNFUSED:
            unfuse(session.module)
        run(session, target, to="flow")
        if ranges:
            assert_ranges(session, lowered.entry, ranges)
        for function, shapes in lowered.shape_plans.items():
            assert_ranges(session, function, lowered.signature.places_of(shapes.open))
        if plan.entry is None:
            to_async(session)
            entry, memory = None, to_stream(session)
        else:
            entry, memory = make_entry(session, plan.entry, to_stream)
        if code:
            run(session, target, start="stream")
        vmfb = session.vmfb() if code else b""
    return Built(plan=plan, setting=setting, vmfb=vmfb, entry=entry, memory=memory)


def complete(built: Built, why: Sequence[Reason] = ()) -> Artifact:
    """Make the artifact of a compiled program. Raises PycError where it breaks the contract.

    why: the chosen setting of fusion was left, if it was.
    """
    plan = built.plan
    choices, lowered, options = plan.choices, plan.lowered, plan.options
    entry = _recorded(built, why)
    choices.require_recipe_used(lowered.graph_id)
    accounts = _accounts(built, entry)
    require_kept(accounts.account, options.contract, entry)
    return Artifact(
        built.vmfb,
        _manifest(built, entry, accounts),
        choices.log,
        lowered.facts.text.encode(),
        _report(built),
        plan.samples.to_bytes() if plan.samples.samples else b"",
        Checks(plan.oracle, expected=lowered.answers.expected, of_plans=lowered.answers.of_plans),
    )


def _report(built: Built) -> bytes:
    report = built.memory.report
    return report_bytes(report) if report.regions else b""


def _recorded(built: Built, why: Sequence[Reason] = ()) -> ArenaEntry:
    """Record the decisions of what a setting gave; return what came of the second entry."""
    plan, entry = built.plan, built.entry
    choices, lowered = plan.choices, plan.lowered
    site = Site(ARENA_SITE, lowered.name, work=lowered.structure_id)
    assert entry is not None, "a compile always reads the account"
    if built.setting != plan.setting:
        choices.record_fallback(replace(site, pass_name=FUSION_SITE), built.setting, why)
    choices.record(*built.memory.decisions)
    if entry.request.wanted and entry.missing:
        reason = Reason.of(ReasonCode.NO_ARENA_ENTRY, entry.missing)
        choices.record_fallback(site, NONE, [reason])
    elif entry.request.wanted:
        choices.annotate(site, *entry.evidence)
    return entry


@dataclass(frozen=True)
class PlannedProgram:
    """A program up to its memory plan: decisions, the account, the report; no code.

    A compile states the same, unless IREE has no code for the chosen setting of fusion and another
    one takes its place.
    """

    decisions: tuple[Decision, ...]
    account: Account
    memory: bytes
    added_seconds: float = 0.0


def plan_only(lowered: Lowered, options: Options) -> PlannedProgram:
    """Plan the memory of a lowered program and generate no code. Raises as `compile`."""
    built = build(plan_for(lowered, options), code=False)
    entry, log = _recorded(built), built.plan.choices.log
    account = _accounts(built, entry).account
    return PlannedProgram(log, account, _report(built), built.memory.added_seconds)


def with_choices(
    options: Options, choices: Mapping[str, str], grounds: Mapping[str, str], by: str = _SIGNED
) -> Options:
    """Return the options with further choices, which say in the log who made them together."""
    made = {site: (by, (Note(grounds[site]),) if site in grounds else ()) for site in choices}
    before = options.recipe or Recipe({})
    answers, origins = {**before.choices, **choices}, {**before.origins, **made}
    return replace(options, recipe=Recipe(answers, origins, tolerant=True))


def co_selection(job: Job, rivals: Sequence[Options]) -> tuple[Options, str]:
    """Return the options with kernels and parts chosen together, and a note for the log.

    rivals: the options of ways in which kernels are chosen alone, for the same budget.
    Raises PycError where that gives nothing: see `co_select` and `structure_of_parts`.
    """
    contract = job.options.contract
    limit, calls = contract.memory_budget_bytes, contract.max_concurrency
    assert limit is not None, "chosen together for a budget"
    program = _Selectable(job, limit, calls)
    found = co_select(program, limit, calls, [_Rival(program, options) for options in rivals])
    options = with_choices(job.options, found.choices, found.grounds)
    return options, f"co-selection: {found}"


@dataclass(frozen=True)
class _Selectable:
    """A program as `co_select` asks for it: lowered and planned, without code."""

    job: Job
    limit: int
    calls: int

    def read(self, parts: Mapping[str, str]) -> CutProgram:
        """Return the program's sites under choices of parts. Raises as `structure_of_parts`."""
        return structure_of_parts(self._with(parts))

    def check(self, choices: Mapping[str, str]) -> Checked:
        """Return the bytes of the whole program, inputs and outputs too. Raises as `compile`."""
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


def _accounts(built: Built, entry: ArenaEntry) -> Accounts:
    lowered, options = built.plan.lowered, built.plan.options
    return accounts_of(
        lowered.signature,
        entry,
        options.contract,
        options.target.device,
        lowered.facts.larger_bytes,
        built.memory.reference.get(lowered.entry) or entry.main,
    )


def _manifest(built: Built, entry: ArenaEntry, accounts: Accounts) -> Manifest:
    plan, account = built.plan, accounts.account
    lowered, options, made = plan.lowered, plan.options, plan.options.calibration
    prediction = _prediction(built)
    report = compile_report(options.contract, _facts(built, account, prediction))
    arenas, shape_plans = _entries(built, entry.request)
    return make_manifest(
        options.target,
        lowered.signature,
        lowered.graph_id,
        account,
        contract=options.contract,
        entries={MAIN: EntryPoint(lowered.entry), **arenas},
        memory_by_iree=accounts.by_iree,
        formulas=accounts.formulas,
        shape_plans=shape_plans,
        counts=lowered.counts,
        prediction=prediction,
        calibration=None if made is None else CalibrationName(made.name, made.hash),
        contract_report=report.unmeasured(),
        imported=lowered.facts.imported,
    )


def oracle_of(lowered: Lowered) -> Oracle:
    """Return the reference that knows what the program should answer."""
    reference = lowered.answers.reference
    if lowered.graph_id:
        return PycOracle(reference, lowered.entry)
    return ForeignOracle(reference, lowered.entry, lowered.signature)


def _prediction(built: Built) -> Prediction | None:
    """Return the prediction with what the memory plan runs again, as a share of its seconds.

    Of a program that enters at IREE it is that of the plan, one dispatch after the other.
    """
    lowered, report, added = built.plan.lowered, built.memory.report, built.memory.added_seconds
    found = lowered.prediction
    if found is None and report.seconds:
        nominal = dict.fromkeys(predicted_sizes(lowered.signature), NOMINAL_DIMENSION)
        cores = built.plan.options.target.cores
        return Prediction(report.seconds, nominal, threads=cores, basis=report.basis)
    own = report.seconds - added
    if found is None or not added or own <= 0:
        return found
    return replace(found, seconds=found.seconds * (1 + added / own))


def _facts(built: Built, account: Account, prediction: Prediction | None) -> Facts:
    plan, log = built.plan, built.plan.choices.log
    lowered, calibration = plan.lowered, plan.options.calibration
    used = [d.chosen for d in log if d.site == WISDOM_SITE]
    if calibration is not None:
        used.insert(0, f"the calibration {calibration.name} ({calibration.hash[:12]})")
    # Of the program without the budget, where another one took its place.
    budget = (g.seconds for d in log for g in d.grounds if isinstance(g, WithoutBudget))
    own = lowered.prediction
    return Facts(
        plan.options.target.name,
        account,
        len(plan.samples.samples),
        "" if plan.oracle is None else plan.oracle.name,
        tuple(used),
        _of_kernels(lowered.facts.faults, "products carry checksums"),
        _of_kernels(lowered.facts.approximate, "products are approximate"),
        prediction,
        next(budget, None if own is None else own.seconds),
    )


def _of_kernels(found: KernelCoverage, what: str) -> str:
    return f"{found.kernels} {what}, {found}" if found.kernels else ""


def _entries(
    built: Built, entry: EntryRequest
) -> tuple[dict[str, EntryPoint], tuple[ShapeEntry, ...]]:
    """Return the functions with an arena of their own: their plan's mode and arena's bytes.

    And the plans for shapes, in the order in which guards ask.
    """
    lowered = built.plan.lowered
    seconds = entry.second_entries
    facts = read_facts(built.vmfb, (*entry.modes, *seconds.values()))
    found, first = {}, "+".join(built.plan.options.planner_modes) or UNPLANNED
    for function, mode in {entry.name: first, **entry.modes}.items():
        if entry.name in facts and function in facts:
            name = ARENA if function == entry.name else f"{ARENA}.{mode}"
            found[name] = EntryPoint(function, mode, facts[function].arena_bytes)
    shapes = []
    for function, plan in lowered.shape_plans.items():
        arena = seconds[function]
        made = ShapeEntry(function, dict(plan.ranges))
        if arena in facts:
            made = replace(made, arena=arena, arena_bytes=facts[arena].arena_bytes)
        shapes.append(made)
    return found, tuple(shapes)


def _budget(lowered: Lowered, contract: Contract) -> ByteBudget | None:
    if contract.memory_budget_bytes is None:
        return None
    if undeclared := lowered.signature.undeclared:
        places = {name: f"`{name}` ({where})" for name, where in undeclared}
        dims, flags = dict.fromkeys(places, (1, 64)), " ".join(f"--dim {n}=1:64" for n in places)
        raise PycError(
            ReasonCode.BUDGET_NOT_FOUND,
            f"memory budget: expected a range of every dynamic dimension, got none of "
            f"{', '.join(places.values())}; declare it as in {dims=} or {flags}, or give static "
            "shapes in `inputs`",
        )
    inputs = Account.of(lowered.signature).inputs
    largest = ", ".join(f"{n}={high}" for n, (_, high) in lowered.signature.ranges.items())
    return ByteBudget(contract.memory_budget_bytes, inputs, contract.max_concurrency, largest)
