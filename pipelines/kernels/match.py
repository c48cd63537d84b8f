"""From a group of pyc ops to the kernels that can compute it.

`Work` is the question: the values that a group reads and its ops in order. `KernelOffer` is an
answer: the knobs of a kernel, how many of the ops it computes, and which values it is fed with.
Neither holds MLIR, so that families are tested without it.

`find` and `longest` match pointwise programs. A kernel computes a matrix: a tensor whose dimensions
are cut into rows and columns (`MatrixView`). Ops around it may join it if each is elementwise on
f32 (or all are on f16, or on bf16) and broadcasts to that tensor. What they read from outside
becomes a `Read` where its broadcasting can be told by a row's number, a constant of one number
becomes a constant of the program.

`find_product` matches the product that a group begins with, as a `Contraction` and its feeds. A
`Contraction` names the dimensions of three operands by letters: m are rows, n columns, k the depth,
all others the batch. ``left="bmck", right="bnck", result="bcmn"`` are the scores of the heads c of
an attention layer, queries by transposed keys, read from what a projection made. A group may begin
with transposes of the product's operands and go on with one of its result: the kernel then reads
and writes them where they lie, and nothing is moved.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from math import isfinite, prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.kernels.counts import fed_inputs
from pyc_mlir.pipelines.kernels.knobs import Sized, known, no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.functions import STEPS
from pyc_mlir.pipelines.kernels.lang.language import HALVES
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    OWN,
    Pointwise,
    PointwiseStep,
    Read,
    in_halves,
)
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.work import Work, WorkOp, float_type, nominal, sizes

_BATCH = "abcdefgh"
_ROWS_TO_TURN = 8


@dataclass(frozen=True)
class Feed:
    """A value as an operand of a kernel: its dimensions cut into groups, one for each of the
    operand's, at the positions `cuts`: ``(2,)`` makes a matrix of [a, b, c]: [a b, c].
    """

    value: int
    cuts: tuple[int, ...] = ()

    @staticmethod
    def matrix(work: Work, value: int) -> "Feed":
        """Return all dimensions but the last one as one."""
        return Feed(value, (work.type(value).rank - 1,))


@dataclass(frozen=True)
class KernelOffer:
    """A kernel for the first `covers` ops; `feeds` are its inputs in order.

    Dynamic dimensions of the result are, in order, among those that make the named sizes of the
    kernel's result. `worth` is False where the family expects IREE's code to be as good: such a
    kernel is taken on request only. `indirect` is True where the kernel adds other numbers than the
    op's plain form, so that its error, and what it makes of infinities and NaN, differ: a strict
    compile does not take it.
    """

    knobs: Any
    covers: int
    feeds: tuple[Feed, ...]
    cost: Cost
    worth: bool = True
    indirect: bool = False


def named_sizes(offer: KernelOffer, work: Work) -> dict[str, int]:
    """Return the sizes that a kernel's names stand for, for a group whose sizes are known."""
    kernel = offer.knobs.kernel("k")
    found: dict[str, int] = {}
    for operand, feed in zip(fed_inputs(kernel), offer.feeds, strict=True):
        shape = work.type(feed.value).shape
        runs = pairwise((0, *feed.cuts, len(shape)))
        if operand.layout is None:
            named = zip(operand.shape, runs, strict=True)
            found |= {d: nominal(shape[i:j]) for d, (i, j) in named if isinstance(d, str)}
    return found | {w.name: w.of(found[w.size]) for w in kernel.window_counts}


@dataclass(frozen=True)
class MatrixView:
    """A tensor as a matrix: the dimensions before `cut` are its rows."""

    shape: Shape
    cut: int
    # False where unknown sizes of what is read are not compared with the tensor's.
    checked: bool = True

    @property
    def rows(self) -> int | None:
        """The number of rows; None where that is not known."""
        return sizes(self.shape[: self.cut])

    @property
    def columns(self) -> int | None:
        """The number of columns; None where that is not known."""
        return sizes(self.shape[self.cut :])

    def feed(self, value: int, shape: Shape, read: Read) -> Feed:
        """Return how a value becomes the operand that `read` declares."""
        if not (read.down and read.along):
            return Feed(value)
        return Feed(value, (max(0, self.cut - (len(self.shape) - len(shape))),))

    def read(self, shape: Shape) -> Read | None:
        """Return how a value that broadcasts to the tensor is read; None without such a `Read`."""
        padded = (1,) * (len(self.shape) - len(shape)) + shape
        if len(padded) > len(self.shape):
            return None
        pairs = list(zip(padded, self.shape, strict=True))
        if any(mine not in (1, whole) for mine, whole in pairs):
            return None
        columns = {mine == whole for mine, whole in pairs[self.cut :] if whole != 1}
        along = columns == {True}
        return self._read(pairs[: self.cut], along) if len(columns) < 2 else None

    def _read(self, pairs: Sequence[tuple[int | None, int | None]], along: bool) -> Read | None:
        """Return the read, by the sizes of value and tensor in each dimension that is rows."""
        read = _rows(pairs, along)
        if read is None or self.checked:
            return read
        stretched = read.count == 0 and read.each > 1 and self.rows is None
        unknown = read.count == OWN or stretched
        return None if unknown else read


