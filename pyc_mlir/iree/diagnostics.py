"""Refusals of a module, and what IREE says of it, under the source's locations.

Ops carry ``loc("pyc:<id>"(source))``; `locations` maps such an id back to the text that a person
knows. IREE's diagnostics become records; `located` tells an error in the source's terms.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Unpack

from pyc_mlir.dialects.errors import ErrorFields, PycError, ReasonCode
from pyc_mlir.dialects.names import ids_in, name_in, place_of, source_in
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.pipelines.streams.ir import find, ir, source_ids
from pyc_mlir.pipelines.target.target import Target

_SEVERITIES = ("note", "warning", "error", "remark")
_SAID_LIMIT = 1200
# IREE refers to the linker's command line, which its library writes to the console.
_LINKER = "failed to link executable"
_LINKING = (
    "the linker that IREE starts failed on generated code, so there is no program; see that the "
    "folder for temporary files has room and that memory is left, and compile again"
)


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
        inside = (name for op in _computing(dispatch, in_body=False) for name in source_ids(op))
        ids = dict.fromkeys((*source_ids(dispatch), *inside))
        if len(ids) > 1:
            # Made as `mark_locations` does, so that IREE's diagnostics print the id.
            context, places = dispatch.context, map(place_of, ids)
            files = ((p, ir.Location.file(p, 1, 1, context)) for p in places)
            named = [ir.Location.name(place, file, context) for place, file in files]
            dispatch.location = ir.Location.fused(named, context=context)
    return len(found)


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
