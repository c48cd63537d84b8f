"""From a lowered program to an artifact: the choices before IREE, and the record of what came.

    prepared = prepare(lowered, options)
    artifact = complete(prepared, compiled(lowered, prepared.request))

`plan_only` stops at the memory plan; `together` chooses kernels and parts by such plans.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyc_mlir.artifact.account import Account
from pyc_mlir.artifact.artifact import Artifact, make_manifest
from pyc_mlir.artifact.contract_status import Facts, compile_report
from pyc_mlir.artifact.manifest import EntryPoint, Manifest, ShapeEntry
from pyc_mlir.artifact.memory_report import to_bytes as report_bytes
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import Checks, Oracle
from pyc_mlir.compilation.generate import (
    CONSTANTS,
    CONSTANTS_SITE,
    Generated,
    Planned,
    Request,
    offered,
    places_for_constants,
    plan,
)
from pyc_mlir.compilation.generate import SITE as FUSION_SITE
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower, structure_of_parts
from pyc_mlir.compilation.options import Options
from pyc_mlir.compilation.plan_memory import UNPLANNED, PlanRequest, planner_of
from pyc_mlir.compilation.reference.oracles import ForeignOracle, PycOracle, make_samples
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.opdef import MAX_FOLDED_WORK
from pyc_mlir.frontends.signatures import predicted_sizes
from pyc_mlir.iree.memory.arena_choice import MADE, NONE, ArenaEntry, EntryRequest
from pyc_mlir.iree.memory.arena_choice import SITE as ARENA_SITE
from pyc_mlir.iree.memory.budget import BudgetNotKept, ByteBudget
from pyc_mlir.iree.memory.needs import account_of, formulas_of, reference_of, require_kept
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Decision, Recipe, Site
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Note, Reason, WithoutBudget
from pyc_mlir.pipelines.choices.wisdom import SITE as WISDOM_SITE
from pyc_mlir.pipelines.choices.wisdom import for_program
from pyc_mlir.pipelines.memory.selection.rounds import Checked, CutProgram, co_select
from pyc_mlir.pipelines.pyc.groups import KernelCoverage
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.runtime.arenas import read_facts

# Who decides, in the log, at sites that were changed for the budget.
_SIGNED = "co-selection"


@dataclass(frozen=True)
class Prepared:
    """A lowered program with all that is chosen before IREE compiles it.

    `request` has the chosen setting of IREE's fusion; the other settings share all else.
    """

    lowered: Lowered
    options: Options
    choices: Choices
    request: Request
    samples: Samples
    oracle: Oracle | None = None

    def site(self, pass_name: str) -> Site:
        """Return where a decision about the whole module is made."""
        return Site(pass_name, self.lowered.graph_id or "module", work=self.lowered.structure_id)


def prepare(lowered: Lowered, options: Options, before: Sequence[Decision] = ()) -> Prepared:
    """Choose what every setting of fusion shares, and the one that comes first.

    before: decisions made before the program was lowered.
    """
    module = lowered.graph_id or "module"
    # The decision is the lowering's, whose log follows; the policy is that of its other choices.
    policy, _ = for_program(options.policy, None, module, lowered.structure_id)
    options = replace(options, policy=policy)
    oracle = oracle_of(lowered) if options.contract.compares else None
    samples = Samples() if oracle is None else make_samples(oracle, lowered.signature)
    choices = Choices(options.policy, options.recipe)
    choices.record(*before, *lowered.decisions)
    made = Alternative(MADE, reason="the caller can own scratch and outputs")
    none = Alternative(NONE, reason="only the plain ABI")
    site = Site(ARENA_SITE, module, work=lowered.structure_id)
    wanted = choices.choose(site, (made, none)).name == MADE
    ranges = lowered.signature.ranges_of_inputs
    beside = tuple(lowered.shape_plans)
    entry = EntryRequest(lowered.entry, wanted, options.also_modes, beside, ranges)
    at: tuple[str, ...] = ()
    if lowered.constant_work > MAX_FOLDED_WORK:
        offers = places_for_constants()
        at = CONSTANTS[choices.choose(Site(CONSTANTS_SITE, module), offers).name]
    first = "plain" if lowered.mixes_rows else "aggressive"
    fusion = Site(FUSION_SITE, module, work=lowered.structure_id)
    request = Request(
        options.target,
        choices.choose(fusion, offered(first)).name,
        (*at, *options.iree_flags),
        None if options.dump_phases is None else str(options.dump_phases),
        entry,
        _plans(lowered, options, entry.modes),
        options.verify_ir,
    )
    return Prepared(lowered, options, choices, request, samples, oracle)


def _plans(lowered: Lowered, options: Options, only: Mapping[str, str]) -> PlanRequest | None:
    """Return the request for memory plans of PyC's, where they are asked for."""
    if not options.planner_modes:
        return None
    planner = planner_of(options.planner_modes, options.also_modes)
    budget = _budget(lowered, options.contract)
    name = lowered.graph_id or "module"
    policy, recipe, structure = options.policy, options.recipe, lowered.structure_id
    return PlanRequest(name, planner, policy, recipe, only, budget, structure)


