"""Mutants of texts, checked in batches, each in a process: a crash or a hang names its seed."""

import importlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import opt_harness
import pytest

HERE = Path(__file__).parent
BATCH = 50
# A mutant that computes or waits longer hangs; the machine may have much else to do.
CPU_SECONDS, WALL_SECONDS = 10, 120
_SEED = "seed"

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


def require_all_right(check: Callable[[int], str], batch: int, folder: Path) -> None:
    """Fail for a mutant that `check` finds wrong, crashes or hangs, and name its seed.

    The batch is checked in a process of its own, which has no threads to begin with, in `folder`.
    """
    first = batch * BATCH
    command = [sys.executable, __file__, check.__module__, check.__name__, str(first)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    seed = (folder / _SEED).read_text() if (folder / _SEED).is_file() else "none"
    if run.returncode:
        pytest.fail(f"mutant {seed}: ended with {run.returncode}\n{run.stderr[-2000:]}")
    failures = json.loads(run.stdout.splitlines()[-1])
    assert not failures, failures


def main() -> None:
    """Check a batch of a test module's function; `warm_up` of the module is called before."""
    module_name, name, first = sys.argv[1:]
    sys.path[:0] = sorted({str(path.parent) for path in HERE.parent.rglob("*.py")})
    module = importlib.import_module(module_name)
    getattr(module, "warm_up", lambda: None)()
    failures = {}
    for seed in range(int(first), int(first) + BATCH):
        Path(_SEED).write_text(str(seed))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.alarm(WALL_SECONDS)
        wrong = getattr(module, name)(seed)
        if wrong:
            failures[seed] = wrong
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
