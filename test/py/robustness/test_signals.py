"""A tool that is ended by a signal leaves no process, no half of a file and no late one."""

from pathlib import Path

import pytest
from conftest import sample
from scenarios import count_of
from signalled import JOBS, disturbed, prepared, undisturbed

ROUNDS = count_of("signals at random moments")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("inputs")
    prepared(made)
    return made


@pytest.mark.parametrize("name", sample(list(JOBS), 4))
@pytest.mark.full
@pytest.mark.alone
def test_a_tool_under_signals(name: str, folder: Path, tmp_path: Path, record_property) -> None:
    job = JOBS[name]
    reference = undisturbed(job, folder, tmp_path)
    wrong = [(s, w) for s in range(ROUNDS) if (w := disturbed(job, folder, tmp_path, s, reference))]
    assert not wrong
    record_property("signals at random moments", {name: ROUNDS})
