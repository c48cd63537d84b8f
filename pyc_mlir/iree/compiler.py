"""From a module that IREE accepts to the bytes of a program for one target, in this process.

Artifacts are deterministic and free of paths: no source map, no debug symbols. Nothing is
demoted: a type that the target lacks is an error before IREE starts, and assertions of the source
program are kept.

IREE's Python API lacks the phase setters and the diagnostics callback, although its shared
library exports them (`iree/compiler/embedding_api.h`); this module binds them through ctypes. Only
a misspelt pass name still reaches the console.

Facts kept here so that callers need not know them: an op of an unregistered dialect would end the
process, so the context refuses it while parsing; a pass pipeline wrapped in
``builtin.module(...)`` would be a silent no-op, so it is refused; a phase name that IREE does not
know would be ignored, so it is refused too; IREE's bindings never free a context or a module that
they were handed, so both are made theirs.
"""

import ctypes
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import iree.compiler.api as api
from iree.compiler.api import ctypes_dl

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import make_folder
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.iree.barriers import before_first_phase, narrow, widest
from pyc_mlir.iree.diagnostics import (
    FORMED,
    WORKGROUPS,
    CompileError,
    IreeDiagnostic,
    check_calls,
    check_dtypes,
    located,
    mark_locations,
    name_sources,
)
from pyc_mlir.iree.fork_join import add_attach, fork_and_join
from pyc_mlir.iree.rewrites import (
    AFTER,
    BEFORE_CONSTANTS,
    FOLDING,
    at_end_of_flow,
    forbid_contraction,
    keep_repeats,
    keep_returned_arguments,
)
from pyc_mlir.pipelines.kernels.lang.attributes import ATTRIBUTE, HELD
from pyc_mlir.pipelines.streams.ir import find, ir, name_of, operations
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.target import MOST_BINDINGS, Target

DEFAULT_FLAGS = (
    "--iree-opt-level=O3",
    # O1 and above would drop the source program's own assertions.
    "--iree-opt-strip-assertions=false",
    "--iree-input-demote-f64-to-f32=false",
    "--iree-input-demote-f32-to-f16=false",
    "--iree-input-demote-i64-to-i32=false",
    "--iree-vm-bytecode-module-strip-source-map=true",
    "--iree-hal-executable-debug-level=0",
    "--iree-llvmcpu-debug-symbols=false",
)
# A wrong value of these ends the process or contradicts the target; a target's name is checked.
_TARGET_FLAGS = (
    "--iree-vulkan-target",
    "--iree-vulkan-target-features",
    "--iree-cuda-target",
    "--iree-hal-target-device",
    "--iree-hal-target-backends",
)
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
        # The MLIR context, and the module's operation, which passes edit in place.
        self.context: Any = self._session.context
        self.module: Any = None
        _own(self.context)
        self.context.allow_unregistered_dialects = False
        self._verify = verify
        self._invocation: Any = None
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
        self.module = self._invocation = None
        # Closes the invocations first; these are what IREE calls back for.
        self._session.close()
        self._session._owned_context = None
        self._callback = None

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
        self.module = module
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

    def run_passes(self, pipeline: str, module: Any = None) -> None:
        """Run passes on the module: ``pass-a,func.func(pass-b)``, without the module around it.

        module: is put in use before, if one is given.
        Raises PycError (INVALID_PIPELINE) for a wrapped pipeline, CompileError (PASS_FAILED).
        """
        if pipeline.lstrip().startswith("builtin.module"):
            raise PycError(
                ReasonCode.INVALID_PIPELINE,
                "IREE pipeline: expected passes without `builtin.module(...)` around them "
                f"(IREE would run none), got {pipeline!r}",
            )
        if module is not None:
            self.use(module)
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


def compile_module(
    mlir: bytes,
    target: Target,
    extra_flags: Sequence[str] = (),
    compile_to: str | None = None,
    dump_phases: str | Path | None = None,
    locations: Mapping[str, str] | None = None,
) -> bytes:
    """Compile MLIR text or bytecode for `target`; return the vmfb, or IR text at `compile_to`.

    `extra_flags` come after the defaults, so they win. `dump_phases` names a folder that gets one
    IR file a phase. Raises PycError: UNSUPPORTED_DTYPE, INVALID_IR, BAD_ARGUMENT (flags, phase)
    and TARGET_COMPILE_FAILED, the last ones as CompileError with IREE's diagnostics.
    """
    phase = "end" if compile_to is None else compile_to
    check_phase(phase)
    with opened(mlir, target, extra_flags, dump_phases, locations) as session:
        run(session, target, to=phase)
        return session.vmfb() if phase == "end" else session.text()


