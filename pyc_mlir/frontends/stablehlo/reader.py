"""Read StableHLO: text, and portable artifacts (the bytes that `jax.export` serializes).

Artifacts are MLIR bytecode of the versioned dialect VHLO; damaged ones may end the process, so that
only a worker reads them.
"""

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir, stablehlo
from pyc_mlir.dialects.ir.pyc import load

# MLIR's magic number, then the length and the beginning of the producer's name.
ARTIFACT_MAGIC = b"ML\xefR\rStableHLO_v"


def is_artifact(data: bytes) -> bool:
    """Return True for the bytes of a portable artifact."""
    return data.startswith(ARTIFACT_MAGIC)


def embedded_artifact(data: bytes) -> bytes | None:
    """Return the artifact within ``jax.export.Exported.serialize``'s bytes; None for other bytes.

    These are a flatbuffer which holds the artifact as a vector of bytes, its length before it.
    """
    start = data.find(ARTIFACT_MAGIC)
    if start < 4:
        return None
    length = int.from_bytes(data[start - 4 : start], "little")
    end = start + length
    return data[start:end] if length and end <= len(data) else None


def read_artifact(data: bytes, name: str, context: ir.Context) -> ir.Module:
    """Read a portable artifact as a StableHLO module. Raises PycError (INVALID_IR)."""
    enter(context)
    try:
        return stablehlo.deserialize_portable_artifact(context, data)
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        raise PycError(
            ReasonCode.INVALID_IR,
            f"{name}: expected a StableHLO artifact of a version up to "
            f"{stablehlo.get_current_version()}: {error}",
        ) from None


def enter(context: ir.Context) -> None:
    """Let a context hold StableHLO beside pyc."""
    load(context)
    stablehlo.register_dialect(context)
