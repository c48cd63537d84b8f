"""An artifact: one `.vmfb` that IREE's tools run, with PyC's manifest and log inside.

IREE's `.vmfb` is a ZIP archive. PyC appends entries to it:

    pyc/manifest.json    signature, target, contract, versions, entries, a `checksum` of the rest
    pyc/decisions.jsonl  the log of choices, one JSON object a line, without source locations
                         (with the option `node_names`: names of nodes, else see log.py)
    pyc/module.mlir      the pyc module as text for reading, large constants left out
    pyc/memory.json      where there is one, the memory report (memory.py)
    pyc/samples          under `max_error`: answers of the reference (test_vectors.py)
    pyc/vmfb-tail        IREE's own end of the archive, so that its bytes can be had back exactly

Equal inputs give equal bytes: no paths, no times, keys in order.
"""

import io
import json
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.import_report import ImportReport
from pyc_mlir.artifact.manifest import (
    MAIN,
    CalibrationName,
    EntryPoint,
    Manifest,
    read_manifest,
)
from pyc_mlir.artifact.memory import Account
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import CacheRecord, Checks
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file_by, write_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.contract import Contract, ContractReport
from pyc_mlir.pipelines.choices.log import NodeNames, read_beside, write_beside
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.util.checksum import checksum
from pyc_mlir.util.html import facts_table
from pyc_mlir.util.pages import read_file_large
from pyc_mlir.util.units import quantity
from pyc_mlir.util.versions import installed_version

_FOLDER = "pyc/"
_MANIFEST = "pyc/manifest.json"
_DECISIONS = "pyc/decisions.jsonl"
_MODULE = "pyc/module.mlir"
_MEMORY = "pyc/memory.json"
_SAMPLES = "pyc/samples"
_TAIL = "pyc/vmfb-tail"
_ENTRIES = frozenset({_MANIFEST, _DECISIONS, _MODULE, _MEMORY, _SAMPLES, _TAIL})
_MODELS = frozenset({".onnx", ".mlir", ".mlirbc"})
_ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, struct.error, LookupError)
# The last two compute folded constants and the references.
_PACKAGES = (
    "pyc-mlir",
    "torch-mlir",
    "iree-base-compiler",
    "iree-base-runtime",
    "numpy",
    "ml_dtypes",
)


@dataclass(frozen=True)
class Artifact:
    """A compiled program: IREE's bytes, the manifest, the decisions and the pyc module.

    `vmfb` has the buffer protocol; from 2 MiB on, that of a file lies on large pages. `memory` is
    the JSON of its memory report, `samples` are answers of its reference; both are empty without.
    Neither `checks`, what the process that compiled knows besides, is part of the bytes, nor
    `cached`, what the compile cache did if one was asked.
    """

    vmfb: bytes | memoryview
    manifest: Manifest
    decisions: Sequence[Decision] = ()
    module: bytes = b""
    memory: bytes = b""
    samples: bytes = b""
    checks: Checks | None = field(default=None, compare=False, repr=False)
    cached: CacheRecord | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"Artifact({', '.join(f'{n}: {v}' for n, v in self._shown().items())})"

    def _repr_html_(self) -> str:
        return facts_table("Artifact", self._shown())

    def _shown(self) -> dict[str, str]:
        manifest = self.manifest
        return {
            "target": manifest.target,
            "graph": manifest.graph_id or "none",
            "size": quantity(len(self.vmfb), "B"),
            "memory": self.memory_line,
            **({} if self.prediction is None else {"time": str(self.prediction)}),
            "decisions": str(len(self.decisions)),
        }

    @property
    def unbound(self) -> "Artifact":
        """The program as if nothing was promised, but for what is part of its code."""
        kept = Contract(detect_faults=self.manifest.contract.detect_faults)
        return replace(self.noted(contract=kept), samples=b"")

    @property
    def names(self) -> NodeNames:
        """The names of the model's nodes, as far as the decisions have them."""
        return NodeNames.of(self.manifest.graph_id, self.decisions)

    def noted(self, **changes: Any) -> "Artifact":
        """Return the artifact with these fields of the manifest."""
        return replace(self, manifest=replace(self.manifest, **changes))

    def with_checks(self, **found: Any) -> "Artifact":
        """Return the artifact with these facts of the process that compiled it."""
        return replace(self, checks=replace(self.checks or Checks(), **found))

    def named(self, names: NodeNames) -> "Artifact":
        """Return the artifact with names of nodes, unless they are those of another program."""
        if not names.sites:
            return self
        return replace(self, decisions=names.given(self.manifest.graph_id, self.decisions))

    @property
    def contract_report(self) -> ContractReport:
        """The compile's report on each clause of the contract."""
        return self.manifest.contract_report

    @property
    def signature(self) -> Signature:
        """The inputs and results of the program."""
        return self.manifest.signature

    @property
    def imported(self) -> ImportReport:
        """How much of the program PyC compiles, and how much it leaves to IREE."""
        return self.manifest.imported

    @property
    def account(self) -> Account:
        """The memory that the program needs."""
        return self.manifest.memory

    @property
    def memory_line(self) -> str:
        """The account in words, with scratch for as many calls as the contract lets overlap."""
        return self.account.described(self.manifest.contract.max_concurrency)

    @property
    def prediction(self) -> Prediction | None:
        """The predicted time of a call; None where nothing is known of the program."""
        return self.manifest.prediction

    @property
    def reference(self) -> Account:
        """The memory of the same dispatches by IREE's own plan, weights as the model has them."""
        return self.manifest.memory_by_iree


