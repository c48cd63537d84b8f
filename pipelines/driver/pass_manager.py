"""Run a pipeline of PyC and native passes on a module.

`resolve` looks every name, option and anchor up before anything runs and returns the steps;
consecutive native passes are one step, run as one native PassManager. `run_pipeline` runs the
steps, verifies after each that may have changed something, and reports time and statistics per
step. A pass that found nothing to do is left out until something has changed. Printing the IR is
the part of `printing`. Follows mlir-opt (MlirOptMain.cpp, Pass.cpp) in what a flag means.
"""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.driver.base import Pass, PassContext
from pyc_mlir.pipelines.driver.native_passes import Refusal, describe, refusal
from pyc_mlir.pipelines.driver.options import build_pass, pass_node
from pyc_mlir.pipelines.driver.pipeline_text import (
    ANY,
    MODULE,
    AnchorNode,
    Node,
    PassNode,
    Pipeline,
    PipelineError,
    parse_pipeline,
)
from pyc_mlir.pipelines.driver.printing import IrPrinter
from pyc_mlir.pipelines.driver.registry import MODULE_PIPELINES, NATIVE_PASSES, PASSES


class BrokenInvariant(RuntimeError):
    """A PyC pass left a module that does not verify: the pass's fault, never the user's."""


@dataclass(frozen=True)
class NativeStep:
    """Passes that one native PassManager runs."""

    root: str
    nodes: tuple[Node, ...]

    @property
    def name(self) -> str:
        """The passes, as the pipeline's text has them."""
        return ",".join(str(n) for n in self.nodes)

    def __str__(self) -> str:
        return f"{self.root}({self.name})"


@dataclass(frozen=True)
class PycStep:
    """One PyC pass."""

    pass_: Pass

    @property
    def name(self) -> str:
        """The pass's textual name."""
        return self.pass_.name

    def __str__(self) -> str:
        return str(pass_node(self.pass_))


Step = NativeStep | PycStep


@dataclass(frozen=True)
class StepReport:
    """The seconds of wall time and the counts of one step."""

    name: str
    seconds: float
    statistics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunReport:
    """The steps of a pipeline that ran."""

    steps: tuple[StepReport, ...]

    @property
    def statistics(self) -> dict[str, dict[str, int]]:
        """Counts per PyC pass, summed over its runs."""
        totals: dict[str, dict[str, int]] = {}
        for step in self.steps:
            counts = totals.setdefault(step.name, {})
            for name, count in step.statistics.items():
                counts[name] = counts.get(name, 0) + count
        return {name: counts for name, counts in totals.items() if counts}

    @property
    def seconds(self) -> float:
        """Wall time of all steps."""
        return sum(step.seconds for step in self.steps)


def resolve(pipeline: Pipeline, context: ir.Context, one_by_one: bool = False) -> tuple[Step, ...]:
    """Look up everything in `pipeline`; return what is to run.

    With `one_by_one` each native pass is a step of its own (to time it or to print around it).
    Raises PipelineError, with a caret, for an unknown pass, option or anchor, a value of the
    wrong type, and a pass under an anchor on which it cannot run.
    """
    return _Resolver(pipeline, context, one_by_one).steps()


