"""A compile request to a worker as data: options, source, stage.

    {"do": "compile", "source": {"kind": "onnx", ...}, "options": {...}, "stage": "requested", ...}

A Python function is traced before, so that its module travels. Files travel as paths, which the
worker reads from the parent's own folder. A policy of another package stays in the parent: the
worker asks it through the socket (`serve.py`).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.cache.verifications import Verifications
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import bytecode_of
from pyc_mlir.compilation.options import Options
from pyc_mlir.compilation.stages import REQUESTED
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.util.codec import Form, Forms, from_data, to_data
from pyc_mlir.dialects.util.files import file_error
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
from pyc_mlir.pipelines.choices.choices import FirstIsBest, Policy
from pyc_mlir.pipelines.choices.policies import Preset, load_policy
from pyc_mlir.pipelines.choices.wisdom import ByWisdom, Wisdom
from pyc_mlir.worker.protocol import Blob, Frame

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
        return replace(job, source=OnnxBytes(data, islands=source.islands))
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
    def sizes(shape: str) -> tuple[int | None, ...]:
        return (
            () if shape == "scalar" else tuple(None if w == "?" else int(w) for w in words(shape))
        )

    def words(shape: str) -> list[str]:
        return shape.split("x")

    return [sizes(shape) for shape in text.split(",")] if text else []


def job_of(frame: Frame, ask: Callable[[str], Policy]) -> Job:
    """Return the job of a request; `ask` makes the policy that stands for a parent's.

    Raises KeyError, TypeError, ValueError or PycError for anything else.
    """
    header = frame.header
    source = from_data(_Data, header["source"], "source", _behind(list(frame.blobs)))
    inputs = None if header["inputs"] is None else _shapes(header["inputs"])
    return Job(source, inputs, options_of(header["options"], ask))


def options_json(options: Options) -> dict[str, Any]:
    """Return all of `options` as JSON data; a policy that is not PyC's own by its name only."""
    return to_data(options, "options", _policy_form())


def options_of(data: Mapping[str, Any], ask: Callable[[str], Policy]) -> Options:
    """Read what `options_json` wrote; `ask` makes the policy that stands for a parent's.

    Raises KeyError, TypeError, ValueError or PycError for anything else.
    """
    return from_data(Options, data, "options", _policy_form(ask))


_WISDOM = {Wisdom: Form(lambda w: w.to_bytes().decode(), lambda d: Wisdom.from_bytes(d.encode()))}


def _policy_form(ask: Callable[[str], Policy] = load_policy) -> Forms:
    return {Policy: Form(_policy_json, lambda data: _policy(data, ask))}


def _is_registered(policy: Policy) -> bool:
    """Return whether the policy's name stands for its class in the worker too."""
    try:
        return type(load_policy(policy.name)) is type(policy)
    except PycError:
        return False


def _policy_json(policy: Policy) -> dict[str, Any]:
    if type(policy) is FirstIsBest:
        return {"kind": "first", "name": policy.name}
    if type(policy) is Preset:
        return {"kind": "preset", "name": policy.name, "modes": list(policy.planner_modes)}
    if isinstance(policy, ByWisdom) and is_dataclass(policy) and _is_registered(policy):
        return {"kind": "by wisdom", **to_data(policy, "policy", _WISDOM)}
    return {"kind": "parent", "name": policy.name}


def _policy(data: Mapping[str, Any], ask: Callable[[str], Policy]) -> Policy:
    if data["kind"] == "first":
        return FirstIsBest(data["name"])
    if data["kind"] == "preset":
        return Preset(data["name"], tuple(data["modes"]))
    if data["kind"] == "by wisdom":
        fields = {n: v for n, v in data.items() if n != "kind"}
        return from_data(type(load_policy(data["name"])), fields, "policy", _WISDOM)
    return ask(data["name"])


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
        "options": options_json(job.options),
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
