"""The command line of `pyc-opt`: one field a flag; parsing and help come from the fields.

A flag that is not a field but the name of a pass adds that pass, as in mlir-opt
(``--cse --canonicalize='max-iterations=3'``). One dash or two; ``--flag=value`` or
``--flag value``. Needs no MLIR.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, get_type_hints

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.policies import DEFAULT_MODE
from pyc_mlir.pipelines.driver.registry import NATIVE_PASSES, PASSES
from pyc_mlir.pipelines.text.input_text import SPLIT_MARKER, regex_fault

_BOOLEANS = {"": True, "true": True, "1": True, "false": False, "0": False}


def _flag(default: Any, help: str, metavar: str = "", name: str = "", bare: Any = None) -> Any:
    """Declare a flag; `bare` is its meaning without a value, if a value is optional."""
    metadata = {"help": help, "metavar": metavar, "name": name, "bare": bare}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class OptFlags:
    """The parsed command line."""

    pass_pipeline: str | None = _flag(None, "the passes to run, e.g. builtin.module(cse)", "TEXT")
    output: str = _flag("-", "write to FILE ('-': standard output)", "FILE", name="o")
    list_passes: bool = _flag(False, "print the passes with their options, and exit")
    show_dialects: bool = _flag(False, "print the dialects, and exit")
    dump_pass_pipeline: bool = _flag(False, "print the pipeline to standard error before it runs")
    help: bool = _flag(False, "print this text, and exit")
    version: bool = _flag(False, "print PyC's version, and exit")

    split_input_file: str | None = _flag(
        None, "process the parts between '// -----' lines (or MARKER) one by one", "MARKER",
        bare=SPLIT_MARKER,
    )  # fmt: skip
    verify_diagnostics: str | None = _flag(
        None, "check diagnostics against expected-error comments: all (the default of a bare "
        "flag), or only-expected", "LEVEL", bare="all",
    )  # fmt: skip
    verify_each: bool = _flag(True, "verify the module after each pass")
    verify_rewrites: bool = _flag(
        False, "prove what PyC's passes rewrite; report what differs or is not proved"
    )
    verify_roundtrip: bool = _flag(False, "check that text and bytecode read back the same module")
    allow_unregistered_dialect: bool = _flag(False, "accept ops of unknown dialects")
    no_implicit_module: bool = _flag(False, "do not wrap the input in a module")
    emit_bytecode: bool = _flag(False, "write bytecode")

    mlir_print_debuginfo: bool = _flag(False, "print locations")
    mlir_pretty_debuginfo: bool = _flag(False, "print locations for reading, not for parsing")
    mlir_print_op_generic: bool = _flag(False, "print every op in its generic form")
    mlir_print_local_scope: bool = _flag(False, "print without aliases")
    mlir_use_nameloc_as_prefix: bool = _flag(False, "name values after their name locations")
    mlir_elide_elementsattrs_if_larger: int | None = _flag(
        None, "print '...' for constants of more than N elements", "N"
    )
    mlir_elide_resource_strings_if_larger: int | None = _flag(
        None, "print '...' for resources of more than N characters", "N"
    )

    mlir_print_ir_before: tuple[str, ...] = _flag((), "print the IR before these passes", "PASS,..")
    mlir_print_ir_after: tuple[str, ...] = _flag((), "print the IR after these passes", "PASS,..")
    mlir_print_ir_before_all: bool = _flag(False, "print the IR before each pass")
    mlir_print_ir_after_all: bool = _flag(False, "print the IR after each pass")
    mlir_print_ir_after_change: bool = _flag(False, "after passes, print only IR that changed")
    mlir_print_ir_after_failure: bool = _flag(False, "after passes, print only when one failed")
    mlir_print_ir_module_scope: bool = _flag(False, "always print the whole module")
    mlir_print_ir_tree_dir: str | None = _flag(None, "print to files under DIR", "DIR")

    mlir_disable_threading: bool = _flag(
        False, "accepted for compatibility with mlir-opt; passes always run in one thread"
    )
    mlir_timing: bool = _flag(False, "report wall time per pass")
    mlir_pass_statistics: bool = _flag(False, "report the statistics of each PyC pass")
    mlir_pass_pipeline_crash_reproducer: str | None = _flag(
        None, "write a reproducer to FILE when a pass fails or crashes", "FILE"
    )
    run_reproducer: bool = _flag(False, "the input is a reproducer: run the pipeline in it")
    remarks_filter: str | None = _flag(
        None, "report decisions of the PyC passes whose name matches REGEX as remarks", "REGEX"
    )
    pyc_log: str | None = _flag(None, "write the decisions as JSON lines", "FILE")
    pyc_recipe: str | None = _flag(None, "repeat the choices of this log", "FILE")
    pyc_target: str = _flag("cpu", "the target of passes without a target option", "NAME")
    pyc_mode: str = _flag(
        DEFAULT_MODE, "the planner mode of passes without a mode option; iree: IREE plans the "
        "memory", "MODE",
    )  # fmt: skip
    pyc_calibration: str | None = _flag(None, "use measured figures of the target's CPU", "FILE")

    input: str = "-"
    passes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ToolOutcome:
    """The outcome of a run: the exit status, and the bytes for the output file."""

    status: int
    output: bytes


def _flags() -> dict[str, Field]:
    return {
        f.metadata["name"] or f.name.replace("_", "-"): f for f in fields(OptFlags) if f.metadata
    }


def flag_names() -> list[str]:
    """Return the flags with long names, without dashes."""
    return [name for name in _flags() if len(name) > 1]


def parse_flags(argv: Sequence[str]) -> OptFlags:
    """Read a command line (without the program's name).

    Raises PycError BAD_ARGUMENT for unknown flags and values of the wrong kind.
    """
    known, hints = _flags(), get_type_hints(OptFlags)
    values: dict[str, Any] = {}
    passes: list[tuple[str, str]] = []
    inputs: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "-" or not word.startswith("-"):
            inputs.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = {"h": "help"}.get(name, name)
        if name in known:
            spec = known[name]
            given = value if equals else _default_value(spec, hints[spec.name], name, rest)
            values[spec.name] = _read(hints[spec.name], given, name, values.get(spec.name, ()))
        elif name in NATIVE_PASSES or name in PASSES:
            passes.append((name, value))
        else:
            hint = did_you_mean(name, [*known, *PASSES, *NATIVE_PASSES]).replace("'", "'--", 1)
            raise _error(f"{word}: expected a flag or a pass{hint or '; see --help'}")
    if len(inputs) > 1:
        raise _error(f"expected one input file, got {', '.join(inputs)}")
    flags = replace(OptFlags(input=(inputs or ["-"])[0], passes=tuple(passes)), **values)
    _check(flags)
    return flags


def _default_value(spec: Field, hint: Any, name: str, rest: list[str]) -> str:
    """Return the value of a flag without '='."""
    if hint is bool:
        return ""
    if spec.metadata["bare"] is not None:
        return spec.metadata["bare"]
    if not rest:
        raise _error(f"--{name}: expected {spec.metadata['metavar']}, got the end of the line")
    return rest.pop(0)


def _read(hint: Any, text: str, name: str, before: Any) -> Any:
    if hint is bool:
        if text.lower() not in _BOOLEANS:
            raise _error(f"--{name}: expected true or false, got {text!r}")
        return _BOOLEANS[text.lower()]
    if hint == int | None:
        if not text.isdigit():
            raise _error(f"--{name}: expected a number, got {text!r}")
        return int(text)
    if hint == tuple[str, ...]:
        return (*before, *(part for part in text.split(",") if part))
    return text


def _check(flags: OptFlags) -> None:
    """Refuse what contradicts itself."""
    if flags.pass_pipeline is not None and flags.passes:
        raise _error("expected --pass-pipeline or passes as flags, got both")
    if flags.run_reproducer and (flags.passes or flags.pass_pipeline is not None):
        raise _error(
            "--run-reproducer: expected no passes, got some; the reproducer names its passes"
        )
    if flags.verify_diagnostics not in (None, "all", "only-expected"):
        raise _error(
            f"--verify-diagnostics: expected all or only-expected, got {flags.verify_diagnostics!r}"
        )
    if flags.emit_bytecode and flags.split_input_file is not None:
        raise _error("--emit-bytecode: expected one module, got --split-input-file")
    if fault := regex_fault(flags.remarks_filter or ""):
        raise _error(f"--remarks-filter: expected a regular expression, got {fault}")
    for name in (*flags.mlir_print_ir_before, *flags.mlir_print_ir_after):
        if name not in NATIVE_PASSES and name not in PASSES:
            hint = did_you_mean(name, [*PASSES, *NATIVE_PASSES])
            raise _error(f"--mlir-print-ir-before/after: expected a pass, got '{name}'{hint}")


def _error(message: str) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, message)


def help_text() -> str:
    """Write the text of ``--help``."""
    lines = [
        "usage: pyc-opt [flags] [passes] [FILE | -]",
        "",
        "Read a module (text or bytecode), run passes on it, print it.",
        "Passes are given in order as flags (--cse --canonicalize='max-iterations=3'; "
        "--list-passes names them) or as one --pass-pipeline.",
        "Exit status: 0 done; 1 the input or a pass failed; 2 the command line cannot be read; "
        "70 a crash, with a reproducer.",
        "",
        "flags:",
    ]
    for name, spec in _flags().items():
        metavar = spec.metadata["metavar"]
        value = f"[={metavar}]" if spec.metadata["bare"] else f"={metavar}" if metavar else ""
        dashes = "-" if len(name) == 1 else "--"
        lines.append(f"  {dashes}{name}{value}")
        lines += textwrap.wrap(
            spec.metadata["help"], 92, initial_indent=" " * 6, subsequent_indent=" " * 6
        )
    return "\n".join(lines) + "\n"
