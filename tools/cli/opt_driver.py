"""The driver of `pyc-opt`: one input, without the process around it.

Input bytes and flags in; exit status and output bytes out; diagnostics and IR dumps go to `err`.
Follows MlirOptMain.cpp: parts of a split file are processed one by one, the first failing pass
ends its part, the others still run. Exceptions that leave here are faults of ours.
"""

import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from pyc_mlir.artifact.memory import UNPLANNED
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.choices import Choices, Decision, Recipe
from pyc_mlir.pipelines.choices.log import load_recipe, write_log
from pyc_mlir.pipelines.choices.policies import PLANNER_MODES
from pyc_mlir.pipelines.driver import reports as opt_reports
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import RunReport, Step, resolve, run_steps
from pyc_mlir.pipelines.driver.pipeline_text import (
    MODULE,
    Pipeline,
    PipelineError,
    Reproducer,
    parse_flags,
    parse_pipeline,
    read_reproducer,
    write_reproducer,
)
from pyc_mlir.pipelines.driver.printing import IrPrinter
from pyc_mlir.pipelines.pyc.equivalence.rewrites import RewriteChecker
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.text import diagnostics
from pyc_mlir.pipelines.text.diagnostics import Diagnostic, Position
from pyc_mlir.pipelines.text.input_text import InputPart, is_bytecode, split
from pyc_mlir.pipelines.text.module_text import (
    ModuleText,
    collected,
    decode,
    parse_bytecode,
    parse_module,
    roundtrip_difference,
)
from pyc_mlir.tools.cli.opt_flags import OptFlags, ToolOutcome

_LOCATED = re.compile(r'loc\("(?P<file>[^"]*)":(?P<line>\d+):(?P<column>\d+)\): (?P<rest>.*)', re.S)


def listing(flags: OptFlags) -> str:
    """Return the text of ``--list-passes`` and ``--show-dialects``."""
    context = new_context()
    return (
        opt_reports.pass_list(context) if flags.list_passes else opt_reports.dialect_list(context)
    )


def context_of(flags: OptFlags) -> PassContext:
    """Return the context of the passes: a target's figures in the table, or measured ones.

    Raises PycError: UNKNOWN_TARGET, and BAD_ARGUMENT for an unknown mode and a calibration that is
    damaged or of another CPU.
    """
    target = Target.named(flags.pyc_target)
    if flags.pyc_mode not in (UNPLANNED, *PLANNER_MODES):
        expected = ", ".join((*PLANNER_MODES, UNPLANNED))
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--pyc-mode: expected one of {expected}, got {flags.pyc_mode!r}"
            f"{did_you_mean(flags.pyc_mode, (*PLANNER_MODES, UNPLANNED))}",
        )
    mode = None if flags.pyc_mode == UNPLANNED else flags.pyc_mode
    if flags.pyc_calibration is None:
        return PassContext(target=target, mode=mode)
    # Reads the CPU through IREE's runtime, which a run without a calibration does not load.
    from pyc_mlir.runtime.device import host_cpu

    calibration, cpu = Calibration.load(flags.pyc_calibration), host_cpu()
    measured = (target if cpu is None else target.on(cpu)).calibrated(calibration)
    return PassContext(target=measured, mode=mode, calibration=calibration)


