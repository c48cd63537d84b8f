"""Which products of few rows stream a run-time matrix? The family ``gemv``."""

from random import Random
from typing import Any

from pyc_mlir.pipelines.kernels.families.gemm_family import SIZES, is_packed, random_epilogue
from pyc_mlir.pipelines.kernels.families.gemv import ROWS, Gemv, is_streamed
from pyc_mlir.pipelines.kernels.families.products import ORDERS, arrays, cost, reference
from pyc_mlir.pipelines.kernels.match.contraction import find
from pyc_mlir.pipelines.kernels.match.offers import Offer
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.contraction import Contraction
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work


def refusal(knobs: Gemv, target: Target) -> str:
    """Nothing beyond what every family asks for."""
    return refuse_narrow(target)


def sample(random: Random, target: Target) -> tuple[Gemv, list[Arrays]]:
    """Random knobs, and three calls: half of the time what ships for the target."""
    orders = random.choice([o for o in ORDERS if o[0][-1] == "k"])
    letters = [x for x in orders[2] if x not in "mn"]
    batch = tuple(random.choice((1, 2, 3, x)) for x in letters)
    n, k = (random.choice((random.choice(SIZES), x)) for x in "nk")
    what = Contraction(batch, random.randint(1, ROWS), n, k, *orders)
    cuts = random.choice(((1, 1), (2, 1), (1, 2), (3, 2)))
    others: dict[str, Any] = {
        "epilogue": random_epilogue(random),
        "workgroups": cuts if batch else (1, cuts[1]),
    }
    if random.random() < 0.5:
        knobs = Gemv.on(target, what, **others)
    else:
        strip, at_once = random.choice((64, 128, 4096)), random.choice((1, 3, 8))
        knobs = Gemv(what, strip=strip, at_once=at_once, **others)
    return knobs, [arrays(knobs, random) for _ in range(3)]


def match(work: Work, target: Target) -> list[Offer]:
    """A kernel for a product of few rows and a matrix that is not known when compiling."""
    found = find(work)
    if found is None or is_packed(work) or not is_streamed(found.what):
        return []
    knobs = Gemv.on(target, found.what, epilogue=found.epilogue)
    if refusal(knobs, target):
        return []
    return [Offer(knobs, found.covers, found.feeds, cost(knobs, target, found.nominal))]


FAMILY = Family("gemv", Gemv, refusal, cost, reference, sample, match)
