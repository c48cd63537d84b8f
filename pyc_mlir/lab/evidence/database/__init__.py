"""The benchmark database: SQLite by default, PostgreSQL by URL. The only door to SQLAlchemy."""

from pyc_mlir.dialects.errors import PycError, ReasonCode, install

try:
    import sqlalchemy  # noqa: F401
except ImportError:
    raise PycError(
        ReasonCode.DATABASE_UNUSABLE,
        f"database: expected SQLAlchemy 2, got none; {install('tune')}",
    ) from None
