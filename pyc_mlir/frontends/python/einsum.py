"""Einsum as transposes, sums and matmuls, operand by operand from the left.

Each letter of a pair is a batch letter (in both and wanted), contracted (in both, not wanted), or
belongs to one side; one that is on one side and not wanted is summed before. Groups of letters
are merged into the single row, column and depth of a matmul.
"""

from collections.abc import Sequence

from pyc_mlir.dialects.ops.movement import copied
from pyc_mlir.frontends.python.source import untraceable
from pyc_mlir.frontends.python.traced_array import TracedArray
from pyc_mlir.frontends.python.tracer import Tracer

_SPARE = "⓪①②③④⑤⑥⑦⑧⑨"


def einsum(b: Tracer, subscripts: str, operands: Sequence[TracedArray]) -> TracedArray:
    """Evaluate e.g. "bhqd,bhkd->bhqk" or "...ij,jk". Raises PycError (UNTRACEABLE)."""
    terms, wanted = _parse(subscripts, [x.ndim for x in operands])
    x, letters = operands[0], terms[0]
    for i in range(1, len(operands)):
        later = set(wanted).union(*terms[i + 1 :])
        x, letters = _pair(b, (x, letters), (operands[i], terms[i]), later)
    x, letters = _sum_out(b, x, letters, set(wanted))
    order = tuple(letters.index(c) for c in wanted)
    return x if order == tuple(range(len(order))) else b.transpose(x, permutation=order)


def _parse(subscripts: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; the ellipsis becomes spare letters."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise _unclear(subscripts, f"it has {len(terms)} terms for {len(ranks)} operands")
    widths = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)]
    spare = _SPARE[: max((w for t, w in zip(terms, widths, strict=True) if "..." in t), default=0)]
    for i, (term, width) in enumerate(zip(terms, widths, strict=True)):
        if width < 0 or (width and "..." not in term):
            raise _unclear(subscripts, f"term {i} does not fit an array of rank {ranks[i]}")
        terms[i] = term.replace("...", spare[len(spare) - width :])
        if len(set(terms[i])) != len(terms[i]):
            raise _unclear(subscripts, "a letter stands twice in one term")
    if not arrow:
        once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
        right = ("..." if spare else "") + "".join(once)
    wanted = right.replace("...", spare)
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set("".join(terms)):
        raise _unclear(subscripts, "the result has a letter twice, or one that no operand has")
    return terms, wanted


def _unclear(subscripts: str, why: str) -> Exception:
    return untraceable(
        f"np.einsum({subscripts!r}): {why}", "use distinct letters, one for each dimension"
    )


def _sum_out(b: Tracer, x: TracedArray, letters: str, keep: set[str]) -> tuple[TracedArray, str]:
    axes = tuple(i for i, c in enumerate(letters) if c not in keep)
    kept = "".join(c for c in letters if c in keep)
    return (b.reduce_sum(x, axes=axes) if axes else x), kept


def _pair(
    b: Tracer, left: tuple[TracedArray, str], right: tuple[TracedArray, str], later: set[str]
) -> tuple[TracedArray, str]:
    """Contract two operands; the result's letters are batch, left's own, right's own."""
    x, xs = _sum_out(b, *left, later | set(right[1]))
    y, ys = _sum_out(b, *right, later | set(left[1]))
    batch = "".join(c for c in xs if c in ys and c in later)
    depth = "".join(c for c in xs if c in ys and c not in later)
    rows = "".join(c for c in xs if c not in ys)
    columns = "".join(c for c in ys if c not in xs)
    lhs = _grouped(b, x, xs, batch, rows, depth)
    rhs = _grouped(b, y, ys, batch, depth, columns)
    out = b.matmul(lhs, rhs)
    # Right's letters are split first: its dimension is the last, so that rows stay where they are.
    out = _split(b, out, len(batch) + 1, y, ys, columns)
    return _split(b, out, len(batch), x, xs, rows), batch + rows + columns


def _grouped(
    b: Tracer, x: TracedArray, letters: str, batch: str, first: str, second: str
) -> TracedArray:
    """x as [batch..., first, second], the letters of a group merged into one dimension."""
    order = tuple(letters.index(c) for c in batch + first + second)
    if order != tuple(range(len(order))):
        x = b.transpose(x, permutation=order)
    place = len(batch)
    x = _merge(b, x, place + len(first), len(second))
    return _merge(b, x, place, len(first))


def _merge(b: Tracer, x: TracedArray, start: int, number: int) -> TracedArray:
    """Dimensions [start, start + number) as one; size 1 for none."""
    if number == 1:
        return x
    shape = x.type.shape
    entries = [copied(i) if d is None else d for i, d in enumerate(shape)]
    entries[start : start + number] = [-1 if number else 1]
    return b.reshape(x, shape=tuple(entries))


def _split(
    b: Tracer, out: TracedArray, axis: int, source: TracedArray, letters: str, group: str
) -> TracedArray:
    """Undo a merge: dimension `axis` of out as the dimensions of `group` in `source`."""
    if len(group) == 1:
        return out
    sizes = [source.type.shape[letters.index(c)] for c in group]
    if sizes.count(None) > 1:
        raise untraceable(
            "np.einsum: two dynamic dimensions of one operand would have to be merged",
            "use `np.matmul`, or give all but one of them a size",
        )
    entries = [copied(i) if d is None else d for i, d in enumerate(out.type.shape)]
    entries[axis : axis + 1] = [-1 if d is None else d for d in sizes]
    return b.reshape(out, shape=tuple(entries))
