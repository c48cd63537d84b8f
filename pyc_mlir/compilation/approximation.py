"""Choose the products that may be approximate under a contract's `max_error`, and how exact each.

    matmuls by constants       ->  ways (int8, int16, bf16) of kernels that are predicted quicker
    a run of the references    ->  what each way needs to be `allowed`, and how the shares that are
                                   allowed compose to the errors of the program's results
    the quickest ways whose composed error is within the clause  ->  marks on the ops

The composition is that of rounding errors (`dialects/numerics/rounding.py`): a product that may be
off by a share of its greatest element has a deviation of that share over `DEVIATIONS`, and as many
deviations of the results, which follow from all of them, may be `max_error` at most. Kernels check
in each call that no product exceeds its share; how errors grow to the results is sampled.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import candidate_sizes, make_inputs
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.attributes import definition_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.numerics.approximation import (
    ATTRIBUTE,
    DEVIATIONS,
    WAYS,
    Approximation,
)
from pyc_mlir.dialects.numerics.rounding import Uncertain
from pyc_mlir.dialects.numerics.uncertain import interpret_uncertain
from pyc_mlir.dialects.ops.contraction import any_order
from pyc_mlir.frontends.signatures import signature_of
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import AllowedError, Evidence, NotOffered
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.kernels.lang.attributes import APPROXIMATED
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import F32, Input, Work, WorkOp

APPROXIMATE, EXACT = "pyc-approximate", "exact"
_CHECKED = "a check of each tile"
# What is allowed at least, over what the sample needs: less would compute many tiles again.
_MARGIN = 1.2
# What is allowed at most, over the same: more would let errors pass that no sample has.
_MOST_MARGIN = 4.0
# A share of the greatest element above which nothing is left of a result.
_MOST = 0.5
# The shares that products are allowed: few, so that equal products have one kernel.
_DIGITS = ("1", "1.2", "1.5", "1.8", "2.2", "2.7", "3.3", "4", "5", "6", "7.5", "9")
_SHARES = [s for e in range(-7, 0) for n in _DIGITS if (s := float(f"{n}e{e}")) <= _MOST]


@dataclass(frozen=True)
class _Layer:
    """A product that a kernel can approximate: its site, and predicted costs by way."""

    op: ir.Operation
    site: Site
    costs: Mapping[str, Cost]

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways from the quickest to the exact one."""
        return tuple(sorted(self.costs, key=lambda way: self.costs[way].seconds))

    def without_dominated(self, needs: Mapping[str, float]) -> "_Layer":
        """Return the layer with those ways alone that are more exact than each quicker one.

        A way of which the sample shows no error, as of weights that are all 0, is not judged by it.
        """
        kept, least = {}, math.inf
        for way in self.ways:
            need = needs.get(way, 0.0)
            if way == EXACT or 0 < need < least:
                kept[way], least = self.costs[way], need
        return replace(self, costs=kept)


# For each layer the way that is taken, and what is allowed then.
_Plan = tuple[tuple[str, float], ...]


def approximate(
    module: ir.Module, function: ir.Operation, contract: Contract, context: PassContext
) -> None:
    """Mark the products of a module that may be approximate; one decision for each candidate.

    The module is the program before any pass, in the current context; function: its entry. The
    contract approximates.
    """
    families = (*APPROXIMATED, *APPROXIMATED.values())
    local = context.target.device == "local" and all(map(context.kernels.take, families))
    if not local:
        return
    layers = list(_layers(module, context.target))
    if not layers:
        return
    errors = _Errors.sampled(module, layers, signature_of(function), context.target)
    if errors is None:
        return
    layers = errors.layers
    limit = contract.max_error
    assert isinstance(limit, int | float), "the contract approximates"
    plan = errors.within(limit)
    for number, (layer, (way, allowed)) in enumerate(zip(layers, plan, strict=True)):
        legal = {way: allowed, **errors.more_exact(number, way)}
        chosen = context.choices.choose(
            layer.site,
            [
                Alternative(name, layer.costs[name], "f32" if name == EXACT else _CHECKED)
                for name in legal
            ],
            _evidence(layer, errors, number, legal, limit),
        ).name
        if chosen != EXACT:
            Approximation(chosen, legal[chosen]).mark(layer.op)