@dataclass
class OptDriver:
    """One run of `pyc-opt`; `at_chunk` gets the index of each part before it is processed."""

    flags: OptFlags
    data: bytes
    err: TextIO
    at_chunk: Callable[[int], None] = lambda index: None
    log: list[Decision] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The input's name in diagnostics."""
        return "<stdin>" if self.flags.input == "-" else self.flags.input

    def run(self) -> ToolOutcome:
        """Process the whole input."""
        try:
            outcome = self._run()
            if self.flags.pyc_log is not None:
                write_log(self.log, self.flags.pyc_log)
            return outcome
        except PipelineError as error:
            self._say(error.message)
        except PycError as error:
            self._say(f"pyc-opt: error: {error}")
        return ToolOutcome(1, b"")

    def _run(self) -> ToolOutcome:
        recipe = load_recipe(self.flags.pyc_recipe) if self.flags.pyc_recipe else None
        text = "" if is_bytecode(self.data) else decode(self.data, self.name)
        if isinstance(text, Diagnostic):
            lines = self.data.decode(errors="replace").splitlines()
            self._say(diagnostics.render(text, {self.name: lines}))
            return ToolOutcome(1, b"")
        wanted = self._wanted(text)
        if self.flags.dump_pass_pipeline:
            self._say(f"Pass Manager with {len(wanted.root.children)} passes:\n{wanted}\n")
        if not self.flags.no_implicit_module:
            self._resolve(wanted, new_context())
        if is_bytecode(self.data):
            chunks = [InputPart("", 0)]
        elif self.flags.split_input_file is not None:
            chunks = split(text, self.flags.split_input_file)
        else:
            chunks = [InputPart(text, 0)]
        return self._process(chunks, wanted, recipe)

    def _wanted(self, text: str) -> Pipeline:
        """Return the pipeline of the flags or of the reproducer."""
        if self.flags.run_reproducer:
            stored = read_reproducer(text)
            if stored is None:
                raise PycError(
                    ReasonCode.BAD_ARGUMENT,
                    f"{self.name}: expected `mlir_reproducer` resources to run, got none",
                )
            return parse_pipeline(stored.pipeline)
        if self.flags.pass_pipeline is not None:
            return parse_pipeline(self.flags.pass_pipeline)
        return parse_flags(self.flags.passes)

    def _resolve(self, pipeline: Pipeline, context: ir.Context) -> tuple[Step, ...]:
        one_by_one = self.flags.mlir_timing or self._printer().needs_single_steps
        with _native_words_dropped():
            return resolve(pipeline, context, one_by_one)

    def _process(
        self, chunks: list[InputPart], pipeline: Pipeline, recipe: Recipe | None
    ) -> ToolOutcome:
        parts, failed, context = [], False, context_of(self.flags)
        for index, chunk in enumerate(chunks):
            self.at_chunk(index)
            given = replace(context, choices=Choices(recipe=recipe))
            part = _Part(self, chunk, pipeline, given, len(chunks) == 1)
            output = part.process()
            self.log += part.context.choices.log
            failed |= output is None
            if output is not None:
                parts.append(output)
        marker = f"{self.flags.split_input_file}\n".encode()
        return ToolOutcome(int(failed), marker.join(parts))

    def _printer(self) -> IrPrinter:
        flags = self.flags
        return IrPrinter(
            before=frozenset(flags.mlir_print_ir_before),
            after=frozenset(flags.mlir_print_ir_after),
            before_all=flags.mlir_print_ir_before_all,
            after_all=flags.mlir_print_ir_after_all,
            after_change=flags.mlir_print_ir_after_change,
            after_failure=flags.mlir_print_ir_after_failure,
            module_scope=flags.mlir_print_ir_module_scope,
            debug_info=flags.mlir_print_debuginfo,
            large_elements_limit=flags.mlir_elide_elementsattrs_if_larger,
            tree_dir=Path(flags.mlir_print_ir_tree_dir) if flags.mlir_print_ir_tree_dir else None,
            write=self._say,
        )

    def _say(self, text: str) -> None:
        self.err.write(text if text.endswith("\n") else f"{text}\n")
        self.err.flush()


