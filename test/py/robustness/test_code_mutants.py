"""The mutator of the compiler's own code: what it changes, and that a process imports it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import code_mutants
import pytest
from code_mutants import KINDS, mutants_of

ROOT = Path(__file__).resolve().parents[3]
CODE = '''
"""A text of 3 words."""
from typing import Literal
LIMIT = 8

@cached
def f(x: Literal[1], é: float = 0.5) -> int:
    if x is None: return é
    if not x < len(rows):
        raise ValueError(f"expected {3}")
    assert x < 5
    a = [y for y in x if y]
    y = min(max(0, x), LIMIT), arith("minsi", x, last), max(rows)
    return x.clip(0, k), np.clip(a, 1, 2)
'''
EXPECTED = [
    (4, "constant", "8 -> (9)", ()),
    (7, "constant", "0.5 -> (1.0)", (6,)),
    (8, "guard", "x is None -> (x is None and False)", (6,)),
    (9, "guard", "not x < len(rows) -> (not x < len(rows) and False)", (6,)),
    (9, "comparison", "x < len(rows) -> (x <= len(rows))", (6,)),
    (12, "guard", "y -> (y or True)", (6,)),
    (13, "clamp", "min(max(0, x), LIMIT) -> (max(0, x))", (6,)),
    (13, "clamp", "max(0, x) -> (x)", (6,)),
    (13, "constant", "0 -> (1)", (6,)),
    (13, "clamp", 'arith("minsi", x, last) -> (x)', (6,)),
    (14, "clamp", "x.clip(0, k) -> (x)", (6,)),
    (14, "constant", "0 -> (1)", (6,)),
    (14, "clamp", "np.clip(a, 1, 2) -> (a)", (6,)),
    (14, "constant", "1 -> (2)", (6,)),
    (14, "constant", "2 -> (3)", (6,)),
]  # fmt: skip


def test_each_kind_of_place_is_changed_and_texts_are_not() -> None:
    found = mutants_of("a.py", CODE)
    assert [(m.line, m.kind, f"{m.before} -> {m.after}", m.functions) for m in found] == EXPECTED


def test_every_mutant_is_python() -> None:
    file = Path(code_mutants.__file__)
    text = file.read_text().encode()
    found = mutants_of(file.name, file.read_text())
    assert {m.kind for m in found} >= set(KINDS) - {"clamp"}
    for m in found:
        changed = text[: m.start] + m.after.encode() + text[m.end :]
        compile(changed, file.name, "exec")
        assert " ".join(text[m.start : m.end].decode().split()) == m.before


@pytest.mark.full
def test_a_process_imports_the_change_and_the_file_stays() -> None:
    path = "pipelines/memory/planner/validate.py"
    file = ROOT / path
    before = file.read_bytes()
    (shown,) = [m for m in mutants_of(path, before.decode()) if m.before == "8"]
    change = {"file": str(file), "start": shown.start, "end": shown.end, "after": shown.after}
    code = "from pyc_mlir.pipelines.memory.planner.validate import SHOWN; print(SHOWN)"
    site = str(ROOT / "test" / "py" / "support" / "mutant_site")
    got = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": site, "PYC_MUTANT": json.dumps(change)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert got.stdout == "9\n" and file.read_bytes() == before
