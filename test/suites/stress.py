"""Random calls of one program, each compared with numpy: sizes, layouts and memory of any kind.

What a call may do wrong is to answer something else without a word: a silent mismatch. Refusals are
counted by their codes.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import pyc_mlir
from pyc_mlir import Program, PycError, TensorSpec
from pyc_mlir.runtime.array import Array, to_device

_COLUMNS, _MOST = 8, 40
# Sizes beyond the declared range are drawn too; calls of them are refused.
_DRAWN = _MOST + 4


@dataclass
class Stressed:
    """The outcomes of the calls: right answers, silent mismatches, refusals by code."""

    right: int = 0
    silent_mismatches: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def program_of_rows() -> Program:
    """Return a program of three results for 1 to `_MOST` rows."""
    spec = TensorSpec("f32", "n", _COLUMNS)
    return pyc_mlir.compile(_rows, [spec, spec], dims={"n": (1, _MOST)})


def _rows(x: Any, y: Any) -> Any:
    return x + y, x * 2.0, np.maximum(x, y)


def stress(program: Program, calls: int, seed: int = 0) -> Stressed:
    """Call a program of `program_of_rows` at random; compare each answer with numpy's."""
    rng, found = np.random.default_rng(seed), Stressed()
    ways = list(_WAYS.values())
    for _ in range(calls):
        x, y = _input(rng), _input(rng)
        if rng.random() < 0.9:
            y = y[: len(x)] if len(y) > len(x) else y
            x = x[: len(y)]
        expected = [np.array(v) for v in _rows(x, y)] if len(x) == len(y) else None
        try:
            answer = ways[rng.integers(len(ways))](program, rng, x, y)
        except PycError as error:
            found.refused[error.code.name] += 1
            continue
        same = expected is not None and all(
            np.array_equal(np.asarray(a), b) for a, b in zip(answer, expected, strict=True)
        )
        found.right += same
        found.silent_mismatches += not same
    return found


def _input(rng: np.random.Generator) -> np.ndarray:
    """Return rows in one of the layouts that numpy has."""
    rows = int(rng.integers(0, _DRAWN))
    base = rng.integers(-64, 64, (2 * rows + 1, 2 * _COLUMNS)).astype(np.float32)
    match rng.integers(5):
        case 0:
            return base[:rows, :_COLUMNS].copy()
        case 1:
            return base[: 2 * rows : 2, ::2]
        case 2:
            return base[:rows, :_COLUMNS][::-1]
        case 3:
            return np.asfortranarray(base[:rows, :_COLUMNS])
        case _:
            return np.broadcast_to(base[:1, :_COLUMNS], (rows, _COLUMNS))


def _plain(program: Program, rng: np.random.Generator, x: Any, y: Any) -> Any:
    return program(x, y)


def _same_array(program: Program, rng: np.random.Generator, x: Any, y: Any) -> Any:
    """Give one array of the device for both arguments, where they are equal."""
    a = to_device(x, program.device)
    return program(a, a if np.array_equal(x, y) else y)


def _out(program: Program, rng: np.random.Generator, x: Any, y: Any) -> Any:
    """Take results in memory of the caller; sometimes it is an input's, or another result's."""
    outs = [np.empty((len(x), _COLUMNS), np.float32) for _ in range(3)]
    if rng.random() < 0.3 and x.flags.writeable:
        outs[int(rng.integers(3))] = x
    if rng.random() < 0.2:
        outs[1] = outs[0]
    return program(x, y, out=outs)


def _device_out(program: Program, rng: np.random.Generator, x: Any, y: Any) -> Any:
    a, b = to_device(x, program.device), to_device(y, program.device)
    outs: list[Array | None] = [None, None, to_device(np.zeros_like(x), program.device)]
    if rng.random() < 0.3:
        outs[int(rng.integers(2))] = a if rng.random() < 0.5 else outs[2]
    return program(a, b, out=outs)


def _donated(program: Program, rng: np.random.Generator, x: Any, y: Any) -> Any:
    a, b = to_device(x, program.device), to_device(y, program.device)
    return program(a, b, donate=[int(rng.integers(2))])


def _again(program: Program, rng: np.random.Generator, x: Any, y: Any) -> Any:
    """Give a result to the next call, which must not change the first one's."""
    doubled = program(to_device(x, program.device), y)[1]
    answer = program(x, y)
    program(doubled, doubled)
    return answer


Way = Callable[[Program, np.random.Generator, Any, Any], Any]
_WAYS: dict[str, Way] = {
    "plain": _plain,
    "same array": _same_array,
    "out": _out,
    "out on the device": _device_out,
    "donated": _donated,
    "again": _again,
}
