"""The predicted cost of a composite, and the ops that spell it out, by the one cost model."""

from collections.abc import Sequence

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.pyc.recognize.candidates import Match
from pyc_mlir.pipelines.pyc.terms.nodes import MOVED, NodeBuilder, TermNode
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp


def costs(match: Match, context: PassContext) -> tuple[Cost, Cost]:
    """Return the costs of the composite, and of the ops: IREE's code, elementwise ops fused."""
    model = CostModel(context.target, context.calibration)
    leaves = match.candidate.leaves
    whole = _closure(match.candidate.build(NodeBuilder(), *leaves), leaves)
    return _cost(whole, model), _cost(match.ops, model)


def _closure(root: TermNode, leaves: Sequence[TermNode]) -> list[TermNode]:
    """Return the nodes that a builder made, in order."""
    found: dict[TermNode, None] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        before = [o for o in node.operands if o not in found and o not in leaves]
        if before:
            waiting += reversed(before)
        else:
            found[waiting.pop()] = None
    return list(found)


def _cost(ops: Sequence[TermNode], model: CostModel) -> Cost:
    """Return the cost: a dispatch for each chain of elementwise ops and for each other op."""
    total = Cost()
    chains: list[list[TermNode]] = []
    home: dict[TermNode, list[TermNode]] = {}
    for op in ops:
        if op.has(MOVED):
            continue
        before = [home[o] for o in op.operands if o in home]
        fuses = op.has(Trait.ELEMENTWISE) and before and before[-1][-1].has(Trait.ELEMENTWISE)
        chain = before[-1] if fuses and before[-1][-1].type.shape == op.type.shape else []
        if not chain:
            chains.append(chain)
        chain.append(op)
        home[op] = chain
    for chain in chains:
        total += model.work(_work(chain)) + Cost(model.dispatch_seconds)
    written = sum(_nbytes(chain[-1]) for chain in chains[:-1])
    return total + Cost(workspace_bytes=written)


def _work(chain: Sequence[TermNode]) -> Work:
    """Return a chain of ops as data."""
    inputs = list(dict.fromkeys(o for n in chain for o in n.operands if o not in chain))
    numbers = {node: i for i, node in enumerate((*inputs, *chain))}
    nodes = [WorkOp(n.name, tuple(numbers[o] for o in n.operands), n.params, n.type) for n in chain]
    return Work(tuple(Input(n.type) for n in inputs), tuple(nodes))


def _nbytes(node: TermNode) -> int:
    shape = tuple(NOMINAL_DIMENSION if d is None else d for d in node.type.shape)
    return node.type.with_shape(shape).nbytes
