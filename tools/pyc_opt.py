"""`pyc-opt`: read a module, run passes, print it; mlir-opt's command line with PyC's passes.

The work runs in a forked child: a crash in native code, or a bug of ours, becomes exit status 70
and a reproducer file.
"""

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence

from pyc_mlir.dialects.errors import PycError, ReasonCode, missing_compiler, out_of_memory
from pyc_mlir.dialects.printable import shown_streams
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.pipelines.driver.pipeline_text import (
    Reproducer,
    parse_pipeline,
    read_reproducer,
    write_reproducer,
)
from pyc_mlir.pipelines.driver.pipeline_text import parse_flags as parse_pass_flags
from pyc_mlir.pipelines.driver.registry import NATIVE_PASSES, PASSES
from pyc_mlir.pipelines.text.input_text import BYTECODE_MAGIC, split
from pyc_mlir.tools.cli.guarded import Crash, limited_memory, run_guarded
from pyc_mlir.tools.cli.opt_flags import OptFlags, ToolOutcome, flag_names, help_text, parse_flags
from pyc_mlir.util.logs import configure


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused or failed, 2 usage, 70 crashed)."""
    with shown_streams():
        return _main(sys.argv[1:] if argv is None else argv)


def _main(argv: Sequence[str]) -> int:
    try:
        flags = parse_flags(argv)
    except PycError as error:
        print(f"pyc-opt: error: {error}", file=sys.stderr)
        return 2
    try:
        configure(os.environ)
        if flags.help or flags.version:
            print(help_text() if flags.help else _version(), end="")
            return 0
        if flags.list_passes or flags.show_dialects:
            data = b""
        else:
            data = sys.stdin.buffer.read() if flags.input == "-" else read_file(flags.input)
    except PycError as error:
        print(f"pyc-opt: error: {error}", file=sys.stderr)
        return 1
    try:
        ended = run_guarded(lambda progress: _work_told(flags, data, progress))
    except KeyboardInterrupt:
        return 130
    if isinstance(ended, Crash):
        if (memory := limited_memory(ended)) is not None:
            print(f"pyc-opt: error: {memory}", file=sys.stderr)
            return 1
        _report_crash(ended, flags, data, argv)
        return 70
    return ended


def words() -> list[str]:
    """Return the words that a shell may complete: flags and passes."""
    return sorted(f"--{name}" for name in (*flag_names(), *PASSES, *NATIVE_PASSES))


def _version() -> str:
    from importlib.metadata import version  # 20 ms that other runs need not pay

    return f"pyc-opt {version('pyc-mlir')} (MLIR of torch-mlir {version('torch-mlir')})\n"


def _work(flags: OptFlags, data: bytes, progress: Callable[[int], None]) -> int:
    """Run the child's part. MLIR is imported here: the parent must stay free of threads."""
    try:
        from pyc_mlir.tools.cli import opt_driver
    except ModuleNotFoundError as error:
        known = missing_compiler(error)
        if known is None:
            raise
        print(f"pyc-opt: error: {known}", file=sys.stderr)
        return 1

    if flags.list_passes or flags.show_dialects:
        return _write(flags, ToolOutcome(0, opt_driver.listing(flags).encode()))
    return _write(flags, opt_driver.OptDriver(flags, data, sys.stderr, progress).run())


def _work_told(flags: OptFlags, data: bytes, progress: Callable[[int], None]) -> int:
    """Run `_work`; report what is the user's, exhausted memory too."""
    try:
        return _work(flags, data, progress)
    except Exception as error:
        known = error if isinstance(error, PycError) else out_of_memory(error)
        if known is None:
            raise
        print(f"pyc-opt: error: {known}", file=sys.stderr)
        return 1


def _write(flags: OptFlags, outcome: ToolOutcome) -> int:
    """Put the output where it belongs; a file is written only when everything went well."""
    try:
        if flags.output != "-":
            if outcome.status == 0:
                write_file(flags.output, outcome.output)
        elif flags.emit_bytecode and sys.stdout.isatty():
            print("pyc-opt: error: bytecode is not for terminals; use -o FILE", file=sys.stderr)
            return 1
        else:
            sys.stdout.buffer.write(outcome.output)
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except PycError as error:
        print(f"pyc-opt: error: {error}", file=sys.stderr)
        return 1
    return outcome.status


def _report_crash(crash: Crash, flags: OptFlags, data: bytes, argv: Sequence[str]) -> None:
    """Save a reproducer of the crash and report its path."""
    code = f" [{ReasonCode.NATIVE_CRASH.name}]" if crash.is_signal else "; please report this bug"
    print(f"pyc-opt: error: {crash.reason}{code}", file=sys.stderr)
    if flags.list_passes or flags.show_dialects:
        return
    contents, suffix = _crash_input(crash, flags, data, argv)
    path = flags.mlir_pass_pipeline_crash_reproducer
    if path is None:
        handle, path = tempfile.mkstemp(prefix="pyc-opt-", suffix=suffix)
        os.close(handle)
    try:
        write_file(path, contents)
    except PycError as error:
        print(f"pyc-opt: error: no reproducer: {error}", file=sys.stderr)
        return
    print(f"pyc-opt: note: reproducer generated at `{path}`", file=sys.stderr)
    if suffix == ".mlirbc":
        print(f"pyc-opt: note: rerun: pyc-opt {shlex.join(argv)}", file=sys.stderr)


def _crash_input(
    crash: Crash, flags: OptFlags, data: bytes, argv: Sequence[str]
) -> tuple[bytes, str]:
    """Return the reproducer's contents and file suffix: bytecode, or text with its pipeline."""
    if data.startswith(BYTECODE_MAGIC):
        return data, ".mlirbc"
    text = data.decode(errors="replace")
    pipeline = _pipeline_text(flags, text)
    if flags.split_input_file is not None:
        text = split(text, flags.split_input_file)[crash.progress].text
    command = f"pyc-opt {shlex.join(argv)}"
    wanted = Reproducer(pipeline, flags.verify_each)
    return write_reproducer(text, wanted, command).encode(), ".mlir"


def _pipeline_text(flags: OptFlags, text: str) -> str:
    """Return the requested pipeline; as typed if it does not even parse."""
    if flags.run_reproducer:
        stored = read_reproducer(text)
        return stored.pipeline if stored else ""
    if flags.pass_pipeline is None:
        return str(parse_pass_flags(flags.passes))
    try:
        return str(parse_pipeline(flags.pass_pipeline))
    except PycError:
        return flags.pass_pipeline
