"""From a model to MLIR that IREE compiles: the front end and the pyc passes.

`lower` gives the linalg module as bytecode together with all that the artifact says about it:
signature, decisions, graph id, and where each op came from.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

from pyc_mlir.artifact.import_report import GraphBreak, ImportReport, UnsupportedModel
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.verification import Expectation, Unchecked
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import ALL_KERNELS, NO_KERNELS, Options, families_of
from pyc_mlir.compilation.reference.approximation import approximate
from pyc_mlir.compilation.reference.self_check import expectation
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import definition_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.ir.structure import structure_of
from pyc_mlir.dialects.util.index_ranges import CLAMPED, INDICES
from pyc_mlir.frontends.graph_report import graph_report
from pyc_mlir.frontends.signatures import (
    RANGES,
    declare_ranges,
    predicted_sizes,
    refine,
    refined,
    settle,
    shapes_at,
    signature_of,
)
from pyc_mlir.frontends.sources import Loaded, Source, copied
from pyc_mlir.iree.entry import read_entry
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.choices.calibration_choice import record_calibration
from pyc_mlir.pipelines.choices.choices import (
    Alternative,
    Choices,
    Decision,
    Recipe,
    Site,
    TunableSite,
)
from pyc_mlir.pipelines.choices.contract import uncheckable
from pyc_mlir.pipelines.choices.evidence import MeasuredRow, Reason
from pyc_mlir.pipelines.choices.wisdom import ByWisdom, for_program, record_wisdom
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.kernels.lang.attributes import APPROXIMATED, ATTRIBUTE, CHECKED, SELECT
from pyc_mlir.pipelines.linalg.convert_to_linalg import LARGER, ConvertToLinalg
from pyc_mlir.pipelines.memory.on_pyc.kernel_sites import read_sites
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


@dataclass(frozen=True)
class Lowered:
    """A program as MLIR: what IREE compiles, what a person reads, and what was decided."""

    code: bytes
    entry: str = "main"
    signature: Signature = field(default_factory=lambda: Signature((), ()))
    graph_id: str = ""
    # Of its constants before kernels lay them out; None where IREE reads the program as it came.
    constants_bytes: int | None = None
    larger_bytes: int = 0  # beyond that, in the forms that kernels read
    decisions: tuple[Decision, ...] = ()
    locations: Mapping[str, str] = field(default_factory=dict)
    pyc_text: str = ""
    # Whether matrix products and row-wise ops (softmax, norms) stand in one program.
    mixes_rows: bool = False
    # What could be computed of constants alone, in units of `OpDef.evaluation_work`.
    constant_work: int = 0
    # Of a call; None where nothing is known of the program.
    prediction: Prediction | None = None
    # The program as it came in, as bytecode: what an oracle is asked about. Only if one is needed.
    reference: bytes = b""
    # Of the program as it came in: how much of it PyC compiles.
    imported: ImportReport = field(default_factory=ImportReport)
    # The graph's id blind to the contents of constants, for evidence and recipes of other programs.
    structure_id: str = ""
    # The kernels that detect faults of hardware, and those that approximate.
    faults: KernelCoverage = field(default_factory=KernelCoverage)
    approximate: KernelCoverage = field(default_factory=KernelCoverage)
    # What its functions return the counts of.
    counts: tuple[str, ...] = ()
    # What the references expect of it, for the self-check; None where that was not asked for.
    expected: Expectation | None = None
    # Functions beside the entry that are compiled for certain sizes, and the sizes.
    shape_plans: Mapping[str, ShapePlan] = field(default_factory=dict)
    # What the references expect of these, with the signature of each.
    of_plans: tuple[tuple[Signature, Expectation], ...] = ()


def context_of(options: Options) -> PassContext:
    """Return the context of one compile's passes; the calibration is the first entry of the log.

    The mode is the planner's preferred one unless the options name another one for parts.

    Raises PycError (RECIPE_MISMATCH) for a recipe that was made under another calibration or by
    another wisdom.
    """
    choices = Choices(options.policy, options.recipe)
    choices.record(*record_calibration(options.calibration, options.recipe))
    wisdom = options.policy.wisdom if isinstance(options.policy, ByWisdom) else None
    choices.record(*record_wisdom(wisdom, options.recipe))
    mode = options.parts_for or options.planner_modes[0] if options.planner_modes else None
    # A number is the user's own bound; `rounding` is derived from the plain forms' rounding, and
    # the compile compares with it.
    bounds_error = isinstance(options.contract.max_error, int | float)
    compares = options.contract.compares
    kernels = None if options.kernels == ALL_KERNELS else families_of(options.kernels)
    together = options.co_selected
    return PassContext(
        choices,
        options.target,
        mode,
        options.calibration,
        bounds_error,
        compares,
        kernels,
        together,
        options.own_constants,
        options.contract.detect_faults,
        counts_of(options),
    )


def counts_of(options: Options) -> tuple[str, ...]:
    """Return what the functions of a program that PyC lowers return the counts of.

    The contract says it alone, so that plans for certain sizes agree with the general one.
    """
    if options.contract.detect_faults:
        return ("faults",)
    approximates = isinstance(options.contract.max_error, int | float)
    return ("approximations",) if approximates and options.kernels != "iree" else ()


def lower(job: Job, expect: bool = False) -> Lowered:
    """Run front end and pyc passes. Raises PycError.

    expect: whether the references are asked what the program should answer, for the self-check.
    """
    options = job.options
    with new_context() as context, ir.Location.unknown():
        loaded = job.load(context)
        if loaded.module is None or (loaded.foreign and not _is_raised(loaded, options)):
            _covered(KernelCoverage(), options)
            return replace(_foreign(loaded, options), expected=_NO_REFERENCE if expect else None)
        with loaded.module.context, ir.Location.unknown():
            return _lower_pyc(loaded.module, job, loaded.foreign != b"", expect)


def _is_raised(source: Loaded, options: Options) -> bool:
    """Return whether a program that can be raised takes PyC's pipeline: the policy chooses."""
    chosen = _choose_raised(context_of(options).choices, source.unraised, can=True)
    return chosen == _RAISED


