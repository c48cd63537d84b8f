"""The time of a call by dispatch, and the ops that no generated kernel covers, in words.

Comes in: a measured or predicted `Profile`. Goes out: sentences, and a row for each group of ops
whose code is IREE's, the longest first.
"""

from dataclasses import dataclass

from pyc_mlir.profile.profile import Profile, ProfileRow
from pyc_mlir.profile.views import summary
from pyc_mlir.util.units import quantity

HEAD = ("share", "time", "computes", "groups", "where", "dispatches")


@dataclass(frozen=True)
class Uncovered:
    """Groups of ops that no generated kernel covers: their share of a call, their dispatches."""

    computes: str
    groups: tuple[str, ...]
    locations: tuple[str, ...]
    seconds: float
    share: float
    dispatches: int

    @property
    def cells(self) -> tuple[str, ...]:
        """As text, for the columns of HEAD."""
        return (
            f"{self.share:.1%}",
            quantity(self.seconds, "s"),
            self.computes,
            " ".join(self.groups) or "unknown",
            ", ".join(self.locations),
            str(self.dispatches),
        )


def answer(profile: Profile) -> str:
    """Describe the shares of time and their basis in one or two sentences."""
    return f"{summary(profile)} {profile.how[:1].upper()}{profile.how[1:]}."


def uncovered(profile: Profile) -> list[Uncovered]:
    """Return the ops that no kernel covers, by the groups that share dispatches, longest first."""
    found: dict[tuple[str, ...], list[ProfileRow]] = {}
    for row in profile.rows:
        if row.is_dispatch and not row.is_kernel:
            found.setdefault(row.groups, []).append(row)
    joined = [_joined(groups, rows) for groups, rows in found.items()]
    return sorted(joined, key=lambda u: -u.seconds)


def _joined(groups: tuple[str, ...], rows: list[ProfileRow]) -> Uncovered:
    """Merge the dispatches of the same groups; described by the largest one."""
    most = max(rows, key=lambda row: row.seconds)
    seconds, share = sum(r.seconds for r in rows), sum(r.share for r in rows)
    return Uncovered(most.computes, groups, most.locations, seconds, share, len(rows))
