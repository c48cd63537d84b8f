"""Plans of a program for certain shapes: chosen, lowered, and put beside the general one.

    lowered = specialized(lowered, job)

The program is lowered once for each plan, with its sizes settled and narrower ranges, and becomes a
function beside the entry. What the plans add is bounded: their number, the work of a compile
(groups of ops), and bytes of weights that kernels lay out in another way. The choice is one
decision, so that a recipe repeats it without the trace that it was made from.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.verification import Expectation
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, bytecode_of, lower, optimized
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import as_resource, resource_key
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.choices.choices import RECIPE, Alternative, Decision, Site
from pyc_mlir.pipelines.choices.evidence import Evidence, Note, Reason
from pyc_mlir.pipelines.pyc.constants import lowered_constants
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.pyc.select_kernels import predicted_seconds
from pyc_mlir.pipelines.shapes.choose import Chosen, Demand, choose_plans
from pyc_mlir.pipelines.shapes.plan import AUTO_PLANS, ShapePlan, parse_plans, plans_text
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.util.logs import Stage

SITE = "shape-plans"
NONE = "none"
# Plans of `auto`: at most so many, each of which saves this share of the seconds of all calls.
MOST_PLANS, LEAST_GAIN = 4, 0.02
# The most ops of all plans together.
MOST_OPS = 20_000
# Constants that all plans together may add, as a share of the program's own.
MOST_ADDED = 0.25
# Sizes at which seconds are predicted; between them they are interpolated.
_MOST_PREDICTED = 16


def specialized(lowered: Lowered, job: Job, stage: Stage) -> Lowered:
    """Return the program with the plans for shapes that are asked for, as far as they pay.

    Raises PycError: BAD_ARGUMENT for plans of dimensions that the program lacks, RECIPE_MISMATCH.
    """
    expect = job.options.check or job.options.contract.compares
    site = Site(SITE, lowered.name, work=lowered.structure_id)
    recipe = job.options.recipe
    answer = None if recipe is None else recipe.choices.get(site.key)
    if recipe is not None and answer is not None:
        by, grounds = recipe.origins.get(site.key, (RECIPE, ()))
    else:
        with stage("PyC chooses plans for shapes"):
            chosen, grounds = _wanted(lowered, job)
        offered = [Alternative(n) for n in filter(None, (plans_text(chosen.plans), NONE))]
        answer, by = job.options.policy.prefer(site, offered), job.options.policy.name
    made = _Merged.of(lowered)
    if answer != NONE:
        plans = parse_plans(answer)
        for plan in plans:
            _require_within(plan, lowered)
        with stage(f"PyC lowers {len(plans)} plans for shapes"):
            for plan in plans:
                made.add(plan, lower(plan_job(job, plan), expect))
        answer = plans_text(list(made.plans.values())) or NONE
    listed = tuple(map(Alternative, dict.fromkeys((answer, NONE))))
    grounds = (*grounds, *made.left_out)
    return made.lowered(Decision(site, answer, listed, by, grounds=grounds))


def unspecialized(lowered: Lowered, general: Lowered, why: str) -> Lowered:
    """Return the general program alone, and say in the decision why the plans were left."""
    reason = Reason.of(ReasonCode.NO_SHAPE_PLANS, why)
    (made,) = (d for d in lowered.decisions if d.site.pass_name == SITE)
    left = replace(
        made, chosen=NONE, alternatives=(Alternative(NONE),), grounds=(*made.grounds, reason)
    )
    return replace(general, decisions=(*general.decisions, left))


def plan_job(job: Job, plan: ShapePlan) -> Job:
    """Return the job of one plan: its sizes settled, its ranges in place of the program's."""
    ranges = {n: e for n, e in job.options.ranges.items() if n not in plan.exact}
    recipe = job.options.recipe
    options = replace(
        job.options,
        ranges={**ranges, **plan.open},
        plans="",
        demand=Demand(),
        # It is for any graph: that of a plan is another one.
        recipe=None if recipe is None else replace(recipe, graph_id=""),
    )
    return replace(job, options=options, settled=plan.exact)


def _require_within(plan: ShapePlan, lowered: Lowered) -> None:
    signature = lowered.signature
    names = {n for a in signature.inputs for n in a.dynamic.values()}
    for name, (low, high) in plan.ranges.items():
        ends = signature.ranges.get(name, (0, high))
        if name not in names:
            shown = ", ".join(sorted(names)) or "there is none"
            expected, got = f"dynamic dimensions of the inputs ({shown})", repr(name)
        elif not ends[0] <= low <= high <= ends[1]:
            expected, got = f"sizes of `{name}` from {ends[0]} to {ends[1]}", f"{low} to {high}"
        else:
            continue
        raise PycError(ReasonCode.BAD_ARGUMENT, where="plans", expected=expected, got=got)


