"""`make demo`: two models trained on handwritten digits, compiled by PyC and run.

Shows their accuracy beside that of onnx's reference evaluator, latency and memory beside plain
IREE's as `pyc-bench` measures them, and the decisions as `pyc-explain` tells them. Exit status 0
when PyC's programs answer as the reference does, 1 when they do not.
"""

import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np

from pyc_mlir.api import compile
from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.interleave import interleave
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.tools.bench.model import suite as bench
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.demo.digits import MODELS, DigitImages, load_digits
from pyc_mlir.tools.explain.facts import ExplainedProgram
from pyc_mlir.tools.explain.text_page import overview
from pyc_mlir.util.units import quantity

TOOL = "demo"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    return cli.run_tool(TOOL, lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    parser = cli.Parser("python -m pyc_mlir.tools.demo", (__doc__ or "").strip())
    parser.add_argument("--rounds", type=cli.positive, default=15, help="timed rounds; default: 15")
    rounds = parser.parse_args(argv).rounds
    here, iree = probe(), version("iree-base-compiler")
    print("Handwritten digits: two trained models, compiled by PyC and by plain IREE")
    print(f"{here.cpu}, {here.cores} cores; PyC {here.version}, IREE {iree}\n", flush=True)
    _, images = load_digits()
    programs = {
        name: compile(path, [images.pixels.shape], cache=False) for name, path in MODELS.items()
    }
    status = accuracy(programs, images)
    sizes = f"batch=1,{len(images.labels)}"
    for path in MODELS.values():
        print(flush=True)
        bench.run([str(path), "--dim", sizes, "--against", "iree", "--rounds", str(rounds)])
    guards(images, rounds)
    print(
        f"\n{overview(ExplainedProgram.of(MODELS['cnn'].name, programs['cnn'].artifact))}", end=""
    )
    return status


def accuracy(programs: dict[str, Program], images: DigitImages) -> int:
    """Print how many images each program knows; 1 where the reference knows others."""
    print(f"accuracy on the {len(images.labels)} images held out of the training")
    wrong = []
    for name, program in programs.items():
        scores, expected = program(images.pixels), onnx_reference(MODELS[name], images.pixels)
        shares = [f"{images.accuracy(s):.2%}" for s in (scores, expected)]
        same = int(np.sum(scores.argmax(1) == expected.argmax(1)))
        print(
            f"  {name}  PyC {shares[0]}, onnx's reference {shares[1]}; {same} of {len(scores)} "
            f"answers are the same\n"
            f"       the largest error of a score is {np.max(np.abs(scores - expected)):.1e}"
        )
        wrong += [name] if images.accuracy(scores) != images.accuracy(expected) else []
    if wrong:
        print(
            f"{TOOL}: error: {', '.join(wrong)}: expected the accuracy of the reference "
            "evaluator, got another one; please report it",
            file=sys.stderr,
        )
    return cli.REFUSED if wrong else cli.OK


def guards(images: DigitImages, rounds: int) -> None:
    """Print the seconds of a call through `Program` beside those of IREE's bare invoke."""
    print(
        "\na call of a program, checks and statistics included, and IREE's bare invoke of the same"
    )
    for name, count in product(MODELS, (1, len(images.labels))):
        given, device = images.pixels[:count], Device("local-sync")
        program = compile(MODELS[name], [given.shape], device=device, cache=False)
        array = to_device(given, device)
        calls = {"call": partial(program, array), "bare": serving(program).bare_call(array)}
        times = interleave(calls, rounds=rounds, min_seconds=0.002)
        call, bare = (quantity(times[way].spread.median, "s") for way in calls)
        print(f"  {name}  {count} images: {call}, bare {bare}")


def onnx_reference(model: Path, x: np.ndarray) -> np.ndarray:
    """Return the first output as onnx's own evaluator, written in numpy, computes it.

    Raises PycError (MISSING_DEPENDENCY) without onnx.
    """
    try:
        from onnx import load
        from onnx.reference import ReferenceEvaluator
    except ModuleNotFoundError:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"reference: expected the package `onnx`; {install('onnx')}",
        ) from None
    proto = load(model)
    evaluator = ReferenceEvaluator(proto)
    scores, *_ = evaluator.run(None, {proto.graph.input[0].name: x})
    return np.asarray(scores)


if __name__ == "__main__":
    sys.exit(main())
