"""From a model to MLIR that IREE compiles: the front end and the pyc passes.

`lower` gives the linalg module as bytecode together with all that the artifact says about it:
signature, decisions, graph id, and where each op came from.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

from pyc_mlir.artifact.import_report import ImportReport, UnsupportedModel
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.verification import Expectation, Unchecked
from pyc_mlir.compilation.approximation import approximate
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import ALL_KERNELS, NO_KERNELS, Options, families_of
from pyc_mlir.compilation.references import expectation
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import definition_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds, structure_of
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.util.index_ranges import CLAMPED, INDICES
from pyc_mlir.frontends.graph_report import graph_report
from pyc_mlir.frontends.signatures import (
    RANGES,
    declare_ranges,
    predicted_sizes,
    refine,
    settle,
    shapes_at,
    signature_of,
    sizes_within,
)
from pyc_mlir.frontends.sources import Loaded, Source, copied
from pyc_mlir.iree.foreign import read_entry
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.choices.choices import (
    Alternative,
    Choices,
    Decision,
    FirstIsBest,
    Policy,
    Site,
    TunableSite,
)
from pyc_mlir.pipelines.choices.contract import uncheckable
from pyc_mlir.pipelines.choices.evidence import MeasuredRow, Reason
from pyc_mlir.pipelines.choices.wisdom import (
    for_program,
    record_calibration,
    record_wisdom,
)
from pyc_mlir.pipelines.driver.base import KernelRules, PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.kernels.lang.attributes import APPROXIMATED, ATTRIBUTE, CHECKED, SELECT
from pyc_mlir.pipelines.linalg.convert_to_linalg import LARGER, ConvertToLinalg
from pyc_mlir.pipelines.memory.pyc_problem import read_sites
from pyc_mlir.pipelines.memory.selection.rounds import CutProgram, Part
from pyc_mlir.pipelines.pyc.chunk.chunk import Chunk
from pyc_mlir.pipelines.pyc.constants import constant_bytes, constant_work
from pyc_mlir.pipelines.pyc.groups import KernelCoverage, coverage
from pyc_mlir.pipelines.pyc.rewriting import functions_of, pyc_ops
from pyc_mlir.pipelines.pyc.select_kernels import predicted_seconds
from pyc_mlir.pipelines.shapes.plan import ShapePlan
from pyc_mlir.pipelines.target.cost_model import CostModel

# A lowered function has one block; regions with control flow are left to IREE, which looks again.
TO_LINALG = "convert-pyc-to-linalg,canonicalize{region-simplify=disabled},cse"
_NO_REFERENCE = Expectation(
    unchecked=Unchecked.NO_REFERENCE, why="the program enters at IREE; `max_error` asks vmvx"
)
# The choice whether a foreign program is raised to pyc, and its two answers.
_RAISE = Site("raise", "module")
_RAISED, _AS_IT_IS = "pyc", "iree"
# Of what stood against it: how many operations the decision names, in how many characters each.
_LISTED = 8
# Larger constants are left out of the module that an artifact carries for reading.
_READABLE_ELEMENTS = 64


@dataclass(frozen=True, kw_only=True)
class LoweredFacts:
    """The facts that IREE's part and the report of a compile go by.

    larger_bytes: of constants beyond the model's, in the forms that kernels read. mixes_rows:
    matrix products and row-wise ops (softmax, norms) stand in one program. constant_work: what
    could be computed of constants alone, in units of `OpDef.evaluation_work`. faults, approximate:
    the kernels that detect faults of hardware, and those that approximate. text: the pyc module
    for people. imported: how much of the program as it came in PyC compiles.
    """

    larger_bytes: int = 0
    mixes_rows: bool = False
    constant_work: int = 0
    faults: KernelCoverage = field(default_factory=KernelCoverage)
    approximate: KernelCoverage = field(default_factory=KernelCoverage)
    text: str = ""
    imported: ImportReport = field(default_factory=ImportReport)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers that a program should give.

    reference: the program as it came in, as bytecode, for an oracle; empty where none is asked.
    expected: of the references, for the self-check; None where that was not asked for. of_plans:
    the same of each plan for certain shapes, with the plan's signature.
    """

    reference: bytes = b""
    expected: Expectation | None = None
    of_plans: tuple[tuple[Signature, Expectation], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A program as MLIR that IREE compiles, what was decided on the way, and what is known of it.

    counts: what its functions return the counts of. constants_bytes: of its constants before
    kernels lay them out; None where IREE reads the program as it came. graph_id, structure_id: its
    ids, exact and blind to the contents of constants. name: in sites of decisions. policy: answers
    its choices. locations: in the source, by op id. prediction: of a call; None where nothing is
    known. shape_plans: functions beside the entry that are compiled for certain sizes, and the
    sizes.
    """

    code: bytes
    entry: str = "main"
    signature: Signature = field(default_factory=lambda: Signature((), ()))
    counts: tuple[str, ...] = ()
    constants_bytes: int | None = None
    graph_id: str = ""
    structure_id: str = ""
    name: str = field(init=False)
    policy: Policy = field(default_factory=FirstIsBest)
    decisions: tuple[Decision, ...] = ()
    locations: Mapping[str, str] = field(default_factory=dict)
    prediction: Prediction | None = None
    facts: LoweredFacts = field(default_factory=LoweredFacts)
    answers: Answers = field(default_factory=Answers)
    shape_plans: Mapping[str, ShapePlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        vars(self)["name"] = self.graph_id or "module"

    def with_facts(self, **facts: Any) -> "Lowered":
        """Return the program with other facts."""
        return replace(self, facts=replace(self.facts, **facts))


def _opened(options: Options) -> Choices:
    """Return the choices of one compile, which begin with the measurements that it goes by.

    Raises PycError (RECIPE_MISMATCH) for a recipe that was made under another calibration or by
    another wisdom.
    """
    choices = Choices(options.policy, options.recipe)
    choices.record(*record_calibration(options.calibration, options.recipe))
    choices.record(*record_wisdom(options.policy.wisdom, options.recipe))
    return choices


def context_of(options: Options, choices: Choices | None = None) -> PassContext:
    """Return the context of one compile's passes. Raises as `_opened`, where no choices are given.

    The mode is the planner's preferred one unless the options name another one for parts.
    """
    contract = options.contract
    return PassContext(
        choices=_opened(options) if choices is None else choices,
        target=options.target,
        calibration=options.calibration,
        mode=options.parts_for or options.planner_modes[0] if options.planner_modes else None,
        compares=contract.compares,
        kernels=KernelRules(
            families=None if options.kernels == ALL_KERNELS else families_of(options.kernels),
            # A number is the user's own bound; `rounding` is derived from the plain forms'
            # rounding, and the compile compares with it.
            bounds_error=contract.bounds_error,
            own_constants=options.own_constants,
            co_selected=options.co_selected,
            detect_faults=contract.detect_faults,
            counts=counts_of(options),
        ),
    )


def counts_of(options: Options) -> tuple[str, ...]:
    """Return what the functions of a program that PyC lowers return the counts of.

    The contract says it alone, so that plans for certain sizes agree with the general one.
    """
    if options.contract.detect_faults:
        return ("faults",)
    counted = options.contract.bounds_error and options.kernels != NO_KERNELS
    return ("approximations",) if counted else ()


def lower(job: Job, expect: bool = False) -> Lowered:
    """Run front end and pyc passes. Raises PycError.

    expect: whether the references are asked what the program should answer, for the self-check.
    """
    options = job.options
    with new_context() as context, ir.Location.unknown():
        loaded = job.load(context)
        choices = _opened(options)
        enters = _RAISED
        if loaded.foreign:
            # Raised comes first: fusion, kernels and plans need it.
            raised = () if loaded.module is None else (Alternative(_RAISED),)
            left = loaded.unraised[:_LISTED]
            why = [Reason.of(u.code, f"{u.node} ({u.op}): {u.why}") for u in left]
            enters = choices.choose(_RAISE, (*raised, Alternative(_AS_IT_IS)), why).name
        if enters == _AS_IT_IS:
            _covered(KernelCoverage(), options)
            made = _foreign(loaded, options, choices)
            answers = replace(made.answers, expected=_NO_REFERENCE if expect else None)
            return replace(made, answers=answers)
        assert loaded.module is not None, "only foreign programs have none"
        with loaded.module.context, ir.Location.unknown():
            return _lower_pyc(loaded.module, job, choices, expect)


def _foreign(source: Loaded, options: Options, choices: Choices) -> Lowered:
    """Lower a module that enters at IREE: nothing is known of it but its signature."""
    entry = read_entry(source.foreign, source.name, source.function)
    imported = ImportReport(entry.ops, foreign=entry.ops, unraised=source.unraised)
    return Lowered(
        code=entry.code,
        entry=entry.name,
        signature=entry.signature.with_ranges(options.ranges),
        policy=choices.by,
        decisions=choices.log,
        facts=LoweredFacts(constant_work=entry.constant_work, imported=imported),
        answers=Answers(reference=entry.code),
    )


def _lower_pyc(module: ir.Module, job: Job, choices: Choices, expect: bool) -> Lowered:
    inputs, options = job.shapes, job.options
    context = context_of(options, choices)
    function = entry_function(module)
    entry = ir.StringAttr(function.attributes["sym_name"]).value
    if not options.guard_indices and INDICES in function.attributes:
        del function.attributes[INDICES]
    given = signature_of(function)
    if inputs is not None:
        refine(module, inputs, context)
        given = given.refined(signature_of(function))
    if job.settled:
        settle(module, function, job.settled, context)
    if options.ranges:
        declare_ranges(function, options.ranges)
    # The program's identity is that of what the user gave, whatever is decided below.
    graph_id, structure_id, context = _identified(function, options, context)
    if options.contract.approximates:
        approximate(module, function, options.contract, context)
    reference = bytecode_of(module) if options.contract.compares else b""
    imported = graph_report(function)
    before = copied(module) if expect else None
    _optimize(module, options, context)
    function = entry_function(module)
    facts = LoweredFacts(
        mixes_rows=_mixes_rows(function),
        constant_work=constant_work(module),
        faults=_covered(coverage(module, CHECKED.values()), options),
        approximate=coverage(module, APPROXIMATED.values()),
        # In search of aliases, MLIR would print all constants once before the text.
        text=module.operation.get_asm(
            large_elements_limit=_READABLE_ELEMENTS,
            large_resource_limit=_READABLE_ELEMENTS,
            use_local_scope=True,
        ),
        imported=imported,
    )
    signature = given.refined(signature_of(function))
    made = Lowered(
        code=b"",
        entry=entry,
        signature=signature,
        counts=context.kernels.counts,
        constants_bytes=constant_bytes(module, options.target.alignment),
        graph_id=graph_id,
        structure_id=structure_id,
        policy=context.choices.by,
        locations=_locations(function),
        prediction=_predicted(module, signature, options, context.choices.log),
        facts=facts,
        answers=Answers(
            reference=reference,
            expected=None if before is None else expectation(before, entry, signature),
        ),
    )
    converted = run_pipeline(module, TO_LINALG, context).statistics[ConvertToLinalg.name]
    _drop_argument_attributes(module)
    made = replace(made, code=bytecode(module), decisions=context.choices.log)
    return made.with_facts(larger_bytes=converted[LARGER])


def _locations(function: ir.Operation) -> dict[str, str]:
    places = {name: str(op.location) for op, name in OpIds(function).by_op.items()}
    return {name: at.removeprefix("loc(").removesuffix(")") for name, at in places.items()}


def _predicted(
    module: ir.Module, signature: Signature, options: Options, decisions: Sequence[Decision]
) -> Prediction:
    """Predict a call of one thread: at sizes within the declared ranges, with measured rows."""
    sizes = predicted_sizes(signature)
    undeclared = tuple(name for name in sizes if name not in signature.ranges)
    rows = {
        d.site.op_id: row.seconds
        for d in decisions
        for row in d.grounds
        if d.site.pass_name == SELECT and isinstance(row, MeasuredRow)
    }
    at, basis = module, CostModel(options.target, options.calibration).basis
    if sizes:
        rows = {}
        # Sizes that depend on each other may not admit these: each unknown one is nominal then.
        with suppress(PycError):
            refine(refined_module := copied(module), shapes_at(signature, sizes), PassContext())
            at = refined_module
    seconds, measured = predicted_seconds(at, options.target, rows)
    return Prediction(seconds, sizes, undeclared, measured=measured, basis=basis)


def _covered(found: KernelCoverage, options: Options) -> KernelCoverage:
    """Return the coverage. Raises PycError (UNCHECKABLE_CLAUSE) where it is none, yet asked for."""
    if options.contract.detect_faults and not found.kernels:
        raise uncheckable(
            "detect_faults", "a product of f32 by constant weights that a kernel computes", "none"
        )
    return found


def _identified(
    function: ir.Operation, options: Options, context: PassContext
) -> tuple[str, str, PassContext]:
    """Return a program's ids, exact and of its structure, and the context with its own policy.

    Raises PycError (REPLAY_MISMATCH) for a recipe that is another program's alone.
    """
    graph_id, structure_id = OpIds(function).graph_id, structure_of(function).id
    recipe = options.recipe
    if recipe is not None and recipe.graph_id not in ("", graph_id):
        raise PycError(
            ReasonCode.REPLAY_MISMATCH,
            f"program: expected graph {recipe.graph_id}, which the log was written for, got "
            f"{graph_id}; give the same model, constants and input shapes",
        )
    policy, whole = for_program(options.policy, recipe, graph_id, structure_id)
    return graph_id, structure_id, replace(context, choices=context.choices.under(policy, *whole))


def _optimize(module: ir.Module, options: Options, context: PassContext) -> None:
    run_pipeline(module, options.passes, context)
    if options.kernels == NO_KERNELS:
        for op in [o for f in functions_of(module) for o in f.regions[0].blocks[0].operations]:
            if ATTRIBUTE in op.operation.attributes:
                del op.operation.attributes[ATTRIBUTE]
    if options.kernels == NO_KERNELS or options.target.device != "local":
        return
    # Kernels are built by IREE's bindings, which other targets need later only.
    from pyc_mlir.pipelines.pyc.select_kernels import select

    sized = _sized(module)
    select(module, context, "+".join(context.kernels.families or ()), sized)


def _sized(module: ir.Module) -> list[ir.Module]:
    """Return the program at sizes within its ranges: in the middle, the least, the largest.

    Sizes that depend on each other may not admit these.
    """
    function, found = entry_function(module), []
    if all(from_mlir(a.type).is_static for a in function.regions[0].blocks[0].arguments):
        return found
    signature = signature_of(function)
    for sizes in sizes_within(signature):
        with suppress(PycError):
            refine(made := copied(module), shapes_at(signature, sizes), PassContext())
            found.append(made)
    return found


@contextmanager
def imported(job: Job) -> Iterator[tuple[Loaded, PassContext]]:
    """Yield the program as the front end made it, at the sizes of `inputs`, before any pass.

    One that enters at IREE has no module. Raises as `lower`.
    """
    options = job.options
    with new_context() as context, ir.Location.unknown():
        loaded = job.load(context)
        passes = context_of(options)
        if loaded.module is None:
            yield loaded, passes
            return
        with loaded.module.context, ir.Location.unknown():
            refine(loaded.module, job.shapes, passes)
            function = entry_function(loaded.module)
            settle(loaded.module, function, job.settled, passes)
            declare_ranges(function, options.ranges)
            yield loaded, passes


@contextmanager
def optimized(job: Job) -> Iterator[tuple[Loaded, PassContext]]:
    """Yield the program after the pyc passes and the choice of kernels, and what was decided.

    As `imported`.
    """
    with imported(job) as (made, passes):
        if made.module is not None:
            function = entry_function(made.module)
            passes = _identified(function, job.options, passes)[2]
            if job.options.contract.approximates:
                approximate(made.module, function, job.options.contract, passes)
            _optimize(made.module, job.options, passes)
        yield made, passes


# What `emit` gives: before the pyc passes, after them, and as IREE gets it.
IMPORTED, PYC, LINALG = EMITTED = ("imported", "pyc", "linalg")


def emit(job: Job, stage: str) -> tuple[str, tuple[Decision, ...]]:
    """Return the program as text at one of the stages `EMITTED`, and what was decided.

    Constants are complete. A module that enters at IREE has no ``pyc`` stage, and bytecode is no
    text: PycError (BAD_ARGUMENT). Raises as `lower`.
    """
    with (imported if stage == IMPORTED else optimized)(job) as (made, context):
        if made.module is None:
            return _foreign_text(made, stage), context.choices.log
        if stage == LINALG:
            run_pipeline(made.module, TO_LINALG, context)
            _drop_argument_attributes(made.module)
        return str(made.module), context.choices.log


def tunable_sites(job: Job) -> tuple[TunableSite, ...]:
    """Return the choices of the front end and the pyc passes, for tools that tune.

    Sites in the order of the passes, as the options' recipe and policy lead to them: another
    choice may lead to other sites. Raises as `lower`.
    """
    with optimized(job) as (made, context):
        return () if made.module is None else context.choices.tunable


def structure_of_parts(job: Job) -> CutProgram:
    """Return the kernel sites of a program and the regions that it offers to cut.

    Raises as `lower`, and PycError (UNSUPPORTED_OP, PASS_FAILED) for a program that enters at IREE,
    dynamic sizes and control flow.
    """
    with optimized(job) as (made, context):
        if made.module is None:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"{made.name}: expected a pyc program to choose kernels for, got one that enters "
                "at IREE",
            )
        log = context.choices.log
        cuts = [d for d in log if d.site.pass_name == Chunk.name]
        return CutProgram(
            {d.site.key: d.chosen for d in cuts},
            read_sites(entry_function(made.module), context, log),
            {
                d.site.key: [
                    Part(a.name, a.cost.seconds, a.cost.workspace_bytes)
                    for a in d.alternatives
                    if a.cost is not None
                ]
                for d in cuts
            },
        )


def report_import(source: Any, inputs: Sequence[Any] | None = None) -> ImportReport:
    """Report how much of a program can be compiled: it is read, but not compiled.

    source, inputs: as of `compile`. Raises as the front ends do, but for breaks, which are
    reported.
    """
    source = Source.of(source)
    with new_context() as context, ir.Location.unknown():
        try:
            loaded = source.load(inputs, context)
        except UnsupportedModel as error:
            return error.report
        if loaded.module is None:
            ops = read_entry(loaded.foreign, loaded.name, loaded.function).ops
            return ImportReport(ops, foreign=ops, unraised=loaded.unraised)
        with loaded.module.context, ir.Location.unknown():
            refine(loaded.module, None if source.takes_inputs else inputs, PassContext())
            return graph_report(entry_function(loaded.module))


def _foreign_text(source: Loaded, stage: str) -> str:
    if stage == PYC:
        why = f"{source.name}: expected a pyc program, got one that enters at IREE; ask for linalg"
        raise PycError(ReasonCode.BAD_ARGUMENT, why)
    try:
        return source.foreign.decode()
    except UnicodeDecodeError:
        why = f"{source.name}: expected MLIR text to show, got bytecode"
        raise PycError(ReasonCode.BAD_ARGUMENT, why) from None


def bytecode(module: ir.Module) -> bytes:
    """Return the module as bytecode, under no location: IREE names code after the source file."""
    plain = ir.Module.create(ir.Location.unknown(module.context))
    for op in list(module.body.operations):
        plain.body.append(op)
    return bytecode_of(plain)


def bytecode_of(module: ir.Module) -> bytes:
    """Return the module as MLIR bytecode, as it is."""
    buffer = BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _drop_argument_attributes(module: ir.Module) -> None:
    """Take `pyc.*` attributes off functions and arguments: IREE knows no such dialect there."""
    for function in functions_of(module):
        for name in ("arg_attrs", "res_attrs", RANGES, INDICES, CLAMPED):
            if name in function.attributes:
                del function.attributes[name]


def _mixes_rows(function: ir.Operation) -> bool:
    definitions = map(definition_of, pyc_ops(function.regions[0].blocks[0]))
    kinds = {definition.anchor for definition in definitions if definition is not None}
    return "attention" in kinds or {"contraction", "row"} <= kinds
