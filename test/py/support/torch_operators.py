"""The sweep over torch's own operator samples: counts by operator and element type, stored.

    python test/py/support/torch_operators.py --dtypes float32,int64 --samples 2

`--samples 0` takes all. Rows of other operators and element types stay in the file, so that a sweep
goes on where it was ended. Each row counts outcomes: equal, refused (an operator that PyC lacks),
not exported (torch itself, or a result whose size depends on data), other (a difference: a fault).
"""

import argparse
import warnings
from collections import Counter
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]
from torch.testing._internal.common_methods_invocations import (  # pyright: ignore[reportMissingImports]
    op_db,
)
from torch_cases import EQUAL, REFUSED, UNDEFINED, UNEXPORTED, outcome, samples

from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Record, Report, record

RESULT = Path(__file__).resolve().parents[3] / "docs" / "results" / "torch-operators.json"
OTHER = "other"
_STORED_EVERY = 20


def main() -> None:
    """Sweep and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32", metavar="NAME,...")
    parser.add_argument("--samples", type=int, default=2, help="of each operator; 0: all")
    parser.add_argument("--json", type=Path, default=RESULT)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    made = {_key(r): r for r in Report.load(given.json).records} if given.json.exists() else {}
    for name in given.dtypes.split(","):
        dtype = getattr(torch, name)
        for place, info in enumerate(op_db):
            if dtype not in info.supported_dtypes("cpu") or info.name.startswith(UNDEFINED):
                continue
            row = _row(info, dtype, given.samples or None)
            made[_key(row)] = row
            if place % _STORED_EVERY == 0:
                _store(given.json, made)
    _store(given.json, made)


def _row(info: object, dtype: object, count: int | None) -> Record:
    """One operator's outcomes in one element type; the value is how many samples were equal."""
    counts: Counter[str] = Counter()
    why = ""
    for sample in samples(info, dtype, count):
        try:
            found = outcome(info, sample)
        # A sample may be none that torch itself computes on this machine.
        except (RuntimeError, NotImplementedError, TypeError) as error:
            counts[UNEXPORTED] += 1
            why = why or f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        kind = found.kind if found.kind in (EQUAL, REFUSED, UNEXPORTED) else OTHER
        counts[kind] += 1
        if kind != EQUAL:
            why = (found.why or found.kind)[:200] if kind == OTHER or not why else why
    label = f"{info.name} {info.variant_test_name}".strip()  # type: ignore[attr-defined]
    details = {key: counts[key] for key in (REFUSED, UNEXPORTED, OTHER)}
    given = {"of": counts.total(), **details, **({"why": why} if why else {})}
    return record(label, str(dtype)[6:], EQUAL, "samples", counts[EQUAL], **given)


def _key(row: Record) -> tuple[str, str]:
    return row["workload"], row["candidate"]


def _store(path: Path, made: dict[tuple[str, str], Record]) -> None:
    rows = [made[key] for key in sorted(made)]
    Report("torch-operators", probe(), {}, rows).save(path)


if __name__ == "__main__":
    main()
