"""Files that PyC wrote and somebody changed: each is what it was, or refused with a code.

Bytes of a program flipped; the entries of an artifact under checksums that fit, as who means harm
would write them; its manifest field by field, loaded and called in every way that a caller has;
logs, calibrations, contracts.
"""

import argparse
import io
import json
import random
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrations import calibration
from conftest import rounds
from mutation import (
    BATCH,
    limit_memory,
    mutate_place,
    mutated_bytes,
    mutated_json,
    places,
    reported,
    require_all_right,
)
from refusals import refused

from pyc_mlir import Array, Contract, Device, Program, PycError, ReasonCode, Tensor
from pyc_mlir.api import build
from pyc_mlir.artifact import artifact, memory
from pyc_mlir.artifact.manifest import DECLARATION, require_declared
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.artifact.test_vectors import Samples, make_inputs
from pyc_mlir.artifact.verification import Verification
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.dialects.util.json_input import MAX_JSON_BYTES, parse_json, read_record
from pyc_mlir.pipelines.choices.log import read_log, write_log
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.runtime.arenas import ArenaPool
from pyc_mlir.runtime.array import reinterpreted, to_device
from pyc_mlir.tools.cli.contract_flags import add_flags, read_contract
from pyc_mlir.util.checksum import checksum

FLIPS = rounds(40, 1000)
ARTIFACTS, MANIFESTS, FILES = rounds(50, 2000), rounds(100, 2000), rounds(50, 2000)
MANIFEST = "pyc/manifest.json"
SYNC = Device("local-sync")
X = np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)
# Room for IREE and numpy in a child, not for what a size in a file may ask for.
ADDRESS_SPACE = 16 << 30


def affine(x: Tensor["f32", "n", 8]):  # noqa: F821
    y = np.tanh(x @ np.ones((8, 8), np.float32))
    return y @ y.T @ x + np.mean(y, axis=0)


def several(x: np.ndarray) -> tuple[np.ndarray, ...]:
    y = np.maximum(x @ np.full((8, 4), 0.5, np.float32), 0)
    return y, x > 0, y.sum(0), np.tanh(x)


@cache
def originals() -> tuple[bytes, ...]:
    """Programs with dynamic sizes, ranges and samples; with results of two types and two plans."""
    rounded = Contract(max_error="rounding", max_concurrency=2)
    first = make_options(contract=rounded, planner_mode="balanced", dims={"n": (1, 64)})
    second = make_options(planner_mode="balanced", also_modes=("memory_first",))
    return tuple(
        artifact.to_bytes(made)
        for made in (build(affine, None, first), build(several, [X], second))
    )


@cache
def parts(which: int = 0) -> tuple[bytes, dict[str, bytes]]:
    """IREE's bytes, and PyC's entries."""
    data = originals()[which]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        own = {n: archive.read(n) for n in archive.namelist() if n.startswith("pyc/")}
    return bytes(artifact.from_bytes(data).vmfb), own


@cache
def answers(which: int) -> list[np.ndarray]:
    found = Program(artifact.from_bytes(originals()[which]), SYNC)(X)
    return list(found) if isinstance(found, tuple) else [found]


