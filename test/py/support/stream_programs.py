"""Linalg programs that leave a planner something to do, small enough to compile in a second.

Each is `Program(code, shapes, results)`: MLIR text, the shapes of its f32 arguments (what stands
for a dynamic dimension included), and how many results it has.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pyc_mlir.iree.compiler import IreeSession, opened
from pyc_mlir.iree.memory.versions import TO_ASYNC
from pyc_mlir.pipelines.target.target import Target

CPU = Target.named("cpu")

ROWS = 32
WIDTHS = (16, 24, 40, 64)
# Products in a loop: control flow decides how often something is allocated.
LOOP = b"""func.func @main(%x: tensor<16x16xf32>, %n: tensor<i32>) -> tensor<16x16xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %s = tensor.extract %n[] : tensor<i32>
  %end = arith.index_cast %s : i32 to index
  %r = scf.for %i = %c0 to %end step %c1 iter_args(%a = %x) -> tensor<16x16xf32> {
    %e = tensor.empty() : tensor<16x16xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<16x16xf32>) -> tensor<16x16xf32>
    %m = linalg.matmul ins(%a, %x : tensor<16x16xf32>, tensor<16x16xf32>)
        outs(%f : tensor<16x16xf32>) -> tensor<16x16xf32>
    scf.yield %m : tensor<16x16xf32>
  }
  return %r : tensor<16x16xf32>
}"""


@contextmanager
def at_stream(
    code: bytes, target: Target = CPU, flags: Sequence[str] = ()
) -> Iterator[IreeSession]:
    """A session whose module is stream IR as plans read it."""
    with opened(code, target, flags) as session:
        session.run(to="flow")
        session.run_passes(TO_ASYNC)
        yield session


@dataclass(frozen=True)
class Program:
    code: bytes
    shapes: tuple[tuple[int, ...], ...]
    results: int = 1

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [rng.normal(0, 0.2, s).astype(np.float32) for s in self.shapes]


def bits(results) -> list[bytes]:
    """What a program returned, one result or several, as bytes."""
    values = results if isinstance(results, tuple) else (results,)
    return [np.asarray(v.numpy() if hasattr(v, "numpy") else v).tobytes() for v in values]


class Writer:
    """Writes one function op by op. `rows` is the first dimension of every activation."""

    def __init__(self, rows: int | None = ROWS) -> None:
        self.rows = rows
        self.arguments: list[tuple[str, str]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.lines = ["%zero = arith.constant 0.0 : f32", "%first = arith.constant 0 : index"]
        self._weights: dict[tuple[int, int], str] = {}

    def type(self, columns: int) -> str:
        return f"tensor<{'?' if self.rows is None else self.rows}x{columns}xf32>"

    def argument(self, columns: int) -> str:
        name = self._argument(self.type(columns), (self.rows or ROWS, columns))
        if self.rows is None and name == "%a0":
            self.lines.append(f"%rows = tensor.dim {name}, %first : {self.type(columns)}")
        return name

    def weight(self, rows: int, columns: int) -> str:
        if (rows, columns) not in self._weights:
            self._weights[rows, columns] = self.fresh_weight(rows, columns)
        return self._weights[rows, columns]

    def fresh_weight(self, rows: int, columns: int) -> str:
        return self._argument(f"tensor<{rows}x{columns}xf32>", (rows, columns))

    def _argument(self, type_: str, shape: tuple[int, ...]) -> str:
        self.arguments.append((f"%a{len(self.arguments)}", type_))
        self.shapes.append(shape)
        return self.arguments[-1][0]

    def op(self, text: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def empty(self, columns: int) -> str:
        dynamic = "(%rows)" if self.rows is None else "()"
        return self.op(f"tensor.empty{dynamic} : {self.type(columns)}")

    def matmul(self, x: str, inner: int, columns: int, weight: str | None = None) -> str:
        weight = weight or self.weight(inner, columns)
        out, empty = self.type(columns), self.empty(columns)
        zeros = self.op(f"linalg.fill ins(%zero : f32) outs({empty} : {out}) -> {out}")
        return self.op(
            f"linalg.matmul ins({x}, {weight} : {self.type(inner)}, tensor<{inner}x{columns}xf32>)"
            f" outs({zeros} : {out}) -> {out}"
        )

    def add(self, x: str, y: str, columns: int) -> str:
        out, empty = self.type(columns), self.empty(columns)
        same = "affine_map<(i, j) -> (i, j)>"
        return self.op(
            f"linalg.generic {{indexing_maps = [{same}, {same}, {same}], "
            f'iterator_types = ["parallel", "parallel"]}} ins({x}, {y} : {out}, {out}) '
            f"outs({empty} : {out}) {{ ^bb0(%p : f32, %q : f32, %o : f32): "
            f"%r = arith.addf %p, %q : f32 linalg.yield %r : f32 }} -> {out}"
        )

    def concat(self, x: str, y: str, columns: tuple[int, int]) -> str:
        types = f"({self.type(columns[0])}, {self.type(columns[1])}) -> {self.type(sum(columns))}"
        return self.op(f"tensor.concat dim(1) {x}, {y} : {types}")

    def insert(self, source: str, target: str, columns: int) -> str:
        """A corner of `source` written into `target`: an update in place where IREE can."""
        corner = f"tensor<8x{columns // 2}xf32>"
        part = self.op(
            f"tensor.extract_slice {source}[0, 0] [8, {columns // 2}] [1, 1] : "
            f"{self.type(columns)} to {corner}"
        )
        return self.op(
            f"tensor.insert_slice {part} into {target}[4, 2] [8, {columns // 2}] [1, 1] : "
            f"{corner} into {self.type(columns)}"
        )

    def barrier(self, x: str, columns: int) -> str:
        """Ends an execution region."""
        return self.op(f"util.optimization_barrier {x} : {self.type(columns)}")

    def finish(self, results: list[tuple[str, int]]) -> Program:
        types = ", ".join(self.type(c) for _, c in results)
        arguments = ", ".join(f"{name} : {type_}" for name, type_ in self.arguments)
        values = ", ".join(name for name, _ in results)
        body = "\n".join([*self.lines, f"return {values} : {types}"])
        text = f"func.func @main({arguments}) -> ({types}) {{\n{body}\n}}"
        return Program(text.encode(), tuple(self.shapes), len(results))


def branches(count: int = 6, width: int = 16, regions: int = 1, rows: int | None = ROWS) -> Program:
    """Wide products of one value, all written first, then narrowed and summed; in each region."""
    w = Writer(rows)
    x, wide = w.argument(width), 8 * width
    for region in range(regions):
        if region:
            x = w.barrier(x, width)
        starts = [w.matmul(x, width, wide, w.fresh_weight(width, wide)) for _ in range(count)]
        ends = [w.matmul(start, wide, width) for start in starts]
        x = ends[0]
        for end in ends[1:]:
            x = w.add(x, end, width)
    return w.finish([(x, width)])


def chain(widths: tuple[int, ...] = (16, 32, 64, 96, 128)) -> Program:
    """A chain of products, each wider than the one before: greedy packing leaves holes."""
    w = Writer()
    x = w.argument(widths[0])
    for inner, columns in itertools.pairwise(widths):
        x = w.matmul(x, inner, columns)
    return w.finish([(x, widths[-1])])


def layered(seed: int, *, dynamic: bool = False, ops: int = 12, barriers: int = 0) -> Program:
    """Random products, sums, concatenations and updates in place over recent values.

    With `barriers` so many of the values end an execution region.
    """
    rng = random.Random(seed)
    w = Writer(None if dynamic else ROWS)
    values = [(w.argument(c), c) for c in rng.choices(WIDTHS, k=2)]
    for number in range(ops):
        if barriers and number % (ops // (barriers + 1)) == 1:
            x, columns = rng.choice(values[-3:])
            values.append((w.barrier(x, columns), columns))
        kind = rng.choice(("matmul", "matmul", "add", "concat", "insert"))
        x, columns = rng.choice(values[-8:])
        if kind in ("matmul", "insert"):
            out = rng.choice(WIDTHS)
            values.append((w.matmul(x, columns, out), out))
            if kind == "insert":
                source = rng.choice([v for v, c in values if c == out])
                values.append((w.insert(source, values[-1][0], out), out))
            continue
        fit = {"add": [v for v in values if v[1] == columns]}
        fit["concat"] = [v for v in values if v[1] + columns in WIDTHS]
        if fit[kind]:
            y, other = rng.choice(fit[kind])
            if kind == "add":
                values.append((w.add(x, y, columns), columns))
            else:
                values.append((w.concat(x, y, (columns, other)), columns + other))
    return w.finish(list(dict.fromkeys(values[-3:])))
