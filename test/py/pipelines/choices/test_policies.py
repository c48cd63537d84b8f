"""Policies: the shared suite, names, plugins, and those that misbehave."""

import random
import sys

import pytest
from conftest import sample
from example_policy import Thrifty
from policy_suite import OFFERS, PolicySuite
from stream_programs import bits, branches, layered

from pyc_mlir.api import build, compile
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import Policy, Recipe, Site, as_policy
from pyc_mlir.pipelines.choices.policies import BUILT_IN, load_policy, planner_modes
from pyc_mlir.runtime.device import Device


class TestHeuristic(PolicySuite):
    def make(self):
        return load_policy("heuristic")


class TestBalanced(PolicySuite):
    def make(self):
        return load_policy("balanced")


class TestMemoryFirst(PolicySuite):
    def make(self):
        return load_policy("memory_first")


class TestThrifty(PolicySuite):
    def make(self):
        return Thrifty()


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Register entry points as an installed package would."""

    def register(line: str) -> None:
        info = tmp_path / "plugin-1.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[pyc_mlir.policies]\n{line}\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    return register


def test_a_registered_policy_is_found_by_name(plugin):
    plugin("thrifty = example_policy:Thrifty")
    assert load_policy("thrifty") == Thrifty()
    options = make_options(policy="thrifty")
    assert options.planner_modes == Thrifty().planner_modes


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("odd = example_policy:Missing", "policy `odd` .*AttributeError"),
        ("odd = builtins:int", "expected `name` and `prefer"),
    ],
)
def test_a_broken_plugin_is_named(plugin, line, reported):
    plugin(line)
    with pytest.raises(PycError, match=reported) as caught:
        load_policy("odd")
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_an_unknown_name_lists_all():
    with pytest.raises(PycError, match=f"{sorted(BUILT_IN)[0]}.*got 'wise'"):
        load_policy("wise")
    with pytest.raises(PycError, match=r"got 'default'; did you mean 'heuristic'\?"):
        load_policy("default")


def test_unknown_modes_of_a_policy_are_refused():
    with pytest.raises(PycError, match=r"policy `thrifty`: expected planner modes .*'tiny'"):
        planner_modes(as_policy(Thrifty(planner_modes=("tiny",))))
    for wrong in ((), "balanced", 3, None):
        with pytest.raises(PycError, match=r"policy `thrifty`: expected planner modes .*got "):
            planner_modes(as_policy(Thrifty(planner_modes=wrong)))  # type: ignore[arg-type]


class Hostile:
    """Takes anything that is offered."""

    name = "hostile"
    planner_modes = ("memory_first", "latency_first", "balanced")

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def prefer(self, site, alternatives):
        return self.rng.choice([a.name for a in alternatives])


@pytest.mark.parametrize("seed", sample(range(3), 1))
@pytest.mark.full
def test_no_answer_makes_a_wrong_program(seed):
    program = layered(seed)
    inputs = program.inputs()
    hostile = compile(program.code.decode(), policy=Hostile(seed), device=Device("local-sync"))
    plain = compile(program.code.decode(), planner_mode="iree", device=Device("local-sync"))
    assert bits(hostile(*inputs)) == bits(plain(*inputs))


def test_an_answer_that_was_not_offered_is_refused():
    class Wrong:
        name = "wrong"

        def prefer(self, site, alternatives):
            return "nonsense"

    with pytest.raises(PycError) as caught:
        build(branches().code.decode(), None, make_options(policy=Wrong()))
    assert caught.value.code is ReasonCode.INVALID_CHOICE


@pytest.mark.full
def test_modes_offered_together_are_replayed_from_the_log():
    code = branches().code.decode()
    first = build(code, None, make_options(policy=Thrifty()))
    (main, *_) = [d for d in first.decisions if d.site.pass_name == "plan-memory"]
    assert len({a.name for a in main.alternatives}) > 2
    recipe = Recipe.from_log(first.decisions)
    again = build(code, None, make_options(policy=Thrifty(), recipe=recipe))
    assert (again.vmfb, again.decisions) == (first.vmfb, first.decisions)


def test_what_an_object_lacks_is_as_in_the_base_class():
    """A policy is any object with a name and a preference; a subclass is none the wiser."""

    class Own:
        name = "own"

        def prefer(self, site, alternatives):
            return alternatives[-1].name

    class Prepares(Own):
        def prepare(self, job, stage):
            return "options"

    class Subclass(Policy):
        name = "subclass"

        def prepare(self, job, stage):
            return "options"

    plain, prepares = as_policy(Own()), as_policy(Prepares())
    assert plain.prefer(Site("p", "op"), OFFERS[2]) == "small" and plain.name == "own"
    assert (plain.planner_modes, plain.variants(Site("p", "op"))) == (("balanced",), ())
    assert not (plain.prepares or plain.co_selects or plain.wisdom)
    assert prepares.prepares and prepares.prepare(None, None) == "options"
    assert Subclass().prepares and as_policy(Subclass()).prepare(None, None) == "options"
    assert plain == as_policy(plain)
