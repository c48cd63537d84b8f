"""One prediction of a call's time: every tool and report shows the same record."""

import json
from typing import Any

import numpy as np
import pytest

from pyc_mlir import Contract, Device, Program, TensorSpec, compile
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.manifest import read_manifest
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.frontends.signatures import predicted_sizes
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.profile.build import predict
from pyc_mlir.tools import pyc_run
from pyc_mlir.tools.cli.compile_driver import summary
from pyc_mlir.tools.explain.facts import ExplainedProgram
from pyc_mlir.tools.explain.html_page import page
from pyc_mlir.tools.explain.text_page import overview

W = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
SYNC = Device("local-sync")


def layers(x):
    return np.maximum(np.maximum(x @ W, 0) @ W, 0)


def program(rows: Any = "batch", **options):
    return compile(layers, [TensorSpec("f32", rows, 256)], device=SYNC, **options)


def prediction(made: Program) -> Prediction:
    found = made.artifact.prediction
    assert found is not None
    return found


def test_every_tool_shows_one_prediction():
    made = program(8, contract=Contract(latency_goal_seconds=10.0))
    line = str(made.artifact.prediction)
    assert " a call predicted for 1 thread; modelled by " in line
    artifact = artifacts.from_bytes(artifacts.to_bytes(made.artifact))
    explained = ExplainedProgram.of("m.vmfb", artifact)
    for shown in (
        summary("m.vmfb", 1, artifact, 0.0),
        pyc_run.statistics(made.stats(), made),
        repr(artifact),
        str(made.stats().contract),
        overview(explained),
        page(explained),
    ):
        assert line in shown.replace("&#x27;", "'")
    seconds = prediction(made).seconds
    profile = predict(artifact)
    assert profile is not None
    assert profile.seconds == seconds
    assert sum(r.seconds for r in profile.rows) == pytest.approx(seconds)
    assert explained.report.seconds == pytest.approx(seconds)


def test_an_unknown_size_lies_in_its_declared_range_and_is_named():
    """64 rows were counted although one or two were declared."""
    few, many = (prediction(program(dims={"batch": r})) for r in ((1, 2), (100, 200)))
    assert few.sizes == {"batch": 2} and "1 thread, batch=2;" in str(few)
    assert many.sizes == {"batch": 100} and many.seconds > few.seconds
    assert few.seconds == pytest.approx(prediction(program(2)).seconds)
    silent = prediction(program())
    assert silent.undeclared == ("batch",) and "batch=64 (no range is declared)" in str(silent)


def test_sizes_of_no_name_go_by_their_place():
    made = program(None)
    assert predicted_sizes(made.signature) == {"x[0]": 64}
    assert dict(prediction(made).sizes) == {"x[0]": 64}


def test_sizes_that_the_program_does_not_admit_end_no_compile():
    """64 numbers are no rows of 10."""
    made = compile(lambda x: x.reshape(-1, 10) * 2, [TensorSpec("f32", "n")], device=SYNC)
    assert dict(prediction(made).sizes) == {"n": 64}


def test_a_profile_counts_none_of_its_own_calls():
    made = program(8)
    x = np.ones((8, 256), np.float32)
    made(x)
    made.profile(x, calls=1)
    assert made.stats().calls == 1


@pytest.mark.parametrize(
    "changed", [{"seconds": -1.0}, {"seconds": "1"}, {"measured": 1e9}, {"threads": 0}, {"a": 1}]
)
def test_a_prediction_that_is_none_is_refused(changed):
    data = to_data(program(8).artifact.manifest)
    with pytest.raises(ValueError, match="prediction"):
        read_manifest({**data, "prediction": {**data["prediction"], **changed}})


def test_a_prediction_says_what_was_measured():
    made = Prediction(2e-3, {"n": 3}, (), 1, 5e-4, "published figures of `cpu`")
    assert made.grounds == "25% measured, the rest modelled by published figures of `cpu`"
    assert from_data(Prediction, json.loads(json.dumps(to_data(made))), "prediction") == made
