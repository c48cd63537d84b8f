"""Published rewrite rules as pairs of programs: TASO, TENSAT and FlexFlow.

The variable PYC_VERIFIED names the folder that holds them; without it their tests are skipped.
"""

import itertools
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, VerificationError
from pyc_mlir.dialects.types import TensorType, tensor
from pyc_mlir.pipelines.pyc.equivalence.nodes import Graph, GraphBuilder, Program, program

DATA = Path(os.environ.get("PYC_VERIFIED", "data/verified"))
_N = 4
_SHAPES = ((_N, _N), (_N, _N, 3, 3), (_N, _N, 5, 5), (_N, _N, 1, 1), ())
_MOST_SHAPES = 2000
_TOKEN = re.compile(r"\w+|[(),]")


@dataclass
class Expression:
    """An operator of TASO with its arguments; an input or a number has none."""

    name: str
    arguments: list["Expression"] = field(default_factory=list)

    def inputs(self) -> set[str]:
        own = {self.name} if self.name.startswith("input") else set()
        return own.union(*(a.inputs() for a in self.arguments))

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}({','.join(map(str, self.arguments))})"


def parse(text: str) -> Expression:
    tokens = iter(_TOKEN.findall(text))
    stack: list[list[Expression]] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            inner = stack.pop()
            stack[-1][-1].arguments = inner
        elif token != ",":
            stack[-1].append(Expression(token))
    return stack[0][0]


def taso() -> Iterator[tuple[str, Expression, Expression]]:
    for line in (DATA / "taso" / "rules.jsonl").read_text().splitlines():
        rule = json.loads(line)
        for i, pair in enumerate(rule["equal"]):
            yield f"{rule['id']}.{i}", parse(pair["source"]), parse(pair["target"])


def tensat() -> Iterator[tuple[str, Expression, Expression]]:
    for i, line in enumerate((DATA / "tensat" / "equalities.txt").read_text().splitlines()):
        left, right = line.split(" == ")
        yield str(i), parse(left), parse(right)


def programs(first: Expression, second: Expression) -> tuple[Program, Program, Graph] | None:
    """Return both sides for the first shapes of the inputs that fit; None where none do."""
    names = sorted(first.inputs() | second.inputs())
    for shapes in itertools.product(_SHAPES, repeat=len(names)):
        if any((s == ()) != (n == "input_20") for s, n in zip(shapes, names, strict=True)):
            continue
        types = dict(zip(names, (tensor("f32", *s) for s in shapes), strict=True))
        try:
            built = _built(first, second, types)
        except (PycError, VerificationError, ValueError, IndexError):
            continue
        if built is not None:
            return built
    return None


def _built(
    first: Expression, second: Expression, types: dict[str, TensorType]
) -> tuple[Program, Program, Graph] | None:
    graph = Graph()
    builder = GraphBuilder(graph)
    inputs = {name: graph.input(i, type_) for i, (name, type_) in enumerate(types.items())}
    like: dict[str, TensorType] = {}
    sides = [_made(side, builder, inputs, like) for side in (first, second)]
    if sides[0].type != sides[1].type:
        return None
    return (*(program(list(inputs.values()), [s]) for s in sides), graph)  # type: ignore[return-value]


