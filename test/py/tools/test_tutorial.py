"""What the documents show runs: their Python and shell blocks, in order, with what they print.

A block marked ``text`` is the output of the block before it; ``...`` stands for anything. The
blocks of a document share one interpreter and one empty folder.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = ("README.md", "docs/tutorial.md")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RUNS = ("python", "sh")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line where it begins."""

    language: str
    text: str
    line: int


def blocks_of(text: str) -> list[Block]:
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]


def matches(expected: str, got: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, got.strip(), re.DOTALL) is not None


def run_block(block: Block, path: str, names: dict) -> str:
    """What the block prints."""
    if block.language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", block.text]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{path}:{block.line}: {done.stdout}{done.stderr}"
        return done.stdout
    printed = io.StringIO()
    source = "\n" * (block.line - 1) + block.text
    with contextlib.redirect_stdout(printed):
        exec(compile(source, path, "exec"), names)
    return printed.getvalue()


def run_document(path: str) -> None:
    """Run every block; the first one that fails or prints something else ends the run."""
    names: dict = {"__name__": "__document__"}
    printed = ""
    for block in blocks_of(Path(path).read_text()):
        if block.language in _RUNS:
            printed = run_block(block, path, names)
        elif block.language == "text":
            message = f"{path}:{block.line}: expected\n{block.text}\ngot\n{printed}"
            assert matches(block.text, printed), message


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.full
def test_document_runs(document, tmp_path):
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {
        **os.environ,
        "PATH": tools,
        "PYTHONPATH": os.pathsep.join(
            (str(ROOT / "test" / "py" / "support"), str(Path(__file__).parent))
        ),
    }
    code = f"import test_tutorial; test_tutorial.run_document({str(ROOT / document)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_documents_have_blocks_and_only_known_languages():
    for document in DOCUMENTS:
        languages = {b.language for b in blocks_of((ROOT / document).read_text())}
        assert languages & set(_RUNS), document
        assert languages <= {*_RUNS, "text", "toml", ""}, document


def test_expected_output_is_compared():
    assert matches("a\n...\nc\n", "a\nb\nb\nc\n") and not matches("a\n...\nc\n", "a\nb\n")
    assert [b.line for b in blocks_of("one\n```python\nx\n```\n```text\ny\n```\n")] == [3, 6]
