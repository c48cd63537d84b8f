"""A compile request to a worker as data: options, source, stage.

    {"do": "compile", "source": {...}, "inputs": "2x?", "options": {...}, "stage": "requested", ...}

A Python function is traced before, so that its module travels. Files travel as paths, which the
worker reads from the parent's own folder. A policy of another package stays in the parent: the
worker asks it through the socket (`serve.py`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.cache.verifications import Verifications
from pyc_mlir.compilation.lower import bytecode_of
from pyc_mlir.compilation.options import Options
from pyc_mlir.compilation.signatures import shapes_text
from pyc_mlir.compilation.stages import REQUESTED
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.util.codec import Form, Forms, from_data, to_data
from pyc_mlir.dialects.util.files import file_error
from pyc_mlir.frontends.sources import Source, WithIslands, is_text, load_source, with_islands
from pyc_mlir.pipelines.choices.choices import FirstIsBest, Policy
from pyc_mlir.pipelines.choices.policies import Preset, load_policy
from pyc_mlir.pipelines.choices.wisdom import ByWisdom, Wisdom
from pyc_mlir.worker.protocol import Blob, Frame

# What is asked for: an artifact, the program's part of a cache key, or to try an artifact.
COMPILE, PART, TRY = "compile", "part", "try"


@dataclass(frozen=True)
class CompileRequest:
    """What is to be compiled, as it travels: `kind` is file, text, onnx, module or foreign."""

    kind: str
    name: str
    data: Blob = b""
    inputs: str | None = None
    islands: bool = False

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """What goes behind the JSON."""
        return () if self.kind == "file" else (self.data,)


def travelling(source: Any, inputs: Sequence[Any] | None) -> CompileRequest:
    """`source` as data; a function is traced.

    Raises PycError: what the front end raises for functions, BAD_MODEL for what is no source,
    UNSUPPORTED_OP for ops that only this process knows.
    """
    if isinstance(source, WithIslands):
        return replace(travelling(source.model, inputs), islands=True)
    shapes = None if inputs is None or callable(source) else shapes_text(inputs)
    if isinstance(source, str) and is_text(source):
        return CompileRequest("text", "module", source.encode(), shapes)
    if isinstance(source, str | os.PathLike):
        return CompileRequest("file", os.fspath(source), inputs=shapes)
    if isinstance(source, bytes):
        return CompileRequest("onnx", "module", source, shapes)
    if hasattr(source, "SerializeToString"):
        return CompileRequest("onnx", "module", source.SerializeToString(), shapes)
    with new_context() as context, ir.Location.unknown():
        loaded = load_source(source, inputs, context)
        if loaded.module is None:
            return CompileRequest("foreign", loaded.name, loaded.foreign, shapes)
        _require_known_ops(loaded.module)
        return CompileRequest("module", loaded.name, bytecode_of(loaded.module), shapes)


def _require_known_ops(module: ir.Module) -> None:
    """Ops that user code defined are registered in this process alone."""
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


def restored(
    program: CompileRequest, loaded: Source | None = None
) -> tuple[Any, list[tuple[int | None, ...]] | None]:
    """What `build` takes: source and inputs. Needs a context for modules. Raises PycError.

    loaded: the program, if it was loaded already.
    """
    inputs = None if program.inputs is None else _shapes(program.inputs)
    if loaded is not None:
        return loaded, inputs
    if program.islands:
        made, _ = restored(replace(program, islands=False))
        return with_islands(made), inputs
    if program.kind == "file":
        return Path(program.name), inputs
    data = bytes(program.data)
    if program.kind == "module":
        return Source(ir.Module.parse(data), name=program.name), inputs
    if program.kind == "foreign":
        return Source(None, data, program.name), inputs
    return (data.decode() if program.kind == "text" else data), inputs


def _shapes(text: str) -> list[tuple[int | None, ...]]:
    def sizes(shape: str) -> tuple[int | None, ...]:
        return (
            () if shape == "scalar" else tuple(None if w == "?" else int(w) for w in words(shape))
        )

    def words(shape: str) -> list[str]:
        return shape.split("x")

    return [sizes(shape) for shape in text.split(",")] if text else []


def program_of(frame: Frame) -> CompileRequest:
    """The program of a request."""
    header = frame.header["program"]
    data = b"" if header["kind"] == "file" else frame.blobs[0]
    islands = bool(header.get("islands"))
    return CompileRequest(header["kind"], header["name"], data, header["inputs"], islands)


def options_json(options: Options) -> dict[str, Any]:
    """Every field of `options` as JSON data; a policy that is not PyC's own by its name only."""
    return to_data(options, "options", _policy_form())


def options_of(data: Mapping[str, Any], ask: Callable[[str], Policy]) -> Options:
    """What `options_json` was given; `ask` makes the policy that stands for a parent's.

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
    """Where relative paths begin. Raises PycError (FILE_ACCESS) for a folder that is gone."""
    try:
        return os.getcwd()
    except OSError as error:
        raise file_error(
            error, "a current folder, for the worker too", "the working directory"
        ) from None


def request(
    do: str,
    program: CompileRequest,
    options: Options,
    stage: str = REQUESTED,
    artifact: Blob | None = None,
    records: Verifications | None = None,
) -> Frame:
    """The frame that asks for `do`; for an artifact that is tried its bytes, earlier verifications.

    Raises PycError (FILE_ACCESS) where the current folder is gone.
    """
    header = {
        "do": do,
        "program": {
            "kind": program.kind,
            "name": program.name,
            "inputs": program.inputs,
            "islands": program.islands,
        },
        "options": options_json(options),
        "stage": stage,
        "folder": _current_folder(),
        "verifications": None
        if records is None
        else [str(records.cache.store.folder), records.key],
    }
    return Frame(header, (*program.blobs, *(() if artifact is None else (artifact,))))


def verifications_of(frame: Frame) -> Verifications | None:
    """The verification records that a request names."""
    data = frame.header["verifications"]
    return None if data is None else Verifications(Cache(CacheStore(Path(data[0]))), data[1])
