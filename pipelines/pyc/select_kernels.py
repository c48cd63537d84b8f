"""Choose for each group of ops between PyC's kernels and IREE's own code generation.

Comes in: functions of pyc ops, fused into groups. Goes out: the same, with ``pyc.kernel`` on those
groups and ops for which a generated kernel was chosen (`groups.py`). Every family says what it
has for a group (`match`); the choice is between its kernels and IREE's code, ranked by predicted
seconds, one decision for each group. Where no family has one, the decision says that too. A recipe
or a policy may name a variant of an offer: a knob set of the family's `space`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.choices.evidence import Computes, NotOffered
from pyc_mlir.pipelines.choices.space import KnobSpace, split_variant
from pyc_mlir.pipelines.driver.base import PassContext, option, require_target
from pyc_mlir.pipelines.kernels.knobs import encode
from pyc_mlir.pipelines.kernels.lang.attributes import ATTRIBUTE, CHECKED, SELECT
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.kernels.variants import with_settings
from pyc_mlir.pipelines.pyc.groups import AttachedKernel, Members
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import MOST_BINDINGS, Target
from pyc_mlir.pipelines.target.work import Work
from pyc_mlir.pipelines.target.work_id import work_id

IREE = "iree"
# What no code is made for.
_STORED = {"reshape"}


@dataclass(frozen=True)
class SelectKernels:
    """Choose generated kernels for groups and ops."""

    name: ClassVar[str] = SELECT
    target: str = option("", "the target that kernels are for; empty: the compile's")
    families: str = option("", "families to take kernels from, joined by +; empty: all")

    def __post_init__(self) -> None:
        """Raise PycError (INVALID_PIPELINE) for an unknown target or family."""
        require_target(self.target)
        unknown = set(filter(None, self.families.split("+"))) - set(FAMILIES)
        if unknown:
            raise PycError(
                ReasonCode.INVALID_PIPELINE,
                f"`families`: expected some of {', '.join(FAMILIES)}, got {sorted(unknown)}",
            )

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Choose in every function (see `select`); a named target has the table's figures."""
        if self.target:
            context = replace(context, target=Target.named(self.target))
        return select(module, context, self.families)


def select(module: ir.Module, context: PassContext, families: str = "") -> dict[str, int]:
    """Attach kernels for the context's target to the groups and ops of a module; how many of both.

    A compile calls this with its own target: the host's registers and caches decide on knobs.
    """
    names = list(filter(None, families.split("+"))) or list(FAMILIES)
    counts = {"groups with kernels": 0, "kernels": 0}
    seen: Counter[str] = Counter()
    for function in functions_of(module):
        ids = OpIds(function, seen)
        for op in (o.operation for o in function.regions[0].blocks[0].operations):
            members = Members.of(op) if op.name.startswith("pyc.") else None
            # A kernel that somebody has attached is that somebody's choice.
            if members is None or ATTRIBUTE in op.attributes:
                continue
            work = members.work()
            if is_stored(work):
                continue
            offers, evidence = legal_offers(work, context, names)
            chosen = _choose(op, ids, members, offers, context, evidence)
            counts["groups with kernels"] += bool(offers)
            counts["kernels"] += chosen is not None
            if chosen is not None:
                family, offer = chosen
                AttachedKernel(family, encode(offer.knobs), offer.covers, offer.feeds).attach(op)
    return counts


Found = tuple[str, KernelOffer]


def is_stored(work: Work) -> bool:
    """Return whether no code is made for a group."""
    return _STORED.issuperset(n.name for n in work.nodes)


def legal_offers(
    work: Work, context: PassContext, families: Sequence[str]
) -> tuple[dict[str, Found], list[NotOffered]]:
    """Return the allowed kernels by name, and evidence of those that are not."""
    found = _offers(work, context.target, families)
    if context.detect_faults:
        found = {name: _checked(*offer) for name, offer in found.items()}
    why = _against_indirect(context)
    left_out = [n for n, (_, o) in found.items() if why and o.indirect]
    offers = {n: f for n, f in found.items() if n not in left_out}
    return offers, [NotOffered(tuple(left_out), why)] if left_out else []


