"""Stored measurements: versioned JSON with the environment of the run.

A report holds records; a record names the workload, the candidate and what one
metric came to. Reports are compared only when their environments' fingerprints agree.

    {"schema": 2, "suite": "pyc-opt", "fingerprint": "...", "environment": {...},
     "settings": {"rounds": 15},
     "tables": [{"shared": {"candidate": "pyc", "metric": "latency", "unit": "s", "n": 15},
                 "columns": ["workload", "value", "p10", "p90", "min"],
                 "rows": [["encoder", 0.0123, ...], ...]}]}

Records of the same keys share a table; what all of them have in common is stored once. Measured
fractions keep five digits.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import Form, from_data, to_data
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.measure.environment import Environment

_DIGITS = 5
REQUIRED_KEYS = ("workload", "candidate", "metric", "unit", "value")

Record = dict[str, Any]


def record(
    workload: str, candidate: str, metric: str, unit: str, value: float, **details: Any
) -> Record:
    """Return one measurement. `unit` is "s", "B", "%" or a plural noun; `details` are kept as they
    are.

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


def _tables(records: Sequence[Record]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[Record]] = {}
    for each in records:
        groups.setdefault(tuple(each), []).append(_rounded(each))
    tables = []
    for keys, rows in groups.items():
        shared = {k: rows[0][k] for k in keys if all(_same(r[k], rows[0][k]) for r in rows)}
        columns = [k for k in keys if k not in shared]
        cells = [[r[k] for k in columns] for r in rows]
        tables.append({"shared": shared, "columns": columns, "rows": cells})
    return tables


def _same(a: Any, b: Any) -> bool:
    """Return whether two values have the same JSON text: 1 and True have not."""
    return type(a) is type(b) and a == b


def _records(tables: Any) -> tuple[Record, ...]:
    try:
        return tuple(
            table["shared"] | dict(zip(table["columns"], row, strict=True))
            for table in tables
            for row in table["rows"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"expected tables of `shared`, `columns` and rows as long, got {error}"
        ) from None


def _rounded(value: Any) -> Any:
    """Round fractions; what a float counts (bytes, operations) keeps its digits."""
    match value:
        case float():
            return value if value.is_integer() else float(f"{value:.{_DIGITS}g}")
        case Mapping():
            return {k: _rounded(v) for k, v in value.items()}
        case list() | tuple():
            return [_rounded(v) for v in value]
        case _:
            return value


@dataclass(frozen=True)
class Report:
    """The records of one run of a suite, with the settings and the environment they depend on."""

    schema: ClassVar[int] = 2
    suite: str
    environment: Environment
    settings: Mapping[str, Any] = field(default_factory=dict)
    records: Annotated[Sequence[Record], Form(_tables, _records)] = ()

    def __post_init__(self) -> None:
        """Raise PycError for a malformed record."""
        for one in self.records:
            check_record(one)

    def save(self, path: str | Path) -> None:
        """Write the report, whole, with one row a line; the same report gives the same bytes.

        Raises PycError (FILE_ACCESS).
        """
        data = {"fingerprint": self.environment.fingerprint, **to_data(self)}
        tables = ",\n".join(map(_table_text, data.pop("records")))
        head = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
        write_file(path, f'{head},\n "tables": [\n{tables}\n ]\n}}\n'.encode())

    @staticmethod
    def load(path: str | Path) -> "Report":
        """Read a saved report. Raises PycError naming the file when it is not one, FILE_ACCESS."""
        text = read_file(path, "a stored report")
        try:
            data = parse_json(text)
            if isinstance(data, dict):
                data.pop("fingerprint", None)
                data["records"] = data.pop("tables", None)
            return from_data(Report, data)
        except ValueError as error:
            raise PycError(
                ReasonCode.BAD_ARGUMENT, f"expected a stored report, got {error}", where=str(path)
            ) from None
        except PycError as error:
            raise error.under(path) from None


def _table_text(table: Mapping[str, Any]) -> str:
    def text(data: Any) -> str:
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    rows = ",\n".join(f" {text(row)}" for row in table["rows"])
    head = f'"shared": {text(table["shared"])},\n   "columns": {text(table["columns"])}'
    return f'  {{{head},\n   "rows": [\n{rows}\n ]}}'


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
    """Return the records that both reports hold, in `after`'s order.

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