class _Resolver:
    """The state of one `resolve`."""

    def __init__(self, pipeline: Pipeline, context: ir.Context, one_by_one: bool) -> None:
        self.pipeline = pipeline
        self.context = context
        self.one_by_one = one_by_one
        self.root = pipeline.root.name

    def steps(self) -> tuple[Step, ...]:
        """Validate and group."""
        steps: list[Step] = []
        pending: list[Node] = []
        for child in self.pipeline.root.children:
            resolved = self._node(child, (self.root,))
            if isinstance(resolved, PassNode | AnchorNode):
                pending.append(resolved)
                continue
            steps += self._native_steps(pending)
            steps.append(PycStep(resolved))
            pending = []
        return (*steps, *self._native_steps(pending))

    def _native_steps(self, nodes: list[Node]) -> list[Step]:
        if not nodes:
            return []
        if not self.one_by_one:
            return [NativeStep(self.root, tuple(nodes))]
        return [NativeStep(self.root, (leaf,)) for node in nodes for leaf in _leaves(node)]

    def _node(self, node: Node, anchors: tuple[str, ...]) -> "Node | Pass":
        """Check one node under its anchors (outermost first); PyC passes become objects."""
        error, name = partial(self.pipeline.error, node.column), node.name
        if isinstance(node, AnchorNode):
            if "." not in name and name != ANY:
                is_pass = name in NATIVE_PASSES or name in PASSES
                hint = "; options go in braces: name{a=1}" if is_pass else ""
                raise error(f"expected an op such as func.func or `any` to nest in{hint}")
            children = [self._node(child, (*anchors, name)) for child in node.children]
            # PyC passes were refused under nested anchors.
            native = (n for n in children if isinstance(n, PassNode | AnchorNode))
            return AnchorNode(name, tuple(native), node.column)
        if name not in NATIVE_PASSES and name in PASSES:
            if anchors != (MODULE,):
                raise error(
                    f"pass '{name}' runs on {MODULE}, not inside '{anchors[-1]}'; "
                    f"write it directly under {MODULE}(...)"
                )
            return build_pass(PASSES[name], node, self.pipeline)
        # The wheel may know more than the table.
        if name in NATIVE_PASSES or refusal(f"{ANY}({name})", self.context) is None:
            return self._native(node, anchors)
        hint = f"; to run passes inside that op, write {name}(...)"
        if "." not in name:
            hint = did_you_mean(name, [*PASSES, *NATIVE_PASSES])
        raise error(f"unknown pass '{name}'{hint}")

    def _native(self, node: PassNode, anchors: tuple[str, ...]) -> Node:
        self._refuse_misplaced(node, anchors[-1])
        problem = refusal(f"{anchors[-1]}({node})", self.context)
        if problem is None:
            return node
        if problem.anchor and self.pipeline.implicit_nesting:
            inner = self._native(node, (*anchors, problem.anchor))
            return AnchorNode(problem.anchor, (inner,), node.column)
        raise self._native_error(node, anchors[-1], problem)

    def _refuse_misplaced(self, node: PassNode, anchor: str) -> None:
        """Keep from the wheel what it would abort on."""
        if node.name in MODULE_PIPELINES and anchor not in (MODULE, ANY):
            message = f"pipeline '{node.name}' runs on '{MODULE}', not on '{anchor}'"
            raise self.pipeline.error(node.column, message)
        for option in node.options:
            for name in MODULE_PIPELINES.intersection(re.findall(r"[\w-]+", option.value or "")):
                message = f"pipeline '{name}' cannot be an option of '{node.name}'"
                raise self.pipeline.error(option.value_column, message)

    def _native_error(self, node: PassNode, anchor: str, problem: Refusal) -> PipelineError:
        """Put the caret where the wheel only says that something is wrong."""
        if problem.anchor:
            message = (
                f"pass '{node.name}' runs on '{problem.anchor}', not on '{anchor}'; "
                f"write {problem.anchor}({node.name})"
            )
            return self.pipeline.error(node.column, message)
        known = describe(node.name, self.context)
        options = known.options if known else {}
        for option in node.options:
            alone = refusal(f"{anchor}({node.name}{{{option}}})", self.context)
            if alone is None:
                continue
            if alone.option == option.name or (options and option.name not in options):
                hint = did_you_mean(option.name, options)
                message = f"pass '{node.name}' has no option '{option.name}'{hint}"
                return self.pipeline.error(option.column, message)
            expected = _expected(options.get(option.name, ""))
            got = "nothing" if option.value is None else repr(option.value)
            message = f"option '{option.name}' of '{node.name}': expected {expected}, got {got}"
            return self.pipeline.error(option.value_column, message)
        return self.pipeline.error(node.column, f"pass '{node.name}': {problem.text}")


