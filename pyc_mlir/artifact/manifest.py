"""The manifest of an artifact: a record, and the checks of one that was read.

A manifest comes with a checksum, which finds damage, not intent. So each field is looked at before
anything trusts it: that it is there, its type, its range, and that fields which say the same agree.
Whether the signature is that of the code stands in `pyc_mlir/artifact/manifest.py`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from pyc_mlir.artifact.import_report import ImportReport
from pyc_mlir.artifact.memory import Account
from pyc_mlir.artifact.signature import Ranges, Signature, SignatureEntry, decode
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.dialects.util.codec import Form, from_data, to_data
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.choices.contract import Contract, ContractReport

# The entries that an artifact may have: with the plain ABI, and with memory of the caller.
MAIN, ARENA = "main", "main$arena"
# The account of a program, and that of its dispatches by IREE's own plan.
MEMORY, BY_IREE = "memory", "memory_by_iree"
# Among the formulas: of the outputs alone.
OUTPUTS = "outputs"
# What functions may return the counts of.
COUNTS = ((), ("faults",), ("approximations",))
# No count or size is larger: programs count in 64 bits.
_MOST = (1 << 63) - 1
_MOST_PLANS = 64
_LONGEST_TEXT, _MOST_RANK, _MOST_ARGUMENTS = 1 << 16, 64, 1 << 16


@dataclass(frozen=True)
class ReplayOptions:
    """The options that a manifest records for a replay, beside target, contract and calibration."""

    complete: ClassVar[bool] = True
    # Modes of PyC's planner whose plans are offered, the preferred one first; none leaves memory
    # to IREE.
    planner_modes: tuple[str, ...] = ()
    # Further modes, each with a plan and an entry of its own, to be switched to at run time.
    also_modes: tuple[str, ...] = ()
    # Families whose generated kernels are offered, joined by +; `all`, or `iree` for none.
    kernels: str = "all"
    # The planner mode for which `pyc-chunk` cuts; empty is the preferred one.
    parts_for: str = ""
    # The passes between front end and linalg; empty is PyC's own pipeline.
    passes: str = ""
    # Flags for IREE; of a flag with a path in it a manifest has the name only.
    iree_flags: tuple[str, ...] = ()
    # By dynamic dimension, the smallest and the largest size of it in a call.
    ranges: Ranges = field(default_factory=dict)
    # How many plans for shapes: `auto`, a number, or the sizes of each.
    plans: str = ""
    # Whether the artifact's decisions have the names of the model's nodes.
    node_names: bool = False
    # Whether torch-mlir may lower ONNX nodes for which PyC has no rule.
    islands: bool = False
    # The entry of an MLIR module, where the user named it.
    function: str = ""
    # The values of an ONNX model that are the program's results, where the user named them.
    outputs: tuple[str, ...] = ()
    # Whether calls compare indices in their arguments with the axes that they choose from.
    guard_indices: bool = True


@dataclass(frozen=True)
class CalibrationName:
    """The name of a calibration and the hash of its content."""

    name: str
    sha256: str


@dataclass(frozen=True)
class EntryPoint:
    """A function of the code; with an arena of its own also the mode of its plan.

    arena_bytes: None if they depend on the call, and without an arena.
    """

    complete: ClassVar[bool] = True
    function: str
    mode: str = ""
    arena_bytes: int | None = None


@dataclass(frozen=True)
class ShapeEntry:
    """A function for calls whose dimensions are within ranges, and its entry with an arena.

    arena: the name of that; empty without one. arena_bytes: None if they depend on the call.
    """

    complete: ClassVar[bool] = True
    function: str
    ranges: Ranges
    arena: str = ""
    arena_bytes: int | None = None


def _contract_of(data: Any) -> Contract:
    contract = Contract.of(data)
    written = to_data(contract)
    if any(written[name] != given for name, given in data.items()):
        raise ValueError(f"expected sizes in bytes, times in seconds, got {data!r:.120}")
    return contract


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The part of a manifest that a log repeats: the way to a program."""

    complete: ClassVar[bool] = True
    target: str
    features: tuple[str, ...]
    graph_id: str
    signature: Signature
    contract: Annotated[Contract, Form(to_data, _contract_of)] = field(default_factory=Contract)
    options: ReplayOptions = field(default_factory=ReplayOptions)
    calibration: CalibrationName | None = None
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Manifest(Origin):
    """The facts of an artifact: how it was made, its entries, and the memory of a call.

    target: its name; device: the kind of devices that run it; features: of the CPU, that it needs.
    prediction: of a call's time, None where nothing is known of the program.
    contract_report: the status of each clause.
    memory, memory_by_iree: of PyC's plan, and of the same dispatches by IREE's own.
    formulas: what a call allocates by both plans, and its outputs alone, where that depends on its
        sizes: the largest of several sums.
    shape_plans: functions for certain shapes, in the order in which a guard asks them.
    counts: what all functions return the counts of, behind the results (`runtime/counts.py`).
    checksums: of the artifact's other parts, in a file.
    """

    schema: ClassVar[int] = 8
    device: Literal["local", "cuda", "vulkan", "hip"]
    entries: Mapping[str, EntryPoint]
    memory: Account
    memory_by_iree: Account
    prediction: Prediction | None = None
    contract_report: ContractReport = field(default_factory=ContractReport)
    formulas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    imported: ImportReport = field(default_factory=ImportReport)
    shape_plans: tuple[ShapeEntry, ...] = ()
    counts: tuple[str, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """The predicted seconds of a call on one core, by which a device is chosen."""
        time = self.prediction
        return None if time is None or time.threads > 1 else time.seconds

    @property
    def origin(self) -> Origin:
        """The part that a log repeats."""
        return Origin(**{f.name: getattr(self, f.name) for f in fields(Origin)})


def read_manifest(data: Any) -> Manifest:
    """Return the manifest of plain data.

    Raises ValueError, with the field first, for a manifest that no compile writes, and PycError
    (UNSUPPORTED_CLAUSE) for clauses of a contract that this version does not know.
    """
    made = _read(Manifest, data, "manifest")
    _check_origin(made)
    _check_entries(made.entries)
    _check_shape_plans(made)
    counts = [count for c in made.contract_report.clauses for count in (c.done, c.of)]
    _require(min(counts, default=0) >= 0, "contract_report", "counts from 0")
    for part in (made.memory, made.memory_by_iree):
        sizes = (getattr(part, f.name) for f in fields(part))
        _require(all(s is None or s >= 0 for s in sizes), MEMORY, "bytes from 0, or null")
    time = made.prediction
    known = time is None or (0 <= time.measured <= time.seconds < math.inf and time.threads > 0)
    _require(known, "prediction", "seconds from 0, measured ones among them, or null")
    _require(set(made.formulas) in (set(), {MEMORY, BY_IREE, OUTPUTS}), "formulas", "all of them")
    _require(made.counts in COUNTS, "counts", f"one of {COUNTS}")
    own = ("faults" in made.counts) == made.contract.detect_faults
    _require(own, "counts", "those of faults under `detect_faults`, and only there")
    _check_contract_report(made)
    return made


def read_origin(data: Any) -> Origin:
    """Return the part of a manifest that a log repeats. Raises as `read_manifest`."""
    made = _read(Origin, data, "conditions")
    _check_origin(made)
    return made


def _read(kind: type[Any], data: Any, where: str) -> Any:
    _check_bounds(data)
    try:
        return from_data(kind, data, where)
    except PycError as error:
        if error.code is ReasonCode.UNSUPPORTED_CLAUSE:
            raise
        raise ValueError(f"{where}: {error.message}") from None


def _require(holds: bool, name: str, expected: str) -> None:
    if not holds:
        raise ValueError(f"manifest.{name}: expected {expected}")


def _check_bounds(data: Any) -> None:
    """Check that no text and no number is larger than any that a compile writes."""
    rest = [data]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            rest += [*value, *value.values()]
        elif isinstance(value, list):
            rest += value
        elif (isinstance(value, str) and len(value) > _LONGEST_TEXT) or (
            type(value) is int and abs(value) > _MOST
        ):
            raise ValueError(f"expected numbers below 2**63 and short texts, got {value!r:.80}")


def _check_origin(made: Origin) -> None:
    signature = made.signature
    arguments = (*signature.inputs, *signature.outputs)
    _require(len(arguments) <= _MOST_ARGUMENTS, "signature", f"at most {_MOST_ARGUMENTS} arguments")
    for argument in arguments:
        _check_argument(argument)
    decode(signature.results, len(signature.outputs))
    fits = all(r.fits([len(a.shape) for a in signature.inputs]) for r in signature.indices)
    _require(fits, "signature.indices", "ranges of inputs, by sizes from 0 or axes of inputs")
    try:
        signature.with_ranges(signature.ranges)
    except PycError as error:
        raise ValueError(f"manifest.signature.ranges: {error.message}") from None
    ends = [end for range_ in made.options.ranges.values() for end in range_]
    _require(min(ends, default=0) >= 0, "options.ranges", "sizes from 0")


def _check_argument(argument: SignatureEntry) -> None:
    shape = tuple(d if isinstance(d, int) else None for d in argument.shape)
    sizes = all(d is None or d >= 0 for d in shape) and len(shape) <= _MOST_RANK
    _require(sizes, "signature", f"sizes of at most {_MOST_RANK} dimensions")
    held = TensorType(shape, argument.dtype).fits
    _require(held, "signature", f"a tensor that memory holds, got {argument}")


def _check_entries(entries: Mapping[str, EntryPoint]) -> None:
    _require(MAIN in entries, "entries", f"the function of `{MAIN}` at least")
    for name, entry in entries.items():
        _require(bool(entry.function), f"entries.{name}", "a function")
        if name == MAIN:
            own = not entry.mode and entry.arena_bytes is None
            _require(own, f"entries.{MAIN}", "no mode and no arena")
            continue
        named = name == ARENA or name.startswith(f"{ARENA}.")
        _require(named, "entries", f"`{MAIN}`, `{ARENA}` and its modes, got `{name:.80}`")
        arena = entry.arena_bytes
        _require(arena is None or arena >= 0, f"entries.{name}", "bytes of an arena or null")
    modes = [entry.mode for name, entry in entries.items() if name != MAIN]
    _require(len(set(modes)) == len(modes), "entries", "one entry of each mode")


def _check_shape_plans(made: Manifest) -> None:
    plans, known = made.shape_plans, {n for a in made.signature.inputs for n in a.dynamic.values()}
    _require(len(plans) <= _MOST_PLANS, "shape_plans", f"at most {_MOST_PLANS}")
    for plan in plans:
        _require(bool(plan.function and plan.ranges), "shape_plans", "a function with ranges")
        _require(set(plan.ranges) <= known, "shape_plans", f"dimensions of {sorted(known)}")
        ends = plan.ranges.values()
        _require(all(0 <= low <= high for low, high in ends), "shape_plans", "ranges of sizes")
        _require(plan.arena_bytes is None or plan.arena_bytes >= 0, "shape_plans", "bytes or null")
    functions = [n for plan in plans for n in (plan.function, plan.arena) if n]
    _require(len(set(functions)) == len(functions), "shape_plans", "functions of their own")


def _check_contract_report(manifest: Manifest) -> None:
    given = manifest.contract.given()
    clauses = manifest.contract_report.clauses
    for clause in clauses:
        if clause.clause not in given or clause.requested != given[clause.clause]:
            raise ValueError(
                f"manifest.contract_report: expected clauses of the contract ({', '.join(given)})"
                f", got {clause.clause} = {clause.requested!r:.80}"
            )
    once = len({c.clause for c in clauses}) == len(clauses)
    _require(once, "contract_report", "each clause once")


# Check that the functions of a vmfb have the types that the manifest declares.
#
# IREE writes into the reflection of each function of its native ABI how it was declared
# (``iree.abi.declaration``): ``sync func @main(%input0: tensor<?x8xf32>) -> (%output0: ...)``.
# Guards and results go by the manifest, so the two must be the same before anything is called.

DECLARATION = "iree.abi.declaration"
_RESULTS = ") -> ("
_UNSIGNED = re.compile(r"(?<=[x<])ui(?=\d+>)")
_TYPE = re.compile(r"%[^\s:,()]+: ([a-z]\w*<[^>]*>|[^\s,(){}]+)")


def require_declared(
    name: str, reflection: Mapping[str, str], signature: Signature, *, inputs_only: bool = False
) -> None:
    """Raise PycError (BAD_ARTIFACT) unless the function is declared with this signature.

    inputs_only: of the results only their number and element types have to agree.
    """
    text = reflection.get(DECLARATION)
    if text is None:
        raise _refused(name, "a function that is declared for callers", "one that is not")
    # Without results there is no arrow; names are none of tensors.
    taken, _, given = text.partition(_RESULTS)
    _, _, taken = taken.partition("(")
    _require_same(name, "inputs", _TYPE.findall(taken), signature.inputs)
    found = _TYPE.findall(given)
    if inputs_only:
        outputs = [_elements(text) for text in found]
        wanted = [_elements(text) for text in _stored([_text(a) for a in signature.outputs])]
        if outputs != wanted:
            expected = f"results of the manifest's types ({', '.join(wanted):.200})"
            raise _refused(name, expected, f"({', '.join(found):.200})")
        return
    _require_same(name, "outputs", found, signature.outputs)


def _require_same(
    name: str, side: str, declared: Sequence[str], arguments: Sequence[SignatureEntry]
) -> None:
    wanted = [_text(argument) for argument in arguments]
    if _stored(declared) != _stored(wanted):
        raise _refused(
            name,
            f"the {side} of the manifest ({', '.join(wanted):.200})",
            f"({', '.join(declared):.200})",
        )


def _elements(text: str) -> str:
    dims = text.removeprefix("tensor<").removesuffix(">").split("x")
    return f"{len(dims) - 1} {dims[-1]}"


def _stored(types: Sequence[str]) -> list[str]:
    """IREE holds unsigned integers as those without a sign."""
    return [_UNSIGNED.sub("i", text) for text in types]


def _text(argument: SignatureEntry) -> str:
    """Return the type with ``?`` for each dynamic dimension, named or not."""
    dims = tuple(d if isinstance(d, int) else None for d in argument.shape)
    return str(SignatureEntry(argument.name, argument.dtype, dims))


def _refused(name: str, expected: str, got: str) -> PycError:
    return PycError(
        ReasonCode.BAD_ARTIFACT,
        f"vmfb: expected of `{name}` {expected}, got {got}; compile it again",
    )
