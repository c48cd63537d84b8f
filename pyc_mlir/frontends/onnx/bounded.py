"""Results whose number of rows depends on data: a buffer of fixed size, and a count.

NonMaxSuppression of computed boxes returns rows for the greatest possible number of boxes; rows
after the selected boxes are -1. Ops that do not mix rows (`keeps_rows`) may follow: their results
are such buffers too, and rows after the count have no meaning. Other ops are refused, because they
would use these rows. For each such output of the model, the program has one more result,
`<output>.count`: an i64 of rank 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.onnx.names import is_default_domain

SOURCES = frozenset({"NonMaxSuppression"})
_ONE_BY_ONE = frozenset(
    {"Identity", "Cast", "Neg", "Abs", "Sqrt", "Exp", "Log", "Sigmoid", "Tanh", "Relu", "Floor",
     "Ceil", "Round", "Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Greater", "Less", "Not"}
)  # fmt: skip


def require_rows_apart(
    node: onnx.NodeProto, operands: Sequence[Any], ranks: Sequence[int], bounded: Sequence[bool]
) -> None:
    """Raise unsupported for a node that mixes the rows of a bounded buffer, or counts them.

    operands: arrays where they are known. ranks: of the operands. bounded: which are buffers.
    """
    if not (is_default_domain(node) and keeps_rows(node, operands, ranks, bounded)):
        raise unsupported(
            f"{node.op_type} of a result whose rows depend on data: expected ops that keep rows "
            "apart; cut the model there, and go on with the rows that count"
        )


def keeps_rows(
    node: onnx.NodeProto, operands: Sequence[Any], ranks: Sequence[int], bounded: Sequence[bool]
) -> bool:
    """Return whether row i of each result depends on row i of the buffers alone."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    others = [rank for rank, rows in zip(ranks, bounded, strict=True) if not rows]
    least = min(rank for rank, rows in zip(ranks, bounded, strict=True) if rows)
    if node.op_type in _ONE_BY_ONE:
        return all(rank < least for rank in others)
    if node.op_type == "Gather":
        axis = attributes.get("axis", 0) % max(ranks[0], 1)
        return axis == 0 if bounded[1] and not bounded[0] else axis != 0 and not bounded[1]
    if node.op_type == "GatherND":
        return bounded[1] and not bounded[0] and not attributes.get("batch_dims", 0)
    if node.op_type in ("Concat", "Split"):
        return (
            all(b for b in bounded[:1])
            and attributes.get("axis", 0) % ranks[0] != 0
            and (node.op_type == "Split" or all(bounded))
        )
    if node.op_type in ("Slice", "Squeeze", "Unsqueeze"):
        place = 3 if node.op_type == "Slice" else 1
        axes = operands[place] if len(operands) > place else None
        grown = axes.size if node.op_type == "Unsqueeze" and isinstance(axes, np.ndarray) else 0
        rank = ranks[0] + grown
        return isinstance(axes, np.ndarray) and all(int(a) % rank != 0 for a in axes.reshape(-1))
    return False


def same_count(counts: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the one count of the buffers among `names`. Raises unsupported for several."""
    found = {id(counts[name]): counts[name] for name in names if name in counts}
    if len(found) > 1:
        raise unsupported("results of two suppressions in one op: expected those of one")
    return next(iter(found.values()), None)