def _choose_raised(choices: Choices, unraised: Sequence[GraphBreak], can: bool) -> str:
    """Choose where a program enters; raised comes first: fusion, kernels and plan need that."""
    alternatives = (
        (Alternative(_RAISED), Alternative(_AS_IT_IS)) if can else (Alternative(_AS_IT_IS),)
    )
    evidence = [Reason.of(u.code, f"{u.node} ({u.op}): {u.why}") for u in unraised[:_LISTED]]
    return choices.choose(_RAISE, alternatives, evidence).name


def _foreign(source: Loaded, options: Options) -> Lowered:
    """Lower a module that enters at IREE: nothing is known of it but its signature."""
    entry = read_entry(source.foreign, source.name, source.function)
    choices = context_of(options).choices
    _choose_raised(choices, source.unraised, can=source.module is not None)
    return Lowered(
        entry.code,
        entry.name,
        entry.signature.with_ranges(options.ranges),
        decisions=choices.log,
        constant_work=entry.constant_work,
        reference=entry.code,
        imported=ImportReport(entry.ops, foreign=entry.ops, unraised=source.unraised),
    )


def _lower_pyc(module: ir.Module, job: Job, raised: bool, expect: bool) -> Lowered:
    inputs, options = job.shapes, job.options
    context = context_of(options)
    if raised:
        _choose_raised(context.choices, (), can=True)
    function = entry_function(module)
    entry = ir.StringAttr(function.attributes["sym_name"]).value
    if not options.guard_indices and INDICES in function.attributes:
        del function.attributes[INDICES]
    given = signature_of(function)
    if inputs is not None:
        refine(module, inputs, context)
        given = refined(given, signature_of(function))
    settle(module, function, job.settled, context)
    declare_ranges(function, options.ranges)
    # The program's identity is that of what the user gave, whatever is decided below.
    graph_id, structure_id = _identified(function, options, context)
    approximate(module, signature_of(function), options.contract, context)
    reference = bytecode_of(module) if options.contract.compares else b""
    imported = graph_report(function)
    before = copied(module) if expect else None
    _optimize(module, options, context)
    function = entry_function(module)
    locations = _locations(function)
    pyc_text = _readable(module)
    constants = constant_bytes(module, options.target.alignment)
    mixes = _mixes_rows(function)
    known = constant_work(module)
    faults = _covered(coverage(module, CHECKED.values()), options)
    approximate_ones = coverage(module, APPROXIMATED.values())
    signature = refined(given, signature_of(function))
    prediction = _predicted(module, signature, options, context.choices.log)
    expected = None if before is None else expectation(before, entry, signature)
    converted = run_pipeline(module, TO_LINALG, context).statistics[ConvertToLinalg.name]
    _drop_argument_attributes(module)
    return Lowered(
        bytecode(module),
        entry,
        signature,
        graph_id,
        constants,
        converted[LARGER],
        context.choices.log,
        locations,
        pyc_text,
        mixes,
        known,
        prediction,
        reference,
        imported,
        structure_id,
        faults,
        approximate_ones,
        context.counts,
        expected,
    )


def _readable(module: ir.Module) -> str:
    """Return the module's text without large constants."""
    # In search of aliases, MLIR would print all constants once before the text.
    return module.operation.get_asm(
        large_elements_limit=_READABLE_ELEMENTS,
        large_resource_limit=_READABLE_ELEMENTS,
        use_local_scope=True,
    )


def _locations(function: ir.Operation) -> dict[str, str]:
    """Return the source locations of a function's ops, by op id."""
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


def _identified(function: ir.Operation, options: Options, context: PassContext) -> tuple[str, str]:
    """Return a program's ids, exact and of its structure; its policy answers choices from now on.

    Raises as `_check_graph`.
    """
    graph_id, structure_id = OpIds(function).graph_id, structure_of(function).id
    _check_graph(graph_id, options.recipe)
    policy, whole = for_program(options.policy, options.recipe, graph_id, structure_id)
    context.choices.policy = policy
    context.choices.record(*whole)
    return graph_id, structure_id


def _check_graph(graph_id: str, recipe: Recipe | None) -> None:
    """Raise PycError (REPLAY_MISMATCH) for a recipe that is another program's alone."""
    if recipe is not None and recipe.graph_id not in ("", graph_id):
        raise PycError(
            ReasonCode.REPLAY_MISMATCH,
            f"program: expected graph {recipe.graph_id}, which the log was written for, got "
            f"{graph_id}; give the same model, constants and input shapes",
        )


def _optimize(module: ir.Module, options: Options, context: PassContext) -> None:
    """Run the pyc passes, then choose kernels by the target's own figures."""
    run_pipeline(module, options.passes, context)
    if options.kernels == NO_KERNELS:
        for op in [o for f in functions_of(module) for o in f.regions[0].blocks[0].operations]:
            if ATTRIBUTE in op.operation.attributes:
                del op.operation.attributes[ATTRIBUTE]
    if options.kernels == NO_KERNELS or options.target.device != "local":
        return
    # Kernels are built by IREE's bindings, which other targets need later only.
    from pyc_mlir.pipelines.pyc.select_kernels import select

    select(module, context, "+".join(context.kernels or ()))


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
            _identified(function, job.options, passes)
            approximate(made.module, signature_of(function), job.options.contract, passes)
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
