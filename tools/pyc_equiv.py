"""`pyc-equiv`: decide whether two programs compute the same."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from pyc_mlir.tools.cli import common as cli

TOOL = "pyc-equiv"
_EPILOG = """\
A and B are .onnx or .mlir files, or file.py:function. Exit status: 0 a proof, 3 a counterexample,
4 unknown, 1 refused.

examples:
  pyc-equiv a.mlir b.mlir
  pyc-equiv model.py:softmax model.py:by_hand --input 4x6xf32
  pyc-equiv both.mlir both.mlir --functions f,g
  pyc-equiv model.onnx model.onnx --passes pyc-canonicalize,pyc-recognize
"""
_STATUS = {"Proof": cli.OK, "Counterexample": 3, "Unknown": 4}
_RELATIONS = {"bits": "BITS", "reals": "REALS", "rounded": "ROUNDED"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; return the exit status (0 proof, 3 counterexample, 4 unknown, 1 refused)."""
    return cli.run_tool(TOOL, lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    parser = cli.Parser(TOOL, "Decide whether two programs compute the same.", _EPILOG)
    parser.usage = "%(prog)s A B [flags]"
    parser.add_argument("a", metavar="A", help="the first program")
    parser.add_argument("b", metavar="B", help="the second program")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="the shape of an argument where sizes vary, in order, such as 4x6xf32",
    )
    parser.add_argument(
        "--relation",
        choices=tuple(_RELATIONS),
        default="rounded",
        help="the weakest equality that counts; default: rounded, the reals with constants as what "
        "they are rounded from",
    )
    parser.add_argument("--functions", metavar="F,G", help="the functions of A and of B")
    parser.add_argument("--passes", default="", metavar="P", help="passes that B goes through")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the fields; default: 0")
    parser.add_argument("--trials", type=int, default=3, help="trials over fields; default: 3")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def _run(argv: list[str]) -> int:
    flags = make_parser().parse_args(argv)
    from pyc_mlir.dialects.errors import PycError, ReasonCode
    from pyc_mlir.equivalence import Relation, equivalent
    from pyc_mlir.frontends.python.specs import TensorSpec
    from pyc_mlir.tools.cli.model_source import InputShape, read_model

    sources = [read_model(text, sys.stdin.buffer) for text in (flags.a, flags.b)]
    shapes = [InputShape.parse(text) for text in flags.input]
    inputs: list[Any] = [TensorSpec(s.dtype or "f32", *(d or 1 for d in s.dims)) for s in shapes]
    names = tuple((flags.functions or "main,main").split(","))
    if len(names) != 2:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where="--functions",
            expected="two names joined by a comma",
            got=repr(flags.functions),
        )
    answer = equivalent(
        *sources,
        inputs=inputs or None,
        relation=Relation[_RELATIONS[flags.relation]],
        functions=(names[0], names[1]),
        passes=flags.passes,
        seed=flags.seed,
        trials=flags.trials,
    )
    print(json.dumps(as_json(answer)) if flags.json else answer)
    return _STATUS[type(answer).__name__]


def as_json(answer: Any) -> dict[str, Any]:
    """Return an answer as JSON."""
    from dataclasses import asdict

    fields = {k: v for k, v in asdict(answer).items() if k != "inputs"}
    if "relation" in fields:
        fields["relation"] = fields["relation"].name.lower()
    if hasattr(answer, "inputs"):
        fields["inputs"] = [x.astype(float).tolist() for x in answer.inputs]
    return {"answer": type(answer).__name__.lower(), **fields}


if __name__ == "__main__":
    sys.exit(main())
