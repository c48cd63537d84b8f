"""Write the zoo's networks as ONNX models with their inputs and answers.

    python -m pyc_mlir.tools.bench.zoo.export --folder DIR [--models a,b] [--batch 1,8] [--opset 20]

One network and batch size makes ``NAME.onnx`` (``NAME.b8.onnx`` for batch 8; ``.opset23`` before
the ending for another opset than 20) and an ``.npz`` of the same stem: ``input_0`` ..., torch's
answers ``float32_0`` ... and the same module's answers computed in float64 ``float64_0`` .... What
is there already is kept. Weights lie inside the model.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.tools.bench.zoo.networks import NETWORKS, Network, inputs, make

OPSET = 20
# Between torch's float32 and float64 answers, relative to the largest: the weights are sane.
_MAX_ERROR = 1e-4
# Standard deviation of the results, relative to the largest.
_MIN_SPREAD = 1e-3


def stem(name: str, batch: int = 1, opset: int = OPSET) -> str:
    """Return the name of a model's files without their endings."""
    return name + (f".b{batch}" if batch != 1 else "") + (f".opset{opset}" * (opset != OPSET))


def export(network: Network, batch: int, opset: int, folder: Path) -> Path:
    """Write one model and its numbers; the model's path. Raises what torch raises."""
    import torch  # pyright: ignore[reportMissingImports]

    path = folder / f"{stem(network.name, batch, opset)}.onnx"
    numbers = path.with_suffix(".npz")
    if path.exists() and numbers.exists():
        return path
    module, arguments = make(network), inputs(network, batch)
    partial = path.with_suffix(".partial")
    with torch.no_grad():
        torch.onnx.export(
            module, arguments, partial, dynamo=True, opset_version=opset, external_data=False,
            verbose=False,
        )  # fmt: skip
        stored = _answers(module, arguments)
    np.savez(numbers, allow_pickle=False, **stored)
    partial.replace(path)
    return path


def _answers(module: Any, arguments: Sequence[Any]) -> dict[str, np.ndarray]:
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
    parser = argparse.ArgumentParser("pyc_mlir.tools.bench.zoo.export", description=__doc__)
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
                path = export(NETWORKS[name], batch, known.opset, known.folder)
                print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
            except Exception as error:  # noqa: BLE001  (one network's reason; the rest go on)
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
