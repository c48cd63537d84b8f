"""`make demo`: two models trained on handwritten digits, compiled by PyC and run.

Shows accuracy, latency and peak memory beside plain IREE's, and the decisions taken. Exit status
0 when PyC's programs answer as onnx's reference evaluator does, 1 when they do not.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import version

from pyc_mlir.measure.environment import probe
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.demo import text as demo_text
from pyc_mlir.tools.demo.compare import DemoComparison, compare
from pyc_mlir.tools.demo.digits import MODELS, DigitImages, load_digits

TOOL = "demo"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    return cli.run_tool(TOOL, lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    parser = cli.Parser("python -m pyc_mlir.tools.demo", (__doc__ or "").strip())
    parser.add_argument("--rounds", type=int, default=31, help="timed rounds; default: 31")
    rounds = parser.parse_args(argv).rounds
    print(demo_text.heading(probe(), version("iree-base-compiler")), flush=True)
    _, images = load_digits()
    batches = (1, len(images.labels))
    found: dict[str, DemoComparison] = {}
    with cli.Progress(sys.stderr) as progress:
        for name, path in MODELS.items():
            found[name] = compare(path, images.pixels, batches, rounds, stage=progress.stage)
    parts = (
        demo_text.accuracy(found, images),
        demo_text.latency_and_memory(found, rounds),
        demo_text.decisions(found),
        demo_text.how_to_see_all(MODELS["cnn"], images.pixels.shape),
    )
    print("\n".join(parts))
    print(f"The demo took {progress.seconds:.0f} s.")
    return verdict(found, images)


def verdict(found: dict[str, DemoComparison], images: DigitImages) -> int:
    """Return 0 when every accuracy equals the reference's; else 1, with a message."""
    wrong = [
        name
        for name, c in found.items()
        if images.accuracy(c.scores) != images.accuracy(c.reference)
    ]
    if wrong:
        print(
            f"{TOOL}: error: {', '.join(wrong)}: expected the accuracy of the reference "
            "evaluator, got another one; please report it",
            file=sys.stderr,
        )
    return cli.REFUSED if wrong else cli.OK


if __name__ == "__main__":
    sys.exit(main())
