"""onnxruntime's quantizers on networks of dynamic sizes, beside the same networks in f32.

    python test/py/support/dynamic_quantizers.py FOLDER make [NETWORK...]
    python test/py/support/dynamic_quantizers.py FOLDER compile [NETWORK...]
    python test/py/support/dynamic_quantizers.py FOLDER time [NETWORK...]

FOLDER holds NETWORK.onnx in f32, exported with dynamic axes; `make` quantizes it: statically (as
QDQ and as QOperator), dynamically, and products by weights of 4 bits (MatMulNBits). `compile`
writes each program for the ranges of its sizes, what exists stays. `time` checks each against
onnxruntime without optimizations, times it in turn with the program in f32 and onnxruntime, and
stores the rows; those of other networks stay in the file.
"""

import argparse
import json
import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import pyc_mlir
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.interleave import interleave
from pyc_mlir.measure.records import Record, Report, record
from pyc_mlir.tools.bench.peers.onnxruntime_session import open_session
from pyc_mlir.tools.bench.report.suite import failure, timing_records

RESULT = Path(__file__).resolve().parents[3] / "docs" / "results" / "dynamic-quantizers.json"
WORDS = ("bert", "bert2", "gpt2", "llama")
NETWORKS = ("squeezenet1_1", "resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0",
            "densenet121", "unet", "vit_tiny", *WORDS)  # fmt: skip
F32, KINDS = "f32", ("qdq", "qop", "dyn", "int4")
_TOKENS, _UNSEEN, _ROUNDS, _MILLION = 8000, 3, 7, 1e6