def make_manifest(
    target: Target,
    signature: Signature,
    graph_id: str,
    account: Account | None = None,
    *,
    entry: str = MAIN,
    **facts: Any,
) -> Manifest:
    """Return the manifest of a program whose entry `main` is the function `entry`.

    account: as the signature says where it is left out; `memory_by_iree` is the same unless
    `facts`, other fields of the manifest, say otherwise.
    """
    needed = account or Account.of(signature)
    made = Manifest(
        target=target.name,
        device=target.device,  # pyright: ignore[reportArgumentType]
        features=tuple(sorted(target.needs)),
        signature=signature,
        versions=installed_versions(),
        graph_id=graph_id,
        entries={MAIN: EntryPoint(entry)},
        memory=needed,
        memory_by_iree=needed,
    )
    return replace(made, **facts)


def calibration_name(calibration: Calibration | None) -> CalibrationName | None:
    """Return the name by which manifests and logs refer to a calibration."""
    return None if calibration is None else CalibrationName(calibration.name, calibration.hash)


def installed_versions() -> dict[str, str]:
    """Versions of PyC and of the packages that it compiles with, as far as they are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = installed_version(package)
        except PackageNotFoundError:
            continue
    return found


def to_bytes(artifact: Artifact) -> bytes:
    """Return the bytes of the `.vmfb`. Raises PycError (BAD_ARTIFACT) if IREE's part is no ZIP
    archive.
    """
    start = _directory_start(artifact.vmfb)
    named = artifact.manifest.options.node_names
    plain = (_unplaced(d, named) for d in artifact.decisions)
    log = "".join(f"{json.dumps(d, ensure_ascii=False)}\n" for d in plain)
    parts = {
        _TAIL: bytes(artifact.vmfb[start:]),
        _DECISIONS: log.encode(),
        _MODULE: artifact.module,
        **({_MEMORY: artifact.memory} if artifact.memory else {}),
        **({_SAMPLES: artifact.samples} if artifact.samples else {}),
    }
    checksums = {name: checksum(data) for name, data in parts.items()}
    checksums["vmfb"] = checksum(artifact.vmfb)
    manifest = replace(artifact.manifest, checksums=checksums)
    text = json.dumps(to_data(manifest), indent=1, sort_keys=True, ensure_ascii=False)
    buffer = io.BytesIO(artifact.vmfb)
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, data in (*parts.items(), (_MANIFEST, text.encode())):
            # A ZipInfo made by hand carries the year 1980, not the time of the compile.
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def _unplaced(decision: Decision, named: bool) -> dict[str, Any]:
    """Return a decision without its source location, which names files of the machine that
    compiled.

    Nor with what was measured, which another compile would measure otherwise.

    named: with the names of the model's nodes.
    """
    location = decision.site.without_paths.location if named else ""
    site = replace(decision.site, location=location)
    return to_data(replace(decision, site=site, measured={}))


def write(artifact: Artifact, path: str | Path) -> None:
    """Write the artifact to a file, and names of nodes beside it.

    Raises as `to_bytes`, and PycError (FILE_ACCESS).
    """
    write_file(path, to_bytes(artifact))
    write_beside(path, artifact.names)


def from_bytes(
    data: bytes | memoryview, name: str = "artifact", verified: bool = False
) -> Artifact:
    """Read what `to_bytes` made; the result's `vmfb` is IREE's, byte for byte.

    data: a memoryview that can be written to becomes memory of the artifact.
    verified: the caller has compared all bytes with a checksum of its own.
    Raises PycError (BAD_ARTIFACT), with `name` first, for anything else: a file that is no
    archive, one without PyC's entries, a manifest of another schema, a checksum that differs.
    """
    try:
        with zipfile.ZipFile(_View(data)) as archive:
            entries = archive.infolist()
            own = _own_entries(entries)
            parts = {entry.filename: archive.read(entry) for entry in own}
    # zipfile raises whatever the damaged field leads to.
    except (*_ZIP_ERRORS, OSError, EOFError, RuntimeError, ValueError) as error:
        raise _bad(name, "a .vmfb written by PyC", f"{len(data)} bytes: {error}") from None
    missing = {_MANIFEST, _DECISIONS, _MODULE, _TAIL} - set(parts)
    if missing:
        raise _bad(name, "a .vmfb written by PyC", f"one without {', '.join(sorted(missing))}")
    with _refused(name, "a manifest as this version writes it"):
        manifest = read_manifest(parse_json(parts[_MANIFEST]))
    start = min(entry.header_offset for entry in own)
    vmfb = _iree_part(data, start, parts[_TAIL])
    checksums, manifest = manifest.checksums, replace(manifest, checksums={})
    others = sorted(set(checksums) ^ ({*parts, "vmfb"} - {_MANIFEST}))
    if others:
        raise _bad(name, "the entries that its manifest names", f"others: {', '.join(others)}")
    for part, content in () if verified else {**parts, "vmfb": vmfb}.items():
        if part != _MANIFEST and checksums.get(part) != checksum(content):
            raise _bad(name, f"`{part}` with the checksum of the manifest", "a damaged one")
    with _refused(name, "a log of decisions"):
        lines = parts[_DECISIONS].splitlines()
        decisions = tuple(from_data(Decision, parse_json(line)) for line in lines)
    samples = parts.get(_SAMPLES, b"")
    with _refused(name, "samples of this version"):
        Samples.from_bytes(samples, manifest.signature)
        if not samples and manifest.contract.compares:
            raise ValueError("no samples beside a clause `max_error`")
    memory = parts.get(_MEMORY, b"")
    return Artifact(vmfb, manifest, decisions, parts[_MODULE], memory, samples)


@contextmanager
def _refused(name: str, expected: str) -> Iterator[None]:
    """Read a part. Raises PycError (BAD_ARTIFACT) for what is not as expected."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _bad(name, expected, str(error)) from None


