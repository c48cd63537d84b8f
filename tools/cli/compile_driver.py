"""The driver of `pyc-compile`: from its flags to its output."""

import argparse
import os
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from pyc_mlir.api import build, notices
from pyc_mlir.artifact.artifact import Artifact, to_bytes
from pyc_mlir.artifact.compile_log import head_of, read_compile_log, refusal_of
from pyc_mlir.artifact.contract_status import Counts, current_report
from pyc_mlir.artifact.manifest import MAIN
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.artifact.verification import CacheRecord, SelfCheck
from pyc_mlir.cache.cache import choose
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import EMITTED, IMPORTED, emit, lower
from pyc_mlir.compilation.options import Options, resolve
from pyc_mlir.debug.replay import replay
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.codec import from_data
from pyc_mlir.frontends.sources import allow_bytecode
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.lab.explore.policy import Explore
from pyc_mlir.pipelines.choices.choices import Coverage, coverage
from pyc_mlir.pipelines.choices.contract import Contract, uncheckable
from pyc_mlir.pipelines.choices.evidence import Computes, EstimatedSeconds
from pyc_mlir.pipelines.choices.log import Conditions, Event, Listed, NodeNames, Record, write_log
from pyc_mlir.tools.cli import guarded
from pyc_mlir.tools.cli.common import Progress, refusal
from pyc_mlir.tools.cli.contract_flags import read_contract
from pyc_mlir.tools.cli.exploring import with_measured
from pyc_mlir.tools.cli.model_source import (
    InputShape,
    read_model,
    with_shapes,
    with_shapes_of,
)
from pyc_mlir.tools.cli.option_flags import read_options
from pyc_mlir.tools.cli.run_inputs import example
from pyc_mlir.tools.cli.sizes import ChosenSizes
from pyc_mlir.util.units import quantity


@dataclass(frozen=True)
class Output:
    """The bytes to write, the decisions, and (for a program) its summary."""

    data: bytes
    records: tuple[Record, ...]
    names: NodeNames | None = None
    summary: str = ""
    contract_report: str = ""


def run(
    flags: argparse.Namespace, progress: Progress, stdin: BinaryIO, began: float | None = None
) -> Output:
    """Compile as far as the flags request; the log is written in any case. Raises PycError.

    began: the Unix time from which a limit of the compile counts; None: from now on.
    """
    began = time.time() if began is None else began
    contract = Contract()
    try:
        contract = read_contract(flags)
        output = _compiled(flags, contract, progress, stdin, began)
    except Exception as error:
        if flags.log is not None:
            # What refused the compile is what the user has to know of, not also a bad log.
            with suppress(PycError):
                write_log((refusal_of(refusal(error), contract),), flags.log)
        raise
    if flags.log is not None:
        write_log(output.records, flags.log)
    return output


def _compiled(
    flags: argparse.Namespace,
    contract: Contract,
    progress: Progress,
    stdin: BinaryIO,
    began: float,
) -> Output:
    """Compile under the options of the flags. Raises PycError."""
    shapes = [InputShape.parse(text) for text in flags.input]
    if flags.replay is not None:
        return _replayed(flags, shapes, progress, stdin)
    given = read_options(flags, contract)
    options = resolve(given)
    makes_text = flags.emit in EMITTED or flags.compile_to
    if makes_text and options.contract.max_compile_seconds is not None:
        raise uncheckable("max_compile_seconds", "a program to be made", "text")
    if guarded.in_child:
        allow_bytecode()
    with progress.stage(f"reading {flags.model}"):
        reading = options.islands, options.function, options.outputs
        model = read_model(flags.model, stdin, *reading)
        source, inputs = with_shapes(model, shapes)
    if flags.emit in EMITTED:
        done = "PyC imports" if flags.emit == IMPORTED else f"PyC lowers to {flags.emit}"
        with progress.stage(done):
            text, decisions = emit(Job.of(source, inputs, options), flags.emit)
        return Output(text.encode(), decisions)
    if flags.compile_to:
        return _to_phase(flags.compile_to, source, inputs, options, progress)
    options = with_measured(flags, source, inputs, given, options, progress)
    cache = choose(_cache_asked(flags), os.environ)
    spent = max(0.0, time.time() - began)
    artifact = build(source, inputs, options, progress.stage, cache, flags.untrusted, spent)
    return _program(artifact, flags.output, progress, notices(artifact, options))


