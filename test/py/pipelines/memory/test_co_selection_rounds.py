"""Rounds of choosing and planning, on programs whose real plan is a formula."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from test_selection_sites import choices, random_sites

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.selection.rounds import (
    PLANS,
    STRUCTURES,
    Checked,
    CoSelected,
    CutProgram,
    Part,
    at_prices,
    co_select,
)
from pyc_mlir.pipelines.memory.selection.sites import Sites


@dataclass
class Made:
    """A program of two structures; each one's plan needs `above` more bytes than its account."""

    seed: int
    above: tuple[int, int] = (13, 40)
    planned: list[Mapping[str, str]] = field(default_factory=list)

    def sites(self, parts: str) -> Sites:
        return random_sites(2 * self.seed + (parts == "split:2"))

    def read(self, parts: Mapping[str, str]) -> CutProgram:
        name = parts.get("region", "keep")
        offers = [Part("keep", 1e-6, 100), Part("split:2", 2e-6, 50)]
        return CutProgram({"region": name}, self.sites(name), {"region": offers})

    def bytes(self, parts: str, choice: tuple[int, ...]) -> int:
        return self.sites(parts).bytes(choice) + self.above[parts == "split:2"]

    def check(self, choices: Mapping[str, str]) -> Checked:
        self.planned.append(choices)
        parts = choices.get("region", "keep")
        sites = self.sites(parts)
        choice = tuple(
            next((i for i, w in enumerate(s.candidates) if w.name == choices.get(s.key)), s.now)
            for s in sites.sites
        )
        nbytes = self.bytes(parts, choice)
        return Checked(nbytes, nbytes <= self.limit)

    @property
    def all(self) -> list[tuple[float, int]]:
        """Seconds and real bytes of every choice."""
        return [
            (self.sites(parts).seconds(choice), self.bytes(parts, choice))
            for parts in ("keep", "split:2")
            for choice in choices(self.sites(parts))
        ]

    @property
    def limit(self) -> int:
        sizes = sorted(nbytes for _, nbytes in self.all)
        return sizes[len(sizes) // 3]

    def found(self) -> CoSelected:
        return co_select(self, self.limit)


@dataclass(frozen=True)
class Other:
    seconds: float
    kept: bool

    def fits(self) -> bool:
        return self.kept


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.full
def test_within_the_limit_and_near_the_best_of_all(seed):
    program = Made(seed)
    found = program.found()
    best = min(seconds for seconds, nbytes in program.all if nbytes <= program.limit)
    assert found.nbytes <= program.limit and len(program.planned) <= PLANS
    assert best - 1e-12 <= found.seconds <= 1.02 * best


def test_equal_programs_give_equal_choices():
    assert Made(4).found() == Made(4).found()


@pytest.mark.full
def test_the_quicker_of_it_and_what_was_chosen_alone():
    program = Made(1)
    found = program.found()
    for rival in (Other(2 * found.seconds, True), Other(found.seconds / 2, False)):
        assert co_select(program, program.limit, rivals=[rival]).seconds == found.seconds
    with pytest.raises(PycError, match="expected a choice quicker than") as caught:
        co_select(program, program.limit, rivals=[Other(found.seconds / 2, True)])
    assert caught.value.code is ReasonCode.BUDGET_NOT_FOUND


def test_nothing_within_the_limit():
    program = Made(2)
    with pytest.raises(PycError, match="within 3 bytes, found none"):
        co_select(program, 3)


def test_only_what_differs_is_named():
    found = Made(6).found()
    assert set(found.choices) == set(found.grounds)
    structure = Made(6).read(found.choices)
    now = {s.key: s.candidates[s.now].name for s in structure.sites.sites}
    assert all(now.get(key) != name for key, name in found.choices.items())


@pytest.mark.full
def test_parts_from_the_quickest_to_the_smallest():
    offers = {
        "a": [Part("keep", 1.0, 100), Part("split:2", 1.1, 50), Part("split:4", 3.0, 45)],
        "b": [Part("keep", 1.0, 80), Part("split:2", 2.0, 40)],
    }
    found = at_prices(offers)
    assert found[0] == {"a": "keep", "b": "keep"}
    assert found[-1] == {"a": "split:4", "b": "split:2"}
    assert {"a": "split:2", "b": "keep"} in found
    many = {f"r{i}": [Part("keep", 1.0, 100), Part("split:2", 1.5 + i, 50)] for i in range(30)}
    assert len(at_prices(many)) == STRUCTURES and at_prices({}) == []
    for before, after in itertools.pairwise(at_prices(many)):
        assert sum(v != "keep" for v in before.values()) < sum(v != "keep" for v in after.values())
