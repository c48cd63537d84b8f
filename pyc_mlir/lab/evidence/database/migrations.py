"""The schema's history: `STEPS[n]` takes a database from version n to n + 1.

A step is never changed once it was released: databases have gone through it. Each runs in a
transaction, in the order of the list, on both engines.
"""

from collections.abc import Callable

from sqlalchemy import Connection

from pyc_mlir.lab.evidence.database.tables import LEARNED, METADATA, STATES_VIEW, append_only


def _first(connection: Connection) -> None:
    """Make all tables."""
    METADATA.create_all(connection)
    for statement in (STATES_VIEW, *append_only(connection.dialect.name)):
        connection.exec_driver_sql(statement.replace("%", "%%"))


def _second(connection: Connection) -> None:
    """Add the table of what selectors learned; a database that is new has it already."""
    LEARNED.create(connection, checkfirst=True)


STEPS: list[Callable[[Connection], None]] = [_first, _second]
