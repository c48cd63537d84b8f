"""The reads of ops that move elements: indices as digits of loop variables.

A digit (v, d, n) is ``(v // d) % n``; an index is its digits, the most significant first, in a
mixed radix: the position in a dimension whose size is the product of their sizes. () is 0. So a
reshape is a change of digits, and one that undoes another gives the variable back. The size of a
first digit may be None if it is dynamic.
"""

from collections.abc import Hashable, Sequence
from math import prod

from pyc_mlir.dialects.ops.movement import copied
from pyc_mlir.dialects.types import Shape

Digit = tuple[Hashable, int, int | None]
Index = tuple[Digit, ...]


def whole(variable: Hashable, size: int | None) -> Index:
    """Return the index that runs over a dimension; 0 where its size is 1."""
    return () if size == 1 else ((variable, 1, size),)


def merged(indices: Sequence[Index]) -> Index | None:
    """Return the index of dimensions that became one; None where an inner size is not known."""
    digits: list[Digit] = []
    for digit in (d for index in indices for d in index):
        variable, divisor, size = digit
        if digits and size is None:
            return None
        if digits and digits[-1][0] == variable and digits[-1][1] == divisor * (size or 1):
            _, _, outer = digits.pop()
            size = None if outer is None or size is None else outer * size
        digits.append((variable, divisor, size))
    return tuple(digits)


def split(index: Index, sizes: Sequence[int | None]) -> list[Index] | None:
    """Return the indices of the dimensions that one is cut into; None where digits forbid it."""
    if None in sizes[1:]:
        return None
    rest, parts = list(index), []
    for size in reversed(sizes[1:]):
        part: list[Digit] = []
        needed = size or 0
        while needed > 1:
            if not rest:
                return None
            variable, divisor, n = rest.pop()
            if n is not None and needed % n == 0:
                part.insert(0, (variable, divisor, n))
                needed //= n
            elif n is None or n % needed == 0:
                part.insert(0, (variable, divisor, needed))
                left = None if n is None else n // needed
                rest.append((variable, divisor * needed, left))
                needed = 1
            else:
                return None
        parts.insert(0, tuple(part))
    return [tuple(rest), *parts]


def before_reshape(
    given: Shape, out: Shape, entries: Sequence[int], index: Sequence[Index]
) -> list[Index] | None:
    """Return the index into x of ``reshape(x)[index]``, or None.

    given, out: the shapes of x and of the result; entries: the parameter `shape`.
    """
    found: dict[int, Index] = {}
    left = [i for i, d in enumerate(given) if d != 1]
    right = [j for j, d in enumerate(out) if d != 1]

    def same(i: int, j: int) -> bool:
        return entries[j] == copied(i) or (given[i] is not None and given[i] == out[j])

    for end in (0, -1):
        while left and right and same(left[end], right[end]):
            found[left.pop(end)] = index[right.pop(end)]
    if not _regroup(given, out, index, left, right, found):
        return None
    return [found.get(i, ()) for i in range(len(given))]


def _regroup(
    given: Shape,
    out: Shape,
    index: Sequence[Index],
    left: list[int],
    right: list[int],
    found: dict[int, Index],
) -> bool:
    """Match the dimensions that no other is the same as, in groups of equal products."""
    if not left and not right:
        return True
    if not left or not right:
        return False
    single = len(left) == 1 or len(right) == 1
    dynamic = None in [*(given[i] for i in left), *(out[j] for j in right)]
    if dynamic and not single:
        return False
    while left:
        sources, targets = [left.pop(0)], [right.pop(0)] if right else []
        if single:
            sources, targets = [*sources, *left], [*targets, *right]
            left, right = [], []
        while not single and (a := _size(given, sources)) != (b := _size(out, targets)):
            side, others = (sources, left) if a < b else (targets, right)
            if not others:
                return False
            side.append(others.pop(0))
        joined = merged([index[j] for j in targets])
        parts = None if joined is None else split(joined, [given[i] for i in sources])
        if parts is None:
            return False
        found.update(zip(sources, parts, strict=True))
    return not right


def _size(shape: Shape, dims: Sequence[int]) -> int:
    return prod(shape[d] or 0 for d in dims)
