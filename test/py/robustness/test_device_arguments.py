"""Random programs that write a part of a value, called with every kind of array that callers have.

Places to write at are arguments too, within the array and out of it. Whatever memory an argument
lies in, the answer is that of the references, and the argument keeps its bits.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from random_graphs import Drawing, Graph, Rejected, Value
from random_ops import FLOATS, I64, NUMBERS, number, propose, ranked

import pyc_mlir
from pyc_mlir import Device, PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.runtime.array import import_dlpack, to_device

FIRST_SEED, BATCH = 110_003, 20 if FULL else 4
REDUCTIONS = ("none", "add", "mul", "min", "max")
KINDS: dict[str, Callable[[np.ndarray, Device], Any]] = {
    "numpy": lambda array, _: array.copy(),
    "device": to_device,
    "DLPack of a device array": lambda array, device: import_dlpack(
        to_device(array, device), device
    ),
}
WAYS: Sequence[dict[str, Any]] = (
    {},
    {"planner_mode": "memory_first"},
    {"kernels": "iree"},
    {"planner_mode": "latency_first", "device": Device("local-task")},
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Mean of empty slice"),
    pytest.mark.filterwarnings("ignore:.*encountered"),
]


def write(d: Drawing) -> None:
    """update_slice or scatter of a value that the program computed, at places of the arguments."""
    x = d.pick(lambda v: ranked(v) and number(v) and v.depth > 0)
    value = d.value(x)
    if d.chance(0.5):
        shape = [1 if s is None else d.random.randint(0, s) for s in value.shape]
        starts = d.pick(lambda v: v.dtype == I64 and v.array.shape == (value.rank,))
        d.add("update_slice", x, update(d, value, shape), starts)
        return
    rows = d.pick(lambda v: v.dtype == I64 and v.declared.rank == 1 and v.declared.is_static)
    if None in value.shape[1:]:
        raise Rejected
    shape = [d.value(rows).array.size, *value.array.shape[1:]]
    reduction = d.random.choice(REDUCTIONS)
    d.add("scatter", x, rows, update(d, value, shape), reduction=reduction)


def update(d: Drawing, value: Value, shape: Sequence[int]) -> int:
    """A value that there is of this shape, or a constant."""
    with suppress(Rejected):
        return d.pick(lambda v: v.dtype == value.dtype and v.shape == tuple(shape))
    return d.constant(value.dtype, shape)


def draw(random: Random, dynamic: bool) -> Graph:
    """A graph of arguments of one type and of places, half of whose ops write."""
    d = Drawing(random, dynamic)
    dtype = random.choice([*FLOATS[:5], DTYPES["f64"], *NUMBERS[-3:]])
    for _ in range(random.randint(1, 3)):
        d.argument(dtype, [random.choice((1, 2, 3, 5, 8, 16)) for _ in range(random.randint(1, 3))])
    for rank in (1, 2, 3, random.randint(1, 6)):
        places = np.array([random.choice((0, 0, 1, 1, 2, -1, 50)) for _ in range(rank)], np.int64)
        d.argument(I64, places.shape, places)
    for _ in range(10):
        with suppress(Rejected):
            (write if d.chance(0.5) else propose)(d)
    made = range(len(d.graph.dims), len(d.graph.values))
    d.graph.results = tuple(made[-2:]) or (0,)
    return d.graph


def outcome(seed: int) -> str:
    """``equal``, or ``no code``: IREE has none for some writes behind one another.

    Raises AssertionError where an answer is wrong, or an argument has changed.
    """
    with new_context(), ir.Location.unknown():
        graph = draw(Random(seed), dynamic=seed % 2 == 1)
        way = {"device": Device("local-sync"), **WAYS[seed // 2 % len(WAYS)]}
        try:
            program = pyc_mlir.compile(graph.module(), **way)
        except PycError as error:
            assert error.code is ReasonCode.TARGET_COMPILE_FAILED, f"graph {seed}: {error}\n{graph}"
            return "no code"
        for kind, made in KINDS.items():
            arguments = [made(array, program.device) for array in graph.inputs]
            found = program(*arguments)
            results = found if isinstance(found, tuple) else (found,)
            graph.check([np.asarray(r) for r in results], f"graph {seed} {way} of {kind} arrays")
            for i, (argument, array) in enumerate(zip(arguments, graph.inputs, strict=True)):
                kept = np.asarray(argument).tobytes() == array.tobytes()
                assert kept, f"graph {seed} {way}: argument {i}, {kind}, was changed\n{graph}"
    return "equal"


@pytest.mark.parametrize("batch", range(20 if FULL else 1))
@pytest.mark.full
def test_arguments_keep_their_bits(batch: int, record_property) -> None:
    first = FIRST_SEED + batch * BATCH
    counts = Counter(map(outcome, range(first, first + BATCH)))
    record_property("random programs that write, of device arrays", dict(counts))
    assert counts["equal"] >= BATCH // 2, counts
