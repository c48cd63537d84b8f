"""From a module that IREE accepts to the bytes of a program for one target.

Artifacts are deterministic and free of paths: no source map, no debug symbols. Nothing is
demoted: a type that the target lacks is an error before IREE starts, and assertions of the source
program are kept. What IREE complains about is told under the source's location: ops carry
``loc("pyc:<id>"(source))``, and `locations` maps such an id back to the text that a person knows.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.names import ids_in, name_in, place_of, source_in
from pyc_mlir.iree.barriers import narrow, part_long_chains, separate_readers, share_parts, widest
from pyc_mlir.iree.own_results import keep_arguments, keep_returned_arguments
from pyc_mlir.iree.session import PHASES, CompileError, IreeDiagnostic, IreeSession, check_phase
from pyc_mlir.iree.wrong_code import (
    AFTER,
    BEFORE_CONSTANTS,
    FOLDING,
    flatten_stores,
    forbid_contraction,
    keep_repeats,
)
from pyc_mlir.pipelines.kernels.lang.attributes import ATTRIBUTE, HELD
from pyc_mlir.pipelines.streams.ir import find, ir, name_of, operations, source_ids
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
_SAID_LIMIT = 1200
# IREE refers to the linker's command line, which its library writes to the console.
_LINKER = "failed to link executable"
_LINKING = (
    "the linker that IREE starts failed on generated code, so there is no program; see that the "
    "folder for temporary files has room and that memory is left, and compile again"
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
        flatten_stores(session.module)
        keep_repeats(session.module)
        keep_arguments(session.module)
        start = "flow"
    if place("stream") < place(to):
        if start != "stream":
            session.run(to="stream", start=start)
        write_kernels(session.module, target)
        start = "stream"
    if place(start) < place(AFTER) <= place(to):
        session.run(to=AFTER, start=start)
        forbid_contraction(session.module)
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
            separate_readers(session.module, gpu=target.device != "local")
            share_parts(session.module)
            part_long_chains(session.module)
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


def mark_locations(module: Any) -> dict[str, str]:
    """Make every op that carries an id or a name carry it in a form that IREE's diagnostics print.

    IREE prints only file locations: once a function is inlined, an op that has but a name is
    shown at its caller. ``"pyc:<id>"`` becomes ``"pyc:<id>"("pyc:<id>":1:1)``. Returns what the
    ids stood for: the source location of each, where it had one; and of files' places the names.
    """
    sources: dict[str, str] = {}

    def visit(op: Any) -> Any:
        location = str(op.location)
        if (op_id := _first_id(location)) is not None:
            name = place_of(op_id)
            if (source := source_in(location)) is not None:
                sources.setdefault(op_id, source.replace('"', ""))
        elif (name := name_in(location)) and location == f'loc("{name}")':
            sources[f"{name}:1:1"] = f'"{name}"'
        else:
            return ir.WalkResult.ADVANCE
        file = ir.Location.file(name, 1, 1, op.context)
        op.location = ir.Location.name(name, file, op.context)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return sources


def check_dtypes(module: Any, target: Target, locations: Mapping[str, str]) -> None:
    """Raise PycError (UNSUPPORTED_DTYPE) when a value has an element type that `target` lacks.

    `module` is an operation of IREE's bindings. The error names the first such op that carries a
    source op's id, or else the first one.
    """
    lacking = sorted(target.lacks())
    if not lacking:
        return
    # The x of a shape may stand before the type, as in 4xf64.
    pattern = re.compile(rf"(?<![a-wyz])(?:{'|'.join(lacking)})\b")
    found = [(op, kind) for op, kind in _values(module) if pattern.search(kind)]
    if not found:
        return
    op, kind = next(((o, k) for o, k in found if name_in(str(o.location))), found[0])
    location = str(op.location)
    place = _place(location, locations) or name_in(location) or op.name
    dtype = (pattern.search(kind) or [""])[0]
    raise PycError(
        ReasonCode.UNSUPPORTED_DTYPE,
        f"{place}: expected an element type of target "
        f"`{target.name}` ({', '.join(sorted(target.dtypes))}), got {dtype} in {kind}; "
        "cast the model, or choose another target",
    )


def _values(op: Any) -> Iterator[tuple[Any, str]]:
    """Yield every value under `op`: the op that makes it (or has it as argument) and its type."""
    for result in op.results:
        yield op, str(result.type)
    for region in op.regions:
        for block in region:
            for argument in block.arguments:
                yield op, str(argument.type)
            for inner in block:
                yield from _values(inner.operation)


def located(error: CompileError, target: Target, locations: Mapping[str, str]) -> CompileError:
    """`error` told in the source's terms: the source op's location first, then IREE's words."""
    errors = [d for d in error.diagnostics if d.severity == "error"]
    known = [d for d in errors if _first_id(_where(d)) is not None]
    if not errors:
        return error
    chosen = (known or errors)[0]
    own = locations.get(chosen.location, chosen.location)
    place = _place(_where(chosen), locations) or own or "module"
    noise = ("see current operation", "called from")
    notes = [n for n in chosen.notes if not any(word in n for word in noise)]
    said = _LINKING if chosen.message.startswith(_LINKER) else chosen.message
    message = "; ".join([said, *notes])[:_SAID_LIMIT]
    expected = (
        "a module that IREE can read"
        if error.code is ReasonCode.INVALID_IR
        else f"a module that IREE compiles for target `{target.name}`"
    )
    return CompileError(error.code, "", errors, where=place, expected=expected, got=message)


