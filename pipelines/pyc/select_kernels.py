"""Choose for each group of ops between PyC's kernels and IREE's own code generation.

Comes in: functions of pyc ops, fused into groups. Goes out: the same, with ``pyc.kernel`` on those
groups and ops for which a generated kernel was chosen (`groups.py`). Every family says what it
has for a group (`match`); the choice is between its kernels and IREE's code, ranked by predicted
seconds and by the price of constants that are larger than the model's (`constants.py`), one
decision for each group. Where no family has one, the decision says that too. A recipe or a policy
may name a variant of an offer: a knob set of the family's `space`.

What has dynamic sizes is priced at several: the seconds of an alternative are those of the quickest
one at the first of these sizes, times the largest ratio to the quickest at any of them.

`predicted_seconds` is what a call of such a module takes on one core, one group after the other.
Each kernel is priced by its family, by the knobs that it has; what no kernel computes is priced as
IREE's code.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.numerics.approximation import Approximation
from pyc_mlir.dialects.opdef import Trait, has
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.choices.evidence import Computes, LargerConstant, Note, NotOffered
from pyc_mlir.pipelines.choices.space import KnobSpace, split_variant
from pyc_mlir.pipelines.driver.base import PassContext, option, require_target
from pyc_mlir.pipelines.kernels.knobs import decode, encode, with_settings
from pyc_mlir.pipelines.kernels.lang.attributes import (
    APPROXIMATED,
    ATTRIBUTE,
    CHECKED,
    IREE,
    SELECT,
)
from pyc_mlir.pipelines.kernels.match import KernelOffer, named_sizes
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.pyc.constants import (
    RATES,
    Constants,
    ExchangeRate,
    Forms,
    Priced,
    PricedGroup,
    Prices,
    constant_of,
    constants_of,
    forms_of_kernel,
    forms_of_model,
    prices,
)
from pyc_mlir.pipelines.pyc.groups import AttachedKernel, Members
from pyc_mlir.pipelines.pyc.rewriting import functions_of, made_by
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import MOST_BINDINGS, Target
from pyc_mlir.pipelines.target.work import Work, nominal, work_id

MIB = 1 << 20
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


def select(
    module: ir.Module, context: PassContext, families: str = "", sized: Sequence[ir.Module] = ()
) -> dict[str, int]:
    """Attach kernels for the context's target to the groups and ops of a module; how many of both.

    A compile calls this with its own target: the host's registers and caches decide on knobs.
    `sized` are copies of the module with sizes that its dynamic dimensions may have.
    """
    names = list(filter(None, families.split("+"))) or list(FAMILIES)
    sites = list(_sites(module, context, names, sized))
    # Kernels that check themselves are not given up, and co-selection weighs bytes itself.
    free = context.kernels.co_selected or context.kernels.detect_faults
    rate = ExchangeRate() if free else RATES.get(context.mode, ExchangeRate())
    found = prices([s.priced for s in sites], _bytes_beside_constants(module), rate)
    counts = {"groups with kernels": 0, "kernels": 0}
    for number, site in enumerate(sites):
        chosen = _choose(site, context, found, number)
        counts["groups with kernels"] += bool(site.variants.offers)
        counts["kernels"] += chosen is not None
        if chosen is not None:
            family, offer = chosen
            kernel = AttachedKernel(family, encode(offer.knobs), offer.covers, offer.feeds)
            kernel.attach(site.members.whole)
    return counts


@dataclass(frozen=True)
class _KernelSite:
    """A group or a lone op without a kernel: the ways to compute it, and its constants.

    evidence: what the group computes, and what is not offered for it.
    """

    site: Site
    members: Members
    variants: "KernelVariants"
    constants: Constants
    evidence: tuple[Computes | NotOffered, ...]

    @cached_property
    def listed(self) -> list[Alternative]:
        """The kernels that are offered, and IREE's code."""
        offers = self.variants.offers
        why = "IREE's own code generation" if offers else "no family has a kernel for it"
        listed = [self.variants.priced(name, offer) for name, (_, offer) in offers.items()]
        listed.append(replace(self.variants.iree, reason=why))
        if not self.ratios:
            return listed
        quickest = min(self.variants.seconds_at_sizes[0])
        return [
            replace(a, cost=replace(a.cost or Cost(), seconds=quickest * max(ratios)))
            for a, ratios in zip(listed, self.ratios, strict=True)
        ]

    @cached_property
    def ratios(self) -> list[tuple[float, ...]]:
        """The seconds of each alternative over the quickest one's, at each of several sizes."""
        rows = [[s / min(at) for s in at] for at in self.variants.seconds_at_sizes]
        return list(zip(*rows, strict=True))

    @property
    def at_sizes(self) -> tuple[Note, ...]:
        """A note of the ratios, for sizes that are known at run time only."""
        if not self.ratios:
            return ()
        pairs = zip(self.listed, self.ratios, strict=True)
        texts = (f"{a.name} {', '.join(f'{ratio:.3g}' for ratio in at)}" for a, at in pairs)
        return (Note(f"seconds over the quickest one's, at several sizes: {'; '.join(texts)}"),)

    @property
    def unasked(self) -> set[str]:
        """The names of kernels that are taken on request only."""
        return {name for name, (_, offer) in self.variants.offers.items() if not offer.worth}

    @cached_property
    def priced(self) -> PricedGroup:
        """The group as the price of constants is asked for it."""
        ways = {
            a.name: Priced(0.0 if a.cost is None else a.cost.seconds, self.forms(a.name))
            for a in self.listed
            if a.name not in self.unasked
        }
        return PricedGroup(ways, dict(self.constants.values()))

    def with_own_constants(self) -> "_KernelSite":
        """Return the site without kernels that read larger constants than the model's."""
        offers = self.variants.offers
        larger = [name for name in offers if self.is_larger(name)]
        if not larger:
            return self
        kept = {name: offer for name, offer in offers.items() if name not in larger}
        why = "their constants are larger than the model's, which memory_first may not exceed"
        evidence = (*self.evidence, NotOffered(tuple(larger), why))
        return replace(self, variants=replace(self.variants, offers=kept), evidence=evidence)

    def is_larger(self, name: str) -> bool:
        """Return whether an alternative reads constants in forms larger than the model's."""
        forms = self.forms(name)
        own = dict(self.constants.values())
        return sum(forms.values()) > sum(own[c] for c in {constant_of(f) for f in forms})

    def forms(self, name: str) -> Forms:
        """Return the constants that an alternative, or a variant, reads."""
        found, work = self.variants.found(name), self.variants.work
        if found is None:
            return forms_of_model(self.constants, range(len(work.inputs)))
        return forms_of_kernel(found[1], self.constants, work)