def _rows(pairs: Sequence[tuple[int | None, int | None]], along: bool) -> Read | None:
    """Return the read for the dimensions that are rows: repeated, kept and stretched, in order."""
    runs = [
        (kept, sizes(tuple(whole for _, whole in run)))
        for kept, run in groupby((p for p in pairs if p[1] != 1), lambda p: p[0] == p[1])
    ]
    kinds = [kept for kept, _ in runs]
    if True not in kinds:
        return Read(down=False, along=along)
    if kinds.count(True) > 1:
        return None
    if kinds == [True]:
        return Read(down=True, along=along)
    # That unknown sizes fit is checked when the kernel is called.
    kept, each = runs[kinds.index(True)][1], 1 if kinds[-1] else runs[-1][1]
    if each is None:
        return None
    return Read(True, along, each, 0 if kinds[0] else OWN if kept is None else kept)


@dataclass(frozen=True)
class LetterView(MatrixView):
    """The result of a product as a matrix, with a letter for each dimension but the last one.

    What is read at several dimensions of it, or at unknown sizes, is read by letters.
    """

    letters: str = ""

    def feed(self, value: int, shape: Shape, read: Read) -> Feed:
        """Return how a value becomes the operand that `read` declares: each letter a dimension."""
        if not read.letters:
            return super().feed(value, shape, read)
        own = f"{self.letters}n"[-len(shape) :]
        starts = [i for i, x in enumerate(own) if x in read.letters or (x == "n" and read.along)]
        return Feed(value, tuple(starts[1:]))

    def _read(self, pairs: Sequence[tuple[int | None, int | None]], along: bool) -> Read | None:
        plain = _rows(pairs, along)
        if plain is not None and (not plain.down or self.rows is not None):
            return plain
        whole = all(mine == size for mine, size in pairs)
        zipped = zip(self.letters, pairs, strict=True)
        kept = (x for x, (mine, size) in zipped if whole or (mine == size != 1))
        return Read(True, along, letters="".join(kept))


@dataclass(frozen=True)
class MatchedProgram:
    """A program for some ops, and the feeds of its reads in order."""

    program: Pointwise = field(default_factory=Pointwise)
    feeds: tuple[Feed, ...] = ()


def find(
    work: Work, first: int, end: int, own: int, view: MatrixView, stored: bool = True
) -> MatchedProgram | None:
    """Return the ops from `first` to before `end` as a program; None where they are not one.

    `own` is the value that the kernel has, `view` the matrix that own and result both are. In f16
    and bf16 the program rounds where the ops do; its result, where that is `stored`, by the store.
    """
    if first == end:
        return MatchedProgram()
    shapes = [work.type(own).shape, work.nodes[end - 1].type.shape]
    if shapes != [view.shape] * 2 or _is_mask(work, own) or not _is_elementwise(work, first, end):
        return None
    outside = dict.fromkeys(
        v for n in work.nodes[first:end] for v in n.operands if v < work.number_of(first)
    )
    outside.pop(own, None)
    if any(v >= len(work.inputs) for v in outside):
        return None
    constants = {v: c for v in outside if (c := _constant(work, v)) is not None}
    reads: dict[int, Read] = {}
    for value in (v for v in outside if v not in constants):
        read = view.read(work.type(value).shape)
        if read is None:
            return None
        reads[value] = replace(read, dtype="i8") if _is_mask(work, value) else read
    # A mask is read as numbers, which are compared with 0: a constant of no value.
    masks = [v for v in reads if _is_mask(work, v)]
    constants |= dict.fromkeys([-1] * bool(masks), 0.0)
    order = [own, *reads, *constants]
    numbers = {v: n for n, v in enumerate(order)}
    tests = [PointwiseStep("ne", (numbers[v], numbers[-1])) for v in masks]
    made = (*masks, *range(work.number_of(first), work.number_of(end)))
    numbers |= {v: n for n, v in enumerate(made, len(order))}
    steps = (
        *tests,
        *(
            # A power is a square here.
            PointwiseStep(_op(work, node), tuple(numbers[v] for v in operands))
            for node in work.nodes[first:end]
            for operands in [node.operands[:1] * 2 if node.name == "pow" else node.operands]
        ),
    )
    feeds = tuple(view.feed(v, work.type(v).shape, r) for v, r in reads.items())
    try:
        program = Pointwise(tuple(reads.values()), tuple(constants.values()), steps)
    except PycError:
        # Steps that fit together for pyc and not here, as a comparison of comparisons.
        return None
    if (dtype := float_type(work, [own])) in HALVES:
        program = in_halves(program, dtype, own >= len(work.inputs), stored)
    return MatchedProgram(program, feeds)


