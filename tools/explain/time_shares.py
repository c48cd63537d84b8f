"""The answer to where the time of a call goes: sentences, and the operations that take most of it.

Comes in: a measured or predicted `Profile`.
"""

from collections.abc import Sequence

from pyc_mlir.profile.dispatches import Operation, uncovered
from pyc_mlir.profile.profile import Profile, summary
from pyc_mlir.util.units import quantity

HEAD = ("share", "time", "times", "operations", "nodes of the model", "code")
PLACES = 5


def answer(profile: Profile) -> str:
    """Describe where the time goes, and on what that rests, in one or two sentences."""
    return f"{summary(profile)} {profile.how[:1].upper()}{profile.how[1:]}."


def longest(profile: Profile) -> list[Operation]:
    """Return the operations that take the most time."""
    return profile.operations[:PLACES]


def not_covered(profile: Profile) -> list[Operation]:
    """Return the operations whose code is IREE's, as no generated kernel covers them."""
    return uncovered(profile.operations)


def rows_of(operations: Sequence[Operation]) -> list[tuple[str, ...]]:
    """Return the operations as rows for the columns of HEAD."""
    return [
        (
            f"{o.share:.1%}",
            quantity(o.seconds, "s"),
            str(len(o.rows)),
            o.title,
            o.named,
            f"kernel {o.code}" if o.is_kernel else "IREE's code",
        )
        for o in operations
    ]
