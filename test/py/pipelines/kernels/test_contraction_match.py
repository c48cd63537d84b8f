"""Products that kernels are offered for: batches, broadcasting, transposes, epilogues."""

import numpy as np
import pytest
from kernel_runs import targets
from kernel_works import lone

import pyc_mlir.dialects.ops  # noqa: F401
from pyc_mlir.api import compile
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.pipelines.kernels.match import Contraction, Feed, find_product
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.runtime.device import Device

TARGET = Target.named("cpu-avx2")


class Group:
    """A group that is written op by op; values are numbered as in `Work`."""

    def __init__(self, *shapes):
        self.inputs = [TensorType(s, np.dtype(np.float32)) for s in shapes]
        self.nodes = []

    def op(self, name, *operands, **params):
        types = [*self.inputs, *(n.type for n in self.nodes)]
        result = OPS[name].infer(*(types[o] for o in operands), **params)
        self.nodes.append(WorkOp(name, operands, params, result))
        return len(types)

    @property
    def work(self):
        return Work(tuple(map(Input, self.inputs)), tuple(self.nodes))


@pytest.mark.parametrize(
    ("left", "right", "what", "cuts"),
    [
        ((4, 5), (5, 6), Contraction((), 4, 6, 5, "mk", "kn", "mn"), ((1,), (1,))),
        ((2, 4, 5), (2, 5, 6), Contraction((2,), 4, 6, 5, "amk", "akn", "amn"), ((1, 2), (1, 2))),
        ((2, 4, 5), (5, 6), Contraction((), 8, 6, 5, "mk", "kn", "mn"), ((2,), (1,))),
        ((4, 5), (3, 5, 6), Contraction((3,), 4, 6, 5, "mk", "akn", "amn"), ((1,), (1, 2))),
        (
            (2, 1, 4, 5),
            (2, 3, 5, 6),
            Contraction((2, 3), 4, 6, 5, "amk", "abkn", "abmn"),
            ((2, 3), (1, 2, 3)),
        ),
        (
            (None, 4, 5),
            (None, 5, None),
            Contraction(("a",), 4, "n", 5, "amk", "akn", "amn"),
            ((1, 2), (1, 2)),
        ),
        ((None, 4, 5), (5, 6), Contraction((), "m", 6, 5, "mk", "kn", "mn"), ((2,), (1,))),
        (
            (2, 4, 5),
            (5, None),
            Contraction((2,), 4, "n", 5, "amk", "kn", "amn"),
            ((1, 2), (1,)),
        ),
    ],
    ids=str,
)
def test_a_product_is_found(left, right, what, cuts):
    found = find_product(lone("matmul", left, right))
    assert found is not None and (found.what, found.covers) == (what, 1)
    assert found.feeds == tuple(Feed(i, c) for i, c in enumerate(cuts))


@pytest.mark.parametrize(
    ("left", "right"),
    [((0, 5), (5, 6)), ((4, None), (5, 6)), ((None, 4, 5), (3, 5, 6))],
    ids=str,
)
def test_sizes_that_are_not_known_to_agree_are_left(left, right):
    assert find_product(lone("matmul", left, right)) is None
    assert find_product(lone("matmul", (4, 5), (5, 6), dtype=np.float64)) is None


def test_transposes_are_read_and_written_in_place():
    """Heads as a projection left them: [b, s, h, d]; the values' result goes back to that."""
    group = Group((2, 7, 3, 8), (2, 9, 3, 8))
    queries = group.op("transpose", 0, permutation=(0, 2, 1, 3))
    keys = group.op("transpose", 1, permutation=(0, 2, 3, 1))
    scores = group.op("matmul", queries, keys)
    back = group.op("transpose", scores, permutation=(0, 2, 1, 3))
    group.op("relu", back)
    found = find_product(group.work)
    assert found is not None and found.covers == 5
    assert found.what == Contraction((2, 3), 7, 9, 8, "ambk", "anbk", "ambn")
    assert [s.op for s in found.epilogue.steps] == ["relu"]


def test_a_product_by_one_column_becomes_a_row():
    group = Group((3, 20, 8), (3, 8, 1), (20, 1))
    group.op("add", group.op("matmul", 0, 1), 2)
    found = find_product(group.work)
    assert found is not None and found.covers == 2
    assert found.what == Contraction((3,), 1, 20, 8, "amk", "ank", "amn")
    assert found.feeds == (Feed(1, (1, 1)), Feed(0, (1, 2)), Feed(2))
    few = find_product(lone("matmul", (2, 8), (8, 1)))
    assert few is not None and few.what.rows == 2


def test_what_is_used_twice_is_left():
    group = Group((4, 4))
    turned = group.op("transpose", 0, permutation=(1, 0))
    product = group.op("matmul", 0, turned)
    group.op("add", product, turned)
    assert find_product(group.work) is None


def test_few_rows_are_streamed_and_constants_are_packed():
    def offered(work):
        return [n for n in ("gemm", "batch_gemm", "gemv") if FAMILIES[n].match(work, TARGET)]

    assert offered(lone("matmul", (2, 64), (64, 64))) == ["gemv"]
    assert offered(lone("matmul", (9, 64), (64, 64))) == ["batch_gemm"]
    inputs = lone("matmul", (9, 64), (64, 64))
    constant = Input(inputs.inputs[1].type, lambda: np.zeros((64, 64), np.float32))
    assert offered(Work((inputs.inputs[0], constant), inputs.nodes)) == ["gemm"]
    assert offered(lone("matmul", (9, 64), (64, 2))) == []
    assert offered(lone("matmul", (9, 64), (64, 1))) == ["gemv"]


def attention(q, k, v):
    scores = q @ k * 0.25
    return scores @ v + q


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
def test_a_column_in_a_program(target):
    random = np.random.default_rng(7)
    column = random.normal(size=(33, 1)).astype(np.float32)
    y = random.normal(size=(2, 33, 1)).astype(np.float32)
    x = random.normal(size=(2, 40, 33)).astype(np.float32)
    program = compile(
        lambda x, y: x @ y * (x @ column), [x, y], target=target, device=Device("local-sync")
    )
    assert sum("gemv:" in d.chosen for d in program.artifact.decisions) == 2
    wide, narrow = x.astype(np.float64), column.astype(np.float64)
    assert np.allclose(program(x, y), (wide @ y) * (wide @ narrow), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.full
def test_programs_with_run_time_matrices(target):
    """Static and dynamic sizes; the sites tell that kernels were chosen."""
    random = np.random.default_rng(6)
    spec = [TensorSpec("f32", 2, None, 8), TensorSpec("f32", 2, 8, None), None]
    spec[2] = TensorSpec("f32", 2, None, 8)
    for specs in (None, spec):
        for s, t in ((12, 20), (1, 5)):
            q, k, v = (random.normal(size=d) for d in ((2, s, 8), (2, 8, t), (2, t, 8)))
            arrays = [x.astype(np.float32) for x in (q, k, v)]
            program = compile(
                attention, specs or arrays, target=target, device=Device("local-sync")
            )
            chosen = [d.chosen for d in program.artifact.decisions]
            assert sum("gemm:" in c or "gemv:" in c for c in chosen) == 2
            exact = (q @ k * 0.25) @ v + q
            assert np.allclose(program(*arrays), exact, rtol=1e-5, atol=1e-5)