def _expected(default: str) -> str:
    """Describe what a native option takes, as far as its default tells."""
    if default in ("true", "false"):
        return f"true or false (the default is {default})"
    if default.lstrip("-").isdigit():
        return f"an integer (the default is {default})"
    return f"another value (the default is {default})" if default else "another value"


def _leaves(node: Node) -> list[Node]:
    """Return one node per pass, each under its own copy of the anchors."""
    if isinstance(node, PassNode):
        return [node]
    return [AnchorNode(node.name, (leaf,)) for child in node.children for leaf in _leaves(child)]


def run_pipeline(
    module: ir.Module,
    pipeline: Pipeline | str,
    context: PassContext | None = None,
    *,
    verify_each: bool = True,
    printer: IrPrinter | None = None,
    one_by_one: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> RunReport:
    """Run `pipeline` on `module` in place and report time and statistics per step.

    Raises PipelineError before anything runs, PycError PASS_FAILED (or the pass's own reason)
    when a pass fails, and BrokenInvariant when a PyC pass leaves an invalid module.
    """
    parsed = parse_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    split = one_by_one or (printer is not None and printer.needs_single_steps)
    steps = resolve(parsed, module.context, split)
    return run_steps(module, steps, context, verify_each=verify_each, printer=printer, clock=clock)


def run_steps(
    module: ir.Module,
    steps: tuple[Step, ...],
    context: PassContext | None = None,
    *,
    verify_each: bool = True,
    printer: IrPrinter | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> RunReport:
    """Run what `resolve` returned; see `run_pipeline`."""
    context = PassContext() if context is None else context
    printer = IrPrinter() if printer is None else printer
    reports = []
    idle: list[Pass] = []
    for step in steps:
        start = clock()
        if isinstance(step, NativeStep):
            statistics = _run_native(module, step, verify_each, printer)
            idle.clear()
        elif step.pass_ in idle:
            # Nothing has changed since it last found nothing to do.
            with printer.around(step.pass_, str(step), module.operation):
                statistics = {}
        else:
            statistics = _run_pyc(module, step, context, verify_each, printer)
            idle = [] if _may_have_changed(statistics) else [*idle, step.pass_]
        reports.append(StepReport(step.name, clock() - start, statistics))
    return RunReport(tuple(reports))


def _run_native(
    module: ir.Module, step: NativeStep, verify_each: bool, printer: IrPrinter
) -> dict[str, int]:
    manager = passmanager.PassManager.parse(str(step), module.context)
    manager.enable_verifier(verify_each)
    with printer.native(manager, step.nodes, module.operation):
        try:
            manager.run(module.operation)
        except ir.MLIRError as error:
            raise PycError(ReasonCode.PASS_FAILED, f"{step.name}: {_reason(error)}") from error
    return {}


def _run_pyc(
    module: ir.Module, step: PycStep, context: PassContext, verify_each: bool, printer: IrPrinter
) -> dict[str, int]:
    with printer.around(step.pass_, str(step), module.operation):
        try:
            verifier = context.verifier
            watched = nullcontext() if verifier is None else verifier.around(step.pass_, module)
            with module.context, watched:
                statistics = step.pass_.run(module, context)
        except ir.MLIRError as error:
            raise PycError(ReasonCode.PASS_FAILED, f"{step.name}: {_reason(error)}") from error
        if verify_each and _may_have_changed(statistics):
            try:
                module.operation.verify()
            except ir.MLIRError as error:
                message = f"{step.name} left an invalid module: {_reason(error)}"
                raise BrokenInvariant(message) from error
    return dict(statistics)


def _may_have_changed(statistics: Mapping[str, int]) -> bool:
    """Return False for a pass with counts that are all 0 (upstream too verifies after changes)."""
    return not statistics or any(statistics.values())


def _reason(error: ir.MLIRError) -> str:
    """Return the first diagnostic of a native failure, or the bindings' own words."""
    for diagnostic in error.error_diagnostics:
        return f"{diagnostic.location}: {diagnostic.message}"
    return error.message