def run(session: IreeSession, target: Target, to: str = "end", start: str = "start") -> None:
    """`IreeSession.run` with PyC's steps at the ends of phases.

    Dispatches are named after their ops as soon as they are formed. At the end of `flow` kernels
    are let go, stores of single elements flattened, and reductions of one term guarded (for those
    that IREE evaluates, before it does). At the end of `stream` kernels get their code if another
    phase follows. At the end of code generation contraction is forbidden.
    """
    place = PHASES.index
    if place(start) < place(BEFORE_CONSTANTS) < place(to):
        session.run(to=BEFORE_CONSTANTS, start=start)
        session.run_passes(FOLDING)
        keep_repeats(session.module, constants=True)
        start = BEFORE_CONSTANTS
    if place(start) < place(FORMED) <= place(to):
        _form_dispatches(session, start)
        name_sources(session.module)
        start = FORMED
    if place(start) < place("flow") <= place(to):
        session.run(to="flow", start=start)
        let_go(session.module)
        at_end_of_flow(session.module)
        start = "flow"
    if place("stream") < place(to):
        if start != "stream":
            session.run(to="stream", start=start)
        write_kernels(session.module, target)
        add_attach(session.module, target)
        start = "stream"
    if place(start) < place(AFTER) <= place(to):
        session.run(to=AFTER, start=start)
        forbid_contraction(session.module)
        fork_and_join(session.module)
        start = AFTER
    if start != to:
        session.run(to=to, start=start)


def _form_dispatches(session: IreeSession, start: str) -> None:
    """Run to the end of FORMED, twice if a dispatch would be too wide for the runtime."""
    before = session.module.clone()
    session.run(to=FORMED, start=start)
    if widest(session.module, WORKGROUPS) <= MOST_BINDINGS:
        return
    session.use(before)
    narrow(session.module)
    session.run(to=FORMED, start=start)
    if (count := widest(session.module, WORKGROUPS)) > MOST_BINDINGS:
        raise CompileError(
            ReasonCode.TARGET_COMPILE_FAILED,
            where="dispatch",
            expected=f"{MOST_BINDINGS} tensors at most, which is what IREE's runtime binds",
            got=f"a dispatch of {count}",
            remedy="compute it in parts",
        )


@contextmanager
def opened(
    mlir: bytes,
    target: Target,
    extra_flags: Sequence[str] = (),
    dump_phases: str | Path | None = None,
    locations: Mapping[str, str] | None = None,
    verify: bool = True,
) -> Iterator[IreeSession]:
    """Open a session on a checked module, before IREE's first phase; see `compile_module`.

    verify: as of `IreeSession`.
    A CompileError that leaves the block is told in the source's terms.
    """
    _check_extra_flags(extra_flags)
    places = {} if locations is None else dict(locations)
    try:
        with IreeSession((*DEFAULT_FLAGS, *target.flags, *extra_flags), verify) as session:
            session.parse(mlir)
            places = {**mark_locations(session.module), **places}
            share_constants(session.module)
            carry_kernels(session.module, target)
            check_dtypes(session.module, target, places)
            before_first_phase(session.module, gpu=target.device != "local")
            keep_returned_arguments(session.module)
            if dump_phases is not None:
                session.dump_phases(Path(dump_phases))
            yield session
    except CompileError as error:
        raise located(error, target, places) from None


def _check_extra_flags(flags: Sequence[str]) -> None:
    for flag in flags:
        name = flag.partition("=")[0]
        if name in _TARGET_FLAGS:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"IREE flag {flag}: expected flags that leave the target alone, got one that "
                "chooses it; choose a PyC target by name",
            )


# Keep constants that several functions of a module read once.
#
# IREE makes a global of each constant op, and does not compare their contents: weights would be
# stored, and resident, once for each plan of a program. Comes in: a module before IREE's first
# phase, whose equal constants are one attribute (`compilation/specialize.py`). Goes out: one
# `util.global` for each of those that occur several times.

_CONSTANT, _GLOBAL, _LOAD = "arith.constant", "util.global", "util.global.load"
# Smaller ones become part of the code that reads them.
_LEAST_BYTES = 1024
_PREFIX = "pyc_shared_"


def share_constants(module: Any) -> int:
    """Put a global in place of each large constant that several ops make; return how many."""
    bodies = [f for f in find(module, "func.func") if len(f.regions[0].blocks)]
    if len(bodies) < 2:
        return 0
    same: dict[Any, list[Any]] = defaultdict(list)
    for op in find(module, _CONSTANT):
        if _is_large(op):
            same[op.attributes["value"]].append(op)
    repeated = [ops for ops in same.values() if len(ops) > 1]
    module.context.get_dialect_descriptor("util")
    with module.context, ir.Location.unknown():
        never = ir.Attribute.parse("#util.inline.never")
        for number, ops in enumerate(repeated):
            _share(module, f"{_PREFIX}{number}", ops, never)
    return len(repeated)


def _is_large(op: Any) -> bool:
    type_ = op.results[0].type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return False
    value = op.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        return False
    bits = 1
    for size in type_.shape:
        bits *= size
    element = type_.element_type
    return bits * getattr(element, "width", 8) >= 8 * _LEAST_BYTES


