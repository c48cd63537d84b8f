"""What a worker answers, as data: an artifact with what was found out of it, or an error."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.import_report import ImportReport, UnsupportedModel
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.verification import Evidence, Oracle, Verdict
from pyc_mlir.compilation.oracles import ForeignOracle, PycOracle
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.session import CompileError, Diagnostic
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.contract_report import ClauseReport
from pyc_mlir.worker.protocol import Frame

ARTIFACT, REFUSED, FAULT = "artifact", "refused", "fault"


class WorkerFault(RuntimeError):
    """A fault of PyC in a worker: what would have been raised here, as text with its traceback."""


def artifact_frame(artifact: Artifact) -> Frame:
    """An artifact with its evidence; stand-ins stay behind, since they are code."""
    evidence = artifact.evidence or Evidence()
    verdict = evidence.verdict
    oracle, code = _oracle_json(evidence.oracle)
    header = {
        "kind": ARTIFACT,
        "manifest": artifact.manifest,
        "decisions": [d.to_json() for d in artifact.decisions],
        "verdict": None if verdict is None else verdict.to_json(),
        "clauses": [c.to_json() for c in evidence.clauses],
        "oracle": oracle,
    }
    parts = (artifact.vmfb, artifact.module, artifact.memory, artifact.samples, code)
    return Frame(header, parts)


def artifact_of(frame: Frame) -> Artifact:
    """The artifact of a frame. Raises KeyError, TypeError, ValueError or PycError."""
    said = frame.header
    vmfb, module, memory, samples, code = map(bytes, frame.blobs)
    verdict = None if said["verdict"] is None else Verdict.from_json(said["verdict"])
    evidence = Evidence(
        _oracle(said["oracle"], code),
        verdict,
        tuple(map(ClauseReport.from_json, said["clauses"])),
    )
    decisions = tuple(map(Decision.from_json, said["decisions"]))
    return Artifact(vmfb, said["manifest"], decisions, module, memory, samples, evidence)


def _oracle_json(oracle: Oracle | None) -> tuple[dict[str, Any] | None, bytes]:
    if isinstance(oracle, PycOracle):
        return {"kind": "pyc", "entry": oracle.entry}, oracle.code
    if isinstance(oracle, ForeignOracle):
        signature = oracle.signature.to_json()
        return {"kind": "foreign", "entry": oracle.entry, "signature": signature}, oracle.code
    assert oracle is None, "an oracle of another kind travels nowhere"
    return None, b""


def _oracle(said: Mapping[str, Any] | None, code: bytes) -> Oracle | None:
    if said is None:
        return None
    if said["kind"] == "pyc":
        return PycOracle(code, said["entry"])
    return ForeignOracle(code, said["entry"], Signature.from_json(said["signature"]))


def error_frame(error: PycError) -> Frame:
    """A refusal, with IREE's diagnostics or the import's report where it has one."""
    said = error.diagnostics if isinstance(error, CompileError) else None
    diagnostics = None if said is None else [asdict(d) for d in said]
    report = error.report.to_json() if isinstance(error, UnsupportedModel) else None
    header = {"kind": REFUSED, "code": error.code.name, "message": error.message}
    return Frame({**header, "diagnostics": diagnostics, "report": report})


def error_of(frame: Frame) -> PycError:
    """The refusal of a frame. Raises KeyError or ValueError."""
    said = frame.header
    code, message = ReasonCode[said["code"]], str(said["message"])
    if said["report"] is not None:
        return UnsupportedModel(ImportReport.from_json(said["report"]), message)
    if said["diagnostics"] is None:
        return PycError(code, message)
    return CompileError(code, message, [_diagnostic(d) for d in said["diagnostics"]])


def _diagnostic(said: Mapping[str, Any]) -> Diagnostic:
    return Diagnostic(**{**said, "notes": tuple(said["notes"])})
