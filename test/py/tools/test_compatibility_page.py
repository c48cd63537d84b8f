"""docs/compatibility.md says what is done with files of other schemas: so it is."""

import json
import zipfile

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import PycError
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Report
from pyc_mlir.pipelines.choices.log import read_log, write_log
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.profile.profile import Profile
from pyc_mlir.service.capsule import Capsule
from pyc_mlir.tools.docs.compatibility import page

X = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def program():
    return pyc_mlir.compile(lambda x: x + 1, [X])


def codes() -> dict[str, str]:
    """The code that the page has of each file."""
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| ")]
    return {r[0].strip("| "): r[2].partition(", ")[2] for r in rows if "refused, " in r[2:3][0]}


def refused(read) -> str:
    with pytest.raises(PycError) as error:
        read()
    return error.value.code.name


def test_other_schemas_are_refused_as_the_page_says(program, tmp_path):
    path = tmp_path / "file"
    found = {}

    def changed(text: str) -> None:
        data = json.loads(text)
        path.write_text(json.dumps(data | {"schema": 99}))

    write_log(program.log(), path)
    changed(path.read_text().splitlines()[0])
    found["log of decisions and runs"] = refused(lambda: read_log(path))
    Report("suite", probe()).save(path)
    changed(path.read_text())
    found["report of a benchmark"] = refused(lambda: Report.load(path))
    path.write_text('{"schema": 99}')
    found["wisdom"] = refused(lambda: Wisdom.load(path))
    found["calibration"] = refused(lambda: Calibration.load(path))
    found["profile"] = refused(lambda: Profile.load(path))
    path.write_text('{"kind": "pyc-recipe", "schema": 99}')
    found["recipe"] = refused(lambda: pyc_mlir.compile(lambda x: x, [X], recipe=str(path)))
    path.write_text('{"schema": 99, "recipe": {}}')
    found["recipe and log of a selector"] = refused(lambda: pyc_mlir.Selector(recipe=path))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("capsule.json", '{"schema": 99}')
    found["capsule of a service"] = refused(lambda: Capsule.load(path))
    data = artifacts.to_bytes(program.artifact)
    old = f'"schema": {artifacts.Manifest.schema}'.encode()
    changed_data = data.replace(old, old[:-1] + b"9")
    found["program (`.vmfb`), its manifest"] = refused(
        lambda: artifacts.from_bytes(changed_data, "file")
    )
    assert changed_data != data and found == codes()
