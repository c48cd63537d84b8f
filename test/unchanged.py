"""Show by hashes that a change of the sources changed nothing that PyC makes.

    python test/unchanged.py --store made.json                    before the change
    python test/unchanged.py --check made.json                    after it: what differs is named
    python test/unchanged.py --check made.json --only gemm        rows whose name begins so
    python test/unchanged.py --show "body gemm cpu-avx2"          the text behind a row

`body` rows are the code of a family's kernels after ``canonicalize,cse``: `SAMPLES` drawn knobs for
each target. `executable` and `decisions` rows are what compiles of test programs give: the file
without its log, and the log. Equal hashes need no timing. Where a row differs, run `--show` on both
sources and compare what they print.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUPPORT = "test/py/support"
# The sources of this checkout, not those of an installation elsewhere.
sys.path[:0] = [str(ROOT), str(ROOT / SUPPORT), str(ROOT / "test/py")]

from pyc_mlir.api import build  # noqa: E402
from pyc_mlir.compilation.options import make_options  # noqa: E402
from pyc_mlir.dialects.util.codec import to_data  # noqa: E402
from pyc_mlir.pipelines.kernels.lang.carrier import Carrier  # noqa: E402
from pyc_mlir.pipelines.kernels.registry import BUILT_IN  # noqa: E402
from pyc_mlir.pipelines.target.target import Target  # noqa: E402

SAMPLES = 200
AVX512 = Target.named("cpu-avx512")
# The last one has every instruction that a family asks for.
_MORE = {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"}
LEVELS = (
    Target.named("cpu-avx2"),
    AVX512,
    Target.named("cpu-neon"),
    replace(AVX512, name="cpu-amx", features=AVX512.features | _MORE),
)
PROGRAM_LEVELS = ("cpu-avx2", "cpu-avx512")
Texts = Callable[[], Iterator[bytes]]


def bodies(name: str, target: Target) -> Iterator[bytes]:
    """Yield the code of kernels that a family offers, each as the text of a module."""
    from family_checks import knobs_of
    from iree.compiler.passmanager import PassManager

    for number, knobs in enumerate(knobs_of(name, target, "bodies", SAMPLES)):
        carrier = Carrier(target)
        carrier.add(knobs.kernel(f"k{number}"))
        with carrier.context:
            passes = PassManager.parse("builtin.module(canonicalize,cse)")
            passes.run(carrier.module.operation)
            yield str(carrier.module).encode()


def drawn(draw: str, seed: int, dynamic: bool) -> str:
    """Return a random graph as the text of a module."""
    from conv_nets import draw_network
    from modules import shared_context
    from random_ops import draw_graph

    from pyc_mlir.dialects.ir.bindings import ir

    draws: Mapping[str, Callable[..., Any]] = {"network": draw_network, "graph": draw_graph}
    with shared_context(), ir.Location.unknown():
        return str(draws[draw](Random(seed), dynamic=dynamic).module())


def planned(name: str) -> str:
    """Return a program of the planner's tests as the text of a module."""
    from memory_programs import PROGRAMS
    from modules import shared_context

    from pyc_mlir.dialects.ir.bindings import ir

    with shared_context(), ir.Location.unknown():
        return str(PROGRAMS[name].module())


def images(seed: int) -> Any:
    """Return a random image network as an ONNX model."""
    from random_images import network

    return network(seed)[0]


def quantized(kind: str, groups: int) -> Any:
    """Return a product of quantized tensors as an ONNX model in QDQ."""
    sys.path.append(str(ROOT / "test/py/pipelines/pyc"))
    made = import_module("test_recognize_integers")
    return made.quantized(kind, relu=True, groups=groups)[0]


def decoder() -> Any:
    """Return a decoder with weights of 4 bits as an ONNX model."""
    from genai_model import decoder

    return decoder(1)


def programs() -> dict[str, Callable[[], Any]]:
    """Return the sources of the programs that are compiled, by name."""
    from memory_programs import PROGRAMS

    found: dict[str, Callable[[], Any]] = {}
    for draw, count in (("network", 10), ("graph", 6)):
        for dynamic in (False, True):
            for seed in range(count):
                name = f"{draw}{' dynamic' * dynamic} {seed}"
                found[name] = partial(drawn, draw, seed, dynamic)
    found |= {f"plan {name}": partial(planned, name) for name in PROGRAMS}
    found |= {f"images {seed}": partial(images, seed) for seed in range(6)}
    found |= {
        f"quantized {kind} {groups}": partial(quantized, kind, groups)
        for kind, groups in (("Conv", 1), ("Conv", 6), ("MatMul", 1))
    }
    return found | {"decoder": decoder}


def compiled(source: Callable[[], Any], target: str) -> tuple[bytes, bytes]:
    """Return the file of a compile without its log, and its log; for a refusal, its text twice."""
    from pyc_mlir.dialects.errors import PycError

    try:
        artifact = build(source(), None, make_options(target=target, check=False))
    except PycError as error:
        return str(error).encode(), str(error).encode()
    log = json.dumps(to_data(tuple(artifact.decisions)), indent=1, sort_keys=True, default=str)
    return bytes(artifact.vmfb), log.encode()


def rows() -> dict[str, Texts]:
    """Return the names of all rows, and how to make what each is the hash of."""
    found: dict[str, Texts] = {
        f"body {name} {target.name}": partial(bodies, name, target)
        for name in BUILT_IN
        for target in LEVELS
    }
    for name, source in programs().items():
        for target in PROGRAM_LEVELS:
            for i, kind in enumerate(("executable", "decisions")):
                found[f"{kind} {name} {target}"] = partial(one, source, target, i)
    return found


def one(source: Callable[[], Any], target: str, which: int) -> Iterator[bytes]:
    """Yield one half of what a compile gives."""
    key = (id(source), target)
    if key not in _COMPILED:
        _COMPILED.clear()
        _COMPILED[key] = compiled(source, target)
    yield _COMPILED[key][which]


_COMPILED: dict[Any, tuple[bytes, bytes]] = {}


def hashed(texts: Texts) -> str:
    """Return a hash of all texts."""
    total = hashlib.sha256()
    for text in texts():
        total.update(hashlib.sha256(text).digest())
    return total.hexdigest()[:16]


def main() -> int:
    """Store, check or show; 1 where something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--store", type=Path, metavar="FILE")
    what.add_argument("--check", type=Path, metavar="FILE")
    what.add_argument("--show", metavar="ROW")
    parser.add_argument("--only", default="", help="rows whose words hold this")
    known = parser.parse_args()
    wanted = {name: texts for name, texts in rows().items() if known.only in name}
    if known.show:
        for text in wanted[known.show]():
            sys.stdout.buffer.write(text + b"\n")
        return 0
    before = json.loads(known.check.read_text()) if known.check else {}
    made, wrong = {}, 0
    for name, texts in wanted.items():
        made[name] = hashed(texts)
        if known.check and before.get(name) != made[name]:
            wrong += 1
            print(f"differs: {name}", flush=True)
    if known.store:
        known.store.write_text(json.dumps(made, indent=0) + "\n")
    print(f"{len(made)} rows, {wrong} differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