def longest(work: Work, first: int, view: MatrixView) -> tuple[int, MatchedProgram]:
    """Return how many ops a kernel covers that computes those before `first` and as many
    of the next as it can, with the program for these.
    """
    ends = (n for n in range(len(work.nodes), first, -1) if work.closed(n))
    for end in ends:
        found = find(work, first, end, work.number_of(first - 1), view)
        if found is not None:
            return end, found
    return first, MatchedProgram()


def sources(work: Work, first: int, end: int) -> Iterator[int]:
    """Yield the group's inputs that some ops read, in order."""
    yield from dict.fromkeys(
        v for n in work.nodes[first:end] for v in n.operands if v < len(work.inputs)
    )


def _is_elementwise(work: Work, first: int, end: int) -> bool:
    """Return whether each op is a step, with operands and results of one float type."""
    nodes = work.nodes[first:end]
    outside = [v for n in nodes for v in n.operands if v < work.number_of(first)]
    outside = [v for v in outside if not _is_mask(work, v)]
    values = [work.number_of(first + i) for i, n in enumerate(nodes) if n.name != "compare"]
    known = all(_op(work, n) for n in nodes)
    same = float_type(work, [*outside, *values, work.number_of(end - 1)])
    return known and same != ""


def _is_mask(work: Work, value: int) -> bool:
    return work.type(value).dtype == np.bool_


def _op(work: Work, node: WorkOp) -> str:
    """Return the step that an op is; "" for none."""
    if node.name == "pow":
        return "mul" if _constant(work, node.operands[1]) == 2.0 else ""
    if node.name == "compare":
        return node.params["predicate"]
    tanh = node.name == "gelu" and node.params["approximate"] == "tanh"
    name = "gelu_tanh" if tanh else node.name
    return name if name in STEPS else ""


def _constant(work: Work, value: int) -> float | None:
    """Return the value of a constant of one finite number; None for others."""
    if not work.is_constant(value) or sizes(work.type(value).shape) != 1:
        return None
    array = work.inputs[value].array
    assert array is not None
    number = float(np.ravel(array())[0])
    return number if isfinite(number) else None


