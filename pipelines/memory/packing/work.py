"""The work limit of a search: counted in steps, thus equal on every machine."""

from collections.abc import Callable


class Exhausted(Exception):
    """The budget is spent; whoever owns the search returns the best that it has."""


class WorkLimit:
    """A count of work against a limit. A unit is about a microsecond of a 3 GHz core.

    `stop` is asked as well, now and then: a caller with a deadline (whose result then depends on
    the machine) gives a function that looks at a clock.
    """

    def __init__(self, limit: int, stop: Callable[[], bool] = lambda: False) -> None:
        self.limit, self.stop = limit, stop
        self.spent = 0

    def count(self, work: float) -> None:
        """Count `work` units that are done whatever the limit."""
        self.spent += int(work)

    def spend(self, work: float) -> None:
        """Count `work` units. Raises Exhausted when the limit is passed."""
        self.count(work)
        if self.spent >= self.limit or self.stop():
            raise Exhausted
