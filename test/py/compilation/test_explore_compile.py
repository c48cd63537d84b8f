"""The policy `explore`: compiles by the explorer's recipe, measures nothing, names its grounds."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from wisdoms import KERNELS, reversed_wisdom

from pyc_mlir import nn
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact, read, to_bytes
from pyc_mlir.artifact.compile_log import read_compile_log, recipe_at
from pyc_mlir.compilation.options import make_options
from pyc_mlir.debug.replay import replay
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.lab.explore.policy import Explore
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.policies import load_policy

RNG = np.random.default_rng(0)
W = RNG.standard_normal((64, 64), dtype=np.float32)
INPUTS = [spec("f32", (16, 64))]


def program(x):
    return nn.softmax(nn.relu(x @ W) + x)


def made(**options) -> Artifact:
    return build(program, INPUTS, make_options(**options))


@cache
def heuristic() -> Artifact:
    return made()


@pytest.mark.full
def test_without_evidence_it_keeps_what_predictions_do_not_beat_by_far():
    explored = made(policy="explore")
    kernels = [d for d in explored.decisions if d.site.pass_name == KERNELS]
    assert {d.decided_by for d in kernels} == {"explore"}
    several = [d for d in kernels if len(d.alternatives) > 1]
    assert several
    for decision in several:
        assert any(e.startswith("policy explore: predicted") for e in decision.evidence)


@pytest.mark.full
def test_clear_rows_decide_and_are_named():
    wisdom = reversed_wisdom(heuristic().decisions)
    explored = made(policy="explore", wisdom=wisdom)
    chosen = {d.site.key: d for d in explored.decisions if d.site.pass_name == KERNELS}
    assert chosen
    for key, decision in chosen.items():
        if len(decision.alternatives) > 1:
            assert decision.chosen == decision.alternatives[-1].name, key
            assert any(wisdom.label in e for e in decision.evidence)
    assert any(d.chosen == wisdom.label for d in explored.decisions)


@pytest.mark.full
def test_rows_within_each_other_s_intervals_decide_nothing():
    vague = reversed_wisdom(heuristic().decisions, lo=1e-9, hi=1.0)
    explored = made(policy="explore", wisdom=vague)
    ours = {d.site.key: d.chosen for d in heuristic().decisions if d.site.pass_name == KERNELS}
    theirs = {d.site.key: d.chosen for d in explored.decisions if d.site.pass_name == KERNELS}
    assert ours == theirs


@pytest.mark.full
def test_equal_compiles_give_equal_bytes_and_replay_without_the_wisdom(tmp_path):
    wisdom = reversed_wisdom(heuristic().decisions)
    first = made(policy="explore", wisdom=wisdom)
    assert to_bytes(made(policy="explore", wisdom=wisdom)) == to_bytes(first)
    path = tmp_path / "model.vmfb"
    path.write_bytes(to_bytes(first))
    assert to_bytes(replay(program, INPUTS, read_compile_log(path))) == to_bytes(first)
    assert to_bytes(read(path)) == to_bytes(first)


def test_strict_determinism_refuses_it():
    contract = Contract(determinism="strict")
    with pytest.raises(PycError, match="`explore`") as caught:
        make_options(policy="explore", contract=contract)
    assert caught.value.code is ReasonCode.CONTRACT_CONFLICT
    make_options(policy="fastest", contract=contract)


@pytest.mark.full
def test_a_given_recipe_stands(tmp_path):
    path = tmp_path / "model.vmfb"
    path.write_bytes(to_bytes(heuristic()))
    again = made(policy="explore", recipe=recipe_at(path))
    assert [d.chosen for d in again.decisions] == [d.chosen for d in heuristic().decisions]


def test_required_evidence_is_required_of_it_too():
    with pytest.raises(PycError) as caught:
        made(policy="explore", require_evidence=True)
    assert caught.value.code is ReasonCode.NO_EVIDENCE


@pytest.mark.full
def test_a_worker_judges_sites_alone_and_gives_the_evidence():
    artifact = build(program, INPUTS, make_options(policy="explore"), untrusted=True)
    chosen = [d.chosen for d in artifact.decisions if d.site.pass_name == KERNELS]
    assert chosen == [d.chosen for d in heuristic().decisions if d.site.pass_name == KERNELS]


def test_it_has_a_name():
    assert load_policy("explore") == Explore()


@pytest.mark.full
def test_other_policies_load_no_explorer():
    script = """
import sys
import pyc_mlir
from pyc_mlir.frontends.python.specs import spec
pyc_mlir.compile(lambda x: x + 1, [spec("f32", (4,))])
lab = ("pyc_mlir.lab.explore", "pyc_mlir.lab.simulation")
print(sorted(n for n in sys.modules if n.startswith(lab)))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