def _sites(
    module: ir.Module, context: PassContext, names: Sequence[str], sized: Sequence[ir.Module] = ()
) -> Iterator[_KernelSite]:
    """Yield the groups and ops of a module that have no kernel, in order."""
    seen: Counter[str] = Counter()
    same = [[m for f in functions_of(other) for m in Members.within(f)] for other in sized]
    number = -1
    for function in functions_of(module):
        ids = OpIds(function, seen)
        for members in Members.within(function):
            op, number = members.whole, number + 1
            # A kernel that somebody has attached is that somebody's choice.
            if ATTRIBUTE in op.attributes:
                continue
            work = members.work()
            if is_stored(work):
                continue
            offers, evidence = legal_offers(members, work, context, names)
            site = Site(SelectKernels.name, ids[op], str(op.location), work_id(work))
            computes = Computes(tuple(ids[o] for o in members.ops))
            at = () if work.is_static else tuple(each[number].work() for each in same)
            variants = KernelVariants(work, context.target, offers, at)
            constants = constants_of(members, work, ids)
            made = _KernelSite(site, members, variants, constants, (computes, *evidence))
            yield made.with_own_constants() if context.kernels.own_constants else made


def _bytes_beside_constants(module: ir.Module) -> int:
    """Estimate what a call needs beside constants: arguments, results, and the largest group."""
    outside, largest = 0, 0
    for function in functions_of(module):
        block = function.regions[0].blocks[0]
        last = block.operations[len(block.operations) - 1]
        outside += sum(map(_nbytes, (*block.arguments, *last.operands)))
        for members in Members.within(function):
            read = [v for v in members.inputs if made_by(v, "constant") is None]
            largest = max(largest, sum(map(_nbytes, (*read, members.whole.result))))
    return outside + largest


def _nbytes(value: ir.Value) -> int:
    type_ = from_mlir(value.type)
    return nominal(type_.shape) * type_.dtype.itemsize


Found = tuple[str, KernelOffer]


def is_stored(work: Work) -> bool:
    """Return whether no code is made for a group."""
    return _STORED.issuperset(n.name for n in work.nodes)


