"""Files that PyC wrote and somebody changed: each is read, or refused with a code; nothing else.

The entries of an artifact under checksums that fit, as who means harm would write them; logs,
calibrations, contracts.
"""

import argparse
import io
import json
import random
import traceback
import zipfile
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrations import calibration
from mutation import BATCH, require_all_right
from scenarios import count_of

from pyc_mlir import Tensor
from pyc_mlir.api import build
from pyc_mlir.artifact import artifact, memory
from pyc_mlir.artifact.test_vectors import Samples
from pyc_mlir.artifact.verification import Verification
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.dialects.util.json_input import MAX_JSON_BYTES, parse_json, read_record
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.log import read_log, write_log
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools.cli.contract_flags import add_flags, read_contract
from pyc_mlir.util.checksum import checksum

ARTIFACTS = count_of("programs mutated under checksums that fit")
FILES = count_of("logs, calibrations, contracts and verification records mutated")
ODD = (
    None, True, -1, 0, 1 << 62, 10**400, 0.5, -1e308, float("nan"), float("inf"), "", "x", "é\0",
    [], [[]], {}, {"x": []}, [None, "x", -1],
)  # fmt: skip


def affine(x: Tensor["f32", "n", 8]):  # noqa: F821
    y = np.tanh(x @ np.ones((8, 8), np.float32))
    return y @ y.T @ x + np.mean(y, axis=0)


@cache
def original() -> bytes:
    options = make_options(contract=Contract(max_error="rounding"), planner_mode="balanced")
    return artifact.to_bytes(build(affine, None, options))


@cache
def parts() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(original())) as archive:
        return {n: archive.read(n) for n in archive.namelist() if n.startswith("pyc/")}


def warm_up() -> None:
    """What all mutants need, made before any is timed."""
    write_log(artifact.from_bytes(original()).decisions, "log")
    use(original())


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in plain data: what holds it, and under which key."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    return found + [p for k in keys if isinstance(value[k], dict | list) for p in places(value[k])]


def odd_json(draw: random.Random, data: bytes) -> bytes:
    """One to three values of a JSON text replaced, taken away or put elsewhere; or deep nesting."""
    value = json.loads(data)
    if draw.random() < 0.03:
        return b"[" * 100_000 + b"]" * 100_000
    for _ in range(draw.randint(1, 3)):
        known = places(value)
        if not known:
            break
        holder, key = draw.choice(known)
        how = draw.random()
        if how < 0.6:
            holder[key] = deepcopy(draw.choice(ODD))
        elif how < 0.8:
            del holder[key]
        else:
            other, name = draw.choice(known)
            # A copy: no data of JSON holds itself.
            holder[key] = json.loads(json.dumps(other[name])) if name in keys_of(other) else None
    return json.dumps(value).encode()


def keys_of(value: Any) -> Any:
    return value if isinstance(value, dict) else range(len(value))


