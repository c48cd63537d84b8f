"""IREE's compiler alone, without any of PyC's passes: what measurements compare with."""

from collections.abc import Sequence

from pyc_mlir.iree.session import IreeSession
from pyc_mlir.pipelines.target.target import Target


def plain_flags(target: Target, *flags: str) -> tuple[str, ...]:
    """Return the flags of IREE's own highest level for the target, and `flags`."""
    return ("--iree-opt-level=O3", *target.flags, *flags)


def compile_plain(code: bytes, flags: Sequence[str]) -> bytes:
    """Compile MLIR text or bytecode by IREE alone to a vmfb. Raises PycError."""
    with IreeSession(flags) as session:
        session.parse(code)
        session.run()
        return session.vmfb()
