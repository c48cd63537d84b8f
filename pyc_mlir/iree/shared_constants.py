"""Keep constants that several functions of a module read once.

IREE makes a global of each constant op, and does not compare their contents: weights would be
stored, and resident, once for each plan of a program. Comes in: a module before IREE's first phase,
whose equal constants are one attribute (`compilation/shape_plans.py`). Goes out: one `util.global`
for each of those that occur several times.
"""

from collections import defaultdict
from typing import Any

from pyc_mlir.pipelines.streams.ir import find, ir, operations

_CONSTANT, _GLOBAL, _LOAD = "arith.constant", "util.global", "util.global.load"
# Smaller ones become part of the code that reads them.
_LEAST_BYTES = 1024
_PREFIX = "pyc_shared_"


def share_constants(module: Any) -> int:
    """Put a global in place of each large constant that several ops make; return how many."""
    bodies = [f for f in find(module, "func.func") if len(f.regions[0].blocks)]
    if len(bodies) < 2:
        return 0
    same: dict[Any, list[Any]] = defaultdict(list)
    for op in find(module, _CONSTANT):
        if _is_large(op):
            same[op.attributes["value"]].append(op)
    repeated = [ops for ops in same.values() if len(ops) > 1]
    module.context.get_dialect_descriptor("util")
    with module.context, ir.Location.unknown():
        never = ir.Attribute.parse("#util.inline.never")
        for number, ops in enumerate(repeated):
            _share(module, f"{_PREFIX}{number}", ops, never)
    return len(repeated)


def _is_large(op: Any) -> bool:
    type_ = op.results[0].type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return False
    value = op.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        return False
    bits = 1
    for size in type_.shape:
        bits *= size
    element = type_.element_type
    return bits * getattr(element, "width", 8) >= 8 * _LEAST_BYTES


def _share(module: Any, name: str, ops: list[Any], never: Any) -> None:
    first = ops[0]
    type_ = first.results[0].type
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "sym_visibility": ir.StringAttr.get("private"),
        "type": ir.TypeAttr.get(type_),
        "initial_value": first.attributes["value"],
        "inlining_policy": never,
    }
    body = module.regions[0].blocks[0]
    place = ir.InsertionPoint(operations(body)[0])
    ir.Operation.create(_GLOBAL, attributes=attributes, ip=place)
    for op in ops:
        load = ir.Operation.create(
            _LOAD,
            results=[type_],
            attributes={"global": ir.FlatSymbolRefAttr.get(name)},
            ip=ir.InsertionPoint(op),
        )
        op.results[0].replace_all_uses_with(load.results[0])
        op.erase()
