"""Single nodes against onnxruntime: its own operators, and ONNX's newer ones, over edge shapes."""

import os
import random
from collections import Counter

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import ort_cases
import ort_microsoft

from pyc_mlir.dialects.ir.pyc import new_context

FULL = bool(os.environ.get("PYC_FULL"))
SAMPLE = 150


def _outcomes(cases, dynamic: bool) -> dict[str, str]:
    """What becomes of each case that onnxruntime takes."""
    context, found = new_context(), {}
    for case in cases if FULL else random.Random(17).sample(cases, min(SAMPLE, len(cases))):
        wanted = ort_cases.by_onnxruntime(case)
        if wanted is not None:
            found[case.name] = ort_cases.outcome(case, wanted, context, dynamic)
    return found


@pytest.mark.parametrize("dynamic", [False, True])
def test_operators_of_onnxruntime_compute_what_it_does(dynamic: bool, record_property) -> None:
    found = _outcomes(list(ort_microsoft.cases()), dynamic)
    sizes = "dynamic" if dynamic else "static"
    counts = Counter(said.partition(":")[0] for said in found.values())
    record_property(f"com.microsoft against onnxruntime, {sizes} sizes", dict(counts))
    assert {name: said for name, said in found.items() if said != "equal"} == {}