def _wanted(lowered: Lowered, job: Job) -> tuple[Chosen, tuple[Evidence, ...]]:
    """Return the plans that the options ask for, and what the choice rests on."""
    asked = job.options.plans
    most = MOST_PLANS if asked == AUTO_PLANS else int(asked) if asked.isdecimal() else None
    if most is None:
        return Chosen(parse_plans(asked)), (Note("as asked for"),)
    if not lowered.graph_id:
        why = "the program enters at IREE, which is not compiled for other shapes"
        return Chosen(), (Reason.of(ReasonCode.NO_SHAPE_PLANS, why),)
    signature = lowered.signature
    names = {n for a in signature.inputs for n in a.dynamic.values()}
    demand = job.options.demand
    if unknown := sorted(set(demand.dims) - names):
        shown = ", ".join(sorted(names)) or "there is none"
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where="shapes",
            expected=f"columns that are dynamic dimensions of the inputs ({shown})",
            got=repr(unknown[0]),
        )
    known = {n: e for n, e in signature.ranges.items() if n in names and "*" not in n}
    inside = demand.within(signature.ranges) if demand.rows else Demand.of_ranges(known)
    if not inside.rows:
        why = "no dynamic dimension has a range, and no trace has sizes within the ranges"
        return Chosen(), (Reason.of(ReasonCode.NO_SHAPE_PLANS, why),)
    seconds = _Predicted(job, inside)
    most = max(min(most, MOST_OPS // max(seconds.ops, 1)), 0)
    gain = LEAST_GAIN if asked == AUTO_PLANS else 0.0
    chosen = choose_plans(inside, seconds, most, gain)
    note = Note(
        f"a mean call of {len(inside.rows)} sizes: {chosen.seconds:.3g} s predicted, by the "
        f"general plan alone {chosen.general:.3g} s"
    )
    if chosen.plans:
        return chosen, (note,)
    why = "no plan is predicted to be faster than the general one"
    return chosen, (note, Reason.of(ReasonCode.NO_SHAPE_PLANS, why))


@dataclass
class _Predicted:
    """The predicted seconds of plans at sizes; lowers the program at a few sizes."""

    job: Job
    demand: Demand
    ops: int = 0
    _static: dict[tuple[int, ...], float] = field(default_factory=dict)
    _factors: dict[frozenset[str], float] = field(default_factory=dict)
    _anchors: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = sorted({r.high for r in self.demand.rows}, key=lambda s: (math.prod(s), s))
        step = max(len(rows) - 1, 1) / (_MOST_PREDICTED - 1)
        places = range(len(rows))
        if len(rows) > _MOST_PREDICTED:
            places = sorted({round(i * step) for i in range(_MOST_PREDICTED)})
        for sizes in (rows[i] for i in places):
            self._static[sizes] = self._at(dict(zip(self.demand.dims, sizes, strict=True)))
            self._anchors.append((math.log(max(math.prod(sizes), 1)), self._static[sizes]))

    def __call__(self, plan: ShapePlan | None, sizes: Mapping[str, int]) -> float:
        """Return the seconds of a call; `plan` None is the general one."""
        key = tuple(sizes[name] for name in self.demand.dims)
        if key not in self._static:
            self._static[key] = self._between(math.log(max(math.prod(key), 1)))
        is_open = self.demand.dims if plan is None else plan.open
        return self._static[key] * self._factor(frozenset(is_open))

    def _between(self, at: float) -> float:
        """Return seconds between those of two sizes, in proportion to the product of the sizes."""
        below = [a for a in self._anchors if a[0] <= at][-1:] or self._anchors[:1]
        above = [a for a in self._anchors if a[0] >= at][:1] or self._anchors[-1:]
        (low, least), (high, most) = below[0], above[0]
        share = 0.0 if high == low else (math.exp(at - low) - 1) / (math.exp(high - low) - 1)
        return least + share * (most - least)

    def _factor(self, dims: frozenset[str]) -> float:
        """Return how many times slower open dimensions are, at the nominal size."""
        if dims not in self._factors:
            others = {n: NOMINAL_DIMENSION for n in self.demand.dims if n not in dims}
            fixed = self._at({**others, **dict.fromkeys(dims, NOMINAL_DIMENSION)})
            made = self._at(others) / fixed if fixed > 0 and dims else 1.0
            self._factors[dims] = max(made, 1.0)
        return self._factors[dims]

    def _at(self, sizes: Mapping[str, int]) -> float:
        job = plan_job(self.job, ShapePlan({n: (size, size) for n, size in sizes.items()}))
        with optimized(job) as (made, _):
            if made.module is None:
                return 0.0
            count = sum(len(f.regions[0].blocks[0].operations) for f in functions_of(made.module))
            self.ops = max(self.ops, count)
            return predicted_seconds(made.module, self.job.options.target)[0]


@dataclass
class _Merged:
    """The general program, and plans that are added to its module."""

    general: Lowered
    codes: list[bytes] = field(default_factory=list)
    plans: dict[str, ShapePlan] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    locations: dict[str, str] = field(default_factory=dict)
    left_out: list[Reason] = field(default_factory=list)
    constants: dict[str, int] = field(default_factory=dict)
    expected: list[tuple[Signature, Expectation]] = field(default_factory=list)
    allowed: int = 0
    added: int = 0

    @staticmethod
    def of(general: Lowered) -> "_Merged":
        """Start with the general program alone."""
        made = _Merged(general, locations=dict(general.locations))
        made.constants = _constants(general.code)
        made.allowed = round(sum(made.constants.values()) * MOST_ADDED)
        return made

    def add(self, plan: ShapePlan, lowered: Lowered) -> None:
        """Add a plan, or say why it is left out."""
        more = {k: v for k, v in _constants(lowered.code).items() if k not in self.constants}
        made = {d.site.key: d.chosen for d in (*self.general.decisions, *self.decisions)}
        apart = [d for d in lowered.decisions if made.get(d.site.key, d.chosen) != d.chosen]
        if sum(more.values()) > self.allowed:
            why = f"{plan}: its kernels lay out {sum(more.values())} bytes of weights anew, of "
            self._leave_out(why + f"{self.allowed} that plans may add")
        elif apart:
            self._leave_out(f"{plan}: {apart[0].site.key} is decided otherwise than for all shapes")
        elif _types(lowered) != _types(self.general):
            self._leave_out(f"{plan}: its results have other types")
        else:
            self.allowed -= sum(more.values())
            self.added += sum(more.values())
            self.constants |= more
            self.plans[f"{self.general.entry}$shapes{len(self.plans)}"] = plan
            self.codes.append(lowered.code)
            if lowered.answers.expected is not None:
                self.expected.append((lowered.signature, lowered.answers.expected))
            self.decisions += [d for d in lowered.decisions if d.site.key not in made]
            self.locations |= lowered.locations

    def _leave_out(self, why: str) -> None:
        self.left_out.append(Reason.of(ReasonCode.NO_SHAPE_PLANS, why))

    def lowered(self, chosen: Decision) -> Lowered:
        """Return the program with the plans that were added, which `chosen` tells."""
        decisions = (*self.general.decisions, *self.decisions, chosen)
        if not self.plans:
            return replace(self.general, decisions=decisions)
        code = merged(self.general.code, dict(zip(self.plans, self.codes, strict=True)))
        made = replace(
            self.general,
            code=code,
            decisions=decisions,
            locations=self.locations,
            answers=replace(self.general.answers, of_plans=tuple(self.expected)),
            shape_plans=dict(self.plans),
        )
        return made.with_facts(larger_bytes=self.general.facts.larger_bytes + self.added)


def _types(lowered: Lowered) -> list[tuple[str, int]]:
    return [(str(a.dtype), len(a.shape)) for a in lowered.signature.outputs]


def _constants(code: bytes) -> dict[str, int]:
    found = {}
    with new_context() as context, ir.Location.unknown():
        module = ir.Module.parse(code, context)
        for op in lowered_constants(module):
            attr = as_resource(op.attributes["value"])
            if attr is not None:
                found[resource_key(attr)] = from_mlir(op.results[0].type).nbytes
    return found


def merged(general: bytes, plans: Mapping[str, bytes]) -> bytes:
    """Return one module: the general program, and before it each plan under its name.

    Constants of the same contents become the same attribute.
    """
    with new_context() as context, ir.Location.unknown():
        module = ir.Module.parse(general, context)
        known = {}
        for op in lowered_constants(module):
            attr = as_resource(op.attributes["value"])
            if attr is not None:
                known[resource_key(attr)] = op.attributes["value"]
        first = ir.InsertionPoint.at_block_begin(module.body)
        for number, (name, code) in enumerate(plans.items()):
            added = ir.Module.parse(code, context)
            _rename(added, name, f"_shapes{number}")
            for op in lowered_constants(added):
                attr = as_resource(op.attributes["value"])
                if attr is None:
                    continue
                # MLIR numbers a name that is there already.
                key = resource_key(attr)
                base = key if key in known else key.rpartition("_")[0]
                if base in known and known[base].type == op.attributes["value"].type:
                    op.attributes["value"] = known[base]
                else:
                    known[key] = op.attributes["value"]
            for op in list(added.body.operations):
                op.operation.detach_from_parent()
                first.insert(op)
        module.operation.verify()
        return bytecode_of(module)


def _rename(module: ir.Module, entry: str, suffix: str) -> None:
    """Name the entry of a module `entry`, and its private functions with a suffix."""
    names = {}
    main = entry_function(module)
    for function in (o.operation for o in module.body.operations):
        old = ir.StringAttr(function.attributes["sym_name"]).value
        names[old] = entry if function == main else old + suffix
        function.attributes["sym_name"] = ir.StringAttr.get(names[old])

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "func.call":
            callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            op.attributes["callee"] = ir.FlatSymbolRefAttr.get(names[callee])
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
