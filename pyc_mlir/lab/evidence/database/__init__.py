"""The benchmark database: SQLite by default, PostgreSQL by URL. The only door to SQLAlchemy."""

from pyc_mlir.dialects.errors import PycError, ReasonCode

try:
    import sqlalchemy  # noqa: F401
except ImportError:
    raise PycError(
        ReasonCode.DATABASE_UNUSABLE,
        "database: expected SQLAlchemy 2, got none; install it: pip install 'pyc-mlir[tune]'",
    ) from None
