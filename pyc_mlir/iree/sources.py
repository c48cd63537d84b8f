"""Give each dispatch the ids of all ops that it computes, at the end of `dispatch-creation`.

IREE fuses ops into a dispatch and gives it the location of one of them, its root. The bodies lose
theirs later, when equal executables become one. In between each dispatch still holds its own body,
so its location becomes the list of those of its ops, the root's first. Ops that IREE shares between
dispatches are left out, since they stand where they were first needed: constants, empty tensors,
fills, and arithmetic on sizes.
"""

from collections.abc import Iterator
from typing import Any

from pyc_mlir.dialects.names import place_of
from pyc_mlir.pipelines.streams.ir import find, ir, source_ids

# The phase at whose end dispatches are formed and still hold their bodies.
FORMED = "dispatch-creation"
WORKGROUPS = "flow.dispatch.workgroups"
_COMPUTING = ("linalg.", "iree_linalg_ext.", "tensor.pad", "tensor.concat")
_SHARED = ("linalg.fill", "linalg.yield", "linalg.index")
_SCALAR = ("arith.", "math.")
_CONSTANT = "arith.constant"


def name_sources(module: Any) -> int:
    """Write the locations; how many dispatches there are. `module` is the root operation."""
    found = find(module, WORKGROUPS)
    for dispatch in found:
        ids = dict.fromkeys((*source_ids(dispatch), *_inside(dispatch)))
        if len(ids) > 1:
            named = [_location(name, dispatch.context) for name in ids]
            dispatch.location = ir.Location.fused(named, context=dispatch.context)
    return len(found)


def _location(name: str, context: Any) -> Any:
    """Make a location as `mark_locations` does, so that IREE's diagnostics print the id."""
    place = place_of(name)
    return ir.Location.name(place, ir.Location.file(place, 1, 1, context), context)


def _inside(dispatch: Any) -> Iterator[str]:
    """Return the ids of the ops in a dispatch's body that compute elements."""
    for op in _computing(dispatch, in_body=False):
        yield from source_ids(op)


def _computing(parent: Any, in_body: bool) -> Iterator[Any]:
    for region in parent.regions:
        for block in region:
            for inner in block:
                op = inner.operation
                if op.name.startswith(_COMPUTING) and op.name not in _SHARED:
                    yield op
                    yield from _computing(op, in_body=True)
                elif in_body and op.name.startswith(_SCALAR) and op.name != _CONSTANT:
                    yield op
                else:
                    yield from _computing(op, in_body)