def _made(e: Expression, b: Any, inputs: dict[str, Any], like: dict[str, TensorType]) -> Any:
    if e.name in inputs:
        return inputs[e.name]
    if e.name == "Imatmul":
        return b.constant(np.eye(_N, dtype=np.float32))
    if e.name == "Iewmul":
        return b.constant(np.ones((), np.float32))
    if e.name in ("Iconv", "Cpool"):
        kh, kw = (int(a.name) for a in e.arguments)
        weight = np.zeros((_N, _N, kh, kw), np.float32)
        if e.name == "Iconv":
            weight[range(_N), range(_N), kh // 2, kw // 2] = 1
            return b.constant(weight)
        for c in range(_N):
            weight[c, c] = 1
        return b.div(b.constant(weight), b.constant(np.float32(kh * kw)))
    split = re.fullmatch(r"split_(\d)", e.name)
    if split:
        axis, x = int(e.arguments[0].name), _made(e.arguments[1], b, inputs, like)
        half = x.type.shape[axis] // 2
        part = int(split[1])
        starts, stops = [0] * x.type.rank, list(x.type.shape)
        starts[axis], stops[axis] = part * half, (part + 1) * half
        return b.slice(x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * x.type.rank)
    numbers = [int(a.name) for a in e.arguments if a.name.isdigit()]
    parts = [_made(a, b, inputs, like) for a in e.arguments if not a.name.isdigit()]
    if e.name == "conv2d":
        return _conv(b, numbers, *parts)
    if e.name == "concat":
        return b.concat(*parts, axis=numbers[0])
    if e.name == "transpose":
        return b.transpose(parts[0], permutation=(1, 0))
    if e.name in ("poolavg", "poolmax"):
        kh, kw, sh, sw, valid, *_ = numbers
        pads = (0,) * 4 if valid else (kh // 2, kw // 2, kh // 2, kw // 2)
        if e.name == "poolmax":
            return b.max_pool2d(parts[0], kernel=(kh, kw), strides=(sh, sw), pads=pads)
        return b.avg_pool2d(
            parts[0], kernel=(kh, kw), strides=(sh, sw), pads=pads, count_include_pad=True
        )
    if e.name == "enlarge":
        kh, kw = numbers
        h, w = parts[0].type.shape[2:]
        low = (0, 0, (kh - h) // 2, (kw - w) // 2)
        return b.pad(parts[0], low=low, high=(0, 0, kh - h - low[2], kw - w - low[3]))
    name = {"ewadd": "add", "ewmul": "mul", "smul": "mul", "matmul": "matmul", "relu": "relu"}
    return getattr(b, name[e.name])(*parts)


def _conv(b: Any, numbers: list[int], x: Any, weight: Any) -> Any:
    sh, sw, valid, activation = numbers
    kh, kw = weight.type.shape[2:]
    pads = (0,) * 4 if valid else (kh // 2, kw // 2, (kh - 1) // 2, (kw - 1) // 2)
    # TASO's grouped convolutions have filters of fewer channels.
    groups = x.type.shape[1] // weight.type.shape[1]
    out = b.conv2d(x, weight, strides=(sh, sw), pads=pads, groups=groups)
    return b.relu(out) if activation == 2 else out


def flexflow() -> Iterator[tuple[str, dict[str, Any]]]:
    for line in (DATA / "flexflow" / "rules.jsonl").read_text().splitlines():
        rule = json.loads(line)
        yield rule["name"], rule


def flexflow_programs(rule: dict[str, Any]) -> tuple[Program, Program, Graph] | None:
    """Return both sides; None where no shapes fit.

    Tensors are [replicas, rows, columns], weights [replicas, outputs, inputs], as the rules on
    products imply. Partition and combine leave the numbers as they are; replicate puts a copy
    behind a tensor, reduce adds both halves of one. Products read the first replica.
    """
    names = sorted({i["opId"] for o in rule["srcOp"] + rule["dstOp"] for i in o["input"]
                    if i["opId"] < 0}, reverse=True)  # fmt: skip
    sizes = (4, 8) if len(names) < 4 else (4,)
    kinds = list(itertools.product((1, 2, 4), sizes, sizes))
    for shapes in itertools.islice(itertools.product(kinds, repeat=len(names)), _MOST_SHAPES):
        graph = Graph()
        b = GraphBuilder(graph)
        inputs = {n: graph.input(i, tensor("f32", *s)) for i, (n, s) in
                  enumerate(zip(names, shapes, strict=True))}  # fmt: skip
        try:
            sides = [_values(rule[k], b, inputs) for k in ("srcOp", "dstOp")]
            pairs = [(sides[0][m["srcOpId"]][m["srcTsId"]], sides[1][m["dstOpId"]][m["dstTsId"]])
                     for m in rule["mappedOutput"]]  # fmt: skip
        except (PycError, VerificationError, ValueError, IndexError):
            continue
        if all(a.type == c.type for a, c in pairs):
            given = list(inputs.values())
            return (program(given, [a for a, _ in pairs]), program(given, [c for _, c in pairs]),
                    graph)  # fmt: skip
    return None


def _values(ops: list[dict[str, Any]], b: Any, inputs: dict[int, Any]) -> list[list[Any]]:
    made: list[list[Any]] = []
    for op in ops:
        parts = [inputs[i["opId"]] if i["opId"] < 0 else made[i["opId"]][i["tsId"]]
                 for i in op["input"]]  # fmt: skip
        params = {p["key"]: p["value"] for p in op["para"]}
        axis = params.get("PM_PARALLEL_DIM", params.get("PM_AXIS", 0))
        kind = op["type"]
        if kind in ("OP_PARTITION", "OP_COMBINE"):
            made.append(parts)
        elif kind == "OP_REPLICATE":
            made.append([b.concat(parts[0], parts[0], axis=axis)])
        elif kind in ("OP_REDUCE", "OP_SPLIT"):
            x = parts[0]
            half = x.type.shape[axis] // 2
            halves = []
            for i in range(2):
                starts, stops = [0] * 3, list(x.type.shape)
                starts[axis], stops[axis] = i * half, (i + 1) * half
                halves.append(b.slice(x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * 3))
            made.append([b.add(*halves)] if kind == "OP_REDUCE" else halves)
        elif kind == "OP_LINEAR":
            x, weight = (
                b.slice(p, starts=(0, 0, 0), stops=(1, *p.type.shape[1:]), steps=(1, 1, 1))
                for p in parts
            )
            out = b.matmul(x, b.transpose(weight, permutation=(0, 2, 1)))
            made.append([b.relu(out) if params.get("PM_ACTI") == 2 else out])
        elif kind == "OP_CONCAT":
            made.append([b.concat(*parts, axis=axis)])
        else:
            name = {"OP_RELU": "relu", "OP_EW_ADD": "add", "OP_EW_MUL": "mul"}[kind]
            made.append([getattr(b, name)(*parts)])
    return made