def _own_entries(entries: Sequence[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """PyC's entries, which it stores as they are: none can unpack to more than the file.

    Raises ValueError for others.
    """
    own = [e for e in entries if e.filename.startswith(_FOLDER)]
    names = [e.filename for e in own]
    if len(set(names)) < len(names) or not _ENTRIES.issuperset(names):
        raise ValueError(f"expected each of {', '.join(sorted(_ENTRIES))} at most once")
    for entry in own:
        stored = entry.compress_type == zipfile.ZIP_STORED
        if not stored or entry.file_size != entry.compress_size:
            raise ValueError(f"expected `{entry.filename}` stored, got it compressed")
    return own


def _iree_part(data: bytes | memoryview, start: int, tail: bytes) -> bytes | memoryview:
    """IREE's bytes: all before PyC's entries, and its own end, which one of them holds."""
    if isinstance(data, memoryview) and not data.readonly:
        data[start : start + len(tail)] = tail
        return data[: start + len(tail)].toreadonly()
    return b"".join((memoryview(data)[:start], tail))


class _View(io.RawIOBase):
    """Bytes as a file to read, without a copy of them."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self._at = memoryview(data), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise ValueError(f"a place in the file, not {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def read(path: str | Path) -> Artifact:
    """Read an artifact from a file, with the names of nodes beside it.

    Raises as `from_bytes`, and PycError (FILE_ACCESS).
    """
    data = read_file_by(read_file_large, path, "a program")
    return from_bytes(data, str(path)).named(read_beside(path))


def _directory_start(vmfb: bytes | memoryview) -> int:
    """Return where IREE's archive ends and its directory begins: PyC's entries go there."""
    try:
        with zipfile.ZipFile(_View(vmfb)) as archive:
            if any(n.startswith(_FOLDER) for n in archive.namelist()):
                raise _bad("vmfb", "IREE's own bytes", "an artifact of PyC; read it first")
            return archive.start_dir
    except zipfile.BadZipFile as error:
        raise _bad(
            "vmfb", "a ZIP archive, which IREE writes by default", f"other bytes ({error})"
        ) from None


def _bad(name: str, expected: str, got: str) -> PycError:
    remedy = "compile it again"
    if Path(name).suffix in _MODELS:
        remedy = f"compile the model first: pyc-compile {name} -o {Path(name).stem}.vmfb"
    return PycError(ReasonCode.BAD_ARTIFACT, where=name, expected=expected, got=got, remedy=remedy)
