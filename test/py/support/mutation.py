"""Mutants of texts and of JSON, and checks of many cases in child processes.

A case that crashes or hangs is wrong as one with a wrong answer is, and the next ones go on.
"""

import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import opt_harness

from pyc_mlir import PycError

BATCH = 50
# A case that computes or waits longer hangs; the machine may have much else to do.
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


def mutated_bytes(draw: random.Random, data: bytes) -> bytes:
    """One to four places replaced by random bytes, cut or made longer."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        changed[place : place + draw.choice((0, 1, 8))] = draw.randbytes(draw.choice((0, 1, 1, 9)))
    return bytes(changed)


# Values of JSON that are odd where others stand.
NUMBERS = (
    -1, 0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 4096, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40,
    (1 << 47) + 1, 1 << 52, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 10**40, 10**400, -(1 << 63),
    8.0, 0.5, 1e308, -1e308, float("inf"), True, "8", "n", "m", None, [8], {"size": 8},
)  # fmt: skip
TEXTS = (
    "", "x", "main", "main$arena", "main$arena.memory_first", "__init",
    "main$arena_transients_size",
    "f64", "f16", "i1", "i8", "i64", "bf16", "cuda", "local", "balanced", "memory_first", "strict",
    "é\0", "\x1b[31m", "\n", "a" * 100_000, None, 0, 1.5, [], {}, ["x"], True, "../..", "%s{0}",
)  # fmt: skip
OTHERS = (
    None, 0, -1, "x", [], {}, [[]], [None], [None, "x", -1], {"": None}, {"x": []}, 10**40, 0.5,
    True, float("nan"),
)  # fmt: skip
SHAPES = (
    [], [4], [4, 1 << 31], [None, 8], ["n", 8], ["n", "n"], [8, "n"], ["n", 1 << 31], [1 << 52],
    [1 << 31] * 9, [0], [0, 1 << 62], ["n", 8, 1], [1] * 65, [-1, 8], [5, 8],
)  # fmt: skip
Place = tuple[Any, Any]


def places(value: Any) -> list[Place]:
    """Every place in plain data: what holds it, and under which key."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    return found + [p for k in keys if isinstance(value[k], dict | list) for p in places(value[k])]


def _there(holder: Any, key: Any) -> bool:
    return key in (holder if isinstance(holder, dict) else range(len(holder)))


def _odd_for(key: Any, value: Any) -> tuple[Any, ...]:
    if key == "shape":
        return SHAPES
    if isinstance(value, str):
        return TEXTS
    return NUMBERS if type(value) in (int, float) or value is None else OTHERS


def mutate_place(draw: random.Random, holder: Any, key: Any, known: Sequence[Place]) -> None:
    """Take away the value of a place, or put there what is odd, nested, longer or of elsewhere."""
    if not _there(holder, key):
        return
    value, how = holder[key], draw.random()
    if how < 0.08:
        del holder[key]
    elif how < 0.14:
        other, name = draw.choice(known)
        # A copy: no data of JSON holds itself.
        holder[key] = json.loads(json.dumps(other[name])) if _there(other, name) else None
    elif how < 0.18:
        nested: Any = value
        for _ in range(draw.choice((1, 2, 500))):
            nested = [nested] if draw.random() < 0.5 else {"x": nested}
        holder[key] = nested
    elif how < 0.24 and isinstance(value, list | dict):
        more = deepcopy(draw.choice(OTHERS))
        if isinstance(value, list):
            value.extend([*value[:2], more])
        else:
            value[draw.choice(["x", "main$arena.x", "n"])] = more
    else:
        holder[key] = deepcopy(draw.choice(_odd_for(key, value)))


def mutated_json(draw: random.Random, data: bytes) -> bytes:
    """A text of JSON with one to three places changed; or deep nesting."""
    value = json.loads(data)
    if draw.random() < 0.03:
        return b"[" * 100_000 + b"]" * 100_000
    known = places(value)
    for _ in range(draw.randint(1, 3) if known else 0):
        mutate_place(draw, *draw.choice(known), known)
    return json.dumps(value).encode()


def reported(work: Callable[[], object]) -> str:
    """The fault in how something is taken: all but an answer, or an error with a message."""
    try:
        work()
    except PycError as error:
        return "" if error.message else "no message"
    except Exception as error:  # noqa: BLE001  (what it must not be is what is asked)
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{place.filename}:{place.lineno}: {type(error).__name__}: {error}"[:300]
    return ""


def limit_memory(room_bytes: int) -> None:
    """Let this process have so many bytes more than it has now."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + room_bytes, hard))


def wrong_cases(
    check: Callable[[Any], str],
    cases: Iterable[int | str],
    folder: Path,
    seconds: tuple[int, int] = (CPU_SECONDS, WALL_SECONDS),
) -> Mapping[int | str, str]:
    """Return what `check`, a function of a test module, finds wrong, by case.

    It runs in processes of its own, which have no threads to begin with, in `folder`; `warm_up` of
    its module is called before. seconds: that a case may compute, and wait.
    """
    found, left = {}, list(cases)
    while left:
        command = [sys.executable, __file__, check.__module__, check.__name__, *map(str, seconds)]
        run = subprocess.run(
            command, cwd=folder, input=json.dumps(left), capture_output=True, text=True
        )
        answers = dict(map(json.loads, run.stdout.splitlines()))
        assert answers, run.stderr
        ended = f"ended the process with {run.returncode}\n{run.stderr[-2000:]}"
        found |= {case: ended if answer is None else answer for case, answer in answers.items()}
        left = [case for case in left if case not in found]
    return {case: answer for case, answer in found.items() if answer}


def require_all_right(check: Callable[[int], str], batch: int, folder: Path) -> None:
    """Fail for a mutant of this batch that `check` finds wrong, crashes or hangs."""
    wrong = wrong_cases(check, range(batch * BATCH, (batch + 1) * BATCH), folder)
    assert not wrong, "\n".join(f"mutant {seed}: {answer}" for seed, answer in wrong.items())


def main() -> None:
    """Check the cases on standard input; tell when each begins, and what is wrong with it."""
    module_name, name, cpu, wall = sys.argv[1:]
    # What a case prints is not an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = sorted({str(path.parent) for path in tests.rglob("*.py")})
    module = importlib.import_module(module_name)
    getattr(module, "warm_up", lambda: None)()
    for case in json.loads(sys.stdin.read()):
        print(json.dumps([case, None]), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_PROF, int(cpu))
        signal.alarm(int(wall))
        print(json.dumps([case, getattr(module, name)(case)]), file=answers, flush=True)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)


if __name__ == "__main__":
    main()
