"""The error for a node that PyC cannot express; importers collect these."""

from pyc_mlir.dialects.errors import PycError, ReasonCode


def unsupported(why: str, code: ReasonCode = ReasonCode.UNSUPPORTED_ATTRIBUTE) -> PycError:
    """Return the error for a node that PyC cannot express. The importer adds the node."""
    return PycError(code, why)
