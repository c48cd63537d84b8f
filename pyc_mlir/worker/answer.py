"""A worker's answer as data: an artifact with its verification records, or an error."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.import_report import ImportReport, UnsupportedModel
from pyc_mlir.artifact.manifest import read_manifest
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import Checks, Expectation, Oracle, SelfCheck, Verification
from pyc_mlir.compilation.blame import WrongResult
from pyc_mlir.compilation.reference.oracles import ForeignOracle, PycOracle
from pyc_mlir.dialects.errors import PycError, ReasonCode, VerificationError
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.frontends.python.source import SourcePoint, Untraceable
from pyc_mlir.iree.memory.budget import BudgetNotKept, ByteBudget, SmallestProgram
from pyc_mlir.iree.session import CompileError, IreeDiagnostic
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.contract_report import ClauseReport
from pyc_mlir.pipelines.driver.pipeline_text import PipelineError
from pyc_mlir.pipelines.memory.planner.planner import BudgetRefused
from pyc_mlir.worker.protocol import Frame

ARTIFACT, REFUSED, FAULT = "artifact", "refused", "fault"


class WorkerFault(RuntimeError):
    """A fault of PyC in a worker: what would have been raised here, as text with its traceback."""


def artifact_frame(artifact: Artifact) -> Frame:
    """Pack an artifact with its checks; stand-ins stay behind, since they are code."""
    checks = artifact.checks or Checks()
    oracle, code = _oracle_json(checks.oracle)
    header = {
        "kind": ARTIFACT,
        "manifest": to_data(artifact.manifest),
        "decisions": to_data(artifact.decisions),
        "verification": to_data(checks.verification),
        "clauses": to_data(checks.clauses),
        "oracle": oracle,
        "check": to_data(checks.check),
    }
    # The function itself, which is compared with them, is in the parent.
    expected = b"" if checks.expected is None else checks.expected.samples.to_bytes()
    parts = (artifact.vmfb, artifact.module, artifact.memory, artifact.samples, code, expected)
    return Frame(header, parts)


def artifact_of(frame: Frame) -> Artifact:
    """Unpack the artifact of a frame. Raises KeyError, TypeError, ValueError or PycError."""
    data = frame.header
    vmfb, module, memory, samples, code, expected = map(bytes, frame.blobs)
    manifest = read_manifest(data["manifest"])
    checks = Checks(
        _oracle(data["oracle"], code),
        from_data(Verification | None, data["verification"]),
        from_data(tuple[ClauseReport, ...], data["clauses"]),
        expected=Expectation(Samples.from_bytes(expected, manifest.signature))
        if expected
        else None,
        check=from_data(SelfCheck | None, data["check"]),
    )
    decisions = from_data(tuple[Decision, ...], data["decisions"])
    return Artifact(vmfb, manifest, decisions, module, memory, samples, checks)


def _oracle_json(oracle: Oracle | None) -> tuple[dict[str, Any] | None, bytes]:
    if isinstance(oracle, PycOracle):
        return {"kind": "pyc", "entry": oracle.entry}, oracle.code
    if isinstance(oracle, ForeignOracle):
        signature = to_data(oracle.signature)
        return {"kind": "foreign", "entry": oracle.entry, "signature": signature}, oracle.code
    assert oracle is None, "an oracle of another kind travels nowhere"
    return None, b""


def _oracle(data: Mapping[str, Any] | None, code: bytes) -> Oracle | None:
    if data is None:
        return None
    if data["kind"] == "pyc":
        return PycOracle(code, data["entry"])
    return ForeignOracle(code, data["entry"], from_data(Signature, data["signature"]))


def error_frame(error: PycError) -> Frame:
    """Pack a refusal: its kind, its text, and its fields by the kind's row of `_KINDS`."""
    kind = next(k for k in type(error).__mro__ if k in _KINDS)
    header = {"kind": REFUSED, "code": error.code.name, "message": error.message}
    parts = {name: getattr(error, name) for name in _PARTS}
    fields = {name: to_json(getattr(error, name)) for name, (to_json, _) in _KINDS[kind].items()}
    return Frame({**header, "error": kind.__name__, "parts": parts, "fields": fields})


def error_of(frame: Frame) -> PycError:
    """Unpack the refusal of a frame. Raises KeyError, TypeError or ValueError."""
    data = frame.header
    kind = _BY_NAME[data["error"]]
    # Made from its text and fields: what a subclass is made from stays in the worker.
    error = kind.__new__(kind)
    PycError.__init__(error, ReasonCode[data["code"]], str(data["message"]))
    for name in _PARTS:
        setattr(error, name, str(data["parts"][name]))
    for name, (_, from_json) in _KINDS[kind].items():
        setattr(error, name, from_json(data["fields"][name]))
    return error


def _plain(value: Any) -> Any:
    return value


_Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_PLAIN: _Codec = (_plain, _plain)


def _record(kind: Any) -> _Codec:
    """Return the codec of records."""
    return to_data, partial(from_data, kind)


# The parts of every error's message.
_PARTS = ("where", "expected", "got", "remedy", "text")
# What each kind of error tells beside its code and its text, to data and back.
_KINDS: Mapping[type[PycError], Mapping[str, _Codec]] = {
    PycError: {},
    VerificationError: {},
    PipelineError: {"column": _PLAIN, "summary": _PLAIN},
    Untraceable: {
        "construct": _PLAIN,
        "point": (list, lambda data: SourcePoint(*data)),
        "problem": _PLAIN,
    },
    UnsupportedModel: {"report": _record(ImportReport)},
    CompileError: {"diagnostics": _record(tuple[IreeDiagnostic, ...])},
    WrongResult: {"blamed": _record(tuple[Decision, ...])},
    BudgetRefused: {"smallest": _PLAIN, "seconds": _PLAIN, "bound": _PLAIN},
    BudgetNotKept: {
        **{"budget": _record(ByteBudget), "need": _record(SmallestProgram)},
        **{"proven": _PLAIN, "optional": _PLAIN, "smallest": _PLAIN},
    },
}
_BY_NAME = {kind.__name__: kind for kind in _KINDS}
