"""How long does a region take in so many parts? Its ops' arithmetic and traffic.

An op takes the time of its arithmetic and that of its traffic, one after another: CPUs overlap
little of the two where weights stream. Values that fit into the last cache cost
less to move than those that do not, so parts may be cheaper than the whole; what is read whole
(weights) is read for each part; each dispatch costs `DISPATCH_SECONDS`; parts too small to occupy
all cores compute more slowly. Elementwise ops are taken as fused into what makes their operands.
"""

from pyc_mlir.pipelines.pyc.chunk.graph import Graph, Region
from pyc_mlir.pipelines.pyc.chunk.regions import along, call_of
from pyc_mlir.pipelines.target.target import Target

# How many times as fast as memory a cache is.
CACHE_SPEED = 8
DISPATCH_SECONDS = 3e-6
# The share of a target's peak that generated code reaches.
EFFICIENCY = 0.25
# Elements of a result that one core works on at a time.
TILE = 64 * 64
# Attention is a product, a softmax and a product.
HIDDEN_DISPATCHES = 3


def seconds(graph: Graph, region: Region, parts: int, target: Target) -> float:
    """Predicted seconds of the whole region in `parts` parts."""
    members = set(region.ops)
    total = 0.0
    for i, dim in zip(region.ops, region.dims, strict=True):
        node, call = graph.nodes[i], call_of(graph, i)
        moved = _traffic(graph, i, dim, members, parts, target) / target.peak_bandwidth
        size = max(call.out.elements, node.hidden // call.out.dtype.itemsize)
        busy = min(1.0, size / parts / TILE / target.cores)
        flops = call.definition.flops(call.inputs, call.out, **call.params) / parts
        computed = flops / (EFFICIENCY * target.peak_flops * busy) if flops else 0.0
        dispatches = HIDDEN_DISPATCHES if node.hidden else 1
        if any(_melts(graph, r, i, members) for r in node.reads):
            dispatches = 0
        total += parts * (computed + moved + dispatches * DISPATCH_SECONDS)
    return total


def _traffic(
    graph: Graph, i: int, dim: int, members: set[int], parts: int, target: Target
) -> float:
    """Bytes of memory traffic of one part of op `i`; scores are written and read twice."""
    node, call = graph.nodes[i], call_of(graph, i)
    total = 4 * _moved(node.hidden / parts, target)
    for operand, type_, at in zip(node.operands, call.inputs, along(graph, i, dim), strict=True):
        if operand is None or not _melts(graph, operand, i, members):
            total += _moved(type_.nbytes / (1 if at is None else parts), target)
    if not any(_melts(graph, i, user, members) for user in graph.users[i]):
        total += _moved(call.out.nbytes / parts, target)
    return total


def _melts(graph: Graph, made: int, user: int, members: set[int]) -> bool:
    """Whether a value never reaches memory: its one user is elementwise, of its size."""
    if not {made, user} <= members or graph.users[made] != [user]:
        return False
    same = call_of(graph, made).out.shape == call_of(graph, user).out.shape
    return same and graph.nodes[user].is_elementwise


def _moved(nbytes: float, target: Target) -> float:
    """The bytes of memory traffic that moving a value is worth."""
    cache = target.l3_bytes or target.l2_bytes
    return nbytes if nbytes > cache else nbytes / CACHE_SPEED
