"""The policy `explore`: compiles by the explorer's recipe, measures nothing, names its grounds."""

import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from conftest import FULL
from wisdoms import KERNELS, reversed_wisdom, row

from pyc_mlir import nn
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact, from_bytes, read, to_bytes
from pyc_mlir.artifact.compile_log import read_compile_log, recipe_at
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import tunable_sites
from pyc_mlir.compilation.options import make_options
from pyc_mlir.debug.replay import replay
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.lab.explore.policy import Explore
from pyc_mlir.pipelines.choices.choices import RECIPE, Coverage, Recipe, coverage, portable
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import EstimatedSeconds, MeasuredRecipe
from pyc_mlir.pipelines.choices.log import load_recipe, write_log
from pyc_mlir.pipelines.choices.policies import load_policy
from pyc_mlir.pipelines.choices.wisdom import NO_RECIPE, WHOLE, Wisdom, recipe_name
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program

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
        assert any(isinstance(e, EstimatedSeconds) and not e.measured for e in decision.grounds)


@pytest.mark.full
def test_clear_rows_decide_and_are_named():
    wisdom = reversed_wisdom(heuristic().decisions)
    explored = made(policy="explore", wisdom=wisdom)
    chosen = {d.site.key: d for d in explored.decisions if d.site.pass_name == KERNELS}
    assert chosen
    for key, decision in chosen.items():
        if len(decision.alternatives) > 1:
            assert decision.chosen == decision.alternatives[-1].name, key
            assert any(wisdom.label in str(e) for e in decision.grounds)
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


# Variants of kernels in whole compiles: recipes, logs, replays, wisdom and other programs.
X = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
VARIANT = "gemm:matmul+add+relu[height=4,unroll=8]"


def network(seed: int):
    """softmax(relu(x @ w + w[0])) with weights of a seed."""
    w = np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32) / 8

    def model(x):
        return nn.softmax(nn.relu(x @ w + w[0]))

    return model


MODEL = network(0)


def site_of(artifact: Artifact):
    """The product's."""
    return next(d for d in artifact.decisions if d.chosen.startswith("gemm:"))


def recipe_with(artifact: Artifact, name: str) -> Recipe:
    """The recipe of a log with another kernel for the product."""
    made = site_of(artifact)
    changed = [replace(d, chosen=name) if d is made else d for d in artifact.decisions]
    return Recipe.from_log(changed, artifact.manifest.graph_id)


@pytest.fixture(scope="module")
def plain():
    return build(MODEL, [X], make_options())


@pytest.fixture(scope="module")
def varied(plain):
    return build(MODEL, [X], make_options(recipe=recipe_with(plain, VARIANT)))


@pytest.mark.full
def test_a_recipe_names_a_variant(plain, varied):
    made, before = site_of(varied), site_of(plain)
    assert made.chosen == VARIANT and varied.vmfb != plain.vmfb
    # It stands behind what the pass lists, with its knobs and its cost.
    assert made.alternatives[:-1] == before.alternatives
    last = made.alternatives[-1]
    assert last.name == VARIANT and last.cost is not None
    assert "height=4, " in last.reason and "unroll=8, " in last.reason


def test_a_variant_computes_the_same(plain, varied):
    device = Device("local-sync")
    got, expected = (Program(a, device)(X)[0] for a in (varied, plain))
    assert np.allclose(np.asarray(got), np.asarray(expected), atol=1e-6)


def test_logs_and_replays_carry_the_name(varied, tmp_path):
    program, log = tmp_path / "varied.vmfb", tmp_path / "varied.jsonl"
    program.write_bytes(to_bytes(varied))
    assert site_of(from_bytes(program.read_bytes())).chosen == VARIANT
    assert to_bytes(replay(MODEL, [X], read_compile_log(program))) == program.read_bytes()
    write_log(varied.decisions, log)
    again = build(MODEL, [X], make_options(recipe=load_recipe(log)))
    assert again.vmfb == varied.vmfb and site_of(again) == site_of(varied)


ILLEGAL = (
    "gemm:matmul+add+relu[height=14]",
    "gemm:matmul+add+relu[height=5]",
    "gemm:matmul+add+relu[unroll=8,height=4]",
    "rows:matmul[height=4]",
    "iree[height=4]",
)


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_variant_that_is_not_legal_is_refused(plain, name):
    with pytest.raises(PycError, match="or a legal variant of one, the recipe answered") as caught:
        build(MODEL, [X], make_options(recipe=recipe_with(plain, name)))
    assert caught.value.code is ReasonCode.RECIPE_MISMATCH


class Names:
    name = "names"

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def prefer(self, site, alternatives):
        gemm = any(a.name.startswith("gemm:") for a in alternatives)
        return self.kernel if site.pass_name == KERNELS and gemm else alternatives[0].name


def test_a_policy_may_name_a_variant():
    assert site_of(build(MODEL, [X], make_options(policy=Names(VARIANT)))).chosen == VARIANT
    with pytest.raises(PycError, match="policy `names` answered") as caught:
        build(MODEL, [X], make_options(policy=Names(ILLEGAL[0])))
    assert caught.value.code is ReasonCode.INVALID_CHOICE


class Knows(Names):
    """Has a variant listed, and takes what is listed last."""

    def variants(self, site):
        return ("gone", self.kernel) if site.pass_name == KERNELS else ()

    def prefer(self, site, alternatives):
        listed = [a.name for a in alternatives]
        return self.kernel if self.kernel in listed else listed[0]


