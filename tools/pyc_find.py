"""`pyc-find`: list the places of a model that compute a pattern, however they are spelled."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.tools.cli import common as cli

TOOL = "pyc-find"
_EPILOG = """\
PATTERNS is a file with functions under `@pyc_mlir.pattern`, or composites of PyC by name, joined by
commas: softmax, log_softmax, layernorm, rmsnorm, gelu, silu, sigmoid. MODEL is an .onnx or .mlir
file or file.py:function. Each line is a pattern, the place of its result, and the result's type.

examples:
  pyc-find patterns.py model.onnx
  pyc-find softmax,layernorm model.onnx
  pyc-find patterns.py model.onnx --input 1x128x768 --input 1x128
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 done, 1 refused, 2 misused, 70 a fault of ours)."""
    return cli.run_tool(TOOL, lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    parser = cli.Parser(TOOL, "List the places of a model that compute a pattern.", _EPILOG)
    parser.usage = "%(prog)s PATTERNS MODEL [flags]"
    parser.add_argument("patterns", metavar="PATTERNS", help="the file with the patterns, or names")
    parser.add_argument("model", metavar="MODEL", help="the model to search")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="the shape of an argument where sizes vary, in order, such as 1x128x768",
    )
    return parser


def _run(argv: list[str]) -> int:
    flags = make_parser().parse_args(argv)
    from pyc_mlir.dialects.ir.interpreter import entry_function
    from pyc_mlir.equivalence import module_of, sizes_of
    from pyc_mlir.patterns import COMPOSITES, PATTERNS, Pattern, composites, find
    from pyc_mlir.pipelines.pyc.equivalence.nodes import Graph, NotComparable
    from pyc_mlir.tools.cli.model_source import InputShape, import_file, read_model

    names = [] if flags.patterns.endswith(".py") else flags.patterns.split(",")
    if unknown := [name for name in names if name not in COMPOSITES]:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where="PATTERNS",
            expected=f"a Python file with patterns, or some of {', '.join(COMPOSITES)}",
            got=repr(",".join(unknown)),
        )
    if not names:
        import_file(Path(flags.patterns))
    if not names and not PATTERNS:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where=flags.patterns,
            expected="functions under @pyc_mlir.pattern",
            got="none",
        )
    shapes = [tuple(d or 1 for d in InputShape.parse(text).dims) for text in flags.input]
    module = module_of(read_model(flags.model, sys.stdin.buffer), shapes or None)
    graph = Graph()
    with module.context:
        function = entry_function(module)
        try:
            program = graph.read(function, sizes_of(function, shapes))
        except NotComparable as error:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                where=flags.model,
                expected="a program that can be compared at known sizes",
                got=str(error),
                remedy="where sizes vary, give the shapes of the arguments by --input",
            ) from None
        wanted: list[Pattern] = [] if names else list(PATTERNS.values())
        wanted += [one for name in names for one in composites(name, program)]
        places = [place for one in wanted for place in find(one, program, graph)]
    for place in places:
        print(f"{place.pattern.name}  {place.where or '-'}  {place.type}")
    count = len({one.name for one in wanted})
    print(f"{len(places)} places of {count} patterns", file=sys.stderr)
    return cli.OK


if __name__ == "__main__":
    sys.exit(main())