def _cache_asked(flags: argparse.Namespace) -> bool | str | None:
    """Return the cache for `choose`; none for a log: only a compile knows places in the source."""
    if flags.cache_dir is not None:
        return flags.cache_dir
    return False if flags.cache is None and flags.log is not None else flags.cache


def _program(
    artifact: Artifact, path: str, progress: Progress, left_out: Sequence[Event] = ()
) -> Output:
    """Return a program with its log: the conditions first, the cache's event last."""
    data = to_bytes(artifact)
    events = () if artifact.cached is None else (artifact.cached.event,)
    checked = () if (check := check_of(artifact)) is None else (check.event,)
    log = (head_of(artifact, data), *artifact.decisions, *left_out, *events, *checked)
    text = summary(path, len(data), artifact, progress.seconds)
    return Output(data, log, artifact.names, text, contract_report(artifact))


def _replayed(
    flags: argparse.Namespace, shapes: Sequence[InputShape], progress: Progress, stdin: BinaryIO
) -> Output:
    """Make the program of a log or of another program again."""
    recorded = read_compile_log(flags.replay)
    with progress.stage(f"reading {flags.model}"):
        model = read_model(flags.model, stdin, *recorded.reading)
        source, inputs = with_shapes_of(model, recorded.signature, shapes)
    artifact = replay(
        source,
        inputs,
        recorded,
        calibration=flags.calibration,
        iree_flags=flags.iree_flags,
        stage=progress.stage,
    )
    return _program(artifact, flags.output, progress)


def _to_phase(
    phase: str, source: Any, inputs: Sequence[Any] | None, options: Options, progress: Progress
) -> Output:
    """Write IREE's IR at a phase."""
    with progress.stage("PyC lowers to linalg"):
        lowered = lower(Job.of(source, inputs, options))
    with progress.stage(f"IREE compiles for {options.target.name} to phase {phase}"):
        data = compile_module(
            lowered.code,
            options.target,
            options.iree_flags,
            phase,
            options.dump_phases,
            lowered.locations,
        )
    return Output(data, lowered.decisions)


def summary(path: str, size: int, artifact: Artifact, seconds: float) -> str:
    """Summarize the program, and how to run it."""
    manifest, signature = artifact.manifest, artifact.signature
    constants = artifact.account.constants
    part = f" ({quantity(constants, 'B')} of it constants)" if constants else ""
    place = "program.vmfb" if path == "-" else path
    used = coverage(artifact.decisions)
    rows = [
        ("inputs", _arguments(signature.inputs)),
        ("outputs", _arguments(signature.outputs)),
        ("memory", artifact.memory_line),
        *([] if (time := artifact.prediction) is None else [("time", str(time))]),
        *([("cache", cache_line(artifact.cached))] if artifact.cached else []),
        *([("self-check", str(check))] if (check := check_of(artifact)) else []),
        ("decisions", f"{len(artifact.decisions)} (-v shows them, --log FILE writes them)"),
        *([("recipe", str(used))] if used != Coverage() else []),
        *([("explored", explored)] if (explored := explored_line(artifact)) else []),
        ("run it", run_command(place, signature)),
        ("with IREE", iree_command(place, artifact)),
    ]
    head = (
        f"{place}: {quantity(size, 'B')}{part} for target {manifest.target}, "
        f"in {quantity(seconds, 's')}\n"
    )
    return head + "".join(f"  {name:<10} {text}\n" for name, text in rows)


def check_of(artifact: Artifact) -> SelfCheck | None:
    """Return the comparison with the references; None if a contract compares the program."""
    return None if artifact.checks is None else artifact.checks.check


