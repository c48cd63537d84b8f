"""Which results may take over an operand's storage: the proof, and that bits stay when they do."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from stream_programs import at_stream

from pyc_mlir.compilation.assign_memory import planner_of
from pyc_mlir.compilation.build import SETTINGS, Plan, build
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.compilation.options import NO_KERNELS, make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.iree.compiler import run
from pyc_mlir.iree.memory.versions import carry_out, finish, regions_of
from pyc_mlir.pipelines.memory.planner.planner import plan
from pyc_mlir.pipelines.memory.stream_alias import POINTS, ROWS, Bodies
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable, ResultType

F32 = np.float32
FORMS = frozenset({POINTS, ROWS})
W = np.random.default_rng(0).normal(0, 0.2, (24, 24)).astype(F32)


def lowered(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Lowered:
    return lower(
        Job.of(function, [np.zeros(s, F32) for s in shapes], make_options(kernels=NO_KERNELS))
    )


def proven(function: Callable[..., Any], *shapes: tuple[int, ...], forms=FORMS) -> list[list[Any]]:
    """The pairs of each dispatch, in the order of the text, waves and results left out."""
    options = make_options()
    code = lowered(function, *shapes).code
    with at_stream(code, options.target, SETTINGS["plain"]) as session, session.context:
        return [sorted(p) for p in Bodies.of(session.module, forms).pairs.values()]


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def two_results(x):
    """Of one dispatch, which may write the one before it computes the other again."""
    y = np.tanh(x)
    return y, y * 2


@pytest.mark.parametrize(
    ("function", "count", "pairs"),
    [
        (lambda x, y: np.tanh(x) + y, 2, [(2, 0), (2, 1)]),
        (lambda x, y: x @ W + y, 2, [(3, 2)]),
        (lambda x: x + x @ W, 1, []),
        (lambda x: x.T + 1, 1, []),
        (lambda x: x[:, ::-1] + 1, 1, []),
        (lambda x: x + x[0], 1, []),
        (lambda x: x + x[:, :1], 1, []),
        (lambda x, y: x[:, :1] * y[:1], 2, []),
        (two_results, 1, []),
        (lambda x: x.sum(axis=1), 1, []),
        (lambda x: x / x.sum(), 1, []),
    ],
    ids=[
        "points",
        "epilogue",
        "product",
        "transpose",
        "reversed",
        "row",
        "column",
        "outer",
        "two",
        "row-sum",
        "full-sum",
    ],
)
def test_what_is_proven_and_what_not(function, count, pairs):
    found = proven(function, *[(24, 24)] * count)
    assert pairs in found if pairs else not any(found)


def test_rows_are_a_form_of_their_own():
    assert any(proven(softmax, (9, 7)))
    assert not any(proven(softmax, (9, 7), forms=frozenset({POINTS})))


def test_a_form_needs_the_same_row_everywhere():
    def both(x):
        return x - x.max(axis=1, keepdims=True) - x.max(axis=0, keepdims=True)

    options = make_options()
    for setting in SETTINGS.values():
        code = lowered(both, (8, 8)).code
        with at_stream(code, options.target, setting) as session, session.context:
            bodies = Bodies.of(session.module, FORMS)
            texts = {str(p) for p in bodies.pairs.values()}
            assert len(bodies.pairs) > 1 or texts == {"frozenset()"}


def _row_max(x, y):
    return x - x.max(axis=1, keepdims=True)


def _norm(x, y):
    d = x - x.mean(axis=1, keepdims=True)
    return d / np.sqrt((d * d).mean(axis=1, keepdims=True) + 1e-3) + y


STEPS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: np.tanh(x) + y,
    lambda x, y: x * 0.5 - y * y,
    lambda x, y: softmax(x) + y,
    lambda x, y: softmax(np.tanh(y)) * x,
    _norm,
    _row_max,
    lambda x, y: x + np.tanh(x) @ W[:7, :7] if x.shape[1] == 7 else np.maximum(x, y),
    lambda x, y: y + x @ W if x.shape[1] == 24 else np.abs(x),
    lambda x, y: x - x.sum(axis=0, keepdims=True) * 0.01,
    lambda x, y: (x + y)[::-1, :],
]


def program(seed: int, length: int = 8) -> Callable[..., Any]:
    """A chain of steps on two values, each of which may be the one that goes on."""

    def run(x, y):
        rng = random.Random(seed)
        for _ in range(length):
            step = rng.choice(STEPS)
            x, y = (step(x, y), y) if rng.random() < 0.6 else (y, step(x, y))
            # A product in between, or all of it becomes one dispatch.
            x = x @ W[: x.shape[1], : x.shape[1]]
        return x + y

    return run


def run_in_place(code: bytes, target: str = "cpu") -> tuple[bytes, int]:
    """Compiled under the smallest plan, whether or not that is better; how often storage moved."""
    options = make_options(target=target)
    planner = planner_of(("memory_first",))
    with at_stream(code, options.target, SETTINGS["plain"]) as session:
        start = session.module
        with session.context:
            plans = {
                r.index: plan(r.problem, mode="balanced") for r in regions_of(start, options.target)
            }
        finish(session, carry_out(session, start, plans, planner.pack, options.target))
        run(session, options.target, start="stream")
        return session.vmfb(), sum(len(p.reused) for p in plans.values())


def results_of(vmfb: bytes, inputs: list[np.ndarray], device: str) -> bytes:
    made = Device(device)
    entry = Executable(vmfb, made).entry("main", [ResultType(np.dtype(F32), None)])
    return entry([to_device(a, made) for a in inputs])[0].numpy().tobytes()


@pytest.mark.parametrize("seed", range(60 if FULL else 2))
@pytest.mark.full
def test_bits_stay_where_results_take_over_storage(seed):
    shape = random.Random(seed).choice([(5, 7), (33, 24), (1, 7), (64, 24), (130, 7)])
    low = lowered(program(seed), shape, shape)
    plain = build(Plan(lowered=low, options=make_options()), "plain").vmfb
    planned, _ = run_in_place(low.code)
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=shape).astype(F32) for _ in range(2)]
    for device in ("local-sync", "local-task"):
        assert results_of(planned, inputs, device) == results_of(plain, inputs, device)


@pytest.mark.parametrize("seed", range(30 if FULL else 1))
def test_bits_stay_on_vulkan_too(seed):
    try:
        Device("vulkan")
    except PycError as error:
        pytest.skip(f"no vulkan device: {error.message}")
    shape = random.Random(seed).choice([(5, 7), (33, 24), (1, 7), (64, 24), (130, 7)])
    options = make_options(target="vulkan")
    low = lower(Job.of(program(seed), [np.zeros(shape, F32)] * 2, options))
    plain = build(Plan(lowered=low, options=options), "plain").vmfb
    planned, _ = run_in_place(low.code, "vulkan")
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=shape).astype(F32) for _ in range(2)]
    assert results_of(planned, inputs, "vulkan") == results_of(plain, inputs, "vulkan")


@pytest.mark.full
def test_most_programs_do_move_storage():
    moved = [run_in_place(lowered(program(s), (33, 24), (33, 24)).code)[1] for s in range(3)]
    assert sum(moved) >= 3
