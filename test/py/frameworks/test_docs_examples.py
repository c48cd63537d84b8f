"""Each example of docs/examples.md runs by itself."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
for package in ("jax", "onnxruntime", "onnxscript", "sklearn"):
    pytest.importorskip(package, reason=f"{package} is not installed")

PAGE = Path(__file__).resolve().parents[3] / "docs" / "examples.md"
EXAMPLES = re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.M)


@pytest.mark.parametrize("code", [c for _, c in EXAMPLES], ids=[title for title, _ in EXAMPLES])
def test_example(code: str, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PYC_CACHE", "0")
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    assert "assert " in code
    exec(compile(code, str(PAGE), "exec"), {})


def test_there_are_five_short_ones() -> None:
    assert len(EXAMPLES) == 5
    assert all(len(code.splitlines()) <= 48 for _, code in EXAMPLES)