def _evidence(
    layer: _Layer, errors: "_Errors", number: int, legal: Mapping[str, float], limit: float
) -> list[Evidence]:
    needs = errors.needs[number]
    found: list[Evidence] = [
        AllowedError(way, allowed, needs[way]) for way, allowed in legal.items() if way != EXACT
    ]
    left_out = tuple(way for way in needs if way not in legal and way in layer.costs)
    if left_out:
        shares = ", ".join(f"{needs[way]:.2g} for {way}" for way in left_out)
        why = f"max_error is {limit:g}; this product alone needs {shares} of its greatest element"
        found.append(NotOffered(left_out, why))
    return found


def _layers(module: ir.Module, target: Target) -> Iterator[_Layer]:
    function = entry_function(module)
    ids, known = OpIds(function), set()
    for op in (o.operation for o in function.regions[0].blocks[0].operations):
        definition = definition_of(op)
        if definition is None:
            continue
        if all(v in known for v in op.operands):
            known.add(op.result)
        elif definition.name == "matmul" and op.operands[1] in known:
            costs = _costs(op, target)
            if len(costs) > 1:
                yield _Layer(op, Site(APPROXIMATE, ids[op], str(op.location)), costs)


def _costs(op: ir.Operation, target: Target) -> dict[str, Cost]:
    # Kernels are built by IREE's bindings, which other compiles need later only.
    from pyc_mlir.pipelines.kernels.registry import FAMILIES

    a, b, out = (from_mlir(v.type) for v in (*op.operands, op.result))
    if b.rank != 2 or {a.dtype, b.dtype} != {F32}:
        return {}
    inputs = (Input(a), Input(b, lambda: np.zeros([d or 0 for d in b.shape], np.float32)))
    work = Work(inputs, (WorkOp("matmul", (0, 1), {}, out),))
    found: dict[str, Cost] = {}
    for family, other in APPROXIMATED.items():
        for offer in FAMILIES[family].match(work, target)[:1]:
            found[EXACT] = offer.cost
            made = [(w, FAMILIES[other].approximated(offer, target, w, _MOST / 2)) for w in WAYS]
            # Of two ways that come to the same instruction the one with more bits is named.
            forms = {o.knobs.form: (w, o.cost) for w, o in made if o is not None}
            found |= {w: c for w, c in forms.values() if c.seconds < offer.cost.seconds}
    return found


