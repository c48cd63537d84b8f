"""Mutants of texts, checked in batches in children, so that a crash or a hang names its seed."""

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import opt_harness
import pytest

from pyc_mlir.tools.guarded import Crash, run_guarded

BATCH = 50
# A mutant that computes or waits longer hangs; the machine may have much else to do.
CPU_SECONDS, WALL_SECONDS = 10, 120

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


def mutated_text(rng: random.Random) -> str:
    """A mutant of one of the .mlir tests."""
    return mutate(rng, rng.choice(SEEDS), SEEDS, TOKENS)


def run_batch(
    check: Callable[[int], str], batch: int, folder: Path
) -> tuple[dict[int, str], Crash | None]:
    """Check `BATCH` seeds in a child: the failures by seed, and how the child crashed, if so."""
    report = folder / "failures.json"

    def work(progress: Callable[[int], None]) -> int:
        failures = {}
        for seed in range(batch * BATCH, (batch + 1) * BATCH):
            progress(seed)
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            signal.alarm(WALL_SECONDS)
            wrong = check(seed)
            if wrong:
                failures[seed] = wrong
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        report.write_text(json.dumps(failures))
        return 0

    ended = run_guarded(work)
    if isinstance(ended, Crash):
        return {}, ended
    return json.loads(report.read_text()), None


def require_all_right(check: Callable[[int], str], batch: int, folder: Path) -> None:
    """Fail for a mutant that `check` finds wrong, crashes or hangs, and name its seed."""
    failures, crash = run_batch(check, batch, folder)
    if crash is not None:
        pytest.fail(f"mutant {crash.progress}: {crash.reason}")
    assert not failures, failures
