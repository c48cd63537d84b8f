"""The cost of a region computed in parts: its ops' arithmetic and traffic.

An op takes the time of its arithmetic and that of its traffic, one after another: CPUs overlap
little of the two where weights stream. Values that fit into the last cache cost
less to move than those that do not, so parts may be cheaper than the whole; what is read whole
(weights) is read for each part; each dispatch has a fixed cost; parts too small to occupy
all cores compute more slowly. Rows that parts of images share are computed for each. Elementwise
ops are taken as fused into what makes their operands.
"""

from collections.abc import Mapping

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.pyc.chunk.graph import ChunkGraph, Region
from pyc_mlir.pipelines.pyc.chunk.regions import along, call_of, shares
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target

# Attention is a product, a softmax and a product.
HIDDEN_DISPATCHES = 3


def seconds(graph: ChunkGraph, region: Region, parts: int, target: Target) -> float:
    """Return the predicted seconds of the whole region in `parts` parts."""
    members, model = set(region.ops), CostModel(target)
    total, share = 0.0, shares(graph, region, parts)
    for i, dim in zip(region.ops, region.dims, strict=True):
        node, call = graph.nodes[i], call_of(graph, i)
        nbytes = _traffic(graph, i, dim, members, share, model)
        size = max(call.out.elements, node.hidden // call.out.dtype.itemsize)
        flops = call.definition.flops(call.inputs, call.out, **call.params) * share[i]
        dispatches = HIDDEN_DISPATCHES if node.hidden else 1
        if any(_melts(graph, r, i, members) for r in node.reads):
            dispatches = 0
        total += parts * model.part(flops, nbytes, size * share[i], dispatches)
    return total


def _traffic(
    graph: ChunkGraph,
    i: int,
    dim: int,
    members: set[int],
    share: Mapping[int, float],
    model: CostModel,
) -> float:
    """Return the traffic in bytes of one part of op `i`; scores are written and read twice."""
    node, call = graph.nodes[i], call_of(graph, i)
    total = 4 * model.weighed(node.hidden * share[i])
    for operand, type_, at in zip(node.operands, call.inputs, along(graph, i, dim), strict=True):
        if operand is None or not _melts(graph, operand, i, members):
            # Of what comes from outside, as much as of the result.
            of = 1.0 if at is None else share.get(-1 if operand is None else operand, share[i])
            total += model.weighed(type_.nbytes * of)
    if not any(_melts(graph, i, user, members) for user in graph.users[i]):
        total += model.weighed(call.out.nbytes * share[i])
    return total


def _melts(graph: ChunkGraph, made: int, user: int, members: set[int]) -> bool:
    """Return whether a value never reaches memory: its one user is elementwise, of its size."""
    if not {made, user} <= members or graph.users[made] != [user]:
        return False
    same = call_of(graph, made).out.shape == call_of(graph, user).out.shape
    return same and graph.has(user, Trait.ELEMENTWISE)
