"""Random programs pass their own check, which has special values: no false refusal."""

from random import Random
from typing import Any

import pytest
from compiled import OwnKernels
from conftest import FULL
from random_chains import draw_chain
from random_ops import draw_graph

from pyc_mlir.api import build
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context

COUNT = 240 if FULL else 3


def refusal(seed: int, source: Any, inputs: Any) -> str:
    """Return the self-check's complaint about a program, with PyC's own kernels now and then."""
    options = make_options(check=True, policy=OwnKernels() if seed % 3 == 0 else None)
    try:
        made = build(source, inputs, options)
    except PycError as error:
        return f"seed {seed}: {source}: {error}"
    assert made.checks is not None and made.checks.check is not None
    function = made.checks.check.function
    return "" if not function or "agrees with 3 of 3" in function else f"seed {seed}: {function}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("batch", range(3))
def test_no_chain_is_refused(batch: int):
    chains = {seed: draw_chain(seed) for seed in range(batch, COUNT, 3)}
    found = [refusal(seed, chain, [chain.spec]) for seed, chain in chains.items()]
    assert not any(found), "\n".join(found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("batch", range(3))
def test_no_graph_is_refused(batch: int):
    found = []
    with new_context(), ir.Location.unknown():
        for seed in range(batch, COUNT, 3):
            graph = draw_graph(Random(seed), dynamic=seed % 2 == 1)
            found.append(refusal(seed, graph.module(), None))
    assert not any(found), "\n".join(found)


def test_chains_have_every_step_and_type():
    chains = [draw_chain(seed) for seed in range(200)]
    assert {c.kind for c in chains} == {"f16", "bf16", "f32", "f64"}
    assert len({name for c in chains for name in c.names}) > 31
