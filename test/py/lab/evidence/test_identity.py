"""Rows of programs and works: what equal layers and retrained models share."""

import numpy as np
import pytest

from pyc_mlir import nn
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.sources import Source
from pyc_mlir.lab.sessions.session import graph_of_program, works_of
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline


def network(seed: int, layers: int = 3, width: int = 16, swapped: bool = False):
    """relu(x @ w + b) several times, with weights of a seed."""
    chance = np.random.default_rng(seed)
    weights = [chance.normal(size=(width, width)).astype(np.float32) for _ in range(layers)]

    def model(x):
        for w in weights:
            x = nn.relu(w[0] + x @ w if swapped else x @ w + w[0])
        return x

    return model


def rows(model, width: int = 16):
    """The program's row, and its works after fusion."""
    with new_context() as context, ir.Location.unknown():
        loaded = Source.of(model).load([np.zeros((4, width), np.float32)], context)
        module = loaded.module
        program = graph_of_program(entry_function(module))
        run_pipeline(module, "pyc-canonicalize,pyc-fuse", PassContext())
        return program, works_of(module)


@pytest.fixture(scope="module")
def first():
    return rows(network(0))


def test_equal_layers_share_their_work(first):
    program, works = first
    assert [(f.count, f.work.readers) for f in works] == [(2, ("matmul",)), (1, ("",))]
    assert program.kind == "program" and program.ops == 9
    assert all(f.graph.kind == "work" and f.graph.ops == 3 for f in works)


def test_a_model_trained_again_keeps_structure_and_works(first):
    program, works = rows(network(1))
    assert program.structure_id == first[0].structure_id
    assert [f.graph for f in works] == [f.graph for f in first[1]]
    assert program.graph_id != first[0].graph_id and program.text != first[0].text


def test_operands_of_sums_may_change_places(first):
    program, works = rows(network(0, swapped=True))
    assert program.text == first[0].text
    assert [f.graph for f in works] == [f.graph for f in first[1]]


def test_other_sizes_share_nothing(first):
    program, works = rows(network(0, width=8), 8)
    assert program.structure_id != first[0].structure_id
    assert {f.graph.graph_id for f in works}.isdisjoint(f.graph.graph_id for f in first[1])


def test_a_deeper_model_shares_its_works(first):
    program, works = rows(network(2, layers=5))
    assert program.structure_id != first[0].structure_id
    assert [f.graph for f in works] == [f.graph for f in first[1]]
    assert [f.count for f in works] == [4, 1]
