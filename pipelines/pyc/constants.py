"""The constants of a program: their bytes, what IREE would compute of them, which forms stay.

IREE evaluates every op whose operands are constants, without a bound, unless it is told to leave
them to the start of the program.

A kernel may read weights in a larger form, as minimal filtering does: it saves time, and the larger
form lies in memory as long as the program is loaded. A form is a constant in one layout:
``constant.3f9a`` as the model has it, ``constant.3f9a 81c0`` as a kernel packs it. Readers of one
form share its memory. `prices` takes the groups of a program, each with its ways to be computed
(predicted seconds, and the forms that each reads), and gives one way for each group. A mode states
its exchange rate: at the rate r, one percent of a program's memory is worth r percent of its
predicted time. Larger constants that save less than that are given up, the worst exchange first,
until the program has lost the share of its time that the mode accepts (as `pyc-chunk` does for
transients).
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.kernels.counts import fed_inputs
from pyc_mlir.pipelines.kernels.lang.carrier import Operand
from pyc_mlir.pipelines.kernels.match import KernelOffer
from pyc_mlir.pipelines.pyc.groups import Members
from pyc_mlir.pipelines.pyc.rewriting import (
    all_ops,
    definition_of,
    functions_of,
    made_by,
    params_of,
    pyc_ops,
)
from pyc_mlir.pipelines.target.work import Work


def constant_work(module: ir.Module) -> int:
    """Return the work of the ops of constants alone, in units of `OpDef.evaluation_work`."""
    return sum(_known_work(f.regions[0].blocks[0], set()) for f in functions_of(module))


def constant_bytes(module: ir.Module, alignment: int) -> int:
    """Return the bytes of all constants of a pyc module that have to be stored, each aligned."""
    ops = [op for f in functions_of(module) for op in pyc_ops(f.regions[0].blocks[0])]
    values = (op.attributes["value"] for op in ops if op.name == "pyc.constant")
    return stored_bytes(values, alignment)


def lowered_constants(module: ir.Module) -> list[ir.Operation]:
    """Return the constants of a module in linalg, also those within other ops."""
    return [op for op in all_ops(module) if op.name == "arith.constant"]


def stored_bytes(values: Iterable[ir.Attribute], alignment: int) -> int:
    """Return the bytes of those constants that have to be stored, each aligned."""
    # A repeated element, whose view has no strides, is computed in place.
    stored = (a.nbytes for a in map(array_of, values) if any(a.strides))
    return sum(-(-size // alignment) * alignment for size in stored)


def _known_work(block: ir.Block, known: set[ir.Value]) -> int:
    """Return the work of ops that no argument reaches; their results join the known values.

    0 for groups, whose body is counted, and for constants.
    """
    total = 0
    for op in (o.operation for o in block.operations):
        inner = [b for region in op.regions for b in region.blocks]
        total += sum(_known_work(b, known) for b in inner)
        ends = [b.operations[len(b.operations) - 1] for b in inner]
        read = [*op.operands, *(v for end in ends for v in end.operands)]
        makes = len(op.results) and read and all(v in known for v in read)
        if op.name != "pyc.constant" and not makes:
            continue
        known.update(op.results)
        found = definition_of(op)
        if found is not None and found.name != "constant":
            out, *given = (from_mlir(v.type) for v in (op.result, *op.operands))
            if all(t.is_static for t in (out, *given)):
                total += found.evaluation_work(given, out, **params_of(found, op))
    return total


# Of each constant among a group's inputs, by the input's number: its id, and bytes in the model.
Constants = Mapping[int, tuple[str, int]]
# Bytes by form.
Forms = Mapping[str, int]


@dataclass(frozen=True)
class ExchangeRate:
    """The trade-off of a mode between constants and time.

    worth: the share of its time that a program gives up for a share of its memory; 0: none.
    slack: added seconds that the mode accepts in all, as a share.
    """

    worth: float = 0.0
    slack: float = 0.0


# The figures of `balanced` on networks stand in docs/design-notes/memory.md. Modes without a row
# take the quickest code.
RATES: Mapping[str | None, ExchangeRate] = {
    "balanced": ExchangeRate(worth=0.3, slack=0.02),
    "memory_first": ExchangeRate(worth=1.0, slack=0.08),
}


@dataclass(frozen=True)
class Priced:
    """One way to compute a group: predicted seconds, and bytes of the constants that it reads."""

    seconds: float
    forms: Forms = field(default_factory=dict)


@dataclass(frozen=True)
class PricedGroup:
    """The ways to compute a group, by name, and bytes of its constants as the model has them."""

    ways: Mapping[str, Priced]
    constants: Mapping[str, int] = field(default_factory=dict)

    @property
    def quickest(self) -> str:
        """The name of the way of the fewest seconds; of equal ones, the first."""
        return min(self.ways, key=lambda name: self.ways[name].seconds)


@dataclass(frozen=True)
class Prices:
    """The way taken for each group, by its name, and the seconds that a byte is worth.

    added: bytes beside the model's own constants that each way of each group brings, by name;
        groups that read the same constants share them.
    """

    taken: tuple[str, ...]
    added: tuple[Mapping[str, float], ...]
    price: float = 0.0


def prices(groups: Sequence[PricedGroup], other_bytes: int, rate: ExchangeRate) -> Prices:
    """Choose a way for each group: the quickest one unless its bytes cost more than it saves.

    other_bytes: what the program needs beside its constants.
    """
    clusters = _clusters(groups)
    added = _added(groups, clusters)
    taken = [group.quickest for group in groups]
    seconds = sum(group.ways[way].seconds for group, way in zip(groups, taken, strict=True))
    own = {key: size for group in groups for key, size in group.constants.items()}
    beside = sum(added[members[0]][taken[members[0]]] for members in clusters)
    total = other_bytes + sum(own.values()) + beside
    if rate.worth <= 0 or total <= 0:
        return Prices(tuple(taken), added)
    price, left = rate.worth * seconds / total, rate.slack * seconds

    def exchange(number: int) -> tuple[float, int, str, float] | None:
        """Return the best one for a cluster: seconds a byte, the cluster, the way, seconds."""
        first = clusters[number][0]
        ways, have = groups[first].ways, taken[first]
        found = []
        for way in ways:
            saved = added[first][have] - added[first][way]
            if saved > 0:
                lost = ways[way].seconds - ways[have].seconds
                lost *= len(clusters[number])
                found.append((lost / saved, number, way, lost))
        best = min(found, default=None)
        return None if best is None or best[0] > price else best

    queue = [e for e in map(exchange, range(len(clusters))) if e is not None]
    heapq.heapify(queue)
    while queue:
        _, number, way, lost = heapq.heappop(queue)
        if lost > left:
            continue
        left -= lost
        for member in clusters[number]:
            taken[member] = way
        if (following := exchange(number)) is not None:
            heapq.heappush(queue, following)
    return Prices(tuple(taken), added, price)


def _clusters(groups: Sequence[PricedGroup]) -> list[list[int]]:
    """Return the groups that have the same ways to read the same constants, by number.

    They are parts of one op, or layers that share weights: a larger form counts once for all.
    """
    found: dict[object, list[int]] = {}
    for number, group in enumerate(groups):
        forms = tuple((name, tuple(sorted(way.forms))) for name, way in group.ways.items())
        # Without constants there is nothing to share.
        key = (tuple(group.constants), forms) if group.constants else number
        found.setdefault(key, []).append(number)
    return list(found.values())


def _added(
    groups: Sequence[PricedGroup], clusters: Sequence[Sequence[int]]
) -> tuple[Mapping[str, float], ...]:
    """Return the bytes beside the model's own constants, by group and way.

    A constant that several clusters read is shared out among them. The model's form stays, whatever
    others do, where one of them has no way without it.
    """
    readers: Counter[str] = Counter()
    packers: Counter[str] = Counter()
    bound: Counter[str] = Counter()
    for first in (groups[members[0]] for members in clusters):
        readers.update(list(first.constants))
        forms = {form for way in first.ways.values() for form in way.forms}
        packers.update(form for form in forms if form != constant_of(form))
        bound.update(c for c in first.constants if all(c in w.forms for w in first.ways.values()))
    found: list[Mapping[str, float]] = [{} for _ in groups]
    for members in clusters:
        first = groups[members[0]]
        by_way = {}
        for name, way in first.ways.items():
            size = sum(
                nbytes / packers[form]
                for form, nbytes in way.forms.items()
                if form != constant_of(form)
            )
            size -= sum(
                own / readers[constant]
                for constant, own in first.constants.items()
                if constant not in way.forms and not bound[constant]
            )
            by_way[name] = size
        for member in members:
            found[member] = by_way
    return tuple(found)


def constants_of(members: Members, work: Work, ids: OpIds) -> Constants:
    """Return the constants among a group's inputs: their ids without repetition, and bytes."""
    found = {}
    for number, value in enumerate(members.inputs):
        if (maker := made_by(value, "constant")) is not None:
            found[number] = (ids[maker].partition("#")[0], work.inputs[number].type.nbytes)
    return found


