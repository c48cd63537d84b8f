"""Mutated input never gets past pyc-opt: it is accepted, or refused with a located error.

Mutants of the .mlir tests and of pipelines run in batches, each in a process; a crash
names the seed of the mutant that caused it. 100 mutants of text, 5,000 with PYC_FULL=1.
"""

import random
import re
from collections.abc import Callable
from pathlib import Path

import opt_harness
import pytest
from conftest import FULL
from mutation import BATCH, mutate, mutated_text, require_all_right

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.driver.pass_manager import resolve
from pyc_mlir.pipelines.driver.pipeline_text import PipelineError, parse_pipeline
from pyc_mlir.pipelines.driver.registry import NATIVE_PASSES

BATCHES = range((5000 if FULL else 100) // BATCH)
LOCATED = re.compile(r"^(.+:\d+:\d+): error: .", re.M)
PASSES = (
    (),
    ("--cse", "--canonicalize"),
    ("--verify-roundtrip",),
    ("--pyc-decompose", "--cse"),
    ("--pyc-infer-shapes", "--pyc-canonicalize", "--pyc-fuse", "--convert-pyc-to-linalg"),
    ("--convert-pyc-to-linalg", "--canonicalize"),
)

PIPELINES = [
    "builtin.module(pyc-decompose{only=relu},func.func(cse,canonicalize{max-iterations=4}))",
    "func.func(affine-loop-tile{tile-sizes={1,2}}),inline{op-pipelines=func.func(cse)}",
    "any(cse),symbol-dce,canonicalize{disable-patterns='a b',c top-down=false}",
    "sparsifier{vl=4},convert-pyc-to-linalg,one-shot-bufferize{buffer-alignment=16}",
]
PIPELINE_TOKENS = [*"(){}[],=. '\"\n", "any", "func.func", "builtin.module", *sorted(NATIVE_PASSES)]


def mutated_module(seed: int) -> str:
    """What is wrong with pyc-opt's answer to mutant `seed` ('' when nothing is)."""
    rng = random.Random(seed)
    text = mutated_text(rng)
    data = text.encode("latin-1" if rng.random() < 0.05 else "utf-8", errors="replace")
    flags = [*rng.choice(PASSES), *rng.choice(((), ("--split-input-file",)))]
    result = opt_harness.run_opt(flags, data)
    if result.status == 0:
        return ""
    return "" if LOCATED.search(result.err) else f"{flags}: no located error: {result.err[:500]}"


def mutated_pipeline(seed: int) -> str:
    """The same for a mutated pipeline."""
    rng = random.Random(seed)
    text = mutate(rng, rng.choice(PIPELINES), PIPELINES, PIPELINE_TOKENS)
    try:
        resolve(parse_pipeline(text), new_context())
    except PipelineError as error:
        return "" if error.message.endswith("^") else f"no caret: {error.message}"
    except PycError as error:
        return f"{text!r}: {error}"
    return ""


@pytest.mark.parametrize("check", [mutated_module, mutated_pipeline])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.full
def test_mutants(check: Callable[[int], str], batch: int, tmp_path: Path) -> None:
    require_all_right(check, batch, tmp_path)