def complete(prepared: Prepared, made: Generated, why: Sequence[Reason] = ()) -> Artifact:
    """Make the artifact of a compiled program. Raises PycError where it breaks the contract.

    why: the chosen setting of fusion was left, if it was.
    """
    choices, lowered, options = prepared.choices, prepared.lowered, prepared.options
    entry = _recorded(prepared, made, why)
    choices.require_recipe_used(lowered.graph_id)
    account = account_of(lowered.signature, entry, options.contract, options.target.device)
    require_kept(account, options.contract, entry)
    samples = prepared.samples
    return Artifact(
        made.vmfb,
        _manifest(prepared, made, entry, account),
        choices.log,
        lowered.pyc_text.encode(),
        _report(made),
        samples.to_bytes() if samples.samples else b"",
        Checks(prepared.oracle, expected=lowered.expected, of_plans=lowered.of_plans),
    )


def _report(made: Planned | Generated) -> bytes:
    report = made.memory.report
    return report_bytes(report) if report.regions else b""


def _recorded(
    prepared: Prepared, made: Planned | Generated, why: Sequence[Reason] = ()
) -> ArenaEntry:
    """Record the decisions of what a setting gave; return what came of the second entry."""
    choices, entry = prepared.choices, made.entry
    assert entry is not None, "a compile always reads the account"
    if made.request.setting != prepared.request.setting:
        choices.record_fallback(prepared.site(FUSION_SITE), made.request.setting, why)
    choices.record(*made.memory.decisions)
    if entry.request.wanted and entry.missing:
        reason = Reason.of(ReasonCode.NO_ARENA_ENTRY, entry.missing)
        choices.record_fallback(prepared.site(ARENA_SITE), NONE, [reason])
    elif entry.request.wanted:
        choices.annotate(prepared.site(ARENA_SITE), *entry.evidence)
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
    prepared = prepare(lowered, options)
    with plan(lowered, prepared.request) as made:
        entry, memory = _recorded(prepared, made), made.memory
    device = options.target.device
    account = account_of(lowered.signature, entry, options.contract, device)
    return PlannedProgram(prepared.choices.log, account, _report(made), memory.added_seconds)


def with_choices(
    options: Options, choices: Mapping[str, str], grounds: Mapping[str, str], by: str = _SIGNED
) -> Options:
    """Return the options with further choices, which say in the log who made them together."""
    made = {site: (by, (Note(grounds[site]),) if site in grounds else ()) for site in choices}
    before = options.recipe or Recipe({})
    answers, origins = {**before.choices, **choices}, {**before.origins, **made}
    return replace(options, recipe=Recipe(answers, origins, tolerant=True))


def together(job: Job, rivals: Sequence[Options]) -> tuple[Options, str]:
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


