"""Sizes of dimensions as monomials, so that equal sizes are known to be equal.

A `LoweredDim` is an integer coefficient times a product of atoms; an atom is an `index` value of
the program whose size nothing else is known about (a dynamic dimension of an argument, a clamped
slice length). [b, s, 768] collapsed is ``768*b*s``, and expanding it again needs no check.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class LoweredDim(NamedTuple):
    """``coefficient * product(atoms)``; atoms are numbers given by `Lowering.atom`, sorted.

    A named tuple, because sizes are compared and hashed all the time.
    """

    coefficient: int = 1
    atoms: tuple[int, ...] = ()

    @property
    def static(self) -> int | None:
        """The size when it is known."""
        return None if self.atoms and self.coefficient else self.coefficient

    def __mul__(self, other: "LoweredDim") -> "LoweredDim":  # type: ignore[override]
        if 0 in (self.coefficient, other.coefficient):
            return LoweredDim(0)
        atoms = tuple(sorted(self.atoms + other.atoms))
        return LoweredDim(self.coefficient * other.coefficient, atoms)

    def divide(self, other: "LoweredDim") -> "LoweredDim | None":
        """Return the exact quotient, or None when it is not a monomial."""
        if other.coefficient == 0 or self.coefficient % other.coefficient:
            return None
        left = Counter(self.atoms)
        left.subtract(Counter(other.atoms))
        if any(n < 0 for n in left.values()):
            return None
        return LoweredDim(self.coefficient // other.coefficient, tuple(sorted(left.elements())))


def product(dims: Iterable[LoweredDim]) -> LoweredDim:
    """Return the product of all; 1 for none."""
    return math.prod(dims, start=LoweredDim(1))


def reassociation(
    source: list[LoweredDim], target: list[LoweredDim]
) -> list[tuple[list[int], list[int]]] | None:
    """Split both shapes into consecutive groups of equal size, as many groups as possible.

    None when the sizes cannot be shown to agree. Dimensions of size 1 at the end join the last
    group.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        left, right = [i], [j]
        a, b = source[i], target[j]
        while a != b:
            if _grow_left(a, b, i + 1 < len(source), j + 1 < len(target)):
                i += 1
                left.append(i)
                a = a * source[i]
            elif j + 1 < len(target):
                j += 1
                right.append(j)
                b = b * target[j]
            else:
                return None
        groups.append((left, right))
        i, j = i + 1, j + 1
    rest_left, rest_right = list(range(i, len(source))), list(range(j, len(target)))
    ones = [source[k] for k in rest_left] + [target[k] for k in rest_right]
    if any(d != LoweredDim(1) for d in ones):
        return None
    if (rest_left or rest_right) and groups:
        groups[-1][0].extend(rest_left)
        groups[-1][1].extend(rest_right)
    return groups


def _grow_left(a: LoweredDim, b: LoweredDim, more_left: bool, more_right: bool) -> bool:
    """Return whether the source group is the smaller one and can take another dimension."""
    if not more_left:
        return False
    if not more_right:
        return True
    return b.divide(a) is not None