@dataclass
class _Part:
    """One module of the input on its way through the pipeline."""

    driver: OptDriver
    chunk: InputPart
    pipeline: Pipeline
    context: PassContext
    is_whole: bool
    reported: list[Diagnostic] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def process(self) -> bytes | None:
        """Return the output; None if a step failed or the comments do not match."""
        flags = self.driver.flags
        context = new_context()
        context.allow_unregistered_dialects = flags.allow_unregistered_dialect
        output = self._through(context)
        if flags.verify_diagnostics is None:
            return output
        expected = diagnostics.expectations(
            self.chunk.text, self.driver.name, self.chunk.line_offset
        )
        only_expected = flags.verify_diagnostics == "only-expected"
        problems = diagnostics.verify(expected, self.reported, only_expected)
        for problem in problems:
            self._show(problem)
        return None if problems else output or b""

    def _through(self, context: ir.Context) -> bytes | None:
        """Parse, run, print."""
        flags = self.driver.flags
        with self._timed("Parser"):
            module = self._parse(context)
        if module is None:
            return None
        if flags.verify_roundtrip:
            difference = roundtrip_difference(module)
            if difference:
                self._report(Diagnostic("error", difference, Position(self.driver.name, 1, 1)))
                return None
        if not self._run_passes(module):
            return None
        with self._timed("Output"):
            output = self._print(module)
        if flags.mlir_timing:
            self.driver._say(opt_reports.timing(self.seconds))
        return output

    def _parse(self, context: ir.Context) -> "ir.Module | ir.OpView | None":
        driver = self.driver
        if is_bytecode(driver.data):
            return parse_bytecode(driver.data, driver.name, context, self._report)
        is_file = self.is_whole and os.path.isfile(driver.flags.input)
        path = driver.flags.input if is_file else None
        source = ModuleText(self.chunk.text, driver.name, self.chunk.line_offset, path)
        implicit = not driver.flags.no_implicit_module
        return parse_module(source, context, self._report, implicit)

    def _run_passes(self, module: "ir.Module | ir.OpView") -> bool:
        """Run the pipeline; report what fails, and write the requested reproducer."""
        steps = self.driver._resolve(self._rooted(module), module.context)
        checker = RewriteChecker() if self.driver.flags.verify_rewrites else None
        self.context = replace(self.context, verifier=checker)
        with collected(module.context, self.driver.name, self._report):
            try:
                report = self._run_steps(module, steps)
                if checker is not None and not self._checked(checker):
                    return False
            except PycError as error:
                if not any(d.kind == "error" for d in self.reported):
                    self._report(_located(error, self.driver.name))
                self._write_reproducer()
                return False
            finally:
                self._remarks()
        if self.driver.flags.mlir_pass_statistics:
            self.driver._say(opt_reports.statistics(report))
        return True

    def _checked(self, checker: RewriteChecker) -> bool:
        """Report the rewrites that are wrong or not proved; False for a wrong one."""
        for check in checker.checks:
            if not check.is_proved:
                kind = "error" if check.is_wrong else "remark"
                self._report(Diagnostic(kind, str(check), Position(self.driver.name, 1, 1)))
        proved = sum(check.is_proved for check in checker.checks)
        self.driver._say(f"{proved} of {len(checker.checks)} rewrites are proved")
        return not any(check.is_wrong for check in checker.checks)

    def _rooted(self, module: "ir.Module | ir.OpView") -> Pipeline:
        """Return the pipeline as it applies to the op that was read."""
        name = module.operation.name
        if name == MODULE:
            return self.pipeline
        flags = self.driver.flags
        if flags.pass_pipeline is None:
            return parse_flags(flags.passes, root=name)
        return parse_pipeline(flags.pass_pipeline, root=name)

    def _run_steps(self, module: "ir.Module | ir.OpView", steps: tuple[Step, ...]) -> RunReport:
        flags = self.driver.flags
        stored = read_reproducer(self.chunk.text) if flags.run_reproducer else None
        report = run_steps(
            module,
            steps,
            self.context,
            verify_each=flags.verify_each and (stored is None or stored.verify_each),
            printer=self.driver._printer(),
        )
        for step in report.steps:
            self.seconds[step.name] = self.seconds.get(step.name, 0.0) + step.seconds
        return report

    def _remarks(self) -> None:
        """Print the decisions of the passes that --remarks-filter names."""
        pattern = self.driver.flags.remarks_filter
        if pattern is None:
            return
        for decision in self.context.choices.log:
            if re.search(pattern, decision.site.pass_name):
                self._report(opt_reports.remark(decision))

    def _write_reproducer(self) -> None:
        path = self.driver.flags.mlir_pass_pipeline_crash_reproducer
        if path is not None and not is_bytecode(self.driver.data):
            wanted = Reproducer(str(self.pipeline), self.driver.flags.verify_each)
            text = write_reproducer(self.chunk.text, wanted, " ".join(sys.argv))
            write_file(path, text.encode())
            self._report(Diagnostic("note", f"reproducer generated at `{path}`"))

    def _print(self, module: "ir.Module | ir.OpView") -> bytes:
        flags = self.driver.flags
        out = io.BytesIO()
        if flags.emit_bytecode:
            module.operation.write_bytecode(out)
            return out.getvalue()
        module.operation.print(
            file=out,
            binary=True,
            large_elements_limit=flags.mlir_elide_elementsattrs_if_larger,
            large_resource_limit=flags.mlir_elide_resource_strings_if_larger,
            enable_debug_info=flags.mlir_print_debuginfo or flags.mlir_pretty_debuginfo,
            pretty_debug_info=flags.mlir_pretty_debuginfo,
            print_generic_op_form=flags.mlir_print_op_generic,
            use_local_scope=flags.mlir_print_local_scope,
            use_name_loc_as_prefix=flags.mlir_use_nameloc_as_prefix,
        )
        return out.getvalue() if out.getvalue().endswith(b"\n") else out.getvalue() + b"\n"

    def _report(self, item: Diagnostic) -> None:
        """Keep a diagnostic; show it unless comments are to be checked."""
        self.reported.append(item)
        if self.driver.flags.verify_diagnostics is None:
            self._show(item)

    def _show(self, item: Diagnostic) -> None:
        lines = [""] * self.chunk.line_offset + self.chunk.text.splitlines()
        sources = {} if item.position is None else {self.driver.name: lines}
        self.driver._say(diagnostics.render(self._placed(item), sources))

    def _placed(self, item: Diagnostic) -> Diagnostic:
        """Place a diagnostic without a known place at the beginning of this part of the file."""
        position = item.position or Position(self.driver.name, self.chunk.line_offset + 1, 1)
        return replace(item, position=position, notes=tuple(map(self._placed, item.notes)))

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def _located(error: PycError, name: str) -> Diagnostic:
    """Return a pass's refusal as a diagnostic at the op's location, if the message has one.

    MLIR calls text without a file name "-"; for people that is `name`.
    """
    match = _LOCATED.match(error.message)
    if match is None:
        return Diagnostic("error", str(error))
    file = name if match["file"] == "-" else match["file"]
    position = Position(file, int(match["line"]), int(match["column"]))
    return Diagnostic("error", f"{match['rest']} [{error.code.name}]", position)


@contextmanager
def _native_words_dropped() -> Iterator[None]:
    """Drop what native option parsers print to standard error; `resolve` reports it better."""
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
