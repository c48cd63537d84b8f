"""Requests to a worker and its answers as data, and the crash of one as an error with a reproducer.

    {"do": "compile", "source": {"kind": "onnx", ...}, "options": {...}, "stage": "requested", ...}

A Python function is traced before, so that its module travels. Files travel as paths, which the
worker reads from the parent's own folder. A policy of another package stays in the parent: the
worker asks it through the socket (`serve.py`).
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.artifact import Artifact, installed_versions
from pyc_mlir.artifact.import_report import ImportReport, UnsupportedModel
from pyc_mlir.artifact.manifest import read_manifest
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import Checks, Expectation, SelfCheck, Verification
from pyc_mlir.cache.cache import Cache, Verifications
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.compilation.contract_check import WrongResult
from pyc_mlir.compilation.job import REQUESTED, Job
from pyc_mlir.compilation.lower import bytecode_of
from pyc_mlir.compilation.options import Options
from pyc_mlir.compilation.references import ForeignOracle, PycOracle
from pyc_mlir.dialects.errors import PycError, ReasonCode, VerificationError, out_of_memory
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.util.codec import Form, Forms, from_data, to_data
from pyc_mlir.dialects.util.files import file_error, read_file, write_file
from pyc_mlir.frontends.python.source import SourcePoint, Untraceable
from pyc_mlir.frontends.signatures import shapes_text
from pyc_mlir.frontends.sources import (
    Bytecode,
    MlirFile,
    MlirText,
    OnnxBytes,
    OnnxFile,
    OnnxModel,
    Packed,
)
from pyc_mlir.iree.diagnostics import CompileError, IreeDiagnostic
from pyc_mlir.iree.memory.budget import BudgetNotKept, ByteBudget, SmallestProgram
from pyc_mlir.pipelines.choices.choices import Adapted, Decision, Policy, Prefers
from pyc_mlir.pipelines.choices.contract import ClauseReport
from pyc_mlir.pipelines.choices.policies import BUILT_IN, load_policy
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.driver.pipeline_text import PipelineError
from pyc_mlir.pipelines.memory.planner.planner import BudgetRefused
from pyc_mlir.util.temp_dir import no_room
from pyc_mlir.worker.process import Blob, Frame

# What is asked for: an artifact, the program's part of a cache key, or to try an artifact.
COMPILE, PART, TRY = "compile", "part", "try"
# The sources that are plain data. Files are read by the worker.
_Data = OnnxFile | OnnxBytes | MlirFile | MlirText | Bytecode | Packed


def travelling(job: Job) -> Job:
    """Return the job with a source that is plain data; a function is traced.

    Raises PycError: what the front end raises for functions, UNSUPPORTED_OP for ops that only this
    process knows.
    """
    source = job.source
    if isinstance(source, _Data):
        return job
    if isinstance(source, OnnxModel):
        data = source.proto.SerializeToString()
        reading = {name: getattr(source, name) for name in ("islands", "outputs", "ranges")}
        return replace(job, source=OnnxBytes(data, **reading))
    with new_context() as context, ir.Location.unknown():
        loaded = job.load(context)
        if loaded.module is None:
            packed = Packed(loaded.foreign, loaded.name, is_foreign=True, function=loaded.function)
        else:
            _require_known_ops(loaded.module)
            packed = Packed(bytecode_of(loaded.module), loaded.name)
        return replace(job, source=packed, inputs=job.shapes)


def _behind(blobs: list[Blob]) -> Forms:
    """Return the form of bytes: they go behind the JSON, which has their number."""

    def put(data: bytes) -> int:
        blobs.append(data)
        return len(blobs) - 1

    return {bytes: Form(put, lambda number: bytes(blobs[number]))}


def _require_known_ops(module: ir.Module) -> None:
    """Refuse ops that user code defined: they are registered in this process alone."""
    own = {f"pyc.{n}": d for n, d in OPS.items() if not d.__module__.startswith("pyc_mlir.")}
    if not own:
        return
    for name in own.keys() & _op_names(module):
        raise PycError(
            ReasonCode.UNSUPPORTED_OP,
            f"worker: expected ops of PyC's own, got `{name}` of {own[name].__module__}, which "
            "only this process knows; compile without `max_compile_seconds`",
        )


def _op_names(module: ir.Module) -> set[str]:
    names: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        names.add(op.name)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return names


def _shapes(text: str) -> list[tuple[int | None, ...]]:
    """Read what `shapes_text` wrote."""
    shapes = [() if t == "scalar" else t.split("x") for t in text.split(",")] if text else []
    return [tuple(None if size == "?" else int(size) for size in shape) for shape in shapes]


def job_of(frame: Frame, ask: Callable[[str], Prefers]) -> Job:
    """Return the job of a request; `ask` makes the policy that stands for a parent's.

    Raises KeyError, TypeError, ValueError or PycError for anything else.
    """
    header = frame.header
    source = from_data(_Data, header["source"], "source", _behind(list(frame.blobs)))
    inputs = None if header["inputs"] is None else _shapes(header["inputs"])
    return Job(source, inputs, from_data(Options, header["options"], "options", policy_forms(ask)))


_WISDOM = {Wisdom: Form(lambda w: w.to_bytes().decode(), lambda d: Wisdom.from_bytes(d.encode()))}


def policy_forms(ask: Callable[[str], Prefers] = load_policy) -> Forms:
    """Return the forms of policies in requests: one that is not PyC's own has its name only.

    ask: makes the policy that stands for a parent's.
    """
    return {Policy: Form(_policy_json, lambda data: _policy(data, ask))}


def _policy_json(policy: Policy) -> dict[str, Any]:
    measured = policy.wisdom is not None and not isinstance(policy, Adapted)
    if (policy.name in BUILT_IN or measured) and is_dataclass(policy) and _is_named(policy):
        return {"kind": "own", **to_data(policy, "policy", _WISDOM)}
    return {"kind": "parent", "name": policy.name}


def _is_named(policy: Policy) -> bool:
    """Return whether the policy's name stands for its class in the worker too."""
    try:
        return type(load_policy(policy.name)) is type(policy)
    except PycError:
        return False