def legal_offers(
    members: Members, work: Work, context: PassContext, families: Sequence[str]
) -> tuple[dict[str, Found], list[NotOffered]]:
    """Return the allowed kernels by name, and evidence of those that are not."""
    target = context.target
    found: dict[str, Found] = {}
    # Every kernel that a dispatch can bind, by its alternative's name.
    for family in families if len(work.inputs) < MOST_BINDINGS else ():
        for offer in FAMILIES[family].match(work, target):
            name = f"{family}:{'+'.join(n.name for n in work.nodes[: offer.covers])}"
            number = sum(n == name or n.startswith(f"{name}#") for n in found)
            found[f"{name}#{number}" if number else name] = (family, offer)
    if context.kernels.detect_faults:
        # Kernels with checks of their own, where a dispatch can bind what they need.
        for name, (other, made) in _others(found, CHECKED, lambda f, o: f.checked(o, target)):
            found[name] = other, made
    elif (how := Approximation.read(members.ops[0])) is not None:
        # Beside others, kernels that compute the same as far as `how` asks for.
        approximated = _others(
            found, APPROXIMATED, lambda f, o: f.approximated(o, target, how.way, how.allowed)
        )
        found |= {
            name.replace(found[name][0], other, 1): (other, made)
            for name, (other, made) in approximated
        }
    why = ""
    if context.kernels.bounds_error:
        why = "they add other numbers than the plain form, and the contract bounds the error"
    elif context.mode == "memory_first" and not context.kernels.co_selected:
        why = "their weights take more memory, and the mode is memory_first"
    left_out = [n for n, (_, o) in found.items() if why and o.indirect]
    offers = {n: f for n, f in found.items() if n not in left_out}
    return offers, [NotOffered(tuple(left_out), why)] if left_out else []


def _others(
    found: Mapping[str, Found],
    families: Mapping[str, str],
    make: Callable[[Any, KernelOffer], KernelOffer | None],
) -> list[tuple[str, Found]]:
    """Return by name what other families make of the offers of some, if a dispatch can bind it."""
    others = []
    for name, (family, offer) in found.items():
        other = families.get(family)
        made = None if other is None else make(FAMILIES[other], offer)
        if other and made and len(made.knobs.kernel("k").operands) <= MOST_BINDINGS:
            others.append((name, (other, made)))
    return others


def _choose(site: _KernelSite, context: PassContext, found: Prices, number: int) -> Found | None:
    """Choose the kernel of a site; what the prices of constants prefer is listed first."""
    taken, added, unasked = found.taken[number], found.added[number], site.unasked

    def rank(alternative: Alternative) -> tuple[Any, ...]:
        cost, name = alternative.cost or Cost(), alternative.name
        paid = cost.seconds + found.price * max(0.0, added.get(name, 0.0))
        return name in unasked, name != taken, paid, cost

    ranked = sorted(site.listed, key=rank)
    # The larger constants of what is preferred, and of quicker kernels given up for them.
    ways = site.priced.ways
    quicker = [n for n, way in ways.items() if way.seconds < ways[taken].seconds]
    larger_ones = (_larger(site, found, number, name) for name in (taken, *quicker))
    evidence = (*site.evidence, *site.at_sizes, *(e for e in larger_ones if e is not None))
    chosen = context.choices.choose(site.site, ranked, evidence, site.variants).name
    if chosen != taken and (larger := _larger(site, found, number, chosen)) is not None:
        named = [e for e in evidence if getattr(e, "alternative", "") != chosen]
        context.choices.annotate(site.site, *named, larger)
    return site.variants.found(chosen)


def _larger(site: _KernelSite, found: Prices, number: int, name: str) -> LargerConstant | None:
    """Return what an alternative's constants take beside the model's, and the time they save.

    It is compared with what is preferred or, itself preferred, with the quickest smaller one.
    """
    ways, taken, added = site.priced.ways, found.taken[number], found.added[number]
    alternative = site.variants.alternative(name) if name != IREE else site.variants.iree
    forms = site.forms(name)
    model = {constant_of(f): site.priced.constants[constant_of(f)] for f in forms}
    own, nbytes = sum(model.values()), sum(forms.values())
    if alternative is None or nbytes <= own:
        return None
    smaller = [n for n in ways if added[n] < added.get(name, nbytes - own)]
    over = min(smaller, key=lambda n: ways[n].seconds, default="") if name == taken else taken
    own_way = Priced(0.0 if alternative.cost is None else alternative.cost.seconds, forms)
    seconds = ways.get(name, own_way).seconds
    saved = ways[over].seconds - seconds if over else 0.0
    constants = tuple(sorted({constant_of(f) for f in forms if f not in model}))
    return LargerConstant(name, constants, nbytes, own, saved, over, found.price * MIB)


