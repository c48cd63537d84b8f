"""The files of docs/examples that need no framework run by themselves; the page names all files."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
WITHOUT_FRAMEWORKS = ("deploy", "memory_budget", "own_choice")


@pytest.mark.parametrize("name", WITHOUT_FRAMEWORKS)
def test_example(name, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYC_CACHE", "0")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert capsys.readouterr().out


def test_the_page_names_every_file():
    page = EXAMPLES.with_suffix(".md").read_text()
    named = set(re.findall(r"\(examples/(\w+)\.py\)", page))
    assert named == {path.stem for path in EXAMPLES.glob("*.py")}
