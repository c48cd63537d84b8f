"""What does a group of ops cost at a rate of operations and of bytes? The roofline of the group.

Dynamic sizes are taken for the nominal dimension: good for ranking and for orders of magnitude.
"""

import math

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import Shape, TensorType
from pyc_mlir.pipelines.kernels.match.offers import Work
from pyc_mlir.pipelines.pyc.groups import Members
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost, roofline
from pyc_mlir.pipelines.target.target import Target


def work_cost(work: Work, flops_rate: float, bandwidth: float, start: int = 0) -> Cost:
    """The ops from number `start` on, as one kernel at so many FLOP/s and bytes/s."""
    nodes = work.nodes[start:]
    if not nodes:
        return Cost()
    flops = 0
    for node in nodes:
        inputs = [_nominal(work.type(v)) for v in node.operands]
        flops += OPS[node.name].flops(inputs, _nominal(node.type), **node.params)
    inside = {work.number_of(i) for i in range(start, len(work.nodes))}
    read = {v for n in nodes for v in n.operands} - inside
    traffic = sum(_nominal(work.type(v)).nbytes for v in read) + _nominal(nodes[-1].type).nbytes
    return roofline(flops, traffic, flops_rate, bandwidth)


def predicted_seconds(module: ir.Module, target: Target) -> float:
    """All groups of a module one after the other on one core of the target, at its peaks.

    Each is a dispatch, and costs what a dispatch was measured to cost.
    """
    peak = target.peak_flops / target.cores
    return math.fsum(
        work_cost(members.work(), peak, target.peak_bandwidth).seconds + target.dispatch_seconds
        for function in functions_of(module)
        for op in function.regions[0].blocks[0].operations
        if op.operation.name.startswith("pyc.")
        and (members := Members.of(op.operation)) is not None
    )


def _nominal(type_: TensorType) -> TensorType:
    shape: Shape = tuple(NOMINAL_DIMENSION if d is None else d for d in type_.shape)
    return type_.with_shape(shape)
