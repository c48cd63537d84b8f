"""Trials: configurations that workers measure under leases.

    waiting -> leased -> done | failed         an expired lease counts as waiting

The lease in the database is the truth about who works on what. A worker that dies lets its lease
expire; the next claim takes the trial over, up to `MAX_ATTEMPTS` times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.lab.evidence.database.engine import Database
from pyc_mlir.lab.evidence.database.tables import TRIALS
from pyc_mlir.util.checksum import canonical, digest

WAITING, LEASED, DONE, FAILED = "waiting", "leased", "done", "failed"
STATES = (WAITING, LEASED, DONE, FAILED)
MAX_ATTEMPTS = 3
_GONE = "its workers ended before it did"


@dataclass(frozen=True)
class StoredTrial:
    """A configuration of a study as the database has it.

    number: its place in the order of the study. attempt: how often it was claimed; with `owner` it
    distinguishes leases. seconds: what the trial took in all, once it is done.
    """

    study_id: str
    config_hash: str
    number: int
    config: Mapping[str, Any]
    state: str = WAITING
    predicted: float | None = None
    owner: str = ""
    lease_until: float | None = None
    attempt: int = 0
    trace_id: str | None = None
    reason: str = ""
    seconds: float | None = None

    @property
    def is_ended(self) -> bool:
        """True if it was measured, or failed for good."""
        return self.state in (DONE, FAILED)


class TrialQueue(Database):
    """The trials of studies. Every method is one transaction."""

    def add_trials(
        self,
        study_id: str,
        configs: Sequence[Mapping[str, Any]],
        predicted: Sequence[float | None] = (),
    ) -> int:
        """Append configurations that a study lacks, in order; how many were new."""
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":
                # Two proposers at once would take the same numbers.
                lock = sa.text("SELECT pg_advisory_xact_lock(hashtext(:study))")
                connection.execute(lock, {"study": study_id})
            mine = sa.select(TRIALS.c.config_hash).where(TRIALS.c.study_id == study_id)
            known = set(connection.execute(mine).scalars())
            rows = []
            for place, config in enumerate(configs):
                name = digest(config)
                if name not in known:
                    known.add(name)
                    new = {"study_id": study_id, "config_hash": name, "number": len(known) - 1}
                    new |= {"config": canonical(config), "state": WAITING, "attempt": 0}
                    new |= {"owner": "", "reason": ""}
                    rows.append({**new, "predicted": predicted[place] if predicted else None})
            if rows:
                connection.execute(sa.insert(TRIALS), rows)
            return len(rows)

    def claim(self, study_id: str, owner: str, seconds: float) -> StoredTrial | None:
        """Lease the first trial that waits or whose lease expired; None where there is none.

        A trial whose last attempt expired is failed on the way.
        """
        with self.writing() as connection:
            now = self._now(connection)
            expired = sa.and_(TRIALS.c.state == LEASED, TRIALS.c.lease_until < now)
            in_study = TRIALS.c.study_id == study_id
            lost = sa.and_(in_study, expired, TRIALS.c.attempt >= MAX_ATTEMPTS)
            connection.execute(sa.update(TRIALS).where(lost).values(state=FAILED, reason=_GONE))
            free = sa.and_(in_study, sa.or_(TRIALS.c.state == WAITING, expired))
            query = sa.select(TRIALS).where(free).order_by(TRIALS.c.number).limit(1)
            # On SQLite the transaction holds the only lock there is.
            query = query.with_for_update(skip_locked=True)
            found = connection.execute(query).mappings().first()
            if found is None:
                return None
            taken = {"state": LEASED, "owner": owner, "lease_until": now + seconds}
            taken["attempt"] = found["attempt"] + 1
            one = sa.and_(in_study, TRIALS.c.config_hash == found["config_hash"])
            connection.execute(sa.update(TRIALS).where(one).values(taken))
            return _of_row({**found, **taken})

    def renew(self, trial: StoredTrial, seconds: float) -> None:
        """Hold a trial for so long from now. Raises PycError (LEASE_LOST)."""
        with self.writing() as connection:
            self._change(connection, trial, lease_until=self._now(connection) + seconds)

    def fail(self, trial: StoredTrial, reason: str, seconds: float | None = None) -> None:
        """End a trial without a number. Raises PycError (LEASE_LOST)."""
        with self.writing() as connection:
            self._change(connection, trial, state=FAILED, reason=reason, seconds=seconds)

    def release(self, trial: StoredTrial) -> None:
        """Give a trial back that was not measured. Raises PycError (LEASE_LOST)."""
        with self.writing() as connection:
            self._change(connection, trial, state=WAITING, lease_until=None)

    def trials(self, study_id: str) -> list[StoredTrial]:
        """Return the trials of a study in order."""
        query = sa.select(TRIALS).where(TRIALS.c.study_id == study_id).order_by(TRIALS.c.number)
        with self.reading() as connection:
            return [_of_row(row) for row in connection.execute(query).mappings()]

    def _change(self, connection: sa.Connection, trial: StoredTrial, **values: Any) -> None:
        """Change a trial that its worker still holds. Raises PycError (LEASE_LOST)."""
        held = sa.and_(
            TRIALS.c.state == LEASED,
            *(
                TRIALS.c[name] == getattr(trial, name)
                for name in ("study_id", "config_hash", "owner", "attempt")
            ),
        )
        if connection.execute(sa.update(TRIALS).where(held).values(values)).rowcount != 1:
            raise PycError(
                ReasonCode.LEASE_LOST,
                f"trial {trial.number} of study {trial.study_id[:12]}: expected the lease of "
                f"{trial.owner!r}, attempt {trial.attempt}, got a trial that is done or another "
                "worker's; drop the result",
            )


def _of_row(row: Mapping[Any, Any]) -> StoredTrial:
    return StoredTrial(**{**row, "config": parse_json(row["config"])})