@dataclass(frozen=True)
class KernelVariants:
    """The kernels of a group and those with other knobs: `choices.Variants`.

    `sized` is the group at sizes that its dynamic dimensions may have.
    """

    work: Work
    target: Target
    offers: Mapping[str, Found]
    sized: tuple[Work, ...] = ()

    @property
    def iree(self) -> Alternative:
        """IREE's code for the whole group."""
        return Alternative(IREE, _iree_cost(self.work, 0, self.target))

    @cached_property
    def seconds_at_sizes(self) -> list[list[float]]:
        """The seconds of each offer, and of IREE's code, at each of the sizes that a kernel has."""
        found = []
        for work in self.sized:
            with suppress(PycError):
                own = [self._seconds_at(work, *offered) for offered in self.offers.values()]
                found.append([*own, _iree_cost(work, 0, self.target).seconds])
        # Nothing takes time of which a size is 0.
        return [at for at in found if min(at) > 0]

    def _seconds_at(self, work: Work, family: str, offer: KernelOffer) -> float:
        sizes = named_sizes(offer, work)
        cost = FAMILIES[family].cost(offer.knobs, self.target, sizes) if sizes else offer.cost
        return (cost + _iree_cost(work, offer.covers, self.target)).seconds

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
        # The family has set the cost of dynamic sizes.
        is_fixed = not knobs.kernel("variant").sizes
        cost = FAMILIES[family].cost(knobs, self.target, {}) if is_fixed else offer.cost
        return family, replace(offer, knobs=knobs, cost=cost)

    def priced(self, name: str, offer: KernelOffer) -> Alternative:
        """Return an offer as an alternative, with the cost of what it leaves to IREE."""
        rest = _iree_cost(self.work, offer.covers, self.target)
        return Alternative(name, offer.cost + rest, encode(offer.knobs))

    def _space(self, name: str) -> KnobSpace | None:
        family, offer = self.offers[name]
        return FAMILIES[family].space(offer, self.target)


def _iree_cost(work: Work, covers: int, target: Target) -> Cost:
    return CostModel(target).work(work, covers)


def predicted_seconds(
    module: ir.Module, target: Target, measured: Mapping[str, float] | None = None
) -> tuple[float, float]:
    """Return the seconds of all groups in turn, each a dispatch, on one core of the target.

    measured: seconds of groups by their canonical ids, which the model does not answer for. The
    second number are those among the first that were measured.
    """
    core = replace(target, cores=1, peak_flops=target.peak_flops / target.cores)
    rows = measured or {}
    modelled, known, seen = [], [], Counter[str]()
    for function in functions_of(module):
        ids = OpIds(function, seen) if rows else None
        for members in Members.within(function):
            row = None if ids is None else rows.get(ids[members.whole])
            if row is None:
                modelled.append(_seconds(members, core))
            else:
                known.append(row)
    return math.fsum((*modelled, *known)), math.fsum(known)


def _seconds(members: Members, core: Target) -> float:
    """Return a group's seconds: its kernel, and IREE's code for the rest, each a dispatch."""
    work, attached = members.work(), AttachedKernel.read(members.whole)
    model = CostModel(core)
    if all(has(node.name, Trait.VIEW) for node in work.nodes):
        return 0.0
    if attached is None:
        return model.dispatch_seconds + model.work(work).seconds
    own = _kernel_seconds(attached, work, core) + model.dispatch_seconds
    if attached.covers == len(work.nodes):
        return own
    return own + model.work(work, attached.covers).seconds + model.dispatch_seconds


def _kernel_seconds(attached: AttachedKernel, work: Work, core: Target) -> float:
    """Return the seconds of a kernel; for one of any size, those of the most similar one here."""
    family = FAMILIES[attached.family]
    knobs = decode(family.knobs, attached.knobs)
    if not knobs.kernel("k").sizes:
        return family.cost(knobs, core, {}).seconds
    offers = [o for o in family.match(work, core) if o.covers == attached.covers]

    def shared(offer: KernelOffer) -> int:
        pairs = ((getattr(offer.knobs, f.name), f.name) for f in fields(offer.knobs))
        return sum(value == getattr(knobs, name, None) for value, name in pairs)

    similar = max(offers, key=shared, default=None)
    first = replace(work, nodes=work.nodes[: attached.covers])
    return CostModel(core).work(first).seconds if similar is None else similar.cost.seconds
