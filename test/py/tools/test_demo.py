"""The demo: its accuracy, its verdict, and the tools that it runs."""

from importlib.util import find_spec

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.tools.bench.model import suite as bench
from pyc_mlir.tools.demo import __main__ as demo
from pyc_mlir.tools.demo.digits import MODELS, DigitImages, load_digits

# Importing it takes 0.8 s, which every process that collects tests would pay.
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="sklearn is not installed")


def test_models_answer_as_the_reference_and_tools_tell_the_rest(capsys, monkeypatch):
    measured = []
    monkeypatch.setattr(bench, "run", measured.append)
    assert demo.main(["--rounds", "2"]) == 0
    text = capsys.readouterr().out
    assert text.count("360 of 360 answers are the same") == 2
    assert text.count(" images: ") == text.count(", bare ") == 4
    assert "digits_cnn.onnx: a call needs " in text and "decisions by layer" in text
    assert "\n  conv1\n" in text, "decisions have the names of the model's nodes"
    flags = ["--dim", "batch=1,360", "--against", "iree", "--rounds", "2"]
    assert measured == [[str(path), *flags] for path in MODELS.values()]


def test_verdict_needs_the_reference_accuracy(capsys):
    _, images = load_digits()
    few = DigitImages(images.pixels[:20], images.labels[:20])
    program = pyc_mlir.compile(MODELS["mlp"], [few.pixels.shape])
    assert demo.accuracy({"mlp": program}, few) == 0

    def reversed_answers(pixels: np.ndarray) -> np.ndarray:
        return program(pixels)[:, ::-1]

    assert demo.accuracy({"mlp": reversed_answers}, few) == 1  # pyright: ignore[reportArgumentType]
    assert "mlp: expected the accuracy of the reference" in capsys.readouterr().err


def test_bad_command_line(capsys):
    assert demo.main(["--nonsense"]) == 2
    assert "[BAD_ARGUMENT]" in capsys.readouterr().err
