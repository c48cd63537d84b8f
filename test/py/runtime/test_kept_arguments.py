"""A call leaves its arguments as they are, whatever the program writes in place."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compiled import add_function

from pyc_mlir import compile
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import serving

Write = Callable[[Any], Any]
ROWS = np.array([1, -1, 9, 1])
STARTS = np.array([2, 1])
# What every call takes besides the arguments that it writes a part of.
BEHIND = 3


@dataclass(frozen=True)
class Writer:
    """Builds programs out of one op that writes a part of its first operand."""

    b: IRBuilder
    op: str
    rest: tuple[Any, ...]
    params: dict[str, str]

    def write(self, x: Any) -> Any:
        return self.b.build(OPS[self.op], x, *self.rest, **self.params)

    def forms(self) -> list[Write]:
        """The op alone, again and again, with others in front of it and behind."""
        build, write = self.b.build, self.write

        def read_between(x: Any) -> Any:
            first = write(x)
            return build(OPS["add"], write(build(OPS["abs"], first)), write(first))

        once: list[Write] = [
            write,
            lambda x: build(OPS["relu"], write(x)),
            lambda x: build(OPS["add"], write(x), x),
            lambda x: write(build(OPS["abs"], x)),
        ]
        # IREE has no code for two scatters of unknown sizes in a row.
        known = self.op != "scatter" or self.b.type_of(self.rest[1]).dtype != np.float32
        return [*once, lambda x: write(write(x)), read_between] if known else once


def results(
    b: IRBuilder, op: str, arguments: Sequence[Any], update: Any, starts: Any, rows: Any
) -> Iterator[Any]:
    """Each form of an op, on an argument of its own."""
    given = iter(arguments)
    part = b.build(OPS["slice"], update, starts=(0, 0), stops=(2, 2), steps=(1, 1))
    rest = {"update_slice": (part, starts), "scatter": (rows, update)}[op]
    for form in Writer(b, op, rest, {}).forms():
        yield form(next(given))
    x = next(given)
    yield from (Writer(b, op, rest, {}).write(x), x)
    for reduction in ("add", "mul", "min", "max") if op == "scatter" else ():
        yield Writer(b, op, rest, {"reduction": reduction}).write(next(given))


# How many arguments that takes at most.
WRITTEN = 11


def source(op: str, x: TensorType, update: TensorType) -> str:
    i64 = np.dtype(np.int64)
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [*[x] * WRITTEN, update, TensorType((2,), i64), TensorType((4,), i64)]
        add_function(
            module, "main", types, lambda b, *v: list(results(b, op, v[:-BEHIND], *v[-BEHIND:]))
        )
        return str(module)


def arrays_of(dtype: np.dtype) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    xs = [rng.integers(-4, 5, (8, 4)).astype(dtype) for _ in range(WRITTEN)]
    return [*xs, rng.integers(-4, 5, (4, 4)).astype(dtype), STARTS, ROWS]


class OnlyDlpack:
    """An array that tells nothing but its DLPack memory."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


# bf16 where sizes are static: numpy cannot read its DLPack memory, so that it is shared.
CASES = {
    "static": (TensorType((8, 4), np.dtype(ml_dtypes.bfloat16)), {}),
    "dynamic": (TensorType((None, 4), np.dtype(np.float32)), {}),
    "by IREE alone": (TensorType((8, 4), np.dtype(np.float32)), {"planner_mode": "iree"}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", ["update_slice", "scatter"])
@pytest.mark.parametrize("case", CASES)
def test_arguments_keep_their_bits(case, op):
    x, options = CASES[case]
    text = source(op, x, TensorType((4, 4), x.dtype))
    program = compile(text, device=Device("local-sync"), cache=False, **options)
    given = arrays_of(x.dtype)
    with new_context():
        expected = interpret(ir.Module.parse(text), given)
    on_device = [to_device(a, program.device) for a in given]
    calls: dict[str, Callable[[], Any]] = {
        "main": lambda: serving(program).run(on_device),
        "device arrays": lambda: program(*on_device),
        "DLPack": lambda: program(*map(OnlyDlpack, on_device)),
        "numpy": lambda: program(*given),
    }
    arena = program._plans.current.arena
    # What is written in place has its place in memory of the caller.
    assert case != "static" or (arena is not None and 0 in arena.facts.buffers)
    if arena is not None:
        outputs = [to_device(np.zeros_like(e), program.device) for e in expected]
        calls["arena"] = lambda: arena.call(on_device, arena.needs(on_device))
        calls["out"] = lambda: program(*on_device, out=outputs)
    for name, call in calls.items():
        for number, (got, want) in enumerate(zip(call(), expected, strict=True)):
            np.testing.assert_array_equal(np.asarray(got), want, f"{name}: result {number}")
        for number, (array, want) in enumerate(zip(on_device, arrays_of(x.dtype), strict=True)):
            assert array.numpy().tobytes() == want.tobytes(), f"{name}: argument {number}"
            assert given[number].tobytes() == want.tobytes(), f"{name}: argument {number}"
