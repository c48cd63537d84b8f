"""The policy `explore`: a compile begins with the recipe that the path explorer prefers.

It is registered under the entry points `pyc_mlir.policies`, as a third party's policy is.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyc_mlir.compilation.options import Options, with_recipe
from pyc_mlir.pipelines.choices.policies import Fastest
from pyc_mlir.util.logs import Stage

# Flags are read without a compiler.
if TYPE_CHECKING:
    from pyc_mlir.compilation.job import Job


@dataclass(frozen=True)
class Explore(Fastest):
    """`Fastest` at each site, in a compile that begins with the path explorer's recipe.

    Where a compile may not lower a program several times (untrusted sources, a limit of seconds)
    the sites alone are judged.
    """

    name: str = "explore"

    def prepare(self, job: "Job", stage: Stage) -> Options:
        """Return the options with the recipe that the explorer prefers. Raises as `compile`.

        A recipe that was given stands, and so does the demand that each kernel was measured.
        """
        options = job.options
        if options.recipe is not None or self.require_evidence:
            return options
        # The explorer and the simulator are needed here alone.
        from pyc_mlir.lab.explore.programs import explore

        with stage("PyC explores executions"):
            found = explore(job, self.wisdom)
        budget = options.contract.memory_budget_bytes
        return with_recipe(options, found.chosen(budget).recipe)