def forms_of_model(constants: Constants, values: Sequence[int]) -> Forms:
    """Return the constants among `values` as the model has them."""
    return {constants[v][0]: constants[v][1] for v in values if v in constants}


def forms_of_kernel(offer: KernelOffer, constants: Constants, work: Work) -> Forms:
    """Return the forms that a kernel reads, and the code for the ops that it leaves."""
    if not constants:
        return {}
    found: dict[str, int] = {}
    packed = set()
    for operand, feed in zip(fed_inputs(offer.knobs.kernel("k")), offer.feeds, strict=True):
        if operand.layout is not None and feed.value in constants:
            packed.add(feed.value)
            digest = hashlib.blake2b(repr(operand.layout).encode(), digest_size=6).hexdigest()
            found[f"{constants[feed.value][0]} {digest}"] = size_of(operand)
    later = {v for node in work.nodes[offer.covers :] for v in node.operands}
    fed = {feed.value for feed in offer.feeds} - packed
    return {**found, **forms_of_model(constants, sorted(fed | later))}


def constant_of(form: str) -> str:
    """Return the id of the constant that a form is of."""
    return form.partition(" ")[0]


def size_of(operand: Operand) -> int:
    """Return the bytes of a kernel's operand; dynamic sizes are none here."""
    return prod(d for d in operand.shape if isinstance(d, int)) * DTYPES[operand.dtype].itemsize
