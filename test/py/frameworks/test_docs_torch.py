"""The examples of docs/pytorch.md run, one after the other."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "pytorch.md"


def test_examples_run(monkeypatch):
    monkeypatch.setenv("PYC_CACHE", "0")
    torch._dynamo.reset()
    names = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 4
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert names["scores"].shape == (32, 10)
