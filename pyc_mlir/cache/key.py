"""The key of a compile: everything that its result depends on; and files known from before.

`Identity` is who compiles: versions, PyC's own source, the host's CPU, policies and plugins.
The program's part is what the front end made of the source: its graph and its constants, by hash.

A memo says: a file of this content was a program of these digests. The content's own digest is
remembered by the file's identity: device, inode, size, times of modification and of change. Neither
is trusted for a file that changed in the last seconds, or at a time that has not come yet: its
identity would not tell the next change. Then the file is imported, and the imported module alone
says which program it is.
"""

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import installed_versions
from pyc_mlir.artifact.verification import CacheEvent
from pyc_mlir.cache.store import (
    KEY_SCHEMA,
    NAMES,
    CacheStore,
    Key,
    Unkeyed,
    file_digest,
    sha256,
    tree_digest,
)
from pyc_mlir.compilation.options import HIGH_LEVEL, NO_KERNELS, Options
from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.attributes import as_resource, resource_array, resource_key
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.util.codec import Form, Forms, to_data
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.dialects.util.plugins import registered
from pyc_mlir.frontends.onnx.weights import inside
from pyc_mlir.frontends.sources import Loaded, MlirFile, OnnxFile, Source
from pyc_mlir.iree.flags import reaches_out
from pyc_mlir.pipelines.choices.choices import Adapted, Policy
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.kernels.registry import ENTRY_POINT_GROUP
from pyc_mlir.runtime.device import host_cpu
from pyc_mlir.util.env_overrides import env_overrides
from pyc_mlir.util.process_start import process_start
from pyc_mlir.util.source_files import SEEN, Files, source_digest, source_files
from pyc_mlir.util.versions import installed_version

# Longer than the steps in which the system counts times of files and processes.
_DOUBT_SECONDS = 0.1
# Looking packages up takes longer than a hit may.
_versions = functools.cache(installed_versions)


@dataclass(frozen=True)
class Identity:
    """Versions by package, the hash of PyC's source, and the CPU that compiles, as plain data."""

    versions: Mapping[str, str]
    source: str
    host: Mapping[str, Any]


# What was changed after `SEEN` shows in the files, what was changed before in their times.
BEGAN = process_start()


def current_identity(
    began: float = BEGAN,
    seen: Files = SEEN,
    environment: Mapping[str, str] = os.environ,
) -> Identity:
    """Return the identity of this process.

    Raises Unkeyed when PyC's source changed after the process began: what it runs is then
    neither the old source nor the new one. And for variables of the environment that change what
    compiles.
    """
    if overrides := next(iter(env_overrides(environment)), ""):
        raise Unkeyed(f"{overrides} is set, which has other code take part than the versions name")
    newest = max(mtime for _, _, mtime in seen)
    if seen != source_files() or newest > (began - _DOUBT_SECONDS) * 1e9:
        raise Unkeyed("PyC's own source was changed since this process began, or just before")
    return Identity(_versions(), source_digest(seen), _host())


@functools.cache
def _host() -> dict[str, Any]:
    cpu = host_cpu()
    machine = platform.machine()
    if cpu is None:
        return {"machine": machine, "system": platform.system()}
    return {"machine": machine, "cpu": cpu.model, "features": " ".join(sorted(cpu.features))}


def policy_part(policy: Policy) -> dict[str, Any]:
    """Return a policy as data: its class and fields, and the version of one not PyC's own.

    Raises Unkeyed for a foreign one without `version`, and for one whose state is no plain data.
    """
    given = policy.given if isinstance(policy, Adapted) else policy
    kind = type(given)
    part: dict[str, Any] = {
        "name": policy.name,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "fields": _state(given, policy.name),
    }
    if kind.__module__.startswith("pyc_mlir."):
        return part
    version = getattr(given, "version", None)
    if not isinstance(version, str) or not version:
        raise Unkeyed(f"the policy `{policy.name}` has no `version`, and code has no other name")
    return {**part, "version": version, "source": _class_source(kind)}


def _state(policy: Any, name: str) -> dict[str, Any]:
    if is_dataclass(policy):
        return {f.name: getattr(policy, f.name) for f in fields(policy)}
    slots = [s for c in type(policy).__mro__ for s in getattr(c, "__slots__", ())]
    if slots:
        raise Unkeyed(f"the policy `{name}` keeps state in slots")
    return dict(vars(policy))


def _class_source(kind: type) -> str:
    """Return the hash of the file that defines a class. Raises Unkeyed where there is none."""
    try:
        return sha256(Path(inspect.getfile(kind)).read_bytes())
    except (OSError, TypeError):
        raise Unkeyed(f"the policy class `{kind.__qualname__}` stands in no file") from None


@functools.cache
def plugin_kernels() -> dict[str, str]:
    """Return the kernel families of other packages: ``package version`` by name.

    Raises Unkeyed for one that is installed for development: its version does not tell its code.
    """
    found = {}
    for point in registered(ENTRY_POINT_GROUP):
        package = point.dist
        if package is None or _is_editable(package):
            raise Unkeyed(f"the kernel family `{point.name}` is installed for development")
        found[point.name] = f"{package.name} {package.version} {point.value}"
    return found