@dataclass(frozen=True)
class Contraction(Sized):
    """result[.., rows, columns] = the sum of left[.., rows, k] right[.., k, columns] over k.

    `batch` are the sizes of the letters of `result` other than m and n, in their order there; an
    operand that lacks one of them is the same for all of it. `result` ends with n, `right` with n
    or, transposed, with k.
    """

    batch: tuple[Dim, ...]
    rows: Dim
    columns: Dim
    depth: Dim
    left: str = "bmk"
    right: str = "bkn"
    result: str = "bmn"

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for orders or sizes that make no product."""
        dims = (*self.batch, self.rows, self.columns, self.depth)
        if min((1, *(d for d in dims if isinstance(d, int)))) < 1:
            raise no_kernel("product", "sizes of at least 1", dims)
        letters = self.letters
        wrong = len(letters) != len(self.batch) or sorted(self.result) != sorted(f"{letters}mn")
        for order, own in ((self.left, "mk"), (self.right, "kn")):
            fits = len(set(order)) == len(order) and set(own) <= set(order) <= {*own, *letters}
            wrong = wrong or not fits
        if wrong or self.result[-1] != "n" or self.right[-1] not in "kn":
            raise no_kernel(
                "product",
                "left of m, k and batches, right of k, n and batches, ending with k or n, result "
                "of the batches, m and, last, n",
                (self.batch, *self.orders),
            )

    @property
    def letters(self) -> str:
        """The letters of the batch."""
        return self.result.replace("m", "").replace("n", "")

    @property
    def sizes(self) -> dict[str, Dim]:
        """Every letter's size."""
        own = {"m": self.rows, "n": self.columns, "k": self.depth}
        return {**dict(zip(self.letters, self.batch, strict=True)), **own}

    @property
    def orders(self) -> tuple[str, str, str]:
        """The letters of left, right and result."""
        return self.left, self.right, self.result

    @property
    def transposed(self) -> bool:
        """True where the depth of `right` is its last dimension."""
        return self.right[-1] == "k"

    @property
    def flops(self) -> float:
        """Those of the products."""
        return 2.0 * prod(map(known, self.sizes.values()))

    @property
    def matrix(self) -> tuple[Dim, Dim]:
        """The rows and columns that an epilogue sees: all dimensions but the last one are rows.

        Rows are the size ``rows_of_c`` where their number cannot be told.
        """
        outer = [self.sizes[x] for x in self.result[:-1]]
        numbers = [d for d in outer if isinstance(d, int)]
        if len(numbers) == len(outer):
            return prod(numbers), self.columns
        return (outer[0] if len(outer) == 1 else "rows_of_c"), self.columns

    def operands(self, epilogue: Pointwise) -> tuple[Operand, ...]:
        """Return a kernel's operands: a, b, what the epilogue reads, c."""
        left, right, result = (tuple(self.sizes[x] for x in o) for o in self.orders)
        reads = epilogue.operands("e", *self.matrix, self.sizes)
        return (Operand("a", left), Operand("b", right), *reads, Operand("c", result, "out"))


@dataclass(frozen=True)
class Matched:
    """A product with what follows it: the first `covers` ops of a group, fed with `feeds`.

    `nominal` has sizes of dynamic dimensions, for a cost; `dtype` is f32, f16 or bf16.
    """

    what: Contraction
    epilogue: Pointwise
    covers: int
    feeds: tuple[Feed, ...]
    nominal: dict[str, int]
    dtype: str = "f32"


@dataclass(frozen=True)
class _Side:
    """An operand of the product: a value of the group's inputs, a letter for each dimension.

    A dimension of size 1 that is repeated has none.
    """

    value: int
    letters: tuple[str, ...]

    @property
    def order(self) -> str:
        return "".join(self.letters)

    @property
    def feed(self) -> Feed:
        """Each letter is a dimension; those without one join a neighbour."""
        return Feed(self.value, tuple(i for i, x in enumerate(self.letters) if x)[1:])


def find_product(work: Work) -> Matched | None:
    """Return the product of floats that a group begins with; None where there is none in place."""
    at = next((i for i, n in enumerate(work.nodes) if n.name != "transpose"), 0)
    node = work.nodes[at]
    dtype = float_type(work, node.operands) if node.name == "matmul" else ""
    if not dtype:
        return None
    left, right = (work.type(v).shape for v in node.operands)
    shape = node.type.shape
    if min(len(left), len(right)) < 2 or len(shape) > len(_BATCH) or 0 in (*left, *right):
        return None
    if left[-1] != right[-2]:
        return None
    sides = [
        _side(work, at, value, _letters(operand, shape, own))
        for value, operand, own in zip(node.operands, (left, right), ("mk", "kn"), strict=True)
    ]
    a, b = sides
    if a is None or b is None or b.order[-1] not in "kn":
        return None
    whole = (*_BATCH[: len(shape) - 2], "m", "n")
    for covers, order in _results(work, at, whole):
        if work.closed(covers):
            known = dict(zip(whole, shape, strict=True)) | {"k": left[-1]}
            return replace(_with_epilogue(work, covers, (a, b, order), known), dtype=dtype)
    return None


def _letters(operand: Shape, result: Shape, own: str) -> tuple[str, ...] | None:
    """Return a letter for each dimension of an operand; None where sizes are not known to agree."""
    batch = len(operand) - 2
    whole = result[:-2][len(result) - 2 - batch :]
    names = _BATCH[len(result) - 2 - batch : len(result) - 2]
    found = []
    for mine, size, name in zip(operand[:-2], whole, names, strict=True):
        if mine != size and mine != 1:
            return None
        found.append(name if mine == size else "")
    return (*found, *own)


