"""What every policy has to do; run for the built-in ones and for an example of a third party.

class TestMine(PolicySuite):
    def make(self): return Mine()
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from stream_programs import bits, branches, layered

from pyc_mlir.api import compile
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Policy, Site
from pyc_mlir.pipelines.choices.policies import planner_modes
from pyc_mlir.pipelines.memory.planner.planner import MODES
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.runtime.device import Device

OFFERS = (
    (Alternative("only"),),
    (Alternative("a", reason="no cost"), Alternative("b", Cost(1.0, 100))),
    (Alternative("fast", Cost(1.0, 300)), Alternative("small", Cost(1.04, 100))),
    (Alternative("x", Cost(0.0, 0)), Alternative("y", Cost(0.0, 0))),
)


@cache
def answer_of_iree(make: Callable[..., Any]) -> tuple[str, Sequence[Any], list[bytes]]:
    """A program's text, its inputs and the bits of its results under IREE's own plan."""
    program = make(4 if make is branches else 5)
    code, inputs = program.code.decode(), program.inputs()
    plain = compile(code, device=Device("local-sync"), planner_mode="iree")
    return code, inputs, bits(plain(*inputs))


class PolicySuite:
    """Inherit and say how the policy is made."""

    def make(self) -> Policy:
        raise NotImplementedError

    def test_it_has_a_name_and_modes(self):
        policy = self.make()
        assert policy.name and set(planner_modes(policy)) <= set(MODES)

    def test_it_answers_with_something_offered_and_the_same_each_time(self):
        for pass_name in ("plan-memory", "pyc-fuse", "a-pass-of-tomorrow"):
            for offered in OFFERS:
                site = Site(pass_name, "op")
                answers = {self.make().prefer(site, offered) for _ in range(3)}
                assert len(answers) == 1 and answers <= {a.name for a in offered}

    def test_its_decisions_are_signed(self):
        choices = Choices(self.make())
        choices.choose(Site("pyc-fuse", "op"), OFFERS[1])
        assert choices.log[0].decided_by == self.make().name

    def test_programs_stay_right_and_are_never_above_iree(self):
        for make in (branches, layered):
            code, inputs, wanted = answer_of_iree(make)
            found = compile(code, device=Device("local-sync"), policy=self.make())
            assert bits(found(*inputs)) == wanted
            for decision in found.artifact.decisions:
                if decision.site.pass_name == "plan-memory":
                    costs = {a.name: a.cost for a in decision.alternatives}
                    bytes_of = {n: c.workspace_bytes for n, c in costs.items() if c is not None}
                    assert bytes_of[decision.chosen] <= bytes_of["iree"]