def main() -> None:
    """Make, compile, or time and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("step", choices=("make", "compile", "time"))
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--json", type=Path, default=RESULT)
    given = parser.parse_args()
    names = given.networks or NETWORKS
    for name in names:
        if given.step == "make":
            _make(given.folder, name)
        elif given.step == "compile":
            _compile(given.folder, name)
    if given.step == "time":
        kept = Report.load(given.json).records if given.json.exists() else ()
        rows = [r for r in kept if r["network"] not in names]
        rows += [row | {"network": n} for n in names for row in _rows(given.folder, n)]
        rows.sort(key=lambda row: NETWORKS.index(row["network"]))
        Report("dynamic-quantizers", probe(), {"rounds": _ROUNDS}, rows).save(given.json)


def tensors(model: Path, sizes: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """Return inputs by name; of a mask, the last tokens are none."""
    graph, draw = onnx.load(model, load_external_data=False).graph, np.random.default_rng(seed)
    weights, found = {t.name for t in graph.initializer}, {}
    for value in (i for i in graph.input if i.name not in weights):
        dims, open_sizes = value.type.tensor_type.shape.dim, iter(sizes)
        shape = [d.dim_value or next(open_sizes) for d in dims]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            found[value.name] = draw.normal(size=shape).astype(np.float32)
        elif "mask" in value.name:
            found[value.name] = np.ones(shape, np.int64)
            found[value.name][:, max(shape[1] - _UNSEEN, 1) :] = 0
        else:
            found[value.name] = draw.integers(0, _TOKENS, shape)
    return found


def _make(folder: Path, name: str) -> None:
    from onnxruntime.quantization import (  # pyright: ignore
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.matmul_nbits_quantizer import (  # pyright: ignore
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process  # pyright: ignore

    source, ready = folder / f"{name}.onnx", folder / f"{name}.pre.onnx"
    quant_pre_process(source, ready, skip_symbolic_shape=True)
    sizes = (2, 24) if name in WORDS else (2,)

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter([tensors(source, sizes, seed) for seed in range(2)])

        def get_next(self) -> Any:
            return next(self.left, None)

    for kind, form in (("qdq", QuantFormat.QDQ), ("qop", QuantFormat.QOperator)):
        quantize_static(
            ready, folder / f"{name}-{kind}.onnx", Reader(), quant_format=form, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    # onnxruntime's dynamic convolutions take unsigned weights alone.
    signed = name in (*WORDS, "vit_tiny")
    bare = onnx.load(ready)
    del bare.graph.value_info[:]
    quantize_dynamic(
        bare,
        folder / f"{name}-dyn.onnx",
        weight_type=QuantType.QInt8 if signed else QuantType.QUInt8,
    )
    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True, accuracy_level=0)
    few = MatMulNBitsQuantizer(onnx.load(ready), algo_config=config)
    few.process()
    made: Any = few.model
    if any(node.op_type == "MatMulNBits" for node in made.model.graph.node):
        onnx.save(made.model, folder / f"{name}-int4.onnx")


def _model(folder: Path, name: str, kind: str) -> Path:
    return folder / (f"{name}.onnx" if kind == F32 else f"{name}-{kind}.onnx")


def _kinds(folder: Path, name: str) -> list[str]:
    return [kind for kind in (F32, *KINDS) if _model(folder, name, kind).exists()]


def _compile(folder: Path, name: str) -> None:
    ranges = {"batch": (1, 8), "length": (1, 512)} if name in WORDS else {"batch": (1, 32)}
    logger, said = logging.getLogger("pyc_mlir"), list[str]()
    heard = logging.Handler(logging.WARNING)
    heard.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(heard)
    for kind in _kinds(folder, name):
        target = folder / "programs" / f"{name}-{kind}.vmfb"
        target.parent.mkdir(exist_ok=True)
        if target.with_suffix(".json").exists():
            continue
        said.clear()
        began, error = time.monotonic(), ""
        try:
            made = pyc_mlir.compile(str(_model(folder, name, kind)), dims=ranges, cache=False)
            made.save(target)
        except PycError as failed:
            error = f"{failed.code.name}: {failed.message}"
        facts = {"seconds": time.monotonic() - began, "warnings": said, "error": error}
        target.with_suffix(".json").write_text(json.dumps(facts))
        print(name, kind, f"{facts['seconds']:.1f} s", error[:300], *said, flush=True)


def _rows(folder: Path, name: str) -> Iterator[Record]:
    for kind in _kinds(folder, name):
        facts = json.loads((folder / "programs" / f"{name}-{kind}.json").read_text())
        if facts["error"]:
            yield failure(f"{name} {kind}", facts["error"])
        elif kind != F32:
            for sizes in ((1, 32), (8, 128)) if name in WORDS else ((1,), (8,)):
                yield from _timed(folder, name, kind, sizes, facts)


def _timed(
    folder: Path, name: str, kind: str, sizes: tuple[int, ...], facts: Mapping[str, Any]
) -> Iterator[Record]:
    device = pyc_mlir.Device("local-sync")
    quantized, exact = (_model(folder, name, k) for k in (kind, F32))
    given = tensors(exact, sizes, seed=5)
    arrays = list(given.values())

    def session(model: Path, optimized: bool) -> Any:
        opened, feeds = open_session(model, arrays, 1, optimized=optimized)
        return lambda: _first(opened.run(None, feeds))

    def program(kind: str) -> Any:
        loaded = pyc_mlir.load(folder / "programs" / f"{name}-{kind}.vmfb", device=device)
        return lambda: _first(loaded(*arrays))

    calls = {"pyc": program(kind), "pyc in f32": program(F32)}
    calls["onnxruntime"] = session(quantized, True)
    plain, f32 = session(quantized, False)(), session(exact, True)()
    title = f"{name} {kind}, " + (
        f"batch {sizes[0]}" if len(sizes) == 1 else "{}x{}".format(*sizes)
    )
    answers = {"pyc": calls["pyc"](), "onnxruntime": calls["onnxruntime"]()}
    for metric, truth in (("difference from unoptimized", plain), ("difference from f32", f32)):
        for system, answer in answers.items():
            off = float(np.abs(answer - truth).max() / np.abs(truth).max()) * _MILLION
            yield record(title, system, metric, "ppm", off)
    timings = interleave(calls, _ROUNDS, 1, min_seconds=0.02)
    said = {"compile_seconds": facts["seconds"], "warnings": list(facts["warnings"])}
    rows = timing_records(title, timings, **said)
    print(title, *(f"{r['candidate']} {r['value'] * 1e3:.2f} ms" for r in rows), flush=True)
    yield from rows


def _first(results: Any) -> np.ndarray:
    one = results[0] if isinstance(results, tuple | list) else results
    return np.asarray(one, np.float64)


if __name__ == "__main__":
    main()
