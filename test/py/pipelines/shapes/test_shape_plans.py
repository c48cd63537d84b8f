"""Plans for shapes: the best segments of a demand, traces, and the text of a plan."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.shapes.choose import MOST_ROWS, Chosen, Demand, choose_plans
from pyc_mlir.pipelines.shapes.plan import ShapePlan, parse_plans, plans_text

LINE = {"n": (1, 64)}


def seconds(plan, sizes):
    """Settled sizes are twice as fast; a narrow range is a little faster than a wide one."""
    work = math.prod(sizes.values())
    if plan is None:
        return 2.0 * work
    if not plan.open:
        return 1.0 * work
    return work * (1.5 + sum(high - low for low, high in plan.open.values()) / 256)


def refused(call):
    with pytest.raises(PycError) as caught:
        call()
    assert caught.value.code is ReasonCode.BAD_ARGUMENT
    return str(caught.value)


def brute_force(demand, most):
    """Try all ways to cut the sorted rows into segments, each with a plan or without."""
    rows = sorted(demand.rows, key=lambda r: (seconds(None, demand.sizes(r)), r.low))
    count = len(rows)
    best = math.inf
    for cuts in range(count):
        for ends in combinations(range(1, count), cuts):
            pieces = list(zip((0, *ends), (*ends, count), strict=True))
            for chosen in range(2 ** len(pieces)):
                if chosen.bit_count() > most:
                    continue
                total = 0.0
                for at, (first, end) in enumerate(pieces):
                    piece = rows[first:end]
                    plan = None
                    if chosen >> at & 1:
                        lows = [min(r.low[d] for r in piece) for d in range(len(demand.dims))]
                        highs = [max(r.high[d] for r in piece) for d in range(len(demand.dims))]
                        ends_of = zip(lows, highs, strict=True)
                        plan = ShapePlan(dict(zip(demand.dims, ends_of, strict=True)))
                    total += sum(r.weight * seconds(plan, demand.sizes(r)) for r in piece)
                best = min(best, total)
    return best


counts = st.dictionaries(
    st.tuples(st.integers(1, 9), st.integers(1, 3)), st.integers(1, 20), min_size=1, max_size=6
)


@given(counts, st.integers(0, 4))
def test_no_other_cut_of_the_rows_is_faster(found, most):
    demand = Demand.of_sizes(("n", "m"), found)
    chosen = choose_plans(demand, seconds, most)
    assert len(chosen.plans) <= most
    if most:
        assert chosen.seconds == pytest.approx(brute_force(demand, most))
        assert chosen.gain >= 1


def test_frequent_sizes_get_plans_of_their_own():
    demand = Demand.of_sizes(("n",), {(8,): 90, (64,): 8, (3,): 1, (5,): 1})
    assert plans_text(choose_plans(demand, seconds, 2).plans) == "n=8;n=64"
    assert plans_text(choose_plans(demand, seconds, 8, gain=0.25).plans) == "n=8"


def test_a_plan_that_saves_nothing_is_not_made():
    demand = Demand.of_ranges(LINE)
    assert choose_plans(demand, lambda plan, sizes: 1.0, 4).plans == ()
    assert choose_plans(Demand(), seconds, 4) == Chosen()
    assert choose_plans(demand, seconds, 0) == Chosen()


def test_the_demand_of_ranges_goes_in_geometric_steps():
    demand = Demand.of_ranges({"n": (1, 100)})
    assert [r.low for r in demand.rows] == [(1,), (2,), (4,), (8,), (16,), (32,), (64,), (100,)]
    assert sum(r.weight for r in demand.rows) == pytest.approx(1)
    assert [r.low for r in Demand.of_ranges({"n": (5, 5)}).rows] == [(5,)]
    wide = Demand.of_ranges({name: (1, 1 << 20) for name in "abcd"})
    assert 0 < len(wide.rows) <= 64, "several dimensions grow together"
    assert Demand.of_ranges({}).rows == ()
    assert [r.low for r in Demand.of_ranges({"n": (0, 2)}).rows] == [(0,), (1,), (2,)]


@given(st.dictionaries(st.tuples(st.integers(1, 5000)), st.integers(1, 50), max_size=400))
def test_many_sizes_become_few_rows_that_hold_all(found):
    demand = Demand.of_sizes(("n",), found)
    assert len(demand.rows) <= MOST_ROWS + 1
    assert not found or sum(r.weight for r in demand.rows) == pytest.approx(1)
    for (size,) in found:
        assert any(r.low[0] <= size <= r.high[0] for r in demand.rows)


def test_traces_are_tables_of_calls():
    demand = Demand.of_trace("batch,length,count\n1,8,3\n2,8,1\n\n1,8,4\n")
    assert demand.dims == ("batch", "length")
    assert {r.low: r.weight for r in demand.rows} == {(1, 8): 7 / 8, (2, 8): 1 / 8}
    assert [r.low for r in demand.within({"batch": (2, 4)}).rows] == [(2, 8)]
    for text in (
        "",
        "count\n1\n",
        "n,n\n1,1\n",
        "n\nx\n",
        "n\n1,2\n",
        "n\n-1\n",
        "n\n",
        "n,count\n1,0\n",
    ):
        assert "mine.csv: expected" in refused(lambda t=text: Demand.of_trace(t, "mine.csv"))


def test_plans_are_written_and_read():
    for text in ("batch=1", "batch=1;batch=2:8,x[0]=4", "", "a%3Bb=1:2"):
        assert plans_text(parse_plans(text)) == text
    assert parse_plans("a%3Bb=1:2")[0].ranges == {"a;b": (1, 2)}
    assert len(parse_plans("batch=1;batch=2;batch=1:1")) == 2, "each once"
    assert parse_plans(" batch = 1 ; batch=2:8")[1] == ShapePlan({"batch": (2, 8)})
    for text in ("batch", "batch=", "=1", "batch=2:1", "batch=1:", "batch=-1", "batch=x", ","):
        assert "expected `auto`" in refused(lambda t=text: parse_plans(t))


def test_a_plan_covers_its_ends():
    plan = ShapePlan({"n": (2, 8), "m": (4, 4)})
    assert plan.exact == {"m": 4} and plan.open == {"n": (2, 8)}
    assert plan.covers({"n": 2, "m": 4, "k": 1}) and plan.covers({"n": 8, "m": 4})
    assert not plan.covers({"n": 9, "m": 4}) and not plan.covers({"n": 2, "m": 5})
