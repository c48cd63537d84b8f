"""Plans for some sizes of dynamic dimensions, as data and as text: ``batch=1;batch=2:8``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from pyc_mlir.dialects.errors import PycError, ReasonCode

Ranges = Mapping[str, tuple[int, int]]
# For the option `plans`: as many as pay; and the largest number that may be asked for.
AUTO_PLANS, MOST_ASKED = "auto", 32
# Sizes are counted in 64 bits.
_MOST_DIGITS = 18
# Characters of a dimension's name that need no escape in the text of a plan.
_PLAIN = "[]_."


@dataclass(frozen=True)
class ShapePlan:
    """A plan for some sizes: by dimension the smallest and the largest one, both included.

    Dimensions without an entry are open. As text: ``batch=1,length=2:8``.
    """

    ranges: Ranges

    @property
    def exact(self) -> dict[str, int]:
        """The dimensions that have one size."""
        return {name: low for name, (low, high) in self.ranges.items() if low == high}

    @property
    def open(self) -> dict[str, tuple[int, int]]:
        """The dimensions that have several sizes."""
        return {name: ends for name, ends in self.ranges.items() if ends[0] != ends[1]}

    def covers(self, sizes: Mapping[str, int]) -> bool:
        """Return whether calls of these sizes can take the plan."""
        return all(low <= sizes[name] <= high for name, (low, high) in self.ranges.items())

    def __str__(self) -> str:
        return ",".join(
            f"{quote(name, safe=_PLAIN)}={low}" + ("" if low == high else f":{high}")
            for name, (low, high) in self.ranges.items()
        )

    @staticmethod
    def parse(text: str) -> "ShapePlan":
        """Read the text of a plan. Raises PycError (BAD_ARGUMENT)."""
        ranges = {}
        for part in text.split(","):
            name, found, sizes = part.strip().rpartition("=")
            low, _, high = sizes.partition(":")
            ends = (low.strip(), (high if ":" in sizes else low).strip())
            if not found or not name or not all(map(is_size, ends)):
                raise _bad_plan(text)
            ranges[unquote(name.strip())] = (int(ends[0]), int(ends[1]))
        if not ranges or any(low > high for low, high in ranges.values()):
            raise _bad_plan(text)
        return ShapePlan(ranges)


def is_size(text: str) -> bool:
    """Return whether a text is a size."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _bad_plan(text: str) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT,
        where="plans",
        expected="`auto`, a number of plans, or the sizes of each, such as `batch=1;batch=2:8`",
        got=repr(text[:80]),
    )


def checked_plans(asked: str | int) -> str:
    """Return what the option `plans` asks for as text. Raises PycError (BAD_ARGUMENT)."""
    text = str(asked).strip()
    if text.isdecimal() and 0 <= int(text) <= MOST_ASKED:
        return str(int(text)) if int(text) else ""
    if text in ("", AUTO_PLANS):
        return text
    if text.lstrip("-").isdecimal():
        raise PycError(
            ReasonCode.BAD_ARGUMENT, where="plans", expected=f"0 to {MOST_ASKED} plans", got=text
        )
    return plans_text(parse_plans(text))


def plans_text(plans: Sequence[ShapePlan]) -> str:
    """Return the text of several plans, ``batch=1;batch=2:8``; empty for none."""
    return ";".join(map(str, plans))


def parse_plans(text: str) -> tuple[ShapePlan, ...]:
    """Read `plans_text`. Raises PycError (BAD_ARGUMENT)."""
    found = (ShapePlan.parse(part) for part in text.split(";") if part.strip())
    return tuple({str(plan): plan for plan in found}.values())
