"""Write the zoo's models as ONNX files with their inputs and answers.

    python -m pyc_mlir.tools.bench.workloads.export --folder DIR [--models a,b] [--batch 1,8]

One network and batch size makes ``NAME.onnx`` (``NAME.b8.onnx`` for batch 8; ``.opset23`` before
the ending for another opset than 20) and an ``.npz`` of the same stem: ``input_0`` ..., torch's
answers ``float32_0`` ... and the same module's answers computed in float64 ``float64_0`` .... A
quantized model or one in a half type (`quantized.py`) is of batch 1; one of dynamic sizes
(``NAME.any``, `dynamic.py`) has no numbers. What is there already is kept.
Weights lie inside the model.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.tools.bench.workloads.dynamic import DYNAMIC, Dynamic
from pyc_mlir.tools.bench.workloads.networks import (
    BY_NAME,
    NETWORKS,
    OPSET,
    Network,
    inputs,
    make,
    write,
)
from pyc_mlir.tools.bench.workloads.quantized import QUANTIZED, Quantized, derive, quantize

AnyModel = Network | Quantized | Dynamic
MODELS: dict[str, Network | Quantized] = {**BY_NAME, **QUANTIZED}
ALL: dict[str, AnyModel] = {**MODELS, **{f"{name}.any": d for name, d in DYNAMIC.items()}}
# Between torch's float32 and float64 answers, relative to the largest: the weights are sane.
_MAX_ERROR = 1e-4
# Standard deviation of the results, relative to the largest.
_MIN_SPREAD = 1e-3


def stem(name: str, batch: int = 1, opset: int = OPSET) -> str:
    """Return the name of a model's files without their endings."""
    return name + (f".b{batch}" if batch != 1 else "") + (f".opset{opset}" * (opset != OPSET))


def export(name: str, model: AnyModel, batch: int, opset: int, folder: Path) -> Path:
    """Write one model and its numbers; the model's path. Raises what torch raises."""
    import torch  # pyright: ignore[reportMissingImports]

    path = folder / f"{stem(name, batch, opset)}.onnx"
    numbers = path.with_suffix(".npz")
    if path.exists() and numbers.exists():
        return path
    partial = path.with_suffix(".partial")
    if isinstance(model, Quantized):
        source = export(model.network.name, model.network, 1, OPSET, folder)
        stored = derive(model, source, partial)
    elif isinstance(model, Dynamic):
        _export_dynamic(model, opset, partial)
        stored = {}
    else:
        module, arguments = make(model), inputs(model, batch)
        write(module, arguments, opset, partial)
        with torch.no_grad():
            stored = answers(module, arguments)
    np.savez(numbers, allow_pickle=False, **stored)
    partial.replace(path)
    return path


def _export_dynamic(model: Dynamic, opset: int, path: Path) -> None:
    """Write a model of any size; torch takes 1 for a size that is known."""
    import torch  # pyright: ignore[reportMissingImports]

    largest = [max(2, *sizes) for sizes in zip(*filter(None, model.sizes), strict=True)]
    arguments = tuple(map(torch.from_numpy, model.tensors(largest)))
    write(make(model.network), arguments, opset, path, model.axes)
    if model.how:
        quantize(path, Quantized(model.network, model.how), path)


def answers(module: Any, arguments: Sequence[Any]) -> dict[str, np.ndarray]:
    """Return inputs and answers by name. Raises PycError (WRONG_RESULT) for unusable answers."""
    single = module(*arguments).numpy()
    wide = [a.double() if a.is_floating_point() else a for a in arguments]
    double = module.double()(*wide).numpy()
    largest, spread = float(np.abs(double).max()), float(double.std())
    error = float(np.abs(single - double).max()) / (largest or 1.0)
    if not (spread > _MIN_SPREAD * largest and error < _MAX_ERROR):
        raise PycError(
            ReasonCode.WRONG_RESULT,
            f"weights: expected results that differ and whose float32 is within {_MAX_ERROR:g} of "
            f"float64, got a deviation of {spread:g}, the largest {largest:g}, an error of "
            f"{error:g}; give the network other weights in networks.py",
        )
    stored = {f"input_{i}": a.numpy() for i, a in enumerate(arguments)}
    return stored | {"float32_0": single, "float64_0": double}


def main(arguments: Sequence[str]) -> int:
    """Write the models asked for; 1 where one failed, whose reason goes to stderr."""
    parser = argparse.ArgumentParser(__name__, description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument("--batch", default="1")
    parser.add_argument("--opset", type=int, default=OPSET)
    known = parser.parse_args(arguments)
    known.folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for batch in map(int, known.batch.split(",")):
        for name in known.models.split(","):
            try:
                path = export(name, ALL[name], batch, known.opset, known.folder)
                print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
            except Exception as error:  # noqa: BLE001  (one network's reason; the rest go on)
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
