"""One compile by IREE, in this process: parse, run to a phase or run passes, output.

IREE's Python API lacks the phase setters and the diagnostics callback, although its shared
library exports them (`iree/compiler/embedding_api.h`); this module binds them through ctypes.
Diagnostics become records; only a misspelt pass name still reaches the console.

Facts kept here so that callers need not know them: an op of an unregistered dialect would end the
process, so the context refuses it while parsing; a pass pipeline wrapped in
``builtin.module(...)`` would be a silent no-op, so it is refused; a phase name that IREE does not
know would be ignored, so it is refused too; IREE's bindings never free a context or a module that
they were handed, so both are made theirs.
"""

import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

import iree.compiler.api as api
from iree.compiler import ir
from iree.compiler.api import ctypes_dl

from pyc_mlir.dialects.errors import ErrorFields, PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.util.files import make_folder
from pyc_mlir.dialects.util.suggestions import did_you_mean

PHASES = (
    "start",
    "input",
    "abi",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "stream",
    "executable-sources",
    "executable-configurations",
    "executable-targets",
    "hal",
    "vm",
    "end",
)
_SEVERITIES = ("note", "warning", "error", "remark")
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def _bind_library() -> Any:
    """Declare the functions of IREE's embedding API that its Python package leaves out."""
    library = ctypes_dl._dylib
    for name in ("SetCompileFromPhase", "SetCompileToPhase", "SetDumpCompilationPhasesTo"):
        function = getattr(library, f"ireeCompilerInvocation{name}")
        function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        function.restype = None
    library.ireeCompilerInvocationSetVerifyIR.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    enable = library.ireeCompilerInvocationEnableCallbackDiagnostics
    enable.argtypes = [ctypes.c_void_p, ctypes.c_int, _CALLBACK, ctypes.c_void_p]
    enable.restype = None
    return library


_LIBRARY = _bind_library()


def _bind_set_state() -> Any:
    """nanobind's ``inst_set_state(object, ready, destruct)``, as the bindings of IREE link it."""
    bindings = import_module("iree.compiler._mlir_libs._mlir").__file__
    function = ctypes.PyDLL(bindings)._ZN8nanobind6detail17nb_inst_set_stateEP7_objectbb
    function.argtypes = [ctypes.py_object, ctypes.c_bool, ctypes.c_bool]
    function.restype = None
    return function


_SET_STATE = _bind_set_state()


def _own(context: ir.Context) -> None:
    """Make the death of `context` free what it stands for.

    The bindings take a context over from a session (`PyMlirContext::createFromCapsule`), but make
    the Python object a mere view of it, so that about 3.7 MB would outlive each compile. Every
    operation, type and attribute keeps that object alive: none outlives its context.
    """
    _SET_STATE(context, True, True)


class _Threads:
    """The threads of IREE's compiler: `started` by this process, `lost` by a fork."""

    started = lost = False


def _lose_threads() -> None:
    """Give up threads in a forked child: IREE would wait for the parent's, at its exit too."""
    if _Threads.started:
        _Threads.lost = True
        ctypes_dl._global_init.local_dylib = None


os.register_at_fork(after_in_child=_lose_threads)


@dataclass(frozen=True)
class IreeDiagnostic:
    """A diagnostic of IREE: `severity`, `message`, the `location` in MLIR's notation, and notes."""

    severity: str
    message: str
    location: str = ""
    notes: tuple[str, ...] = ()

    @staticmethod
    def parse(severity: int, text: str) -> "IreeDiagnostic":
        """Split IREE's formatted text: ``location: message``, then notes after blank lines."""
        first, *notes = text.split("\n\n")
        location, message = (one_line(part.strip()) for part in _split_location(first))
        name = _SEVERITIES[severity] if severity < len(_SEVERITIES) else "error"
        return IreeDiagnostic(name, message, location, tuple(n.strip() for n in notes))

    def __str__(self) -> str:
        return f"{self.location}: {self.message}" if self.location else self.message


def _split_location(text: str) -> tuple[str, str]:
    """Split ``loc(...): message`` or ``file:line:column: message``."""
    if text.startswith("loc("):
        depth = 0
        for index, letter in enumerate(text):
            depth += (letter == "(") - (letter == ")")
            if depth == 0 and letter == ")":
                return text[: index + 1], text[index + 1 :].removeprefix(":")
    found = re.match(r"[^\n]*?:\d+:\d+(?=: )", text)
    return (found[0], text[found.end() + 1 :]) if found else ("", text)


class CompileError(PycError):
    """The error of a module that IREE refused; `diagnostics` holds all that it said, in order."""

    def __init__(
        self,
        code: ReasonCode,
        text: str = "",
        diagnostics: Sequence[IreeDiagnostic] = (),
        **fields: Unpack[ErrorFields],
    ) -> None:
        super().__init__(code, text, **fields)
        self.diagnostics = tuple(diagnostics)