@pytest.mark.parametrize("contract", [{}, {"max_compile_seconds": 600}])
def test_a_policy_may_have_variants_listed(contract):
    """In this process, and in a worker that asks it."""
    options = make_options(policy=Knows(VARIANT), contract=Contract(**contract))
    assert site_of(build(MODEL, [X], options)).chosen == VARIANT


def test_variants_are_carried_over_by_work(varied):
    recipe = Recipe.from_log(varied.decisions, varied.manifest.graph_id)
    again = build(network(1), [X], make_options(recipe=recipe))
    made = site_of(again)
    assert (made.chosen, made.decided_by) == (VARIANT, RECIPE)
    assert coverage(again.decisions) == Coverage(len(again.decisions), 0)


def test_a_carried_variant_that_is_not_legal_is_left_to_the_policy(plain):
    again = build(network(1), [X], make_options(recipe=recipe_with(plain, ILLEGAL[0])))
    assert site_of(again).chosen == site_of(plain).chosen
    assert site_of(again).decided_by == "heuristic"
    assert coverage(again.decisions) == Coverage(len(again.decisions) - 1, 1)
    assert str(coverage(again.decisions)).startswith("RECIPE_PARTIAL")


def wisdom_of(plain: Artifact, *others: str) -> Wisdom:
    """Wisdom by which each of `others` is twice as fast as the one before."""
    made = site_of(plain)
    names = (made.chosen, *others)
    return Wisdom.of([row(made.site.work, n, 1e-5 / 2**i) for i, n in enumerate(names)], {})


def test_wisdom_names_variants(plain):
    wisdom = wisdom_of(plain, VARIANT)
    made = build(MODEL, [X], make_options(policy="fastest", wisdom=wisdom))
    assert site_of(made).chosen == VARIANT
    assert any(f"[{wisdom.label}]" in str(fact) for fact in site_of(made).grounds)
    # What was not chosen is not listed: a replay sees the same without the wisdom.
    assert len(site_of(made).alternatives) == len(site_of(plain).alternatives) + 1


def whole_of(plain: Artifact, varied: Artifact, subject: str) -> Wisdom:
    """Wisdom by which the whole of `varied` is twice as fast as what the heuristic makes."""
    recipe = portable(varied.decisions)
    pairs = ((NO_RECIPE, 1e-4), (recipe_name(recipe), 5e-5))
    rows = [row(subject, name, seconds, pass_name=WHOLE) for name, seconds in pairs]
    return Wisdom.of(rows, {}, [recipe])


def test_wisdom_has_recipes_of_whole_programs(plain, varied, tmp_path):
    wisdom = whole_of(plain, varied, plain.manifest.graph_id)
    options = make_options(policy="fastest", wisdom=wisdom)
    made = build(MODEL, [X], options)
    assert made.vmfb == varied.vmfb and site_of(made).chosen == VARIANT
    (about,) = [d for d in made.decisions if d.site.pass_name == WHOLE]
    assert about.chosen in wisdom.recipes and f"[{wisdom.label}]" in str(about.grounds[0])
    program = tmp_path / "made.vmfb"
    program.write_bytes(to_bytes(made))
    for _ in range(100 if FULL else 1):
        assert to_bytes(replay(MODEL, [X], read_compile_log(program))) == program.read_bytes()
    # Sites behind the lowering go by it too.
    by_it = [d for d in made.decisions if any(isinstance(e, MeasuredRecipe) for e in d.grounds)]
    assert {KERNELS, "iree-fusion"} <= {d.site.pass_name for d in by_it}


def test_a_retrained_model_goes_by_the_recipe_of_its_structure(plain, varied):
    structure = next(d.site.work for d in varied.decisions if d.site.work.startswith("s1-"))
    wisdom = whole_of(plain, varied, structure)
    made = build(network(1), [X], make_options(policy="fastest", wisdom=wisdom))
    assert site_of(made).chosen == VARIANT


def test_rows_of_variants_that_are_no_more_are_left_out(plain):
    wisdom = wisdom_of(plain, *ILLEGAL)
    made = build(MODEL, [X], make_options(policy="fastest", wisdom=wisdom))
    assert site_of(made).chosen == site_of(plain).chosen


def test_tools_see_what_there_is_to_tune(plain):
    sites = tunable_sites(Job.of(MODEL, [X], make_options()))
    listed = {d.site.key: d.alternatives for d in plain.decisions if len(d.alternatives) > 1}
    assert {s.site.key for s in sites} <= set(listed)
    assert all(s.alternatives == listed[s.site.key] for s in sites)
    tuned = next(s for s in sites if s.site.key == site_of(plain).site.key)
    ((name, space),) = tuned.spaces.items()
    assert name == site_of(plain).chosen and len(list(space)) > 10
    settings = {**space.settings(space.default), "height": 4, "unroll": 8}
    assert tuned.choice(name, space.config(settings)) == VARIANT
    assert tuned.choice(name, space.default) == name


def test_tools_see_sites_after_other_choices(plain):
    kernels = make_options(recipe=recipe_with(plain, "iree"))
    again = tunable_sites(Job.of(MODEL, [X], kernels))
    assert [s.site.key for s in again] == [
        s.site.key for s in tunable_sites(Job.of(MODEL, [X], make_options()))
    ]