def _is_editable(package: metadata.Distribution) -> bool:
    text = package.read_text("direct_url.json")
    try:
        return bool(text) and bool(json.loads(text).get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return True


def _unkeyed_path(path: PurePath) -> str:
    raise Unkeyed(f"{path} is a path, and what a file holds has no content to name")


def make_key(program: Mapping[str, Any], options: Options, identity: Identity) -> Key:
    """Make the key of a compile. Raises Unkeyed for options that no content can name."""
    if options.dump_phases is not None:
        raise Unkeyed("dump_phases asks for files that only a compile writes")
    if options.node_names:
        raise Unkeyed("node_names asks for names, which are no part of what a program is")
    if options.passes != HIGH_LEVEL:
        raise Unkeyed("the passes are not PyC's own pipeline")
    outward = [f for f in (*options.target.flags, *options.iree_flags) if reaches_out(f)]
    if outward:
        name = outward[0].partition("=")[0]
        raise Unkeyed(f"the IREE flag `{name}` reads or writes more than the program")
    calibration = options.calibration
    plugins = {} if options.kernels == NO_KERNELS else plugin_kernels()
    try:
        return Key(
            {
                "schema": KEY_SCHEMA,
                "program": dict(program),
                "options": options.data(_FORMS, ("calibration", "dump_phases", "verify_ir")),
                "evidence": {} if calibration is None else {calibration.name: calibration.hash},
                "built_by": {
                    **identity.versions,
                    "pyc_source": identity.source,
                    "kernels": plugins,
                },
                "host": dict(identity.host),
            }
        )
    except ValueError as error:
        raise Unkeyed(str(error)) from None


# Wisdom is named by its hash: a key stays as short as its text is read by people.
_FORMS: Forms = {
    PurePath: Form(_unkeyed_path, Path),
    Policy: Form(lambda policy: to_data(policy_part(policy), "policy", _FORMS), str),
    Wisdom: Form(lambda wisdom: wisdom.hash, str),
}


# The identity of a program: a pyc module as digests of its graph and of its constants.
#
# The graph is the module's text without locations, in which constants above a kilobyte, MLIR
# resources, are numbered in the order in which they stand; constants are digested by their bytes.
# Names of arguments and dimensions stand in the graph: the artifact's signature has them.

_RESOURCE = re.compile(r'dense_resource<("[^"]*"|[^>]+)>')


def program_part(source: Loaded) -> dict[str, Any]:
    """Return the program's part of a key. Raises Unkeyed for constants that cannot be read."""
    if source.module is None:
        return {"enters": "iree", "graph": sha256(source.foreign), "constants": "", NAMES: "none"}
    names = source.module.operation.get_asm(enable_debug_info=True, large_resource_limit=0)
    return {
        "enters": "pyc",
        **module_digests(source.module),
        NAMES: sha256(names.partition("\n{-#")[0].encode()),
    }


def module_digests(module: ir.Module) -> dict[str, str]:
    """Return ``graph`` and ``constants`` of a module, SHA-256 in hex. Raises Unkeyed."""
    # No blob is printed: the limit of 0 characters elides each.
    text = module.operation.get_asm(enable_debug_info=False, large_resource_limit=0)
    order: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return f"dense_resource<#{order.setdefault(match[1].strip(chr(34)), len(order))}>"

    graph = _RESOURCE.sub(numbered, text.partition("\n{-#")[0])
    others = sorted(n for n, d in OPS.items() if not d.__module__.startswith("pyc_mlir."))
    if foreign := [name for name in others if f'"pyc.{name}"' in graph]:
        raise Unkeyed(f"the op pyc.{foreign[0]} is defined outside of PyC, and code has no name")
    blobs = _resources(module)
    unknown = sorted(set(order) ^ set(blobs))
    if unknown:
        raise Unkeyed(f"the constant `{unknown[0]}` stands where it cannot be read")
    digest = hashlib.sha256()
    for name in order:
        digest.update(f"{name} {blobs[name]}\n".encode())
    return {"graph": sha256(graph.encode()), "constants": digest.hexdigest()}


def _resources(module: ir.Module) -> dict[str, str]:
    found: dict[str, str] = {}

    def visit(op: ir.Operation) -> ir.WalkResult:
        for name in op.attributes:
            attribute = op.attributes[name if isinstance(name, str) else name.name]
            resource = as_resource(attribute)
            if resource is not None and (key := resource_key(resource)) not in found:
                found[key] = _digest(resource)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _digest(resource: ir.DenseResourceElementsAttr) -> str:
    try:
        array = resource_array(resource).reshape(-1)
    except (VerificationError, TypeError) as error:
        raise Unkeyed(f"a constant cannot be read: {error}") from None
    return tree_digest(array.view(np.uint8).data)


# Longer than the steps in which file systems count time.
SETTLED_SECONDS = 2.0
_PARTS = ("enters", "graph", "constants", NAMES)


@dataclass(frozen=True)
class FileState:
    """The state of a file that tells whether it is still the one that was read."""

    path: str
    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @staticmethod
    def of(path: Path) -> "FileState":
        """Return the state now. Raises OSError."""
        found = os.stat(path)
        return FileState(
            os.path.realpath(path),
            found.st_dev,
            found.st_ino,
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
        )

    def settled(self, now: float) -> bool:
        """Return True unless the file may have changed since, or may yet, within one time step."""
        return max(self.modified_ns, self.changed_ns) <= (now - SETTLED_SECONDS) * 1e9

    @property
    def name(self) -> str:
        """The memo's name. Paths stay out of the cache."""
        return f"file-{sha256(repr(self).encode())}"


@dataclass(frozen=True)
class Contents:
    """A model's files with their digests: the model itself first, then its weights."""

    states: tuple[FileState, ...]
    digests: tuple[str, ...]

    def unchanged(self) -> bool:
        """Return True while all files are what they were."""
        try:
            return all(FileState.of(Path(s.path)) == s for s in self.states)
        except OSError:
            return False


class Sources:
    """The memos of one store."""

    def __init__(
        self,
        store: CacheStore,
        note: Callable[[Sequence[CacheEvent]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`note` is told what went wrong with writing a memo."""
        self._store = store
        self._note = note
        self._clock = clock
        self._known: dict[str, str] = {}

    def contents(self, source: Source, read: bool = True) -> Contents | None:
        """Return the digests of a model's files; None for what is no settled file.

        read: whether the files may be read here; else None for those that no memo tells of.
        """
        path = _model_path(source)
        if path is None:
            return None
        try:
            files = [path, *self._weights(path, read)]
            states = tuple(map(FileState.of, files))
            if not all(s.settled(self._clock()) for s in states):
                return None
            # Declared ranges decide what is imported.
            reading = [repr(r) for r in getattr(source, "ranges", ())]
            found = Contents(states, (*(self._digest(s, read) for s in states), *reading))
        except (OSError, ValueError):
            return None
        return found if found.unchanged() else None

    def known(self, contents: Contents, identity: Identity) -> Mapping[str, str] | None:
        """Return the program's part of the key, if files of these contents were imported before."""
        found = _read(self._store.read_memo(_memo_name(contents, identity)))
        return found if set(found) == set(_PARTS) else None

    def remember(self, contents: Contents, identity: Identity, part: Mapping[str, str]) -> None:
        """Keep what files of these contents are, unless one changed while they were imported."""
        if contents.unchanged():
            self._remember(_memo_name(contents, identity), part)

    def _remember(self, name: str, found: Mapping[str, Any]) -> None:
        self._note(self._store.write_memo(name, json.dumps(found).encode()))

    def _weights(self, path: Path, read: bool) -> list[Path]:
        if path.suffix != ".onnx":
            return []
        state = FileState.of(path)
        memo = f"weights-{state.name}"
        names = _read(self._store.read_memo(memo)).get("names")
        if names is None and not read:
            raise ValueError("not known without reading the model")
        if names is None:
            names = _external_names(path)
            if FileState.of(path) == state and state.settled(self._clock()):
                self._remember(memo, {"names": names})
        return [inside(path.resolve().parent, name) for name in names]

    def _digest(self, state: FileState, read: bool) -> str:
        """Return the digest of a file's content, by its identity where that is known.

        Raises OSError, ValueError.
        """
        known = self._known.get(state.name) or _read(self._store.read_memo(state.name)).get("tree")
        if known is None and not read:
            raise ValueError("not known without reading the file")
        if known is None:
            known = file_digest(Path(state.path))
            # A file that is written while it is read has another state afterwards.
            if FileState.of(Path(state.path)) == state:
                self._remember(state.name, {"tree": known})
        self._known[state.name] = known
        return known


def _model_path(source: Source) -> Path | None:
    match source:
        # Memos do not tell imports with islands, or of a named function or results, from others.
        case OnnxFile(path, islands=False, outputs=()):
            found = path
        case MlirFile(path, function="") if path.suffix == ".mlir":
            found = path
        case _:
            return None
    with contextlib.suppress(OSError, ValueError):
        return found if found.is_file() else None
    return None


def _external_names(path: Path) -> list[str]:
    """Return the files that an ONNX model keeps weights in. Raises ValueError for no model."""
    if importlib.util.find_spec("onnx") is None:
        raise ValueError("no onnx")
    from pyc_mlir.dialects.errors import PycError
    from pyc_mlir.frontends.onnx.reading import read_model
    from pyc_mlir.frontends.onnx.weights import external_files

    try:
        model, _ = read_model(path)
    except PycError as error:
        raise ValueError(error.message) from None
    return external_files(model)


def _memo_name(contents: Contents, identity: Identity) -> str:
    """Name a memo; imports depend on the importer: PyC's source, the packages' versions."""
    versions = dict(identity.versions)
    with contextlib.suppress(PackageNotFoundError):
        versions["onnx"] = installed_version("onnx")
    kind = Path(contents.states[0].path).suffix
    text = json.dumps([kind, contents.digests, versions, identity.source, identity.host])
    return f"program-{sha256(text.encode())}"


def _read(data: bytes | None) -> dict[str, Any]:
    try:
        found = parse_json(data or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
