"""Files that were imported before: their program's digests without reading them again.

A memo says: a file of this content was a program of these digests. The content's own digest is
remembered by the file's identity: device, inode, size, times of modification and of change. Neither
is trusted for a file that changed in the last seconds, or at a time that has not come yet: its
identity would not tell the next change. Then the file is imported, and the imported module alone
says which program it is.
"""

import contextlib
import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.verification import CacheEvent
from pyc_mlir.cache.key import Identity
from pyc_mlir.cache.store import NAMES, CacheStore, file_digest, sha256
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.frontends.onnx.weights import inside
from pyc_mlir.frontends.sources import MlirFile, OnnxFile, Source
from pyc_mlir.util.versions import installed_version

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
            found = Contents(states, tuple(self._digest(s, read) for s in states))
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
        # Memos do not tell imports with islands, or of a named function, from those without.
        case OnnxFile(path, islands=False):
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
