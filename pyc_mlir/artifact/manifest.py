"""Check every field of a manifest that was read, before anything trusts it.

A manifest comes with a checksum, which finds damage, not intent. So each field is looked at here:
that it is there, its type, its range, and that fields which say the same agree. Whether the
signature is that of the code stands in `pyc_mlir/artifact/declaration.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pyc_mlir.artifact.account import Account
from pyc_mlir.artifact.import_report import ImportReport
from pyc_mlir.artifact.prediction import Prediction
from pyc_mlir.artifact.signature import Ranges, Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.contract_report import ClauseReport, ContractReport

# The entries that an artifact may have: with the plain ABI, and with memory of the caller.
MAIN, ARENA = "main", "main$arena"
# Fields that a manifest may lack.
CALIBRATION, CONTRACT_REPORT, FORMULAS = "calibration", "contract_report", "formulas"
# The account of a program, and that of its dispatches by IREE's own plan.
MEMORY, BY_IREE = "memory", "memory_by_iree"
# Among the formulas: of the outputs alone.
OUTPUTS = "outputs"
IMPORTED = "imported"
# The time of a call, null where nothing is known of the program.
PREDICTION = "prediction"
# `Target.device` of the programs that can be run.
DEVICES = ("local", "cuda", "vulkan", "hip")
# No count or size is larger: programs count in 64 bits.
_MOST = (1 << 63) - 1
_LONGEST_TEXT, _MOST_RANK, _MOST_ARGUMENTS = 1 << 16, 64, 1 << 16
_ANY = (AttributeError, ArithmeticError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class ReplayOptions:
    """The options that a manifest records for a replay, beside target, contract and calibration."""

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
    # Whether the artifact's decisions have the names of the model's nodes.
    node_names: bool = False
    # Whether torch-mlir may lower ONNX nodes for which PyC has no rule.
    islands: bool = False


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Raise ValueError, with the field first, for a manifest that no compile writes.

    Raises PycError (UNSUPPORTED_CLAUSE) for clauses of a contract that this version does not know.
    """
    unknown = sorted(set(manifest) - {*_CHECKS, *_OPTIONAL, "schema"})
    if unknown:
        raise ValueError(f"expected the fields of this version, got `{unknown[0]:.80}` too")
    for name, check in {**_CHECKS, **_OPTIONAL}.items():
        if name not in manifest:
            if name in _CHECKS:
                raise ValueError(f"`{name}`: expected a value, got none")
            continue
        _check(name, manifest[name], check)
    _check_contract_report(manifest)


def report_of(manifest: Mapping[str, Any]) -> ContractReport:
    """Return the contract report of a manifest."""
    clauses = manifest.get(CONTRACT_REPORT, [])
    return ContractReport(from_data(tuple[ClauseReport, ...], clauses, CONTRACT_REPORT))


def check_conditions(conditions: Mapping[str, Any]) -> None:
    """Check those fields that a log repeats, as `check_manifest` does; null stands for one left
    out.
    """
    for name, value in conditions.items():
        if value is not None or name not in _OPTIONAL:
            _check(name, value, {**_CHECKS, **_OPTIONAL}[name])


def _check(name: str, value: Any, check: Callable[[Any], None]) -> None:
    try:
        check(value)
    except PycError as error:
        if error.code is ReasonCode.UNSUPPORTED_CLAUSE:
            raise
        raise ValueError(f"`{name}`: {error.message}") from None
    except _ANY as error:
        came = "" if "got" in str(error) else f", got {value!r:.120}"
        raise ValueError(f"`{name}`: {error}{came}") from None


