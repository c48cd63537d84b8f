"""The memory that a program needs, by purpose.

    constants + inputs + outputs + (transients + workspace) x calls at once

Every tool, report and promise about memory shows these parts. A part is None where it depends on
the sizes of a call, or is not known; where sizes have declared ranges, parts are those of the
largest call.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.util.units import quantity


@dataclass(frozen=True)
class Account:
    """Bytes of each part; None where it is not known before the call.

    constants: what lies in memory as long as the program is loaded, in the form that its code
        reads: packed and transformed weights, and the model's own where both are needed.
    inputs, outputs: arguments and results of one call.
    transients: the planned arena of one call.
    workspace: what a call allocates beside its arena.
    """

    complete: ClassVar[bool] = True
    constants: int | None = None
    inputs: int | None = None
    transients: int | None = None
    outputs: int | None = None
    workspace: int | None = None

    @staticmethod
    def of(
        signature: Signature, constants: int | None = None, transients: int | None = None
    ) -> "Account":
        """Return the account of a program with this signature and no workspace."""
        ranges = signature.ranges
        inputs = _bytes([a.largest(ranges) for a in signature.inputs])
        outputs = _bytes([a.largest(ranges) for a in signature.outputs])
        workspace = None if transients is None else 0
        return Account(constants, inputs, transients, outputs, workspace)

    @property
    def scratch(self) -> int | None:
        """Transients and workspace of one call."""
        if self.transients is None or self.workspace is None:
            return None
        return self.transients + self.workspace

    def total(self, concurrency: int = 1) -> int | None:
        """Return all parts, scratch once for each of `concurrency` calls; None unless all known."""
        scratch = None if self.scratch is None else concurrency * self.scratch
        parts = (self.constants, self.inputs, self.outputs, scratch)
        known = [p for p in parts if p is not None]
        return None if len(known) < len(parts) else sum(known)

    def described(self, concurrency: int = 1) -> str:
        """Return ``5.8 MiB: constants 5.4 MiB, inputs 12 KiB, ...``, as every tool shows it."""
        total, named = self.total(concurrency), asdict(self).items()
        parts = [f"{name} {quantity(size, 'B')}" for name, size in named if size]
        calls = f" with scratch for {concurrency} calls" if concurrency > 1 else ""
        if total is not None:
            return ": ".join(filter(None, [f"{quantity(total, 'B')}{calls}", ", ".join(parts)]))
        missing = [name for name, size in named if size is None]
        listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        return "; ".join(filter(None, [", ".join(parts), f"{listed}: by the sizes of a call"]))

    def __str__(self) -> str:
        return self.described()


def _bytes(arguments: Sequence[SignatureEntry]) -> int | None:
    shapes = [a.static_shape for a in arguments]
    if None in shapes:
        return None
    return sum(a.dtype.itemsize * math.prod(a.static_shape or ()) for a in arguments)