def explored_line(artifact: Artifact) -> str:
    """Describe the grounds of the policy `explore`; nothing under another policy."""
    explored = (d for d in artifact.decisions if d.decided_by == Explore.name)
    estimates = [e.measured for d in explored for e in d.grounds if isinstance(e, EstimatedSeconds)]
    measured, predicted = estimates.count(True), estimates.count(False)
    if not estimates:
        return ""
    evidence_text = f"{measured} kernels by measured rows, {predicted} by predictions"
    return (
        f"{evidence_text} (`pyc-tune profile MODEL` measures them)" if predicted else evidence_text
    )


def contract_report(artifact: Artifact) -> str:
    """Write a line for each clause of the contract; nothing without one."""
    verification = None if artifact.checks is None else artifact.checks.verification
    report = current_report(artifact, Counts(verification))
    return f"contract\n{textwrap.indent(str(report), '  ')}" if report.clauses else ""


def cache_line(record: CacheRecord) -> str:
    """``hit 0cf0b4480cf0b448``, or ``miss ...`` with the reasons."""
    return "; ".join([f"{record.outcome} {record.key[:16]}".strip(), *map(str, record.events)])


def run_command(path: str, signature: Signature) -> str:
    """Return a command that runs the program on random inputs; dynamic dimensions are small."""
    shapes = {a.name: example(a, signature.ranges) for a in signature.inputs}
    inputs = (f" --input {name}={shape}=@seed:0" for name, shape in shapes.items())
    return f"pyc-run {path}{''.join(inputs)}"


def iree_command(path: str, artifact: Artifact) -> str:
    """Return a command of IREE's own tool that runs the program on ones."""
    manifest = artifact.manifest
    device = "local-task" if manifest.device == "local" else manifest.device
    signature = artifact.signature
    inputs = (f" --input={example(a, signature.ranges)}=1" for a in signature.inputs)
    function = manifest.entries[MAIN].function
    return f"iree-run-module --module={path} --device={device} --function={function}" + "".join(
        inputs
    )


def _arguments(arguments: Sequence[SignatureEntry]) -> str:
    return ", ".join(f"{a.name}: {a}" for a in arguments) or "none"


def details(output: Output, stages: Sequence[tuple[str, float]]) -> str:
    """Write stages with their times, then each decision on a line."""
    lines = [f"{quantity(seconds, 's'):>9}  {title}" for title, seconds in stages]
    heads = [r for r in output.records if isinstance(r, Conditions)]
    sizes = ChosenSizes.none(from_data(Signature, heads[0].values["signature"]) if heads else None)
    for d in output.records:
        if not isinstance(d, Conditions):
            lines.append(sizes.readable(f"{d.site.pass_name}: {describe(d)}"))
    return "".join(f"{line}\n" for line in lines)


def describe(decision: Listed) -> str:
    """``op (node): chosen (not a, b; saves 12 KiB of traffic)``."""
    others = [a.name for a in decision.alternatives if a.name != decision.chosen]
    saved = traffic_saved(decision)
    notes = [f"not {', '.join(others)}"] if others else []
    notes += [f"saves {quantity(saved, 'B')} of traffic"] if saved else []
    # Ids of ops are for tools, which read the log.
    notes += [str(fact) for fact in decision.facts if not isinstance(fact, Computes)]
    aside = f" ({'; '.join(notes)})" if notes else ""
    names = ", ".join(decision.site.nodes)
    return f"{decision.site.op_id}{f' ({names})' if names else ''}: {decision.chosen}{aside}"


def traffic_saved(decision: Listed) -> int | None:
    """Predict the bytes saved against the costliest alternative; None: unknown."""
    costs = {a.name: a.cost for a in decision.alternatives}
    known = [cost.traffic_bytes for cost in costs.values() if cost is not None]
    chosen = costs[decision.chosen]
    if chosen is None or len(known) < len(costs):
        return None
    return max(known) - chosen.traffic_bytes