def odd_bytes(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        changed[place : place + draw.choice((0, 1, 8))] = draw.randbytes(draw.choice((0, 1, 1, 9)))
    return bytes(changed)


def odd_lines(draw: random.Random, data: bytes) -> bytes:
    lines = data.splitlines() or [b"{}"]
    place = draw.randrange(len(lines))
    lines[place] = odd_json(draw, lines[place])
    return b"".join(line + b"\n" for line in lines)


def rebuilt(changed: dict[str, bytes]) -> bytes:
    """The artifact with these entries, and with checksums that fit."""
    made = {**parts(), **changed}
    manifest = made.pop("pyc/manifest.json")
    try:
        known = json.loads(manifest)
        known["checksums"] |= {n: checksum(d) for n, d in made.items()}
        manifest = json.dumps(known).encode()
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        pass
    start = artifact.from_bytes(original()).vmfb
    buffer = io.BytesIO(bytes(start))
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, data in (*made.items(), ("pyc/manifest.json", manifest)):
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def reported(work: Callable[[], object]) -> str:
    """What is wrong with how something is read ('' when nothing is)."""
    try:
        work()
    except PycError as error:
        return "" if error.message else "no message"
    except Exception as error:  # noqa: BLE001  (what it must not be is what is asked)
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{place.filename}:{place.lineno}: {type(error).__name__}: {error}"[:300]
    return ""


def mutated_artifact(seed: int) -> str:
    draw = random.Random(seed)
    name = draw.choice(sorted(set(parts()) - {"pyc/vmfb-tail", "pyc/module.mlir"}))
    change = {"pyc/manifest.json": odd_json, "pyc/decisions.jsonl": odd_lines}.get(name, odd_bytes)
    if name == "pyc/memory.json" and draw.random() < 0.8:
        change = odd_json
    if draw.random() < 0.2:
        change = odd_bytes
    elif name == "pyc/samples":
        head, _, rest = parts()[name].partition(b"\n")
        return reported(lambda: use(rebuilt({name: odd_json(draw, head) + b"\n" + rest})))
    data = rebuilt({name: change(draw, parts()[name])})
    return reported(lambda: use(data))


def use(data: bytes) -> None:
    """Read an artifact and all that it says, then load it."""
    found = artifact.from_bytes(data)
    assert found.signature and found.account and found.contract_report is not None
    if found.memory:
        memory.from_bytes(found.memory)
    Samples.from_bytes(found.samples, found.signature)
    Program(found, Device("local-sync"))


def mutated_file(seed: int) -> str:
    """A calibration, a log, a contract, a verification record."""
    draw = random.Random(seed)
    folder = Path(".")
    (folder / "c.toml").write_bytes(odd_bytes(draw, TOML))
    log = odd_lines(draw, (folder / "log").read_bytes())
    (folder / "odd.log").write_bytes(log)
    verification = {
        "schema": 1, "artifact": "a", "environment": {"cpu": "x"}, "done": 1, "of": 1,
        "worst": 0.5, "wrong": "",
    }  # fmt: skip
    parser = argparse.ArgumentParser()
    add_flags(parser)
    works: list[Callable[[], object]] = [
        lambda: Calibration.from_bytes(odd_json(draw, calibration().to_bytes())),
        lambda: Calibration.from_bytes(odd_bytes(draw, calibration().to_bytes())),
        lambda: read_log(folder / "odd.log"),
        lambda: read_contract(parser.parse_args(["--contract", "c.toml"])),
        lambda: plain(Verification, odd_json(draw, json.dumps(verification).encode())),
        lambda: Contract.of(plain(Any, odd_json(draw, json.dumps(CLAUSES).encode()))),
    ]
    return "; ".join(filter(None, map(reported, works)))


def plain(kind: Any, data: bytes) -> Any:
    """Return the record. Raises PycError."""
    return read_record(kind, data, "record", "one", "write it again")


TOML = b'max_error = "rounding"\ndeterminism = "strict"\nfallbacks = ["none"]\n'
CLAUSES = to_data(Contract(max_error=0.1, memory_budget_bytes=1 << 20))


@pytest.mark.parametrize("batch", range(ARTIFACTS // BATCH))
@pytest.mark.full
def test_mutated_artifacts(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_artifact, batch, tmp_path)


@pytest.mark.parametrize("batch", range(FILES // BATCH))
@pytest.mark.full
def test_mutated_files(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_file, batch, tmp_path)


@pytest.mark.parametrize("how", ["compressed", "twice", "unknown", "encrypted"])
@pytest.mark.full
def test_archives_that_are_none_of_ours(how: str) -> None:
    """A few kilobytes that unpack to gigabytes, and others."""
    found = artifact.from_bytes(original())
    buffer = io.BytesIO(bytes(found.vmfb))
    with zipfile.ZipFile(buffer, "a") as archive, pytest.MonkeyPatch.context() as quiet:
        quiet.setattr("warnings.warn", lambda *_, **__: None)
        for name, data in parts().items():
            kind = zipfile.ZIP_DEFLATED if how == "compressed" else zipfile.ZIP_STORED
            bomb = bytes(1 << 24) if how == "compressed" and name == "pyc/samples" else data
            archive.writestr(zipfile.ZipInfo(name), bomb, kind)
            if how == "twice" and name == "pyc/module.mlir":
                archive.writestr(zipfile.ZipInfo(name), data)
        if how == "unknown":
            archive.writestr("pyc/more", b"")
    data = buffer.getvalue()
    if how == "encrypted":
        place = data.rindex(b"PK\x01\x02", 0, data.rindex(b"pyc/manifest.json"))
        data = data[: place + 8] + b"\x01" + data[place + 9 :]
    with pytest.raises(PycError) as caught:
        artifact.from_bytes(data)
    assert caught.value.code is ReasonCode.BAD_ARTIFACT


def test_json_is_bounded() -> None:
    for text in ("[" * 200_000, "9" * 10_000, "{", b"\xff", " " * (MAX_JSON_BYTES + 1)):
        with pytest.raises(ValueError):
            parse_json(text)
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
