"""The memory that a program needs, by purpose.

    constants + inputs + outputs + (transients + workspace) x calls at once

Every tool, report and promise about memory shows these parts. A part is None where it depends on
the sizes of a call, or is not known; where sizes have declared ranges, parts are those of the
largest call.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
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
        total, named = self.total(concurrency), self.to_json().items()
        parts = [f"{name} {quantity(size, 'B')}" for name, size in named if size]
        calls = f" with scratch for {concurrency} calls" if concurrency > 1 else ""
        if total is not None:
            return ": ".join(filter(None, [f"{quantity(total, 'B')}{calls}", ", ".join(parts)]))
        missing = [name for name, size in named if size is None]
        listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        return "; ".join(filter(None, [", ".join(parts), f"{listed}: by the sizes of a call"]))

    def __str__(self) -> str:
        return self.described()

    def to_json(self) -> dict[str, int | None]:
        """Return the manifest's form of it."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Account":
        """Read what `to_json` wrote. Raises PycError (BAD_ARTIFACT) for anything else."""
        names = {f.name for f in fields(Account)}
        if set(data) != names or any(
            v is not None and (type(v) is not int or v < 0) for v in data.values()
        ):
            raise PycError(
                ReasonCode.BAD_ARTIFACT,
                f"manifest: expected bytes or null for {', '.join(sorted(names))}, "
                f"got {data!r:.200}; compile it again",
            )
        return Account(**data)


def _bytes(arguments: Sequence[SignatureEntry]) -> int | None:
    shapes = [a.static_shape for a in arguments]
    if None in shapes:
        return None
    return sum(a.dtype.itemsize * math.prod(a.static_shape or ()) for a in arguments)
