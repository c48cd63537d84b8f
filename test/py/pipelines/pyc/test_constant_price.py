"""The price of constants larger than the model's: what is given up, and what all choices cost."""

from random import Random

import pytest

from pyc_mlir.pipelines.pyc.constants import RATES, ExchangeRate, Priced, PricedGroup, prices

OWN, LARGER = "conv", "winograd"


def group(constant: str, own: int, larger: int, slow: float, quick: float) -> PricedGroup:
    """A group with a kernel for the model's weights and a quicker one for larger weights."""
    ways = {LARGER: Priced(quick, {f"{constant} 1": larger}), OWN: Priced(slow, {constant: own})}
    return PricedGroup(ways, {constant: own})


def test_without_a_rate_the_quickest_is_taken():
    found = prices([group("w", 100, 400, 2.0, 1.99)], 0, ExchangeRate())
    assert found.taken == (LARGER,) and found.price == 0.0
    assert found.added == ({LARGER: 300, OWN: 0},)


def test_a_larger_constant_stays_where_it_saves_more_than_it_is_worth():
    """Of 1000 bytes and 10 s, at the rate 0.5, a byte is worth 5 ms."""
    rest = PricedGroup({OWN: Priced(9.0)})
    rate = ExchangeRate(worth=0.5, slack=1.0)
    little = prices([group("w", 100, 200, 1.4, 1.0), rest], 800, rate)
    assert little.price == pytest.approx(0.5 * 10 / 1000)
    assert little.taken == (OWN, OWN)
    much = prices([group("w", 100, 200, 1.6, 1.0), rest], 800, rate)
    assert much.taken == (LARGER, OWN)


def test_no_more_time_is_lost_than_the_mode_accepts():
    groups = [group(f"w{i}", 100, 400, 1.02, 1.0) for i in range(10)]
    found = prices(groups, 0, ExchangeRate(worth=1.0, slack=0.005))
    assert sorted(found.taken) == [OWN, OWN, *[LARGER] * 8]


def test_parts_that_read_one_weight_give_it_up_together():
    """Its bytes count once, their seconds twice."""
    rest = PricedGroup({OWN: Priced(8.0)})
    shared = [*(group("w", 100, 200, 1.3, 1.0) for _ in range(2)), rest]
    alone = [*(group(name, 100, 200, 1.3, 1.0) for name in "vw"), rest]
    rate = ExchangeRate(worth=0.8, slack=1.0)
    assert prices(shared, 1800, rate).taken == (LARGER, LARGER, OWN)
    assert prices(alone, 1600, rate).taken == (OWN, OWN, OWN)


def test_a_weight_that_another_op_reads_as_it_is_stays_beside_its_larger_form():
    """As a table that is looked up, and multiplied with at the end."""
    lookup = PricedGroup({OWN: Priced(1.0, {"w": 100})}, {"w": 100})
    found = prices([group("w", 100, 120, 2.0, 1.0), lookup], 0, ExchangeRate())
    assert found.added[0] == {LARGER: 120, OWN: 0}


@pytest.mark.parametrize("seed", range(60))
def test_what_is_taken_costs_no_more_than_the_price_and_the_slack(seed):
    random = Random(seed)
    groups = []
    for i in range(random.randint(1, 6)):
        own = random.randint(1, 100)
        ways = {OWN: Priced(random.uniform(1, 2), {f"w{i}": own})}
        for j in range(random.randint(0, 3)):
            ways[f"kernel {j}"] = Priced(
                random.uniform(0.5, 2), {f"w{i} {j}": random.randint(1, 400)}
            )
        groups.append(PricedGroup(ways, {f"w{i}": own}))
    rate = ExchangeRate(random.uniform(0.1, 2), random.uniform(0, 0.3))
    free, found = prices(groups, 50, ExchangeRate()), prices(groups, 50, rate)

    def seconds(taken):
        return sum(g.ways[n].seconds for g, n in zip(groups, taken, strict=True))

    def added(taken):
        return sum(a[n] for a, n in zip(found.added, taken, strict=True))

    lost, saved = seconds(found.taken) - seconds(free.taken), added(free.taken) - added(found.taken)
    assert saved >= 0 and lost <= rate.slack * seconds(free.taken) + 1e-9
    assert lost <= found.price * saved + 1e-9


def test_the_rates_of_the_modes():
    assert "latency_first" not in RATES and None not in RATES
    assert RATES["balanced"].slack <= 0.02