def _where(diagnostic: IreeDiagnostic) -> str:
    """Return the text that holds the diagnostic's op id: its own location, else its notes'."""
    if _first_id(diagnostic.location) is not None:
        return diagnostic.location
    return " ".join(note.partition(": ")[0] for note in diagnostic.notes)


def _first_id(location: str) -> str | None:
    return next(iter(ids_in(location)), None)


def _place(location: str, locations: Mapping[str, str]) -> str:
    """``source text (pyc:id)`` of the first op id in a location, or nothing."""
    op_id = _first_id(location)
    if op_id is None:
        return ""
    text = locations.get(op_id)
    return f"{text} ({place_of(op_id)})" if text else place_of(op_id)


# Give each dispatch the ids of all ops that it computes, at the end of `dispatch-creation`.
#
# IREE fuses ops into a dispatch and gives it the location of one of them, its root. The bodies lose
# theirs later, when equal executables become one. In between each dispatch still holds its own
# body, so its location becomes the list of those of its ops, the root's first. Ops that IREE shares
# between dispatches are left out, since they stand where they were first needed: constants, empty
# tensors, fills, and arithmetic on sizes.

# The phase at whose end dispatches are formed and still hold their bodies.
FORMED = "dispatch-creation"
WORKGROUPS = "flow.dispatch.workgroups"
_COMPUTING = ("linalg.", "iree_linalg_ext.", "tensor.pad", "tensor.concat")
_SHARED = ("linalg.fill", "linalg.yield", "linalg.index")
_SCALAR = ("arith.", "math.")
_SCALAR_CONSTANT = "arith.constant"


def name_sources(module: Any) -> int:
    """Write the locations; how many dispatches there are. `module` is the root operation."""
    found = find(module, WORKGROUPS)
    for dispatch in found:
        ids = dict.fromkeys((*source_ids(dispatch), *_inside(dispatch)))
        if len(ids) > 1:
            named = [_id_location(name, dispatch.context) for name in ids]
            dispatch.location = ir.Location.fused(named, context=dispatch.context)
    return len(found)


def _id_location(name: str, context: Any) -> Any:
    """Make a location as `mark_locations` does, so that IREE's diagnostics print the id."""
    place = place_of(name)
    return ir.Location.name(place, ir.Location.file(place, 1, 1, context), context)


def _inside(dispatch: Any) -> Iterator[str]:
    """Return the ids of the ops in a dispatch's body that compute elements."""
    for op in _computing(dispatch, in_body=False):
        yield from source_ids(op)


def _computing(parent: Any, in_body: bool) -> Iterator[Any]:
    for region in parent.regions:
        for block in region:
            for inner in block:
                op = inner.operation
                if op.name.startswith(_COMPUTING) and op.name not in _SHARED:
                    yield op
                    yield from _computing(op, in_body=True)
                elif in_body and op.name.startswith(_SCALAR) and op.name != _SCALAR_CONSTANT:
                    yield op
                else:
                    yield from _computing(op, in_body)


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
    """Return the kernel that an op stands for, and the arithmetic operations of one run of it."""
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
