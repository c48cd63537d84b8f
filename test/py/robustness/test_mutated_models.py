"""Mutated models end in a program or in an error with a code: no crash, no hang, nothing else.

Mutants of .mlir files and of ONNX models go as far as linalg.
"""

import random
from functools import cache
from pathlib import Path

import onnx
import onnx_mutants
import pytest
from mutation import BATCH, mutated_text, require_all_right
from scenarios import count_of

from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError

TEXTS, PROTOS = count_of("mutated `.mlir`"), count_of("mutated ONNX models")


@cache
def originals() -> list[onnx.ModelProto]:
    return onnx_mutants.originals()


def warm_up() -> None:
    """What is loaded late is loaded before any mutant is timed."""
    lower(Job.of(originals()[0], None, make_options(target="cpu-avx2")))
    outcome("func.func @main() { return }\n")


def outcome(source: str | bytes) -> str:
    """What is wrong with how the front takes a model ('' when nothing is)."""
    try:
        lower(Job.of(source, None, make_options(target="cpu-avx2")))
    except PycError as error:
        return "" if error.message else "no message"
    except Exception as error:  # noqa: BLE001  (what it must not be is what is asked)
        return f"{type(error).__name__}: {error}"[:500]
    return ""


def mutated_mlir(seed: int) -> str:
    # The module's own text in its first line is no path.
    return outcome(mutated_text(random.Random(seed)) + "\n")


def mutated_onnx(seed: int) -> str:
    return outcome(onnx_mutants.mutant(seed, originals()))


@pytest.mark.parametrize("batch", range(TEXTS // BATCH))
@pytest.mark.full
def test_mutated_mlir(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_mlir, batch, tmp_path)


@pytest.mark.parametrize("batch", range(PROTOS // BATCH))
@pytest.mark.full
def test_mutated_onnx(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_onnx, batch, tmp_path)


def test_originals_compile():
    """So that what is refused is refused for the mutation."""
    for proto in originals():
        lowered = lower(Job.of(proto, None, make_options(target="cpu-avx2")))
        assert len(lowered.signature.outputs) == len(proto.graph.output)
