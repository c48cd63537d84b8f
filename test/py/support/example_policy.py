"""A policy as a third party would ship it: one class, registered under an entry point.

[project.entry-points."pyc_mlir.policies"]
thrifty = "example_policy:Thrifty"
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyc_mlir.pipelines.choices.choices import Alternative, Site


@dataclass(frozen=True)
class Thrifty:
    """Fewest bytes among the plans that are predicted to be at most 5% slower than the fastest."""

    name: str = "thrifty"
    planner_modes: tuple[str, ...] = ("latency_first", "balanced", "memory_first")
    slowdown: float = 0.05

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """The name of one alternative; what is no matter of memory is left to the passes."""
        costs = {a.name: a.cost for a in alternatives if a.cost is not None}
        if site.pass_name != "plan-memory" or not costs:
            return alternatives[0].name
        fastest = min(cost.seconds for cost in costs.values())
        quick = {n: c for n, c in costs.items() if c.seconds <= fastest * (1 + self.slowdown)}
        return min(quick, key=lambda name: (quick[name].workspace_bytes, name))