def _manifest(prepared: Prepared, made: Generated, entry: ArenaEntry, account: Account) -> Manifest:
    lowered, options, vmfb = prepared.lowered, prepared.options, made.vmfb
    by_iree = made.memory.reference.get(lowered.entry) or entry.main
    facts = _facts(prepared, made, account)
    return make_manifest(
        options.target,
        lowered.signature,
        lowered.graph_id,
        account,
        options.contract,
        entry=lowered.entry,
        arena_entry="" if read_facts(vmfb, entry.request.name) is None else entry.request.name,
        reference=reference_of(account, lowered.larger_bytes, by_iree),
        formulas=formulas_of(entry, by_iree, options.contract, options.target.device),
        modes=_modes(vmfb, options, entry.request),
        shape_plans=tuple(_shape_entries(vmfb, lowered, entry.request)),
        counts=lowered.counts,
        prediction=_prediction(prepared, made),
        calibration=options.calibration,
        contract_report=compile_report(options.contract, facts),
        imported=lowered.imported,
    )


def oracle_of(lowered: Lowered) -> Oracle:
    """Return the reference that knows what the program should answer."""
    if lowered.graph_id:
        return PycOracle(lowered.reference, lowered.entry)
    return ForeignOracle(lowered.reference, lowered.entry, lowered.signature)


def _prediction(prepared: Prepared, made: Generated) -> Prediction | None:
    """Return the prediction with what the memory plan runs again, as a share of its seconds.

    Of a program that enters at IREE it is that of the plan, one dispatch after the other.
    """
    found, added = prepared.lowered.prediction, made.memory.added_seconds
    report = made.memory.report
    if found is None and report.seconds:
        cores, sizes = prepared.options.target.cores, predicted_sizes(prepared.lowered.signature)
        nominal = dict.fromkeys(sizes, NOMINAL_DIMENSION)
        return Prediction(report.seconds, nominal, threads=cores, basis=report.basis)
    own = report.seconds - added
    if found is None or not added or own <= 0:
        return found
    return replace(found, seconds=found.seconds * (1 + added / own))


def _without_budget(prepared: Prepared) -> float | None:
    """Return the predicted seconds of the program without the budget, None without a prediction."""
    grounds = (g for d in prepared.choices.log for g in d.grounds)
    known = next((g.seconds for g in grounds if isinstance(g, WithoutBudget)), None)
    own = prepared.lowered.prediction
    return known if known is not None or own is None else own.seconds


def _facts(prepared: Prepared, made: Generated, account: Account) -> Facts:
    calibration, oracle = prepared.options.calibration, prepared.oracle
    used = [d.chosen for d in prepared.choices.log if d.site == WISDOM_SITE]
    if calibration is not None:
        used.insert(0, f"the calibration {calibration.name} ({calibration.hash[:12]})")
    return Facts(
        prepared.options.target.name,
        account,
        len(prepared.samples.samples),
        "" if oracle is None else oracle.name,
        tuple(used),
        _of_kernels(prepared.lowered.faults, "products carry checksums"),
        _of_kernels(prepared.lowered.approximate, "products are approximate"),
        _prediction(prepared, made),
        _without_budget(prepared),
    )


def _of_kernels(found: KernelCoverage, what: str) -> str:
    return f"{found.kernels} {what}, {found}" if found.kernels else ""


def _modes(vmfb: bytes, options: Options, entry: EntryRequest) -> Iterator[EntryPoint]:
    """Yield each function with an arena of its own, its plan's mode and its arena's bytes."""
    first = "+".join(options.planner_modes) or UNPLANNED
    for name, mode in {entry.name: first, **entry.modes}.items():
        facts = read_facts(vmfb, name)
        if facts is not None:
            yield EntryPoint(name, mode, facts.arena_bytes)


def _shape_entries(vmfb: bytes, lowered: Lowered, entry: EntryRequest) -> Iterator[ShapeEntry]:
    """Yield the manifest's entries of plans for shapes, in the order in which guards ask."""
    for function, shapes in lowered.shape_plans.items():
        facts, arena = read_facts(vmfb, entry.twins[function]), entry.twins[function]
        if facts is None:
            yield ShapeEntry(function, dict(shapes.ranges))
        else:
            yield ShapeEntry(function, dict(shapes.ranges), arena, facts.arena_bytes)


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
