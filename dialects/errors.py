"""What can go wrong: errors that carry a reason code.

Every error that a user can cause is a `PycError`. Its text reads
``where: what was expected, what came``, then the remedy; its `code` is a row of the table in
reasons.py, which docs/errors.md is generated from.
"""

from pyc_mlir.dialects.reasons import ReasonCode

__all__ = ["PycError", "ReasonCode", "VerificationError", "internal_error", "missing_compiler"]


class PycError(Exception):
    """A fault of the input, with its reason code. `str()` is one readable line or paragraph."""

    def __init__(self, code: ReasonCode, message: str) -> None:
        super().__init__(f"{message} [{code.name}]")
        self.code = code
        self.message = message


class VerificationError(PycError):
    """An operation whose operands, parameters or result do not fit together."""

    def __init__(self, message: str) -> None:
        super().__init__(ReasonCode.INVALID_IR, message)


def internal_error(error: Exception) -> PycError:
    """The refusal that tells an exception which nobody was meant to see."""
    return PycError(
        ReasonCode.INTERNAL_ERROR, f"expected an answer, got {type(error).__name__}: {error}"
    )


def missing_compiler(error: ModuleNotFoundError) -> PycError | None:
    """The error to raise where a compiler's package is not installed; None for other modules.

    As `pip install pyc-mlir[run]` leaves a machine: programs run there, none is compiled.
    """
    if (error.name or "").partition(".")[0] not in ("torch_mlir", "iree"):
        return None
    return PycError(
        ReasonCode.MISSING_DEPENDENCY,
        f"compiling: expected the package `{error.name}`, found none; install the compiler with "
        "`pip install pyc-mlir`",
    )
