"""What is read off stream IR: ties of every op, and the bytes that a task is charged for."""

from collections import Counter

import pytest
from stream_programs import branches, layered

from pyc_mlir.iree.compiler import opened
from pyc_mlir.iree.memory.versions import TO_ASYNC
from pyc_mlir.pipelines.memory.stream_alias import Bodies
from pyc_mlir.pipelines.memory.stream_problem import read_regions
from pyc_mlir.pipelines.streams.ir import CONCURRENT, DISPATCH, EXECUTE, UPDATES, find, ties
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target

CPU = Target.named("cpu")
# Updates in place, and waves in which some, all and no results are tied.
SEEDS = (3, 121)


def by_bytes(symbol: str, traffic: int) -> Cost:
    """A byte a second."""
    return Cost(float(traffic))


@pytest.mark.parametrize(
    "program", [branches(), *map(layered, SEEDS)], ids=["wide", *map(str, SEEDS)]
)
def test_every_op_tells_its_ties(program):
    """A region alone has none; a wave, and a region after another one, have those of their ops."""
    with opened(program.code, CPU) as session:
        session.run(to="flow")
        session.run_passes(TO_ASYNC)
        with session.context:
            regions = find(session.module, EXECUTE)
            assert len(regions) > 1 or not any(map(ties, regions))
            for wave in [*regions, *find(session.module, CONCURRENT)]:
                inner = [op for name in (DISPATCH, *UPDATES) for op in find(wave, name)]
                assert len(ties(wave)) <= sum(len(ties(op)) for op in inner)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_update_in_place_moves_its_operand_once(seed):
    with opened(layered(seed).code, CPU) as session:
        session.run(to="flow")
        session.run_passes(TO_ASYNC)
        with session.context:
            (region,) = read_regions(session.module, by_bytes, Bodies({}), alignment=1)
            problem = region.problem
    kinds = Counter(bool(task.tied) for task in problem.tasks)
    assert kinds[True] and kinds[False]
    for task in problem.tasks:
        fresh = set(task.writes) - {written for written, _ in task.tied}
        assert task.seconds == sum(problem.buffers[b].size for b in (*task.reads, *fresh))
