"""Capsules: a file that replays a wrong answer elsewhere.

    capsule.json      why, where (versions, CPU), the inputs' types and sizes, the program's log
    artifact.vmfb     the program
    inputs.npz, answers.npz, expected.npz      only with the owner's consent to store inputs

`pyc-run --capsule FILE` calls the program again and compares.
"""

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.runtime.device import environment_of
from pyc_mlir.runtime.program import Program
from pyc_mlir.service.shadow import Mismatch

SCHEMA_VERSION = 1
_HEAD, _ARTIFACT = "capsule.json", "artifact.vmfb"
_ARRAYS = ("inputs", "answers", "expected")
MOST_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class Capsule:
    """A call that went wrong.

    head: plain data, as above. artifact: None where the capsule would have become too large;
    `head["artifact"]` has its hash. arrays: by name of `_ARRAYS`; empty without consent.
    """

    head: Mapping[str, Any]
    artifact: Artifact | None
    arrays: Mapping[str, Sequence[np.ndarray]]

    def save(self, path: str | Path, most_bytes: int = MOST_BYTES) -> None:
        """Write the file; parts that would make it larger than `most_bytes` are left out.

        `head["left_out"]` names them. Raises PycError (FILE_ACCESS).
        """
        parts: dict[str, bytes] = {}
        left_out, total = [], 0
        candidates = {n: _packed(a) for n, a in self.arrays.items()}
        if self.artifact is not None:
            candidates["artifact"] = artifacts.to_bytes(self.artifact)
        for name, data in candidates.items():
            if total + len(data) > most_bytes:
                left_out.append(name)
                continue
            total += len(data)
            parts[_ARTIFACT if name == "artifact" else f"{name}.npz"] = data
        head = {"schema": SCHEMA_VERSION, **self.head, "left_out": left_out}
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
            file.writestr(_HEAD, json.dumps(head, indent=1, sort_keys=True))
            for name, data in parts.items():
                file.writestr(name, data)
        write_file(path, out.getvalue())

    @staticmethod
    def load(path: str | Path) -> "Capsule":
        """Read a capsule. Raises PycError: FILE_ACCESS, BAD_ARTIFACT for any other file."""
        data = read_file(path, "a capsule")
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as file:
                names = set(file.namelist())
                head = parse_json(file.read(_HEAD))
                if not isinstance(head, dict) or head.get("schema") != SCHEMA_VERSION:
                    raise ValueError(f"expected a head of schema {SCHEMA_VERSION}")
                program = None
                if _ARTIFACT in names:
                    program = artifacts.from_bytes(file.read(_ARTIFACT), f"{path}: {_ARTIFACT}")
                arrays = {
                    n: _unpacked(file.read(f"{n}.npz")) for n in _ARRAYS if f"{n}.npz" in names
                }
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
            raise PycError(
                ReasonCode.BAD_ARTIFACT,
                where=str(path),
                expected="a capsule that a service wrote",
                got=str(error),
                remedy="name a file of the folder that `Shadow(capsules=...)` names",
            ) from None
        return Capsule(head, program, arrays)


def capsule_of(mismatch: Mismatch, program: Program, build: int, with_arrays: bool) -> Capsule:
    """Return the capsule of a wrong answer; its arrays only with the owner's consent."""
    sampled = mismatch.sampled
    head = {
        "why": mismatch.why,
        "build": build,
        "mode": program.mode,
        "time": time.time(),
        "artifact": hashlib.sha256(program.artifact.vmfb).hexdigest(),
        "environment": environment_of(program.device),
        "versions": dict(program.artifact.manifest.versions),
        "inputs": [{"dtype": dtype_name(a.dtype), "shape": list(a.shape)} for a in sampled.inputs],
        "log": [str(event) for event in program.log()],
    }
    kept = (sampled.inputs, sampled.answers, mismatch.expected) if with_arrays else ()
    return Capsule(head, program.artifact, dict(zip(_ARRAYS, kept, strict=False)))


def written(mismatch: Mismatch, path: Path, keep_inputs: bool) -> tuple[str, str, ReasonCode]:
    """Write the capsule of a wrong answer; return where it is, or that it is nowhere, and why."""
    build = mismatch.sampled.build
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        capsule_of(mismatch, build.program, build.number, keep_inputs).save(path)
    except (OSError, PycError) as error:
        return "not written", str(error), ReasonCode.FILE_ACCESS
    return str(path), mismatch.why, ReasonCode.WRONG_RESULT


def _packed(arrays: Sequence[np.ndarray]) -> bytes:
    out = io.BytesIO()
    views = [a.view(np.uint8) if a.dtype.kind == "V" else a for a in arrays]
    np.savez(out, *views, names=[dtype_name(a.dtype) for a in arrays])
    return out.getvalue()


def _unpacked(data: bytes) -> list[np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        names = [str(n) for n in file["names"]]
        return [file[f"arr_{i}"].view(DTYPES[name]) for i, name in enumerate(names)]
