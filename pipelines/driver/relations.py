"""The equalities that a rewrite may keep, from the strongest to the weakest."""

from enum import IntEnum


class Relation(IntEnum):
    """An equality of two programs; each implies those of greater number.

    BITS: equal bits by the references of the ops, NaN payloads left out. REALS: equal functions of
    real numbers wherever both are defined; every constant is the binary number that it is, and
    conversions between floats are exact. ROUNDED: the same, with each constant read as the simple
    number that it is the rounding of. ERROR: equal within the error that the pass states.
    """

    BITS = 1
    REALS = 2
    ROUNDED = 3
    ERROR = 4

    @property
    def text(self) -> str:
        """The equality in words."""
        return _TEXTS[self]


_TEXTS = {
    Relation.BITS: "equal in every bit",
    Relation.REALS: "equal over the reals",
    Relation.ROUNDED: "equal over the reals, with constants as what they are rounded from",
    Relation.ERROR: "equal within an error",
}
