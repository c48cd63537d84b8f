"""Let parts of a value share code: contiguous slices of one value become views in memory.

IREE clones a slice at a known offset into the dispatch that reads it. Where a value is cut into
equal parts that are computed alike (`pyc-chunk`), each part would get executables of its own, which
differ in one number. A barrier behind such slices keeps them out; a contiguous slice in memory is
only an offset, so nothing is copied. Measured on an encoder cut in 12 parts: half the compile time,
the same arena and latency.
"""

from collections import defaultdict
from itertools import pairwise
from math import prod
from typing import Any

from iree.compiler import ir

from pyc_mlir.iree.workarounds.read_hazards import barrier, blocks_of

_SLICE = "tensor.extract_slice"


def share_parts(module: Any) -> int:
    """Put barriers behind the slices of a module (an operation of IREE's bindings); how many."""
    blocks = [block for op in module.regions[0].blocks[0] for block in blocks_of(op)]
    return sum(_share(block) for block in blocks)


def _share(block: Any) -> int:
    ops = [op.operation for op in block.operations]
    # With the op that follows: an operation's hash depends on its operands, which change below.
    alike: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
    for op, after in pairwise(ops):
        if op.name == _SLICE and _is_contiguous(op):
            alike[op.operands[0], str(op.results[0].type)].append((op, after))
    groups = [group for group in alike.values() if _is_cut([op for op, _ in group])]
    for op, after in (pair for group in groups for pair in group):
        whole = op.results[0]
        readers = [(use.owner, use.operand_number) for use in whole.uses]
        view = barrier(whole, after)
        for reader, place in readers:
            reader.operands[place] = view
    return sum(map(len, groups))


def _is_contiguous(op: Any) -> bool:
    """Return whether a slice is one run of memory: whole behind the first cut dimension."""
    source, result = (list(ir.RankedTensorType(v.type).shape) for v in (op.operands[0], op.result))
    strides = ir.DenseI64ArrayAttr(op.attributes["static_strides"])
    if len(op.operands) > 1 or any(s != 1 for s in strides) or len(source) != len(result):
        return False
    cut = [i for i, (a, b) in enumerate(zip(source, result, strict=True)) if a != b]
    return len(cut) == 1 and prod(source[: cut[0]]) == 1


def _is_cut(group: list[Any]) -> bool:
    """Return whether equal slices make up the whole, each part once."""
    size, whole = (prod(ir.RankedTensorType(v.type).shape) for v in _ends(group[0]))
    sizes = list(ir.RankedTensorType(group[0].results[0].type).shape)
    offsets = {tuple(ir.DenseI64ArrayAttr(op.attributes["static_offsets"])) for op in group}
    aligned = all(o % s == 0 for offset in offsets for o, s in zip(offset, sizes, strict=True) if s)
    return len(offsets) == len(group) > 1 and aligned and len(group) * size == whole


def _ends(op: Any) -> tuple[Any, Any]:
    return op.results[0], op.operands[0]
