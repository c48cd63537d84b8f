"""Match the product that a group begins with: from `Work` to a `Contraction` and its feeds.

A group may begin with transposes of the product's operands and go on with one of its result: the
kernel then reads and writes them where they lie, and nothing is moved.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.kernels.lang.carrier import Dim
from pyc_mlir.pipelines.kernels.lang.pointwise import Pointwise
from pyc_mlir.pipelines.kernels.match.offers import Feed
from pyc_mlir.pipelines.kernels.match.pointwise import MatchedProgram, MatrixView, longest
from pyc_mlir.pipelines.kernels.shared.contraction import Contraction
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.work import Work, float_type, nominal, sizes

_BATCH = "abcdefgh"
_ROWS_TO_TURN = 8


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


def find(work: Work) -> Matched | None:
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
    product = covers
    covers, found = longest(work, covers, MatrixView(shape, len(shape) - 1))
    dims: dict[str, Dim] = {x: x if size is None else size for x, size in known.items()}
    batch = tuple(dims[x] for x in order if x not in "mn")
    what = Contraction(
        *(batch, dims["m"], dims["n"], dims["k"]), *(a.order, b.order, "".join(order))
    )
    if isinstance(what.matrix[0], str) and len(what.result) > 2 and found.program.reads:
        # Sizes of what is read could not be checked against the dimensions of the result.
        covers, found = product, MatchedProgram()
    dynamic = {x: NOMINAL_DIMENSION for x, size in known.items() if size is None}
    feeds = (a.feed, b.feed, *found.feeds)
    return _flat(work, Matched(what, found.program, covers, feeds, dynamic), a)


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


def _flat(work: Work, matched: Matched, a: _Side) -> Matched:
    """Return a batch that only the left side has, as more rows of one matrix."""
    what = matched.what
    in_order = a.order == f"{what.letters}mk" and what.result == f"{what.letters}mn"
    if not what.letters or set(what.letters) & set(what.right) or not in_order:
        return matched
    if isinstance(what.columns, str) or len(a.order) != len(a.letters):
        return matched
    shape = work.type(a.value).shape
    rows = sizes(shape[:-1]) or "m"
    flat = Contraction((), rows, what.columns, what.depth, "mk", what.right, "mn")
    sized = matched.nominal | {"m": nominal(shape[:-1])}
    feeds = (Feed.matrix(work, a.value), *matched.feeds[1:])
    return replace(matched, what=flat, feeds=feeds, nominal=sized)