def _require(holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"expected {expected}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _text(value: Any) -> None:
    _require(_is_text(value), "a text")


def _texts(value: Any) -> None:
    _require(isinstance(value, list) and all(map(_is_text, value)), "a list of texts")


def _named_texts(value: Any) -> None:
    _require(isinstance(value, dict) and all(map(_is_text, value.values())), "texts by name")


def _device(value: Any) -> None:
    _require(_is_text(value) and value in DEVICES, f"one of {', '.join(DEVICES)}")


def _prediction(value: Any) -> None:
    if value is not None:
        Prediction.from_json(value)


def _signature(value: Any) -> None:
    _require(isinstance(value, dict), "inputs and outputs")
    signature = Signature.from_json(value)
    known = {"inputs", "outputs", "ranges", "results"}
    _require(set(value) <= known, "inputs, outputs, ranges and the results' structure")
    arguments = (*signature.inputs, *signature.outputs)
    _require(len(arguments) <= _MOST_ARGUMENTS, f"at most {_MOST_ARGUMENTS} arguments")
    for argument in arguments:
        _argument(argument)


def _argument(argument: SignatureEntry) -> None:
    shape = tuple(d if isinstance(d, int) else None for d in argument.shape)
    named = all(map(_is_text, [argument.name, *(d for d in argument.shape if isinstance(d, str))]))
    _require(named and len(shape) <= _MOST_RANK, f"names, and at most {_MOST_RANK} dimensions")
    _require(TensorType(shape, argument.dtype).fits, f"a tensor that memory holds as {argument}")


def _contract(value: Any) -> None:
    _require(isinstance(value, dict), "clauses by name")
    clauses = to_data(Contract.of(value))
    _require(
        all(clauses[name] == given for name, given in value.items()),
        "sizes in bytes, times in seconds",
    )


def _entries(value: Any) -> None:
    _require(isinstance(value, dict) and MAIN in value, f"the function of `{MAIN}` at least")
    for name, entry in value.items():
        named = name in (MAIN, ARENA) or name.startswith(f"{ARENA}.")
        _require(named and isinstance(entry, dict), f"entries `{MAIN}`, `{ARENA}` and its modes")
        function = entry.get("function")
        _require(_is_text(function) and bool(function), f"a function of `{name}`")
        known = {"function"} if name == MAIN else {"function", "mode", "arena_bytes"}
        _require(set(entry) == known, f"{', '.join(sorted(known))} of `{name}`")
        if name != MAIN:
            _require(_is_text(entry["mode"]), f"a mode of `{name}`")
            arena = entry["arena_bytes"]
            _require(arena is None or _is_count(arena), f"bytes or null as the arena of `{name}`")
    modes = [entry["mode"] for name, entry in value.items() if name != MAIN]
    _require(len(set(modes)) == len(modes), "one entry of each mode")


def _memory(value: Any) -> None:
    _require(isinstance(value, dict), "bytes of each part")
    Account.from_json(value)
    _require(all(v is None or _is_count(v) for v in value.values()), f"bytes up to {_MOST}")


def _formulas(value: Any) -> None:
    _require(isinstance(value, dict) and set(value) == {MEMORY, BY_IREE, OUTPUTS}, "all formulas")
    for sums in value.values():
        _texts(sums)


def _options(value: Any) -> None:
    # A manifest made by hand may leave all of them out.
    if value == {}:
        return
    recorded = from_data(ReplayOptions, value, "options")
    missing = {f.name for f in fields(recorded)} - set(value)
    # Recorded only where it was given.
    _require(missing <= {"node_names", "islands"}, "every option that a replay needs")
    for name, found in value.items():
        if isinstance(found, list):
            _texts(found)
        _require(not isinstance(found, str) or _is_text(found), f"a text as {name}")
    ends = [end for range_ in recorded.ranges.values() for end in range_]
    _require(all(map(_is_count, ends)), "whole numbers as a range")


def _calibration(value: Any) -> None:
    _named_texts(value)
    _require(set(value) == {"name", "sha256"}, "a name and a hash")


def _contract_report(value: Any) -> None:
    for clause in from_data(tuple[ClauseReport, ...], value, "contract_report"):
        _require(all(map(_is_count, (clause.done, clause.of))), "counts")


def _imported(value: Any) -> None:
    ImportReport.from_json(value)


def _checksums(value: Any) -> None:
    _named_texts(value)


def _check_contract_report(manifest: Mapping[str, Any]) -> None:
    """Check that the report has the contract's clauses, each once, with the requested values."""
    given = Contract.of(manifest["contract"]).given()
    clauses = report_of(manifest).clauses
    for clause in clauses:
        if clause.clause not in given or clause.requested != given[clause.clause]:
            raise ValueError(
                f"`{CONTRACT_REPORT}`: expected clauses of the contract ({', '.join(given)})"
                f", got {clause.clause} = {clause.requested!r:.80}"
            )
    if len({c.clause for c in clauses}) < len(clauses):
        raise ValueError(f"`{CONTRACT_REPORT}`: expected each clause once")


_CHECKS: Mapping[str, Callable[[Any], None]] = {
    "target": _text,
    "device": _device,
    "features": _texts,
    "signature": _signature,
    "contract": _contract,
    "versions": _named_texts,
    "graph_id": _text,
    "entries": _entries,
    MEMORY: _memory,
    BY_IREE: _memory,
    PREDICTION: _prediction,
    "options": _options,
    IMPORTED: _imported,
    "checksums": _checksums,
}
_OPTIONAL: Mapping[str, Callable[[Any], None]] = {
    CALIBRATION: _calibration,
    CONTRACT_REPORT: _contract_report,
    FORMULAS: _formulas,
}
