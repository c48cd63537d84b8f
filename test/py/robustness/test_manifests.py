"""Manifests that somebody changed, under checksums that fit: the right answer, or a PycError.

Field after field is mutated: each place of the manifest in its turn, with values that are odd for
what stands there. Each mutant is loaded and called in every way that a caller has.
"""

import io
import json
import random
import resource
import zipfile
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutation import BATCH, require_all_right
from scenarios import count_of
from test_mutated_data import affine, keys_of, places, reported

from pyc_mlir.api import build
from pyc_mlir.artifact import artifact
from pyc_mlir.artifact.manifest import DECLARATION, require_declared
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.artifact.test_vectors import make_inputs
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.arenas import ArenaPool
from pyc_mlir.runtime.array import Array, reinterpreted, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program

MUTANTS = count_of("manifests mutated field by field under checksums that fit, loaded and called")
MANIFEST = "pyc/manifest.json"
X = np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)
# Room for IREE and numpy in a child, not for what a size in a file may ask for.
ADDRESS_SPACE = 16 << 30
SIZES = (
    -1, 0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 4096, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40,
    (1 << 47) + 1, 1 << 52, (1 << 63) - 1, 1 << 63, 1 << 64, 10**40, -(1 << 63), 8.0, 0.5, 1e308,
    True, "8", "n", "m", None, [8], {"size": 8},
)  # fmt: skip
TEXTS = (
    "", "x", "main", "main$arena", "main$arena.memory_first", "__init",
    "main$arena_transients_size",
    "f64", "f16", "i1", "i8", "i64", "bf16", "cuda", "local", "balanced", "memory_first", "strict",
    "é\0", "\x1b[31m", "\n", "a" * 100_000, None, 0, 1.5, [], {}, ["x"], True, "../..", "%s{0}",
)  # fmt: skip
OTHERS = (None, 0, -1, "x", [], {}, [[]], [None], {"": None}, 10**40, 0.5, True, float("nan"))
SHAPES = (
    [], [4], [4, 1 << 31], [None, 8], ["n", 8], ["n", "n"], [8, "n"], ["n", 1 << 31], [1 << 52],
    [1 << 31] * 9, [0], [0, 1 << 62], ["n", 8, 1], [1] * 65, [-1, 8], [5, 8],
)  # fmt: skip


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
def parts(which: int) -> tuple[bytes, dict[str, bytes]]:
    """IREE's bytes, and PyC's entries."""
    data = originals()[which]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        own = {n: archive.read(n) for n in archive.namelist() if n.startswith("pyc/")}
    return bytes(artifact.from_bytes(data).vmfb), own


@cache
def answers(which: int) -> list[np.ndarray]:
    found = Program(artifact.from_bytes(originals()[which]), Device("local-sync"))(X)
    return list(found) if isinstance(found, tuple) else [found]


def with_manifest(which: int, manifest: Any) -> bytes:
    """The artifact with this manifest, whose checksums are those of the other entries."""
    vmfb, own = parts(which)
    buffer = io.BytesIO(vmfb)
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, data in {**own, MANIFEST: json.dumps(manifest).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def mutated(seed: int) -> tuple[int, Any]:
    """A program, and its manifest with the field of this seed's turn changed; or three fields."""
    draw, which = random.Random(seed), seed % 2
    manifest = json.loads(parts(which)[1][MANIFEST])
    known = [p for p in places(manifest) if p[0] is not manifest.get("checksums")]
    mutate(draw, *known[seed // 2 % len(known)], known)
    for _ in range(draw.choice((0, 0, 0, 2))):
        mutate(draw, *draw.choice(known), known)
    return which, manifest


def mutate(draw: random.Random, holder: Any, key: Any, known: list[tuple[Any, Any]]) -> None:
    if key not in keys_of(holder):
        return
    value, how = holder[key], draw.random()
    if how < 0.08:
        del holder[key]
    elif how < 0.14:
        other, name = draw.choice(known)
        holder[key] = json.loads(json.dumps(other[name])) if name in keys_of(other) else None
    elif how < 0.18:
        nested: Any = value
        for _ in range(draw.choice((1, 2, 500))):
            nested = [nested] if draw.random() < 0.5 else {"x": nested}
        holder[key] = nested
    elif how < 0.24 and isinstance(value, list | dict):
        more = deepcopy(draw.choice(OTHERS))
        if isinstance(value, list):
            value.extend([*value[:2], more])
        else:
            value[draw.choice(["x", "main$arena.x", "n"])] = more
    else:
        holder[key] = deepcopy(draw.choice(odd_for(key, value)))


def odd_for(key: Any, value: Any) -> tuple[Any, ...]:
    """Values that are odd where this one stands."""
    if key == "shape":
        return SHAPES
    if isinstance(value, str):
        return TEXTS
    if type(value) in (int, float) or value is None:
        return SIZES
    return OTHERS


def warm_up() -> None:
    """What all mutants need, made before any is timed; then no more memory than programs need."""
    for which in range(len(originals())):
        use(which, originals()[which])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, resource.RLIM_INFINITY))


def use(which: int, data: bytes) -> None:
    """Load a program, call it in every way, and ask it all that it tells."""
    device = Device("local-sync")
    program = Program(artifact.from_bytes(data), device)
    x = to_device(X, device)
    for mode in program.modes:
        program.use_mode(mode)
        require_right(which, program(X))
        require_right(which, program(x))
        out = [to_device(a, device) for a in answers(which)]
        try:
            require_right(which, program(x, out=out))
        except PycError as error:
            assert error.code is ReasonCode.NO_ARENA_ENTRY, error
        try:
            program(to_device(X, device), donate=(0,))
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
    which, manifest = mutated(seed)
    return reported(lambda: use(which, with_manifest(which, manifest)))


@pytest.mark.parametrize("batch", range(MUTANTS // BATCH))
@pytest.mark.full
def test_mutated_manifests(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_manifest, batch, tmp_path)


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
    with pytest.raises(PycError, match="compile it again") as caught:
        Program(artifact.from_bytes(with_manifest(1, manifest)), Device("local-sync"))
    assert caught.value.code is ReasonCode.BAD_ARTIFACT


def test_a_view_never_passes_its_memory() -> None:
    """Even where nothing was declared: the last check is that of the memory itself."""
    device = Device("local-sync")
    honest = to_device(X, device)
    for spec in (((4, 1 << 31), X.dtype, device), ((5, 8), np.dtype(np.float64), device)):
        with pytest.raises(PycError, match="got memory of 160") as caught:
            Array(honest.view, spec).numpy()
        assert caught.value.code is ReasonCode.BAD_ARTIFACT
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
    pool = ArenaPool(Device("local-sync"), (1 << 31) - 1)
    first, second = pool.take(64), pool.take(64)
    assert first is not second and len(pool) == (1 << 31) - 1 and pool.bytes == 128
    pool.give(first)
    assert pool.take(64) is first and pool.waits == 0


def test_inputs_of_samples_are_no_larger_than_the_machine() -> None:
    signature = Signature((SignatureEntry("x", DTYPES["f32"], ("n", 1 << 40)),), ())
    with pytest.raises(PycError, match="expected a machine that can hold 8796093022208000 bytes"):
        make_inputs(signature, 0, {"n": 1000})