def _share(module: Any, name: str, ops: list[Any], never: Any) -> None:
    first = ops[0]
    type_ = first.results[0].type
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "sym_visibility": ir.StringAttr.get("private"),
        "type": ir.TypeAttr.get(type_),
        "initial_value": first.attributes["value"],
        "inlining_policy": never,
    }
    body = module.regions[0].blocks[0]
    place = ir.InsertionPoint(operations(body)[0])
    ir.Operation.create(_GLOBAL, attributes=attributes, ip=place)
    for op in ops:
        load = ir.Operation.create(
            _LOAD,
            results=[type_],
            attributes={"global": ir.FlatSymbolRefAttr.get(name)},
            ip=ir.InsertionPoint(op),
        )
        op.results[0].replace_all_uses_with(load.results[0])
        op.erase()


# Turn calls of kernels into dispatches and generate their code, on IREE's side.
#
# Comes in: a module in which a kernel is a private function without a body and with the attribute
# ``pyc.kernel = {family, knobs}`` (`pipelines/linalg/kernel_call.py`). `carry_kernels`, before
# IREE's first phase, puts the kernels into executables of their own, and a ``flow.dispatch`` in the
# place of each call. They hold stubs with the same attribute until the end of phase `stream`; then
# `write_kernels` generates the code, after all that is decided about dispatches. Until the end of
# phase `flow` a barrier keeps IREE from evaluating a dispatch whose operands it knows (`let_go`).


def carry_kernels(module: Any, target: Target) -> int:
    """Give `module` (an operation of IREE's bindings) executables with its kernels; how many.

    Raises PycError (INVALID_IR) for a kernel that no family makes for the target.
    """
    declared = {name_of(f): f for f in find(module, "func.func") if ATTRIBUTE in f.attributes}
    if not declared:
        return 0
    # Most modules have no kernels, and these modules load all dialects that kernels are made of.
    from pyc_mlir.pipelines.kernels.lang.carrier import Carrier

    kernels, operations, stubs = {}, {}, {}
    for name, function in declared.items():
        kernels[name], operations[name] = _kernel(name, function, target)
        stubs[name] = {ATTRIBUTE: function.attributes[ATTRIBUTE]}
    carrier = Carrier(target, module.context)
    # An executable for each: IREE compiles executables at the same time.
    for kernel in kernels.values():
        carrier.add(kernel, operations=operations, stubs=stubs)
    body = module.regions[0].blocks[0]
    with module.context, ir.Location.unknown():
        for op in list(carrier.module.body.operations):
            op.operation.detach_from_parent()
            ir.InsertionPoint.at_block_begin(body).insert(op)
    for call in find(module, "func.call"):
        name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
        if name not in kernels:
            continue
        with ir.InsertionPoint(call), call.location:
            inputs = (o.name for o in kernels[name].inputs)
            made = carrier.dispatch(kernels[name], dict(zip(inputs, call.operands, strict=True)))
        for result, value in zip(call.results, made, strict=True):
            result.replace_all_uses_with(value)
        call.erase()
    for function in declared.values():
        function.erase()
    return len(kernels)


def let_go(module: Any) -> None:
    """Drop what kept IREE from running kernels' stubs for operands that it knows.

    To be called at the end of phase `flow`: only the phases before it evaluate what is known.
    """
    for barrier in find(module, "util.optimization_barrier"):
        if HELD in barrier.attributes:
            barrier.results[0].replace_all_uses_with(barrier.operands[0])
            barrier.erase()


def write_kernels(module: Any, target: Target) -> int:
    """Put the code of kernels in the place of their stubs, at the end of phase `stream`; how many.

    `target` is that of `carry_kernels`.
    """
    stubs = [
        op
        for executable in find(module, "stream.executable")
        for op in find(executable, "util.optimization_barrier")
        if ATTRIBUTE in op.attributes
    ]
    if stubs:
        from pyc_mlir.pipelines.kernels.lang.carrier import write_body

        for stub in stubs:
            kernel, _ = _kernel("of a stub", stub, target)
            write_body(kernel, stub, target)
    return len(stubs)


def _kernel(name: str, op: Any, target: Target) -> tuple[Any, int]:
    from pyc_mlir.pipelines.kernels.knobs import decode
    from pyc_mlir.pipelines.kernels.registry import FAMILIES

    try:
        text = ir.DictAttr(op.attributes[ATTRIBUTE])
        family = FAMILIES[ir.StringAttr(text["family"]).value]
        knobs = decode(family.knobs, ir.StringAttr(text["knobs"]).value)
    except (KeyError, ValueError) as error:
        raise _refusal(
            name, f"the attribute {ATTRIBUTE} with a family and its knobs", error
        ) from None
    if refusal := family.refusal(knobs, target):
        raise _refusal(name, f"a kernel for target `{target.name}`", refusal)
    kernel = knobs.kernel(name)
    sizes = dict.fromkeys(kernel.sizes, NOMINAL_DIMENSION)
    return kernel, round(family.cost(knobs, target, sizes).flops)


def _refusal(name: str, expected: str, came: object) -> PycError:
    return PycError(ReasonCode.INVALID_IR, f"kernel @{name}: expected {expected}, got {came}")
