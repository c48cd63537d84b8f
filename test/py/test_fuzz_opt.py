"""Mutated input never gets past pyc-opt: it is accepted, or refused with a located error.

Mutants of the .mlir tests and of pipelines run in batches, each batch in a forked child; a crash
names the seed of the mutant that caused it. 200 mutants of text, 5,000 with PYC_FULL=1.
"""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import opt_harness
import pytest
from conftest import FULL

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.pyc import new_context
from pyc_mlir.pipelines.native_names import NATIVE_PASSES
from pyc_mlir.pipelines.pass_manager import resolve
from pyc_mlir.pipelines.pipeline_text import PipelineError, parse_pipeline
from pyc_mlir.tools.guarded import Crash, run_guarded

BATCH = 50
BATCHES = range((5000 if FULL else 200) // BATCH)
LOCATED = re.compile(r"^(.+:\d+:\d+|<unknown>:0): error: .", re.M)
PASSES = (
    (),
    ("--cse", "--canonicalize"),
    ("--verify-roundtrip",),
    ("--pyc-decompose", "--cse"),
    ("--pyc-infer-shapes", "--pyc-canonicalize", "--pyc-fuse", "--convert-pyc-to-linalg"),
    ("--convert-pyc-to-linalg", "--canonicalize"),
)

TOKENS = [
    *"(){}[]<>,:=%^@#!\"'-?x01",
    *("->", "::", "//", "// -----", "{-#", "#-}", "\\", "\n", "\x00", "\xff", "é"),
    *("i32", "f32", "tensor<4xf32>", "tensor<?x-1xf32>", "tensor<4x", "index", "none"),
    *("99999999999999999999", "-1", "0x", "1e999", "dense<", "loc(", "affine_map<(d0)->(d0)>"),
    *("func.func", "return", '"pyc.add"', '"pyc.matmul"', "pyc.relu", '"pyc.reduce_sum"', "module"),
]
SEEDS = [p.read_text() for p in sorted(opt_harness.LIT_ROOT.rglob("*.mlir"))] + [
    """
func.func @f(%a: tensor<?x4xf32>, %b: tensor<4x8xf32>, %c: tensor<8xf32>) -> tensor<?x8xf32> {
  %0 = "pyc.matmul"(%a, %b) : (tensor<?x4xf32>, tensor<4x8xf32>) -> tensor<?x8xf32>
  %1 = "pyc.add"(%0, %c) : (tensor<?x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %2 = "pyc.softmax"(%1) {axis = -1 : i64} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  %3 = "pyc.transpose"(%2) {permutation = array<i64: 1, 0>} : (tensor<?x8xf32>) -> tensor<8x?xf32>
  return %2 : tensor<?x8xf32>
}
"""
]
PIPELINES = [
    "builtin.module(pyc-decompose{only=relu},func.func(cse,canonicalize{max-iterations=4}))",
    "func.func(affine-loop-tile{tile-sizes={1,2}}),inline{op-pipelines=func.func(cse)}",
    "any(cse),symbol-dce,canonicalize{disable-patterns='a b',c top-down=false}",
    "sparsifier{vl=4},convert-pyc-to-linalg,one-shot-bufferize{buffer-alignment=16}",
]
PIPELINE_TOKENS = [*"(){}[],=. '\"\n", "any", "func.func", "builtin.module", *sorted(NATIVE_PASSES)]


def mutate(rng: random.Random, text: str, others: list[str], tokens: list[str]) -> str:
    """One to four edits: delete, repeat or move a span, insert or replace a token, splice, cut."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(text))
        end = min(len(text), start + rng.choice((1, 2, 5, 20, 100)))
        span = text[start:end]
        target = rng.randint(0, len(text))
        match rng.randrange(7):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + span * rng.choice((1, 2, 50)) + text[end:]
            case 2:
                text = text[:target] + span + text[target:]
            case 3:
                text = text[:start] + rng.choice(tokens) + text[start:]
            case 4:
                text = text[:start] + rng.choice(tokens) + text[end:]
            case 5:
                other = rng.choice(others)
                cut = rng.randint(0, len(other))
                text = text[:start] + other[cut : cut + 200] + text[end:]
            case 6:
                text = text[:start]
    return text


def mutated_module(seed: int) -> str:
    """What is wrong with pyc-opt's answer to mutant `seed` ('' when nothing is)."""
    rng = random.Random(seed)
    text = mutate(rng, rng.choice(SEEDS), SEEDS, TOKENS)
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


def run_batch(
    check: Callable[[int], str], batch: int, folder: Path
) -> tuple[dict[int, str], Crash | None]:
    """Check `BATCH` seeds in a child: the failures by seed, and how the child crashed, if so."""
    report = folder / "failures.json"

    def work(progress: Callable[[int], None]) -> int:
        failures = {}
        for seed in range(batch * BATCH, (batch + 1) * BATCH):
            progress(seed)
            wrong = check(seed)
            if wrong:
                failures[seed] = wrong
        report.write_text(json.dumps(failures))
        return 0

    ended = run_guarded(work)
    if isinstance(ended, Crash):
        return {}, ended
    return json.loads(report.read_text()), None


@pytest.mark.parametrize("check", [mutated_module, mutated_pipeline])
@pytest.mark.parametrize("batch", BATCHES)
def test_mutants(check: Callable[[int], str], batch: int, tmp_path: Path) -> None:
    failures, crash = run_batch(check, batch, tmp_path)
    assert crash is None, f"mutant {crash and crash.progress}: {crash and crash.reason}"
    assert not failures