def _offers(work: Work, target: Target, names: Sequence[str]) -> dict[str, Found]:
    """Return every kernel that a dispatch can bind for the group, by its alternative's name."""
    found: dict[str, Found] = {}
    if len(work.inputs) >= MOST_BINDINGS:
        return found
    for family in names:
        for offer in FAMILIES[family].match(work, target):
            covered = "+".join(n.name for n in work.nodes[: offer.covers])
            name = f"{family}:{covered}"
            number = sum(n == name or n.startswith(f"{name}#") for n in found)
            found[f"{name}#{number}" if number else name] = (family, offer)
    return found


def _checked(family: str, offer: KernelOffer) -> Found:
    """Return the offer with checks of its own, where a dispatch can bind what they need."""
    other = CHECKED.get(family)
    made = None if other is None else FAMILIES[other].checked(offer)
    if other is None or made is None or len(made.knobs.kernel("k").operands) > MOST_BINDINGS:
        return family, offer
    return other, made


def _against_indirect(context: PassContext) -> str:
    """Return why kernels with other sums than an op's plain form are not offered, or ""."""
    if context.bounds_error:
        return "they add other numbers than the plain form, and the contract bounds the error"
    if context.mode == "memory_first" and not context.co_selected:
        return "their weights take more memory, and the mode is memory_first"
    return ""


def _choose(
    op: ir.Operation,
    ids: OpIds,
    members: Members,
    offers: dict[str, Found],
    context: PassContext,
    evidence: Sequence[NotOffered],
) -> Found | None:
    work = members.work()
    variants = KernelVariants(work, context.target, offers)
    listed = [variants.priced(name, offer) for name, (_, offer) in offers.items()]
    why = "IREE's own code generation" if offers else "no family has a kernel for it"
    iree = replace(variants.iree, reason=why)
    unasked = {name for name, (_, offer) in offers.items() if not offer.worth}
    ranked = sorted([*listed, iree], key=lambda a: (a.name in unasked, a.cost or Cost()))
    site = Site(SelectKernels.name, ids[op], str(op.location), work_id(work))
    computes = Computes(tuple(ids[o] for o in members.ops))
    chosen = context.choices.choose(site, ranked, (computes, *evidence), variants).name
    return variants.found(chosen)


@dataclass(frozen=True)
class KernelVariants:
    """The kernels of a group and those with other knobs: `choices.Variants`."""

    work: Work
    target: Target
    offers: Mapping[str, Found]

    @property
    def iree(self) -> Alternative:
        """IREE's code for the whole group."""
        return Alternative(IREE, _iree_cost(self.work, 0, self.target))

    def spaces(self) -> Mapping[str, KnobSpace]:
        """Return the spaces that the families of the offers give."""
        found = {name: self._space(name) for name in self.offers}
        return {name: space for name, space in found.items() if space is not None}

    def alternative(self, name: str) -> Alternative | None:
        """Return the offer or variant of that name."""
        found = self.found(name)
        return None if found is None else self.priced(name, found[1])

    def found(self, name: str) -> Found | None:
        """Return the family and the offer that a name stands for; None for what is not legal."""
        base, label = split_variant(name)
        if not label or base not in self.offers:
            return self.offers.get(name)
        family, offer = self.offers[base]
        space = self._space(base)
        try:
            settings = {} if space is None else space.settings(space.labelled(label))
        except PycError:
            settings = {}
        if not settings:
            return None
        knobs = with_settings(offer.knobs, settings)
        return family, replace(offer, knobs=knobs, cost=self._cost(family, offer, knobs))

    def priced(self, name: str, offer: KernelOffer) -> Alternative:
        """Return an offer as an alternative, with the cost of what it leaves to IREE."""
        rest = _iree_cost(self.work, offer.covers, self.target)
        return Alternative(name, offer.cost + rest, encode(offer.knobs))

    def _space(self, name: str) -> KnobSpace | None:
        family, offer = self.offers[name]
        return FAMILIES[family].space(offer, self.target)

    def _cost(self, family: str, offer: KernelOffer, knobs: Any) -> Cost:
        """Return the cost of other knobs; the offer's for dynamic sizes, which the family set."""
        if knobs.kernel("variant").sizes:
            return offer.cost
        return FAMILIES[family].cost(knobs, self.target, {})


def _iree_cost(work: Work, covers: int, target: Target) -> Cost:
    """Return the cost of IREE's code for the ops from `covers` on, as one dispatch."""
    return CostModel(target).work(work, covers)
