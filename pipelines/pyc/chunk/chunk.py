"""Compute regions in parts, so that large intermediates never exist as a whole.

Comes in: functions of pyc ops. Goes out: the same, with some regions repeated for equal parts of
one dimension in which all their ops run: slices of what comes in, clones of the ops (marked
``pyc.chunk = "i/n"``), and the parts joined again. Attention over heads at a time, a feed-forward
block over rows at a time. After AutoChunk (Zhao et al., 2024); FlashAttention (Dao et al., 2022)
does the same inside one kernel. Images are cut into rows: parts of convolutions and poolings
overlap, and what they share is computed for each (Alwani et al., 2016).
Every element is computed by the same ops from the same elements.
Functions with dynamic sizes or control flow are left alone.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder, create
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Site
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.driver.base import PassContext, Relation, option, require_target
from pyc_mlir.pipelines.pyc.chunk.dims import Rows, operand_rows, part_params
from pyc_mlir.pipelines.pyc.chunk.graph import ChunkGraph, Region, is_static
from pyc_mlir.pipelines.pyc.chunk.plan import ChunkOffer, ChunkRegion, plan
from pyc_mlir.pipelines.pyc.chunk.regions import along, call_of, cuts_products, rows_of
from pyc_mlir.pipelines.pyc.fuse.channels import reads_parts
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target.target import Target

# On a clone: which part it computes, of how many.
PART = "pyc.chunk"
KEEP = "keep"


@dataclass(frozen=True)
class Chunk:
    """Compute regions with large intermediates in equal parts, where that lowers the peak."""

    name: ClassVar[str] = "pyc-chunk"
    relation: ClassVar[Relation] = Relation.REALS
    mode: Literal["latency_first", "balanced", "memory_first"] | None = option(
        None, "what to prefer: latency_first, balanced or memory_first; none: the compile's mode"
    )
    target: str = option("", "the target that costs are for; empty: the compile's")

    def __post_init__(self) -> None:
        """Raise PycError (INVALID_PIPELINE) for a target that does not exist."""
        require_target(self.target)

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Choose for every region of every function; for none where PyC plans no memory."""
        counts = {"regions": 0, "in parts": 0, "parts": 0}
        mode = self.mode or context.mode
        if mode is None:
            return counts
        target = Target.named(self.target) if self.target else context.target
        seen: Counter[str] = Counter()
        for function in functions_of(module):
            if not is_static(function):
                continue
            graph = ChunkGraph(function, reads_parts(replace(context, target=target)))
            candidates = plan(graph, target, mode)
            ids = OpIds(function, seen) if candidates else None
            evidence = Note(f"mode {mode}")
            chosen = [
                (c.region, self._choose(graph, c, ids, context.choices, evidence))
                for c in candidates
                if ids
            ]
            for region, parts in chosen:
                if parts > 1:
                    apply(graph, region, parts)
            counts["regions"] += len(chosen)
            counts["in parts"] += sum(parts > 1 for _, parts in chosen)
            counts["parts"] += sum(parts for _, parts in chosen if parts > 1)
        return counts

    def _choose(
        self, graph: ChunkGraph, found: ChunkRegion, ids: OpIds, choices: Choices, evidence: Note
    ) -> int:
        """Return the number of parts: 1 to keep the region as it is."""
        op = graph.ops[found.region.end]
        site = Site(self.name, ids[op], str(op.location), ids.by_type[op])
        offers = {_name(o): o for o in found.offers}
        whole = offers[KEEP]
        alternatives = [
            Alternative(name, o.cost, _reason(graph, found.region, o, whole))
            for name, o in offers.items()
        ]
        ops = "+".join(graph.name(i) for i in found.region.ops)
        grounds = (evidence, Note(f"region {ops}"))
        return offers[choices.choose(site, alternatives, grounds).name].parts


def _name(offer: ChunkOffer) -> str:
    return KEEP if offer.parts == 1 else f"split:{offer.parts}"


def _reason(graph: ChunkGraph, region: Region, offer: ChunkOffer, whole: ChunkOffer) -> str:
    """Return the bytes needed there, and where results need not be the same bits."""
    if offer.parts == 1:
        return f"{whole.nbytes} bytes here"
    text = f"{whole.nbytes} -> {offer.nbytes} bytes here, {region.size // offer.parts} at a time"
    if cuts_products(graph, region):
        text += "; rows of products, whose sums may be rounded otherwise"
    return text


def apply(graph: ChunkGraph, region: Region, parts: int) -> None:
    """Replace a region by its parts, at the place of its last op."""
    end = graph.ops[region.end]
    cloner = _Cloner(graph, region, parts)
    with ir.InsertionPoint(end):
        made = [cloner.part(number) for number in range(parts)]
        with end.location:
            joined = _joined(made, region.dims[-1])
    end.result.replace_all_uses_with(joined)
    for i in reversed(region.ops):
        graph.ops[i].erase()


def _joined(values: list[ir.Value], axis: int) -> ir.Value:
    """Return a balanced tree of concats: parts are joined before the last one is computed."""
    builder = IRBuilder()
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [builder.concat(*p, axis=axis) if len(p) == 2 else p[0] for p in pairs]
    return values[0]


class _Cloner:
    """Makes the parts of one region, one after another."""

    def __init__(self, graph: ChunkGraph, region: Region, parts: int) -> None:
        self.graph, self.region, self.parts = graph, region, parts
        self.builder = IRBuilder()

    def part(self, number: int) -> ir.Value:
        """Return clones of all ops of the region, on what they need for part `number`."""
        needed = rows_of(self.graph, self.region, self.parts, number)
        # What is there of a value along a dimension, and parts of it.
        whole: dict[tuple[ir.Value, int | None], tuple[ir.Value, Rows]] = {}
        values: dict[tuple[ir.Value, int | None, Rows], ir.Value] = {}
        made = None
        for i, dim in zip(self.region.ops, self.region.dims, strict=True):
            op, rows = self.graph.ops[i], needed[i]
            wanted = operand_rows(call_of(self.graph, i), dim, rows)
            operands = []
            with op.location:
                for operand, at in zip(op.operands, along(self.graph, i, dim), strict=True):
                    key = (operand, at, wanted)
                    if key not in values:
                        held = whole.get((operand, at), (operand, None))
                        values[key] = self._slice(*held, at, wanted)
                    operands.append(values[key])
                made = self._clone(i, dim, operands, rows, number)
            whole[op.result, dim] = (made, rows)
        assert made is not None
        return made

    def _slice(self, value: ir.Value, held: Rows | None, at: int | None, rows: Rows) -> ir.Value:
        """Return rows of a value, of which `held` are there (None: all); or the value whole."""
        if at is None or held == rows:
            return value
        shape = self.builder.type_of(value).shape
        first = held[0] if held else 0
        starts, stops = [0] * len(shape), list(shape)
        starts[at], stops[at] = rows[0] - first, rows[1] - first
        bounds = {"starts": tuple(starts), "stops": tuple(stops), "steps": (1,) * len(shape)}
        return self.builder.slice(value, **bounds)

    def _clone(
        self, i: int, dim: int, operands: list[ir.Value], rows: Rows, number: int
    ) -> ir.Value:
        call = call_of(self.graph, i)
        shape = list(call.out.shape)
        shape[dim] = rows[1] - rows[0]
        out = TensorType(tuple(shape), call.out.dtype)
        made = create(call.definition, operands, part_params(call, dim, out, rows), out)
        attributes = made.owner.operation.attributes
        attributes[PART] = ir.StringAttr.get(f"{number}/{self.parts}")
        return made