def archived(vmfb: bytes, entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO(vmfb)
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def with_manifest(which: int, manifest: Any) -> bytes:
    """The artifact with this manifest, whose checksums are those of the other entries."""
    vmfb, own = parts(which)
    return archived(vmfb, {**own, MANIFEST: json.dumps(manifest).encode()})


def rebuilt(name: str, changed: bytes) -> bytes:
    """The artifact with this entry, and with checksums that fit."""
    vmfb, own = parts()
    made = {**own, name: changed}
    manifest = made.pop(MANIFEST)
    try:
        known = json.loads(manifest)
        known["checksums"] |= {n: checksum(d) for n, d in made.items()}
        manifest = json.dumps(known).encode()
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        pass
    return archived(vmfb, {**made, MANIFEST: manifest})


def warm_up() -> None:
    """Make what all mutants need before any is timed; then no more memory than programs need."""
    write_log(artifact.from_bytes(originals()[0]).decisions, "log")
    for which, data in enumerate(originals()):
        use(which, data)
        read_all(data)
    limit_memory(ADDRESS_SPACE)


def read_all(data: bytes) -> None:
    """Read an artifact and all that it says, then load it."""
    found = artifact.from_bytes(data)
    assert found.signature and found.account and found.contract_report is not None
    if found.memory:
        memory.from_bytes(found.memory)
    Samples.from_bytes(found.samples, found.signature)
    Program(found, SYNC)


def use(which: int, data: bytes) -> None:
    """Load a program, call it in every way, and ask it all that it tells."""
    program = Program(artifact.from_bytes(data), SYNC)
    x = to_device(X, SYNC)
    for mode in program.modes:
        program.use_mode(mode)
        require_right(which, program(X))
        require_right(which, program(x))
        out = [to_device(a, SYNC) for a in answers(which)]
        try:
            require_right(which, program(x, out=out))
        except PycError as error:
            assert error.code is ReasonCode.NO_ARENA_ENTRY, error
        try:
            program(to_device(X, SYNC), donate=(0,))
        except PycError as error:
            assert error.code in (ReasonCode.DONATION_UNSAFE, ReasonCode.NO_ARENA_ENTRY), error
    assert str(program.stats()) and program.log() and repr(program)


def require_right(which: int, found: Any) -> None:
    results = list(found) if isinstance(found, tuple) else [found]
    for result, right in zip(results, answers(which), strict=True):
        host = result.numpy() if isinstance(result, Array) else result
        assert (host.shape, host.dtype) == (right.shape, right.dtype), f"{host.shape} {host.dtype}"
        np.testing.assert_array_equal(host, right)


def mutated_manifest(seed: int) -> str:
    """The field of this seed's turn changed, and perhaps two more."""
    draw, which = random.Random(seed), seed % 2
    manifest = json.loads(parts(which)[1][MANIFEST])
    known = [p for p in places(manifest) if p[0] is not manifest.get("checksums")]
    mutate_place(draw, *known[seed // 2 % len(known)], known)
    for _ in range(draw.choice((0, 0, 0, 2))):
        mutate_place(draw, *draw.choice(known), known)
    return reported(lambda: use(which, with_manifest(which, manifest)))


def mutated_lines(draw: random.Random, data: bytes) -> bytes:
    lines = data.splitlines() or [b"{}"]
    place = draw.randrange(len(lines))
    lines[place] = mutated_json(draw, lines[place])
    return b"".join(line + b"\n" for line in lines)


def mutated_artifact(seed: int) -> str:
    draw, (_, own) = random.Random(seed), parts()
    name = draw.choice(sorted(set(own) - {"pyc/vmfb-tail", "pyc/module.mlir"}))
    change = {MANIFEST: mutated_json, "pyc/decisions.jsonl": mutated_lines}.get(name, mutated_bytes)
    if name == "pyc/memory.json" and draw.random() < 0.8:
        change = mutated_json
    if draw.random() < 0.2:
        change = mutated_bytes
    elif name == "pyc/samples":
        head, _, rest = own[name].partition(b"\n")
        return reported(lambda: read_all(rebuilt(name, mutated_json(draw, head) + b"\n" + rest)))
    data = rebuilt(name, change(draw, own[name]))
    return reported(lambda: read_all(data))


TOML = b'max_error = "rounding"\ndeterminism = "strict"\nfallbacks = ["none"]\n'
CLAUSES = to_data(Contract(max_error=0.1, memory_budget_bytes=1 << 20))
VERIFICATION = {
    "schema": 1, "artifact": "a", "environment": {"cpu": "x"}, "done": 1, "of": 1, "worst": 0.5,
    "wrong": "",
}  # fmt: skip


def mutated_file(seed: int) -> str:
    """A calibration, a log, a contract, a verification record."""
    draw = random.Random(seed)
    Path("c.toml").write_bytes(mutated_bytes(draw, TOML))
    Path("odd.log").write_bytes(mutated_lines(draw, Path("log").read_bytes()))
    parser = argparse.ArgumentParser()
    add_flags(parser)

    def plain(kind: Any, data: Any) -> Any:
        changed = mutated_json(draw, json.dumps(data).encode())
        return read_record(kind, changed, "record", "one", "write it again")

    works = (
        lambda: Calibration.from_bytes(mutated_json(draw, calibration().to_bytes())),
        lambda: Calibration.from_bytes(mutated_bytes(draw, calibration().to_bytes())),
        lambda: read_log("odd.log"),
        lambda: read_contract(parser.parse_args(["--contract", "c.toml"])),
        lambda: plain(Verification, VERIFICATION),
        lambda: Contract.of(plain(Any, CLAUSES)),
    )
    return "; ".join(filter(None, map(reported, works)))


@pytest.mark.parametrize("batch", range(ARTIFACTS // BATCH))
@pytest.mark.full
def test_mutated_artifacts(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_artifact, batch, tmp_path)


@pytest.mark.parametrize("batch", range(MANIFESTS // BATCH))
@pytest.mark.full
def test_mutated_manifests(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_manifest, batch, tmp_path)


@pytest.mark.parametrize("batch", range(FILES // BATCH))
@pytest.mark.full
def test_mutated_files(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_file, batch, tmp_path)


def test_a_flipped_byte_is_refused_or_harmless():
    """Of IREE's part, of PyC's entries and of the archive's own records."""
    draw, refusals = random.Random(0), 0
    whole = originals()[0]
    # The archive's records at the end are short, and no checksum holds them: half of the flips.
    records = len(whole) - 4000
    for flip in range(FLIPS):
        place = draw.randrange(records, len(whole)) if flip % 2 else draw.randrange(len(whole))
        data = bytearray(whole)
        data[place] ^= 1 << draw.randrange(8)
        try:
            loaded = Program(artifact.from_bytes(bytes(data)), SYNC)
        except PycError as error:
            assert error.code is ReasonCode.BAD_ARTIFACT, f"byte {place}: {error}"
            refusals += 1
            continue
        require_right(0, loaded(X))
    assert refusals >= FLIPS // 2


@pytest.mark.parametrize("how", ["compressed", "twice", "unknown", "encrypted"])
@pytest.mark.full
def test_archives_that_are_none_of_ours(how: str) -> None:
    """A few kilobytes that unpack to gigabytes, and others."""
    vmfb, own = parts()
    buffer = io.BytesIO(vmfb)
    with zipfile.ZipFile(buffer, "a") as archive, pytest.MonkeyPatch.context() as quiet:
        quiet.setattr("warnings.warn", lambda *_, **__: None)
        for name, data in own.items():
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
    refused(ReasonCode.BAD_ARTIFACT, artifact.from_bytes, data)


@pytest.mark.full
def test_every_field_has_its_turn() -> None:
    for which in range(2):
        manifest = json.loads(parts(which)[1][MANIFEST])
        known = [p for p in places(manifest) if p[0] is not manifest["checksums"]]
        assert len(known) <= 1000, "2,000 seeds are 1,000 turns of each program"
        assert artifact.from_bytes(with_manifest(which, manifest)).manifest.target == "cpu"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("signature", "outputs", 0, "shape"), [4, 1 << 31]),
        (("signature", "outputs", 0, "shape"), [5, 3]),
        (("signature", "outputs", 1, "dtype"), "f32"),
        (("signature", "outputs", 0, "dtype"), "f64"),
        (("signature", "inputs", 0, "shape"), [5, 1 << 52]),
        (("entries", "main", "function"), "main$arena_transients_size"),
        (("entries", "main", "function"), "main$arena"),
        (("entries", "main$arena", "function"), "main"),
        (("entries", "main$arena", "arena_bytes"), -1),
        (("entries", "main$arena", "arena_bytes"), 1 << 20),
        (("memory", "transients"), 1 << 64),
        (("device",), "tpu"),
        (("prediction", "seconds"), float("nan")),
        (("versions", "numpy"), 2),
        (("contract_report",), [{"clause": "max_error"}]),
        (("options", "ranges"), {"n": [1]}),
    ],
)
def test_what_disagrees_is_refused(place: tuple[Any, ...], value: Any) -> None:
    manifest = json.loads(parts(1)[1][MANIFEST])
    holder = manifest
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    data = with_manifest(1, manifest)
    load = lambda: Program(artifact.from_bytes(data), SYNC)  # noqa: E731
    refused(ReasonCode.BAD_ARTIFACT, load, match="compile it again")


def test_a_view_never_passes_its_memory() -> None:
    """Even where nothing was declared: the last check is that of the memory itself."""
    honest = to_device(X, SYNC)
    for spec in (((4, 1 << 31), X.dtype, SYNC), ((5, 8), np.dtype(np.float64), SYNC)):
        view = Array(honest.view, spec)
        refused(ReasonCode.BAD_ARTIFACT, view.numpy, match="got memory of 160")
        with pytest.raises(PycError):
            reinterpreted(honest, spec)


def test_declared_types_are_the_manifests() -> None:
    text = "sync func @main(%input0: tensor<?x8xf32> {iree.abi.x = 1 : i64}, %n: tensor<i64>) -> "
    text += "(%output0: tensor<8x?xi1>)"
    f32, i64, i1 = (DTYPES[name] for name in ("f32", "i64", "i1"))
    inputs = (SignatureEntry("x", f32, ("n", 8)), SignatureEntry("k", i64, ()))
    good = Signature(inputs, (SignatureEntry("y", i1, (8, None)),))
    require_declared("main", {DECLARATION: text}, good)
    for wrong in (
        Signature(inputs[:1], good.outputs),
        Signature(inputs, ()),
        Signature(inputs, (SignatureEntry("y", i1, (8, 8)),)),
        Signature(inputs, (SignatureEntry("y", DTYPES["i8"], (8, None)),)),
        Signature(inputs[::-1], good.outputs),
    ):
        with pytest.raises(PycError, match="of the manifest"):
            require_declared("main", {DECLARATION: text}, wrong)
    with pytest.raises(PycError, match="declared for callers"):
        require_declared("main", {}, good)
    nothing = "sync func @f(%input0: tensor<8xf32>)"
    require_declared("f", {DECLARATION: nothing}, Signature((SignatureEntry("x", f32, (8,)),), ()))


def test_arenas_are_made_when_they_are_needed() -> None:
    pool = ArenaPool(SYNC, (1 << 31) - 1)
    first, second = pool.take(64), pool.take(64)
    assert first is not second and len(pool) == (1 << 31) - 1 and pool.bytes == 128
    pool.give(first)
    assert pool.take(64) is first and pool.waits == 0


def test_inputs_of_samples_are_no_larger_than_the_machine() -> None:
    signature = Signature((SignatureEntry("x", DTYPES["f32"], ("n", 1 << 40)),), ())
    with pytest.raises(PycError, match="expected a machine that can hold 8796093022208000 bytes"):
        make_inputs(signature, 0, {"n": 1000})


def test_json_is_bounded() -> None:
    for text in ("[" * 200_000, "9" * 10_000, "{", b"\xff", " " * (MAX_JSON_BYTES + 1)):
        with pytest.raises(ValueError):
            parse_json(text)
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