def _policy(data: Mapping[str, Any], ask: Callable[[str], Prefers]) -> Prefers:
    if data["kind"] == "parent":
        return ask(data["name"])
    fields = {n: v for n, v in data.items() if n != "kind"}
    return from_data(type(load_policy(data["name"])), fields, "policy", _WISDOM)


def _current_folder() -> str:
    """Return where relative paths begin. Raises PycError (FILE_ACCESS) if the folder is gone."""
    try:
        return os.getcwd()
    except OSError as error:
        raise file_error(
            error, "a current folder, for the worker too", "the working directory"
        ) from None


def request(
    do: str,
    job: Job,
    stage: str = REQUESTED,
    artifact: Blob | None = None,
    records: Verifications | None = None,
) -> Frame:
    """Return the frame that asks for `do` of a job that travels.

    artifact, records: a program that is tried, and its earlier verifications.
    Raises PycError (FILE_ACCESS) where the current folder is gone.
    """
    blobs: list[Blob] = []
    header = {
        "do": do,
        "source": to_data(job.source, "source", _behind(blobs)),
        "inputs": None if job.shapes is None else shapes_text(job.shapes),
        "options": job.options.data(policy_forms()),
        "stage": stage,
        "folder": _current_folder(),
        "verifications": None
        if records is None
        else [str(records.cache.store.folder), records.key],
    }
    return Frame(header, (*blobs, *(() if artifact is None else (artifact,))))


def verifications_of(frame: Frame) -> Verifications | None:
    """Return the verification records that a request names."""
    data = frame.header["verifications"]
    return None if data is None else Verifications(Cache(CacheStore(Path(data[0]))), data[1])


# A worker's answer as data: an artifact with its verification records, or an error.

ARTIFACT, REFUSED, FAULT = "artifact", "refused", "fault"
_Oracle = PycOracle | ForeignOracle


class WorkerFault(RuntimeError):
    """A fault of PyC in a worker: what would have been raised here, as text with its traceback."""


def artifact_frame(artifact: Artifact) -> Frame:
    """Pack an artifact with its checks; stand-ins stay behind, since they are code."""
    checks = artifact.checks or Checks()
    # The function itself, which is compared with them, is in the parent.
    expected = b"" if checks.expected is None else checks.expected.samples.to_bytes()
    blobs = [artifact.vmfb, artifact.module, artifact.memory, artifact.samples, expected]
    header = {
        "kind": ARTIFACT,
        "manifest": to_data(artifact.manifest),
        "decisions": to_data(artifact.decisions),
        "verification": to_data(checks.verification),
        "clauses": to_data(checks.clauses),
        "oracle": to_data(checks.oracle, "oracle", _behind(blobs)),
        "check": to_data(checks.check),
    }
    return Frame(header, blobs)


def artifact_of(frame: Frame) -> Artifact:
    """Unpack the artifact of a frame. Raises KeyError, TypeError, ValueError or PycError."""
    data = frame.header
    vmfb, module, memory, samples, expected, *_ = map(bytes, frame.blobs)
    manifest = read_manifest(data["manifest"])
    answers = Expectation(Samples.from_bytes(expected, manifest.signature)) if expected else None
    checks = Checks(
        from_data(_Oracle | None, data["oracle"], "oracle", _behind(list(frame.blobs))),
        from_data(Verification | None, data["verification"]),
        from_data(tuple[ClauseReport, ...], data["clauses"]),
        expected=answers,
        check=from_data(SelfCheck | None, data["check"]),
    )
    decisions = from_data(tuple[Decision, ...], data["decisions"])
    return Artifact(vmfb, manifest, decisions, module, memory, samples, checks)


def error_frame(error: PycError) -> Frame:
    """Pack a refusal: its kind, its text, and its fields by the kind's row of `_KINDS`."""
    kind = next(k for k in type(error).__mro__ if k in _KINDS)
    header = {"kind": REFUSED, "code": error.code.name, "message": error.message}
    parts = {name: getattr(error, name) for name in _PARTS}
    fields = {name: to_data(getattr(error, name), name, _POINT) for name in _KINDS[kind]}
    return Frame({**header, "error": kind.__name__, "parts": parts, "fields": fields})


