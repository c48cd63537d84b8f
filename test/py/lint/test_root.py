"""Nothing stands at the root of the project but what belongs there."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# The folders of the project, and files that people and tools look for at a root.
FOLDERS = {
    *(".ci", ".github", "dialects", "docs", "pipelines", "pyc_mlir"),
    *("test", "tools", "typings"),
}
FILES = {
    *(".editorconfig", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("LICENSE", "Makefile", "README.md", "SECURITY.md", "mkdocs.yml", "pyproject.toml"),
}


def test_the_root_holds_what_belongs_there():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = {path.partition("/")[0] for path in listed.stdout.split("\0") if path}
    assert found == FOLDERS | FILES
