"""IREE's compiler alone, without any of PyC's passes: what measurements compare with."""

from collections.abc import Sequence

from pyc_mlir.iree.session import IreeSession
from pyc_mlir.pipelines.target.target import Target


def plain_flags(target: Target, *flags: str) -> tuple[str, ...]:
    """IREE's own highest level for the target, and `flags`."""
    return ("--iree-opt-level=O3", *target.flags, *flags)


def compile_plain(code: bytes, flags: Sequence[str]) -> bytes:
    """IREE's compiler and nothing of ours: MLIR text or bytecode to a vmfb. Raises PycError."""
    with IreeSession(flags) as session:
        session.parse(code)
        session.run()
        return session.vmfb()