def error_of(frame: Frame) -> PycError:
    """Unpack the refusal of a frame. Raises KeyError, TypeError or ValueError."""
    data = frame.header
    kind = next((k for k in _KINDS if k.__name__ == data["error"]), None)
    if kind is None:
        raise KeyError(data["error"])
    # Made from its text and fields: what a subclass is made from stays in the worker.
    error = kind.__new__(kind)
    PycError.__init__(error, ReasonCode[data["code"]], str(data["message"]))
    for name in _PARTS:
        setattr(error, name, str(data["parts"][name]))
    for name, of in _KINDS[kind].items():
        setattr(error, name, from_data(of, data["fields"][name], name, _POINT))
    return error


# The parts of every error's message.
_PARTS = ("where", "expected", "got", "remedy", "text")
_POINT: Forms = {SourcePoint: Form(list, lambda at: SourcePoint(*at))}
# What each kind of error tells beside its code and its text.
_KINDS: Mapping[type[PycError], Mapping[str, Any]] = {
    PycError: {},
    VerificationError: {},
    PipelineError: {"column": int, "summary": str},
    Untraceable: {"construct": str, "point": SourcePoint, "problem": str},
    UnsupportedModel: {"report": ImportReport},
    CompileError: {"diagnostics": tuple[IreeDiagnostic, ...]},
    WrongResult: {"blamed": tuple[Decision, ...]},
    BudgetRefused: {"smallest": int, "seconds": float, "bound": int},
    BudgetNotKept: {
        **{"budget": ByteBudget, "need": SmallestProgram},
        **{"proven": bool, "optional": bool, "smallest": int},
    },
}


# The error that reports a worker's crash, and a file that repeats it.
#
#     python -m pyc_mlir.worker pyc-crash-1f2e3d4c.request
#
# compiles the same request in that process, so that a debugger sees the crash. The file is one
# frame: the options as JSON, then the program.

_OUTPUT_CHARACTERS = 400
# How LLVM ends a process that cannot write one of its files.
_CANNOT_WRITE = "LLVM ERROR: IO failure on output stream: "


def crashed(request: Frame, stage: str, ended_by: str, output: str) -> PycError:
    """Return the error for a worker that ended by `ended_by`, with a reproducer if possible.

    stage: what it was doing; said: what it wrote to its standard error. A disk that filled up has
    the code FILE_ACCESS, memory that ended OUT_OF_MEMORY, all else NATIVE_CRASH.
    """
    if _CANNOT_WRITE in output:
        return no_room(output.partition(_CANNOT_WRITE)[2].partition("\n")[0])
    memory = out_of_memory(output)
    if memory is not None:
        return memory
    doing = f"while {stage}" if stage else "before its first step"
    last = f"; its last words: {output.strip()[-_OUTPUT_CHARACTERS:]}" if output.strip() else ""
    source = request.header["source"]
    name = source.get("path") or source.get("name", "module")
    return PycError(
        ReasonCode.NATIVE_CRASH,
        f"{name}: expected the compiler to end with an answer, got a process that ended by "
        f"{ended_by} {doing}; {_reproducer(request)}{last}",
    )


def _reproducer(request: Frame) -> str:
    try:
        path = write_reproducer(request, Path(tempfile.gettempdir()))
    except PycError as error:
        return f"no reproducer could be written ({error.message})"
    return f"run it again with `{sys.executable} -m pyc_mlir.worker {path}`"


def write_reproducer(request: Frame, folder: Path) -> Path:
    """Write a request, with the file that it names, under a name of its content.

    Raises PycError (FILE_ACCESS).
    """
    data = _read(request)
    header = {**request.header, "versions": installed_versions()}
    parts = Frame(header, (data,)).parts()
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    path = folder / f"pyc-crash-{digest.hexdigest()[:16]}.request"
    write_file(path, b"".join(parts), "a reproducer to write")
    return path


def _file(request: Frame) -> Path | None:
    name = request.header["source"].get("path")
    return None if name is None else Path(request.header["folder"]) / name


def _read(request: Frame) -> bytes:
    path = _file(request)
    if path is None:
        return bytes(request.blobs[0]) if request.blobs else b""
    try:
        return read_file(path)
    except PycError:
        return b""


def unpacked(request: Frame, folder: Path) -> Frame:
    """Return the request of a reproducer as it runs here.

    A file that is no longer what it was is written to `folder`; weights beside it are not there.
    Raises PycError (FILE_ACCESS).
    """
    path = _file(request)
    if path is None:
        return request
    stored = bytes(request.blobs[0]) if request.blobs else b""
    if path.is_file() and read_file(path) == stored:
        return request
    copy = folder / path.name
    write_file(copy, stored)
    source = {**request.header["source"], "path": str(copy)}
    return replace(request, header={**request.header, "source": source, "folder": str(folder)})
