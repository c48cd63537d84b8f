"""A selector whose calls take simulated seconds, by the name of their arm."""

from pyc_mlir import Selector


class Clocked(Selector):
    """Each call takes its arm's seconds, and up to two percent more in turn.

    Builds go by the names that they were given.
    """

    def __init__(self, seconds, **more):
        super().__init__(load=lambda: 0.0, clock=lambda: 0.0, **more)
        self.seconds, self.count = seconds, 0

    def observe(self, route, pull, seconds):
        self.count += 1
        arm = route.arms[pull.arm].partition("@")[0]
        taken = self.seconds[arm] * (1 + 0.01 * (self.count % 3))
        super().observe(route, pull, taken)