class IreeSession:
    """A module under IREE's compiler. Use it as a context manager; not shared between threads.

    Several sessions may compile at once in different threads: each has its own MLIR context.
    """

    def __init__(self, flags: Sequence[str] = (), verify: bool = True) -> None:
        """Open a session.

        verify: whether the IR is verified after each pass, which takes as long as the passes do.
        Raises PycError: BAD_ARGUMENT for a flag that IREE refuses, FORKED_CHILD.
        """
        if _Threads.lost:
            raise PycError(
                ReasonCode.FORKED_CHILD,
                "compile: expected a process that was not forked from one that has compiled, got "
                "a forked child, where the compiler's threads do not run; start children with "
                "`spawn`, or compile in a process of its own: "
                "`Contract(max_compile_seconds=...)`",
            )
        _Threads.started = True
        self.diagnostics: list[IreeDiagnostic] = []
        self._callback: Any = _CALLBACK(self._collect)
        self._session = api.Session()
        try:
            self._session.set_flags(*flags)
        except ValueError as error:
            self._session.close()
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                "IREE flags: expected flags that an IREE session knows, got: "
                f"{' '.join(str(error).split())}; see `iree-compile --help`",
            ) from None
        _own(self._session.context)
        self._verify = verify
        self._session.context.allow_unregistered_dialects = False
        self._invocation: Any = None
        self._module: Any = None
        self._dump_folder: Path | None = None

    def __enter__(self) -> "IreeSession":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the module and the session; the context too, unless others hold parts of it."""
        self._module = self._invocation = None
        # Closes the invocations first; these are what IREE calls back for.
        self._session.close()
        self._session._owned_context = None
        self._callback = None

    @property
    def module(self) -> Any:
        """The module's operation (`iree.compiler.ir.Operation`), which passes edit in place."""
        assert self._module is not None, "parse a module first"
        return self._module

    @property
    def context(self) -> Any:
        """The MLIR context of the session."""
        return self._session.context

    def parse(self, source: bytes, name: str = "source.mlir") -> None:
        """Take MLIR text or bytecode, `name` in locations.

        Raises CompileError (INVALID_IR), and PycError as `check_calls`.
        """
        reader = self._new_invocation()
        buffer = api.Source.wrap_buffer(self._session, source, buffer_name=name)
        if not reader.parse_source(buffer):
            raise self._failure(ReasonCode.INVALID_IR, "module", "IR that IREE can read")
        module = reader.export_module()
        # The bindings free only modules that they know to have no parent.
        module.detach_from_parent()
        check_calls(module)
        self.use(module)

    def use(self, module: Any) -> None:
        """Go on with `module`, an operation of this session's context: a clone of `module`, say.

        What was in use before stays valid as long as its owner keeps it.
        """
        if self._invocation is not None:
            self._invocation.close()
        self._module = module
        self._invocation = self._new_invocation()
        self._invocation.import_module(module)
        if self._dump_folder is not None:
            self.dump_phases(self._dump_folder)

    def dump_phases(self, folder: Path) -> None:
        """Write the IR at the end of each phase that `run` passes, one file a phase.

        Raises PycError (FILE_ACCESS).
        """
        self._dump_folder = make_folder(folder)
        _LIBRARY.ireeCompilerInvocationSetDumpCompilationPhasesTo(
            self._invocation._inv_p, str(folder).encode()
        )

    def run(self, to: str = "end", start: str = "start") -> None:
        """Run IREE's pipeline from the phase `start` to the end of the phase `to`.

        Raises PycError (BAD_ARGUMENT) for an unknown phase, CompileError
        (TARGET_COMPILE_FAILED) when a phase fails.
        """
        for phase in (start, to):
            check_phase(phase)
        pointer = self._invocation._inv_p
        _LIBRARY.ireeCompilerInvocationSetCompileFromPhase(pointer, start.encode())
        _LIBRARY.ireeCompilerInvocationSetCompileToPhase(pointer, to.encode())
        if not self._invocation.execute():
            raise self._failure(
                ReasonCode.TARGET_COMPILE_FAILED, f"phases {start}..{to}", "to compile"
            )

    def run_passes(self, pipeline: str) -> None:
        """Run passes on the module: ``pass-a,func.func(pass-b)``, without the module around it.

        Raises PycError (INVALID_PIPELINE) for a wrapped pipeline, CompileError (PASS_FAILED).
        """
        if pipeline.lstrip().startswith("builtin.module"):
            raise PycError(
                ReasonCode.INVALID_PIPELINE,
                "IREE pipeline: expected passes without `builtin.module(...)` around them "
                f"(IREE would run none), got {pipeline!r}",
            )
        if not self._invocation.execute_text_pass_pipeline(pipeline):
            raise self._failure(ReasonCode.PASS_FAILED, f"passes {pipeline}", "to run")

    def text(self) -> bytes:
        """Return the module as MLIR text (UTF-8)."""
        return self._output(lambda out: self._invocation.output_ir(out)).rstrip(b"\0")

    def bytecode(self) -> bytes:
        """Return the module as MLIR bytecode."""
        return self._output(lambda out: self._invocation.output_ir_bytecode(out))

    def vmfb(self) -> bytes:
        """Return the compiled program. `run` must have reached the end."""
        return self._output(lambda out: self._invocation.output_vm_bytecode(out))

    def _new_invocation(self) -> Any:
        invocation = self._session.invocation()
        _LIBRARY.ireeCompilerInvocationEnableCallbackDiagnostics(
            invocation._inv_p, 0, self._callback, None
        )
        _LIBRARY.ireeCompilerInvocationSetVerifyIR(invocation._inv_p, self._verify)
        return invocation

    def _collect(self, severity: int, text: int, size: int, _: int | None) -> None:
        message = ctypes.string_at(text, size).decode(errors="replace")
        self.diagnostics.append(IreeDiagnostic.parse(severity, message))

    def _failure(self, code: ReasonCode, where: str, expected: str) -> CompileError:
        errors = [d for d in self.diagnostics if d.severity == "error"] or self.diagnostics
        detail = str(errors[0]) if errors else "no diagnostic"
        return CompileError(code, "", self.diagnostics, where=where, expected=expected, got=detail)

    def _output(self, write: Any) -> bytes:
        output = api.Output.open_membuffer()
        try:
            write(output)
            return _contents(output)
        except ValueError as error:
            raise CompileError(
                ReasonCode.TARGET_COMPILE_FAILED,
                diagnostics=self.diagnostics,
                where="output",
                expected="a module that can be written",
                got=str(error),
            ) from None
        finally:
            output.close()


