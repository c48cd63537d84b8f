"""Each file of docs/examples that needs a framework runs by itself."""

import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
for package in ("jax", "onnxruntime", "onnxscript", "sklearn"):
    pytest.importorskip(package, reason=f"{package} is not installed")

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "examples"
EXAMPLES = sorted(p for kind in ("torch", "jax", "onnx") for p in FOLDER.glob(f"{kind}_*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PYC_CACHE", "0")
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    assert "assert " in path.read_text()
    runpy.run_path(str(path))


def test_there_are_five_short_ones() -> None:
    assert len(EXAMPLES) == 5
    assert all(len(path.read_text().splitlines()) <= 56 for path in EXAMPLES)
