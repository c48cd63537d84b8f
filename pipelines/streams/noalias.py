"""Resources of a stream function that cannot alias any other.

Values that a region captures may be one storage: two arguments may be the same array. Not so a
buffer that the caller gives for an output or for scratch (an argument of type ``!hal.buffer``, as
only `main$arena` takes them): whoever calls that entry answers for its being apart from everything
else, and PyC's runtime refuses overlaps before the launch.
"""

from typing import Any

from pyc_mlir.pipelines.streams.ir import ir, maker

_PASS_ON = ("stream.async.cast", "stream.async.transfer")


def is_own_memory(value: Any) -> bool:
    """Return True for a resource, outside of execution regions, that is such a buffer."""
    op = maker(value)
    while op is not None and op.name in _PASS_ON:
        value = op.operands[0]
        op = maker(value)
    if op is None or op.name != "stream.tensor.import":
        return False
    buffer = op.operands[0]
    return str(buffer.type) == "!hal.buffer" and isinstance(buffer.owner, ir.Block)
