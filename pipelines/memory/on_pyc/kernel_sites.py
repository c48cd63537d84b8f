"""From a pyc function whose kernels are chosen to `Sites`: what each choice takes, and when.

Comes in: a function of static sizes after `pyc-select-kernels`, and the decisions of that pass.
Goes out: plain data. Each site has the kernels that the pass offers and IREE's code, with their
predicted seconds; scratch memory and constants are read off the kernels' operands. The steps, and
what lives at each, are those of the planner's own plan of the function: the order and the reuse in
place that it would choose.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.memory.on_pyc.problem import PycFunction, read_function
from pyc_mlir.pipelines.memory.planner.place import lifetimes
from pyc_mlir.pipelines.memory.planner.planner import plan
from pyc_mlir.pipelines.memory.planner.problem import SchedulePlan
from pyc_mlir.pipelines.memory.selection.sites import Candidate, SiteCandidates, Sites
from pyc_mlir.pipelines.pyc.constants import (
    Constants,
    constants_of,
    forms_of_kernel,
    forms_of_model,
    size_of,
)
from pyc_mlir.pipelines.pyc.groups import Members
from pyc_mlir.pipelines.pyc.select_kernels import KernelVariants, is_stored, legal_offers
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.work import Work

# What the planner may do for the steps: the plan that a compile makes in the end is another one.
_WORK = 20_000


def read_sites(
    function: ir.Operation, context: PassContext, decisions: Sequence[Decision]
) -> Sites:
    """Return the sites of a function, each with the candidate that the decisions name.

    Raises PycError as `read_function`: for dynamic sizes and control flow.
    """
    region = read_function(function, context.target)
    found = plan(region.problem, mode="balanced", work_limit=_WORK)
    steps = {step.task: w for w, wave in enumerate(found.waves) for step in wave}
    names = list(FAMILIES) if context.kernels is None else list(context.kernels)
    chosen = {d.site.key: d.chosen for d in decisions if d.site.pass_name == SELECT}
    ids, sites = OpIds(function), []
    model, fixed = CostModel(context.target), 0.0
    for task, op in enumerate(region.ops):
        members = Members.of(op)
        if members is None or is_stored(work := members.work()):
            continue
        key = f"{SELECT}:{ids[op]}"
        fixed += model.dispatch_seconds
        if key not in chosen:
            fixed += model.work(work).seconds
            continue
        offers, _ = legal_offers(members, work, context, names)
        variants = KernelVariants(work, context.target, offers)
        constants = constants_of(members, work, ids)
        candidates = list(_candidates(variants, constants, work, chosen[key]))
        now = next(i for i, candidate in enumerate(candidates) if candidate.name == chosen[key])
        sites.append(SiteCandidates(key, steps[task], tuple(candidates), now))
    return Sites(tuple(sites), _live(region, found), fixed)


def _candidates(
    variants: KernelVariants, constants: Constants, work: Work, now: str
) -> Iterator[Candidate]:
    """Yield IREE's code, and kernels; one that is taken on request only where it is chosen."""
    iree = variants.iree
    assert iree.cost is not None
    yield Candidate(
        iree.name, iree.cost.seconds, 0, forms_of_model(constants, range(len(work.inputs)))
    )
    names = dict.fromkeys((*(n for n, (_, o) in variants.offers.items() if o.worth), now))
    for name in names:
        found = variants.found(name)
        if found is None:
            continue
        _, offer = found
        cost = variants.priced(name, offer).cost
        assert cost is not None
        scratch = sum(map(size_of, offer.knobs.kernel("k").results[1:]))
        yield Candidate(name, cost.seconds, scratch, forms_of_kernel(offer, constants, work))


def _live(region: PycFunction, found: SchedulePlan) -> tuple[int, ...]:
    """Return the bytes of the values that live in each wave."""
    lives = lifetimes(region.problem, found.waves, found.sources, found.reused).intervals
    used = np.zeros(len(found.waves) + 1, np.int64)
    np.add.at(used, lives.lower, lives.size)
    np.add.at(used, lives.upper, -lives.size)
    return tuple(int(size) for size in np.cumsum(used)[:-1])
