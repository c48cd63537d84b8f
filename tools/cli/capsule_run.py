"""`pyc-run --capsule`: call the program of a capsule again and compare."""

from pathlib import Path

import numpy as np

from pyc_mlir.artifact.signature import flat
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.array import Array
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.service.capsule import Capsule


def replay_capsule(path: str | Path, device: Device | None) -> tuple[str, bool]:
    """Call the program with the stored inputs; return the report, and whether the fault is there.

    Raises PycError: as `Capsule.load`, and BAD_ARGUMENT for a capsule without a program or inputs.
    """
    capsule = Capsule.load(path)
    lines = [f"{name}: {capsule.head[name]}" for name in ("why", "build", "mode")]
    lines += [f"  {line}" for line in capsule.head["log"]]
    if capsule.artifact is None or "inputs" not in capsule.arrays:
        left = ", ".join(capsule.head["left_out"]) or "the owner did not consent to store inputs"
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where=str(path),
            expected="a capsule with its program and inputs",
            got=f"one without ({left})",
            remedy="serve with `Shadow(..., keep_inputs=True)` and a larger limit",
        )
    program = Program(capsule.artifact, device)
    if capsule.head["mode"] in program.modes:
        program.use_mode(capsule.head["mode"])
    values = flat(program(*capsule.arrays["inputs"]))
    got = [np.asarray(v.numpy() if isinstance(v, Array) else v) for v in values]
    known = {
        name: all(
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in zip(got, capsule.arrays[name], strict=False)
        )
        for name in ("answers", "expected")
    }
    there = not known["expected"]
    lines += [f"the same bits as the {n}: {'yes' if same else 'no'}" for n, same in known.items()]
    if there:
        lines += [
            f"result {i}: greatest difference from the expected {_worst(a, b):.6g}"
            for i, (a, b) in enumerate(zip(got, capsule.arrays["expected"], strict=True))
        ]
    return "\n".join(lines) + "\n", there


def _worst(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)), initial=0.0))
