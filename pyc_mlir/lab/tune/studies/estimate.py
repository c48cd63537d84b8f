"""Choices of a whole program by evidence and prediction, without measuring anything.

    priced alternatives of all sites -> space {site: choice} -> tempering on the simulator -> recipe

The simulator answers thousands of recipes a second, so that parallel tempering may search: its cost
is the estimate for the whole program. What it finds is a candidate, never evidence.
"""

from dataclasses import dataclass

from pyc_mlir.lab.simulation.estimate import Estimate
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.lab.tune.strategies import Strategy, Tempering, best, run
from pyc_mlir.pipelines.choices.space import Config, Knob, KnobSpace
from pyc_mlir.util.units import quantity

EVALUATIONS = 2000


@dataclass(frozen=True)
class Estimated:
    """A recipe of the sites whose choice differs from the compile's own, and both estimates."""

    recipe: dict[str, str]
    own: Estimate
    found: Estimate

    def __str__(self) -> str:
        own_time = f"{quantity(self.own.seconds, 's')} with PyC's own choices"
        if not self.recipe:
            return f"estimated: {own_time}, and no quicker ones were found"
        low, high = quantity(self.found.lo, "s"), quantity(self.found.hi, "s")
        return (
            f"estimated: {own_time}, {quantity(self.found.seconds, 's')} ({low} to {high}) with "
            f"other choices at {len(self.recipe)} sites; measure before you use them"
        )


def space_of(simulator: Simulator) -> KnobSpace:
    """Return the sites of a program with several alternatives, each an axis; the default is its
    own.
    """
    sites = [one for one in simulator.program.kernels if len(one.costs) > 1]
    axes = tuple(Knob(one.site.key, tuple(one.costs)) for one in sites)
    default = tuple(a.values.index(s.chosen) for a, s in zip(axes, sites, strict=True))
    return KnobSpace(axes, default=default)


def estimated(
    simulator: Simulator,
    strategy: Strategy | None = None,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
) -> Estimated:
    """Search on the simulator for the quickest recipe; the program's own if none is found."""
    space, own = space_of(simulator), simulator.estimate()
    if not space.axes:
        return Estimated({}, own, own)

    def seconds(config: Config) -> float:
        return simulator.estimate(space.settings(config)).seconds

    found = best(run(strategy or Tempering(), space, seconds, evaluations, seed))
    if found is None or found.cost is None or found.cost >= own.seconds:
        return Estimated({}, own, own)
    names, usual = space.settings(found.config), space.settings(space.default)
    recipe = {site: choice for site, choice in names.items() if choice != usual[site]}
    return Estimated(recipe, own, simulator.estimate(recipe))
