"""Kernels of a program chosen together under a limit of bytes, against all choices there are."""

import itertools
import random

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.selection.sites import (
    Candidate,
    Chosen,
    SiteCandidates,
    Sites,
    choose,
)


def random_sites(seed: int) -> Sites:
    """Up to four candidates a site; slow ones take less; some constants are read by two sites."""
    rng = random.Random(seed)
    steps = rng.randint(2, 6)
    shared = {f"shared{i}": rng.randint(1, 40) for i in range(2)}
    sites = []
    for number in range(rng.randint(2, 6)):
        candidates = []
        for i in range(rng.randint(1, 4)):
            constants = {f"{number}.{i}": rng.randint(0, 60)}
            if rng.random() < 0.4:
                key = rng.choice(sorted(shared))
                constants = {key: shared[key]}
            scratch = rng.choice((0, 0, rng.randint(1, 30)))
            seconds = rng.randint(1, 100) * 1e-6
            candidates.append(Candidate(f"candidate {i}", seconds, scratch, constants))
        sites.append(SiteCandidates(f"site {number}", rng.randrange(steps), tuple(candidates)))
    live = tuple(rng.randint(0, 50) for _ in range(steps))
    return Sites(tuple(sites), live, fixed_seconds=1e-5)


def choices(sites: Sites) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(s.candidates)) for s in sites.sites)))


def limit_of(sites: Sites, share: float, calls: int) -> int:
    sizes = [sites.bytes(c, calls) for c in choices(sites)]
    return int(min(sizes) + share * (max(sizes) - min(sizes)))


def fitting(sites: Sites, limit: int, calls: int) -> list[tuple[int, ...]]:
    return [c for c in choices(sites) if sites.bytes(c, calls) <= limit]


def checked(sites: Sites, limit: int, calls: int) -> tuple[Chosen, float]:
    """What is chosen, within the limit; and the seconds of the best there is."""
    found = choose(sites, limit, calls)
    least = min(sites.seconds(c) for c in fitting(sites, limit, calls))
    assert found.nbytes == sites.bytes(found.choice, calls) <= limit
    assert found.seconds == sites.seconds(found.choice) >= least - 1e-12
    assert found.bound <= least + 1e-8
    return found, least


@pytest.mark.parametrize("seed", range(40))
def test_as_good_as_the_best_of_all_choices(seed):
    sites, calls = random_sites(seed), 1 + seed % 3
    found, least = checked(sites, limit_of(sites, (seed % 5) / 5, calls), calls)
    assert found.seconds <= 1.1 * least


def test_nearly_always_the_best_of_all_choices():
    best = 0
    for seed in range(100, 150):
        found, least = checked((sites := random_sites(seed)), limit_of(sites, 0.4, 1), 1)
        best += found.seconds <= least + 1e-12
    assert best >= 45


@pytest.mark.parametrize("seed", range(10))
def test_never_slower_than_where_it_begins(seed):
    sites = random_sites(seed)
    limit = limit_of(sites, 0.5, 1)
    for start in fitting(sites, limit, 1)[::7]:
        assert choose(sites, limit, start=start, work=1).seconds <= sites.seconds(start)


def test_equal_problems_give_equal_choices():
    sites = random_sites(3)
    limit = limit_of(sites, 0.3, 1)
    assert choose(sites, limit) == choose(sites, limit)


def test_a_price_where_bytes_are_scarce():
    sites = Sites(
        (SiteCandidates("a", 0, (Candidate("fast", 1e-6, 100), Candidate("slow", 3e-6))),), (10,)
    )
    assert choose(sites, 110).choice == (0,)
    tight = choose(sites, 60)
    assert tight.choice == (1,) and tight.seconds == pytest.approx(3e-6) and tight.price > 0


def test_no_choice_within_the_limit():
    sites = random_sites(5)
    with pytest.raises(PycError) as caught:
        choose(sites, min(sites.bytes(c) for c in choices(sites)) - 1)
    assert caught.value.code is ReasonCode.BUDGET_IMPOSSIBLE


def test_a_constant_counts_once():
    candidate = Candidate("packed", 1e-6, constants={"w": 100})
    sites = Sites(tuple(SiteCandidates(f"part {i}", i, (candidate,)) for i in range(3)), (0, 0, 0))
    assert sites.constants(sites.now) == 100
    assert choose(sites, 100).nbytes == 100