def _contents(output: Any) -> bytes:
    """Return what was written to an output.

    Its own `map_memory` makes a class for each size, and classes stay until the cyclic
    collector runs.
    """
    start, size = ctypes.c_void_p(), ctypes.c_uint64()
    where = ctypes.byref(start), ctypes.byref(size)
    ctypes_dl._handle_error(_LIBRARY.ireeCompilerOutputMapMemory(output._output_p, *where))
    return ctypes.string_at(start, size.value)


def check_phase(phase: str) -> None:
    """Raise PycError (BAD_ARGUMENT) unless `phase` is one of IREE's `PHASES`."""
    if phase not in PHASES:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"phase: expected one of {', '.join(PHASES)}, got {phase!r}"
            f"{did_you_mean(phase, PHASES)}",
        )


# Refuse programs whose calls have no end: IREE writes every call out, and would never finish.

# Operations once every call is written out, or as many times those of the module: forty functions
# that call one another twice stand for 10^12. IREE takes about 2 ms for each.
MAX_WRITTEN_OUT, MAX_TIMES = 200_000, 64
_CALLED = ("callee", "decomposition")


def check_calls(module: Any) -> None:
    """Check a module (an operation of IREE's bindings).

    Raises PycError (UNSUPPORTED_ATTRIBUTE): a public function reaches one that calls itself, or
    stands for more operations than it may.
    """
    functions = {}
    for view in module.regions[0].blocks[0]:
        name = view.operation.attributes.get("sym_name")
        if name is not None:
            functions[ir.StringAttr(name).value] = view.operation
    calls, sizes = dict[str, list[str]](), dict[str, int]()
    hidden = {
        n for n, f in functions.items() if "private" in str(f.attributes.get("sym_visibility"))
    }
    waiting = [*functions.keys() - hidden]
    while waiting:
        name = waiting.pop()
        if name in functions and name not in calls:
            sizes[name], calls[name] = _calls(functions[name])
            waiting += calls[name]
    try:
        order = [*TopologicalSorter(calls).static_order()]
    except CycleError as error:
        cycle = [one_line(name) for name in reversed(error.args[1])]
        got = f"{' -> '.join(cycle)}; write it as a loop (`stablehlo.while`, `scf.for`)"
        raise _refused(cycle[0], f"no function that calls itself, got {got}") from None
    most = max(MAX_WRITTEN_OUT, MAX_TIMES * sum(sizes.values()))
    for name in order:
        sizes[name] = sizes.get(name, 0) + sum(sizes[called] for called in calls.get(name, ()))
        if sizes[name] > most:
            expected = f"at most {most} operations with all calls written out, got more"
            raise _refused(one_line(name), f"{expected}; write repeated calls as a loop")


def _calls(function: Any) -> tuple[int, list[str]]:
    """Return the number of operations under a function, and the functions that they call."""
    found, count = list[str](), 0

    def visit(op: Any) -> Any:
        nonlocal count
        count += 1
        for attribute in map(op.attributes.get, _CALLED):
            if isinstance(attribute, ir.FlatSymbolRefAttr):
                found.append(attribute.value)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return count, found


def _refused(name: str, text: str) -> PycError:
    where = f"function `{name}`"
    return PycError(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"expected {text}", where=where)