@dataclass(frozen=True)
class _Errors:
    """The errors of products, and those of the results that follow from them, on one sample.

    needs: of each layer, by way, the `allowed` of nine of ten tiles. undecided: how many elements
    of the results rounding decides without any approximation.
    """

    module: ir.Module
    layers: Sequence[_Layer]
    inputs: Sequence[np.ndarray]
    needs: Sequence[Mapping[str, float]]
    undecided: int

    @staticmethod
    def sampled(
        module: ir.Module, layers: Sequence[_Layer], signature: Signature, target: Target
    ) -> "_Errors | None":
        """Run the references once; None where no sizes fit, or they lack an op."""
        from pyc_mlir.pipelines.kernels.families.approximate_forms import needed_share

        needs: dict[ir.Operation, dict[str, float]] = {}
        wanted = {layer.op: layer for layer in layers}

        def observe(op: ir.Operation, operands: Sequence[Uncertain], out: Uncertain) -> None:
            if op in wanted:
                a, b = (o.value for o in operands)
                ways = [way for way in wanted[op].ways if way != EXACT]
                needs[op] = {way: needed_share(way, target, a, b, out.value) for way in ways}

        for sizes in candidate_sizes(signature):
            try:
                inputs = make_inputs(signature, 0, sizes)
                with any_order():
                    results = interpret_uncertain(module, inputs, observe=observe)
            except (PycError, ValueError, IndexError, MemoryError):
                continue
            useful = [layer.without_dominated(needs[layer.op]) for layer in layers]
            found = [needs[layer.op] for layer in layers]
            return _Errors(module, useful, inputs, found, _undecided(results))
        return None

    def within(self, limit: float) -> _Plan:
        """Return the quickest plan whose results' errors are at most `limit` of the greatest.

        Plans are ordered from the quickest to the exact one, and the first that fits is found by
        bisection; then all that is allowed grows to what the clause leaves.
        """
        plans = list(self._ladder())
        errors: dict[int, float] = {}

        def fits(number: int) -> bool:
            errors[number] = self._error(plans[number])
            return errors[number] <= limit

        number = bisect_left(range(len(plans) - 1), True, key=fits)
        plan = plans[number]
        if number == len(plans) - 1:
            return plan
        factor = min(_MOST_MARGIN / _MARGIN, 0.98 * limit / max(errors[number], limit / 100))
        wider = tuple(
            (way, _at_most(allowed * factor) if allowed else 0.0) for way, allowed in plan
        )
        return wider if factor > 1 and self._error(wider) <= limit else plan

    def more_exact(self, number: int, way: str) -> dict[str, float]:
        """Return the ways of a layer that are more exact than `way`, with what they are allowed."""
        ways = self.layers[number].ways
        return {w: self._allowed(number, w) for w in ways[ways.index(way) + 1 :]}

    def _allowed(self, number: int, way: str) -> float:
        needed = 0.0 if way == EXACT else _MARGIN * self.needs[number][way]
        return 0.0 if way == EXACT else next((s for s in _SHARES if s >= needed), _MOST)

    def _ladder(self) -> Iterator[_Plan]:
        """Yield plans, each with one layer more exact than in the one before.

        All layers leave their quickest way before one leaves its next; first those that save least
        for the square of their error.
        """
        count = len(self.layers)
        now = [layer.ways[0] for layer in self.layers]
        yield tuple((way, self._allowed(i, way)) for i, way in enumerate(now))
        while any(way != EXACT for way in now):
            for i in sorted((i for i in range(count) if now[i] != EXACT), key=self._worth):
                ways = self.layers[i].ways
                now[i] = ways[ways.index(now[i]) + 1]
                yield tuple((way, self._allowed(j, way)) for j, way in enumerate(now))

    def _worth(self, number: int) -> float:
        layer, first = self.layers[number], self.layers[number].ways[0]
        saved = layer.costs[EXACT].seconds - layer.costs[first].seconds
        return saved / max(self.needs[number].get(first, 0.0), 1e-30) ** 2

    def _error(self, plan: _Plan) -> float:
        for layer, (way, allowed) in zip(self.layers, plan, strict=True):
            if way != EXACT:
                Approximation(way, allowed).mark(layer.op)
        try:
            with any_order():
                results = interpret_uncertain(self.module, self.inputs)
        finally:
            for layer in self.layers:
                if ATTRIBUTE in layer.op.attributes:
                    del layer.op.attributes[ATTRIBUTE]
        if _undecided(results) > self.undecided:
            return math.inf
        return max((_share(result) for result in results), default=0.0)


def _at_most(share: float) -> float:
    return next((s for s in reversed(_SHARES) if s <= share), _SHARES[0])


def _undecided(results: Sequence[Uncertain]) -> int:
    return sum(int((~np.isfinite(r.deviation)).sum()) for r in results)


def _share(result: Uncertain) -> float:
    sizes, deviation = np.abs(result.value.astype(np.float64)), result.deviation
    greatest = float(sizes.max(initial=0.0, where=np.isfinite(sizes)))
    largest = DEVIATIONS * float(deviation.max(initial=0.0, where=np.isfinite(deviation)))
    return largest / greatest if greatest else math.inf if largest else 0.0
