"""Stored measurements: versioned JSON with the environment of the run.

A report holds records; a record names the workload, the candidate and what one
metric came to. Reports are compared only when their environments' fingerprints agree.

    {"schema": 1, "suite": "pyc-opt", "fingerprint": "...", "environment": {...},
     "settings": {"rounds": 15},
     "records": [{"workload": "encoder", "candidate": "pyc", "metric": "latency", "unit": "s",
                  "value": 0.0123, "p10": ..., "p90": ..., "min": ..., "n": 15}]}
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.measure.environment import Environment

REQUIRED_KEYS = ("workload", "candidate", "metric", "unit", "value")

Record = dict[str, Any]


def record(
    workload: str, candidate: str, metric: str, unit: str, value: float, **details: Any
) -> Record:
    """One measurement. `unit` is "s", "B", "%" or a plural noun; `details` are kept as they are.

    Raises PycError for a value that is not finite.
    """
    made = dict(zip(REQUIRED_KEYS, (workload, candidate, metric, unit, value), strict=True))
    return check_record({**made, **details})


def check_record(data: Mapping[str, Any]) -> Record:
    """Return `data` as a record. Raises PycError when a required key is missing or wrong."""
    missing = [k for k in REQUIRED_KEYS if k not in data]
    if missing:
        raise PycError(ReasonCode.BAD_ARGUMENT, f"record {dict(data)}: expected the keys {missing}")
    value = data["value"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"record {data['workload']}/{data['candidate']}/{data['metric']}: "
            f"expected a finite number, got {value!r}",
        )
    return dict(data)


@dataclass(frozen=True)
class Report:
    """The records of one run of a suite, with the settings and the environment they depend on."""

    schema: ClassVar[int] = 1
    suite: str
    environment: Environment
    settings: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[Record] = ()

    def __post_init__(self) -> None:
        """Raise PycError for a malformed record."""
        for one in self.records:
            check_record(one)

    def save(self, path: str | Path) -> None:
        """Write the report, whole, with one record a line; the same report gives the same bytes.

        Raises PycError (FILE_ACCESS).
        """
        data = {"fingerprint": self.environment.fingerprint, **to_data(self)}
        lines = [json.dumps(r, ensure_ascii=False, allow_nan=False) for r in data.pop("records")]
        head = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
        records = ",\n".join(f"  {line}" for line in lines)
        write_file(path, f'{head},\n "records": [\n{records}\n ]\n}}\n'.encode())

    @staticmethod
    def load(path: str | Path) -> "Report":
        """Read a saved report. Raises PycError naming the file when it is not one, FILE_ACCESS."""
        text = read_file(path, "a stored report")
        try:
            data = parse_json(text)
            if isinstance(data, dict):
                data.pop("fingerprint", None)
            return from_data(Report, data)
        except ValueError as error:
            raise PycError(
                ReasonCode.BAD_ARGUMENT, f"expected a stored report, got {error}", where=str(path)
            ) from None
        except PycError as error:
            raise error.under(path) from None


@dataclass(frozen=True)
class RecordChange:
    """One record that two reports share, and its value in each."""

    workload: str
    candidate: str
    metric: str
    unit: str
    before: float
    after: float


def compare(before: Report, after: Report) -> list[RecordChange]:
    """The records that both reports hold, in `after`'s order.

    Raises PycError (ENVIRONMENT_MISMATCH) when the fingerprints differ, and BAD_ARGUMENT when the
    suites do: such numbers cannot be compared.
    """
    if before.suite != after.suite:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"compare: expected one suite, got {before.suite!r} and {after.suite!r}",
        )
    differences = before.environment.differences(after.environment)
    if differences:
        raise PycError(
            ReasonCode.ENVIRONMENT_MISMATCH,
            f"compare {after.suite!r}: the environments differ in {'; '.join(differences)}",
        )
    old = {tuple(r[k] for k in REQUIRED_KEYS[:-1]): r["value"] for r in before.records}
    keys = [(tuple(r[k] for k in REQUIRED_KEYS[:-1]), r["value"]) for r in after.records]
    return [RecordChange(*key, before=old[key], after=value) for key, value in keys if key in old]
