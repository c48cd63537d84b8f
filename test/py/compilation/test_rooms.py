"""The files that a compile of an ONNX model passes on its way to linalg (test/house.py)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from house import rooms


def test_a_compile_passes_few_files_and_rarely_comes_back():
    """At most so many: a file more on the way, or a call back into one, says what it is worth."""
    found = rooms()
    assert found["rooms without the importer's"] <= 17
    assert found["returns without the importer's"] <= 14
    assert found["rooms"] <= 31 and found["returns"] <= 57
