"""A database of an earlier PyC: every command prints what that PyC printed, and studies go on.

`support/stored/` was written by commit 9e096e6f: a study, promotions with a rollback, baselines, a
selector's windows, wisdom; `printed.json` has what its commands printed.
"""

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from lane_sessions import BETTER, OTHER
from simulated_studies import setting_of, studied, work

from pyc_mlir.lab.evidence.database.exchange import export_wisdom, import_wisdom
from pyc_mlir.lab.evidence.database.store import EvidenceStore, problems
from pyc_mlir.lab.evidence.rows import STABLE, State, Study
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.tools import pyc_tune

STORED = Path(__file__).parents[1] / "support/stored"
PRINTED = json.loads((STORED / "printed.json").read_text())


@pytest.fixture
def url(tmp_path):
    path = tmp_path / "pyc.db"
    path.write_bytes(gzip.decompress((STORED / "pyc.db.gz").read_bytes()))
    return f"sqlite:///{path}"


@pytest.mark.parametrize("command", PRINTED)
def test_commands_print_what_they_printed(url, command, capsys):
    status, text = PRINTED[command]
    assert pyc_tune.main(["--db", url, *command.split()]) == status
    assert capsys.readouterr().out.replace(url, "DB") == text


def test_a_study_goes_on_with_what_was_measured(url):
    """Searches, ranking and verdicts follow from the stored costs: nothing is measured again."""

    def unasked(subject, candidate):
        raise AssertionError("nothing is left to measure")

    with EvidenceStore.open(url) as store:
        before = store.counts()
    _, results = studied(url, setting_of(tuple(map(work, range(2))), 24), unasked)
    assert [r.changed for r in results] == [True, True]
    with EvidenceStore.open(url) as store:
        assert store.counts() == before and not list(problems(store))


def test_the_page_of_a_study_is_the_same(url, tmp_path):
    with EvidenceStore.open(url) as store:
        (study,) = store.find(Study, strategy="local")
    page = tmp_path / "page.html"
    assert pyc_tune.main(["--db", url, "report", study.id[:12], "-o", str(page)]) == 0
    assert page.read_bytes() == gzip.decompress((STORED / "page.html.gz").read_bytes())


def test_wisdom_is_exported_as_it_was_and_read(url, tmp_path):
    stored = Wisdom.load(STORED / "wisdom.json")
    with EvidenceStore.open(url) as store:
        assert {*stored.rows} <= {*export_wisdom(store).rows}
    with EvidenceStore.open(f"sqlite:///{tmp_path}/other.db") as other:
        assert import_wisdom(other, stored) > 0


def test_a_promotion_and_its_rollback_stand(url):
    with EvidenceStore.open(url) as store:
        (state,) = store.states(impl_id=OTHER.id, lane=STABLE)
        assert state.state == State.SHADOW
        assert [s.impl_id for s in store.states(lane=STABLE, state="promoted")] == [BETTER.id]
