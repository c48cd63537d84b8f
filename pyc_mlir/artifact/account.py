"""The device memory that a program needs, by purpose.

    constants + inputs + transients x calls at once + outputs

Constants are what the program holds as long as it is loaded; transients are the scratch arena of
one call. A part is None where it depends on the sizes of a call, or is not known; where sizes have
declared ranges, parts are those of the largest call.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode


@dataclass(frozen=True)
class Account:
    """Bytes of each part; None where it is not known before the call."""

    constants: int | None = None
    inputs: int | None = None
    transients: int | None = None
    outputs: int | None = None

    @staticmethod
    def of(
        signature: Signature, constants: int | None = None, transients: int | None = None
    ) -> "Account":
        """The account of a program with this signature."""
        ranges = signature.ranges
        inputs = _bytes([a.largest(ranges) for a in signature.inputs])
        outputs = _bytes([a.largest(ranges) for a in signature.outputs])
        return Account(constants, inputs, transients, outputs)

    def total(self, concurrency: int = 1) -> int | None:
        """All parts, with an arena for each of `concurrency` calls; None unless all are known."""
        parts = (self.constants, self.inputs, self.transients, self.outputs)
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):
            return None
        return sum(known) + (concurrency - 1) * (self.transients or 0)

    def to_json(self) -> dict[str, int | None]:
        """The manifest's form of it."""
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
