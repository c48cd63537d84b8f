"""Random programs of mixed types under random legal choices: each computes its reference."""

from random import Random

import pytest
from conftest import FULL
from conv_nets import draw_network
from random_ops import draw_graph
from random_policy import Dice

import pyc_mlir
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context

FIRST_SEED, BATCH = 90_000, 25 if FULL else 4
BATCHES = range(24 if FULL else 1)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Mean of empty slice"),
    pytest.mark.filterwarnings("ignore:.*encountered"),
    pytest.mark.filterwarnings("ignore:divide by zero"),
]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("draw", [draw_graph, draw_network], ids=["mixed types", "images"])
def test_any_legal_choices_compute_the_reference(draw, batch: int, record_property) -> None:
    first = FIRST_SEED + batch * BATCH
    for seed in range(first, first + BATCH):
        with new_context(), ir.Location.unknown():
            graph = draw(Random(seed), dynamic=seed % 2 == 1)
            program = pyc_mlir.compile(graph.module(), policy=Dice(seed))
            found = program(*graph.inputs)
        graph.check(found if isinstance(found, tuple) else (found,), f"{draw.__name__} {seed}")
    record_property(f"random programs under random policies, {draw.__name__}", {"equal": BATCH})