def _side(work: Work, at: int, value: int, letters: tuple[str, ...] | None) -> _Side | None:
    """Return the operand behind the transposes that the group begins with."""
    while letters is not None and value >= len(work.inputs):
        if value >= work.number_of(at):
            return None
        node = work.nodes[value - len(work.inputs)]
        source = dict(zip(node.params["permutation"], letters, strict=True))
        letters, value = tuple(source[i] for i in range(len(letters))), node.operands[0]
    return None if letters is None else _Side(value, letters)


def _results(work: Work, at: int, whole: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the covered ops and the order of the result, with a transpose of it or without."""
    after = work.nodes[at + 1] if at + 1 < len(work.nodes) else None
    if after is not None and after.name == "transpose" and work.number_of(at) in after.operands:
        permutation = after.params["permutation"]
        if permutation[-1] == len(whole) - 1:
            yield at + 2, tuple(whole[p] for p in permutation)
    yield at + 1, whole


def _with_epilogue(
    work: Work,
    covers: int,
    orders: tuple[_Side, _Side, tuple[str, ...]],
    known: dict[str, int | None],
) -> Matched:
    a, b, order = orders
    shape = work.nodes[covers - 1].type.shape
    if turned := _turned(work, covers, orders, known):
        return turned
    dims: dict[str, Dim] = {x: x if size is None else size for x, size in known.items()}
    batch = tuple(dims[x] for x in order if x not in "mn")
    what = Contraction(
        *(batch, dims["m"], dims["n"], dims["k"]), *(a.order, b.order, "".join(order))
    )
    dynamic = {x: NOMINAL_DIMENSION for x, size in known.items() if size is None}
    view = MatrixView(shape, len(shape) - 1)
    flat = _flat(work, what, a)
    if flat is None:
        view = LetterView(shape, len(shape) - 1, letters=what.result[:-1])
    covers, found = longest(work, covers, view)
    if flat is None:
        return Matched(what, found.program, covers, (a.feed, b.feed, *found.feeds), dynamic)
    sized = dynamic | {"m": nominal(work.type(a.value).shape[:-1])}
    feeds = (Feed.matrix(work, a.value), b.feed, *found.feeds)
    return Matched(flat, found.program, covers, feeds, sized)


def _turned(
    work: Work,
    covers: int,
    orders: tuple[_Side, _Side, tuple[str, ...]],
    known: dict[str, int | None],
) -> Matched | None:
    """Return a product by one column as that column, a row now, by the left side transposed.

    In memory [.., rows, 1] and [.., 1, rows] are the same. None where sizes are dynamic or
    operands lie otherwise.
    """
    a, b, order = orders
    sized = {x: size for x, size in known.items() if size is not None}
    plain = b.letters[-2:] == ("k", "n") and a.letters[-1] == "k" and order[-2:] == ("m", "n")
    if len(sized) < len(known) or sized["n"] != 1 or sized["m"] < _ROWS_TO_TURN or not plain:
        return None
    shape = work.nodes[covers - 1].type.shape
    covers, found = longest(work, covers, MatrixView(shape, len(shape) - 2))
    batch = order[:-2]
    column = _Side(b.value, b.letters[:-2])
    what = Contraction(
        *(tuple(sized[x] for x in batch), 1, sized["m"], sized["k"]),
        *(f"{column.order}mk", a.order.replace("m", "n"), "".join((*batch, "m", "n"))),
    )
    # No dimension of the column is the row's number: the cut before k stands there twice.
    start = len(b.letters) - 2
    cuts = (*column.feed.cuts, *((start,) if column.order else ()), start)
    feeds = (Feed(b.value, cuts), a.feed, *found.feeds)
    return Matched(what, found.program, covers, feeds, {})


def _flat(work: Work, what: Contraction, a: _Side) -> Contraction | None:
    """Return a batch that only the left side has, as more rows of one matrix; None for others."""
    in_order = a.order == f"{what.letters}mk" and what.result == f"{what.letters}mn"
    if not what.letters or set(what.letters) & set(what.right) or not in_order:
        return None
    if isinstance(what.columns, str) or len(a.order) != len(a.letters):
        return None
    rows = sizes(work.type(a.value).shape[:-1]) or "m"
    return Contraction((), rows, what.columns, what.depth, "mk", what.right, "mn")
