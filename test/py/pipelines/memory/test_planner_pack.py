"""Packing: legal, never below the bound, exact on small instances, repeatable, never worse."""

import os
from itertools import pairwise, permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suites.pack import METRIC
from suites.pack_instances import (
    FAMILIES,
    INSTANCES,
    colliding,
    cut,
    mixed,
    nested,
    read_csv,
    staggered,
)

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.records import Report
from pyc_mlir.pipelines.memory.planner.greedy import (
    ANYWHERE,
    MANY,
    NATIVE,
    _engine,
    orders,
    place,
    place_in_python,
    place_natively,
)
from pyc_mlir.pipelines.memory.planner.intervals import Intervals
from pyc_mlir.pipelines.memory.planner.pack import Fit, luby, pack
from pyc_mlir.tools import pyc_bench

MINIMALLOC = os.environ.get("PYC_MINIMALLOC")


@st.composite
def instances(draw, most=12, alignments=(1, 16, 64)) -> Intervals:
    """Short lives and small sizes: many ties."""
    row = st.tuples(st.integers(0, 12), st.integers(1, 8), st.integers(0, 40))
    rows = draw(st.lists(row, max_size=most))
    table = np.array([(lo, lo + n, s) for lo, n, s in rows], np.int64).reshape(-1, 3)
    aligned = st.lists(st.sampled_from(alignments), min_size=len(rows), max_size=len(rows))
    lower, upper, size = table.T.copy()
    return Intervals(lower, upper, size, np.array(draw(aligned), np.int64))


def alive_bytes(intervals: Intervals) -> int:
    """The bound, counted time by time."""
    times = range(int(intervals.upper.max(initial=0)))
    alive = [(intervals.lower <= t) & (t < intervals.upper) for t in times]
    return max((int(intervals.padded[a].sum()) for a in alive), default=0)


def overlaps(intervals: Intervals, offsets: np.ndarray) -> bool:
    """Pair by pair."""
    lo, up, size = intervals.lower, intervals.upper, intervals.size
    return any(
        lo[i] < up[j] and lo[j] < up[i] and size[i] and size[j]
        and offsets[i] < offsets[j] + size[j] and offsets[j] < offsets[i] + size[i]
        for i in range(len(lo)) for j in range(i)
    )  # fmt: skip


def optimum(intervals: Intervals) -> int:
    """The least arena: some order of placing each on top of what it meets gives it."""
    best = 1 << 60
    for order in permutations(range(len(intervals))):
        end = np.zeros(len(intervals), np.int64)
        for k, b in enumerate(order):
            below = [
                end[c]
                for c in order[:k]
                if intervals.lower[b] < intervals.upper[c]
                and intervals.lower[c] < intervals.upper[b]
            ]
            end[b] = max(below, default=0) + intervals.padded[b]
        best = min(best, int(end.max(initial=0)))
    return best


@given(instances())
def test_packings_are_legal(intervals) -> None:
    found = pack(intervals, work_limit=20_000)
    assert not overlaps(intervals, found.offsets)
    assert (found.offsets >= 0).all() and not (found.offsets % intervals.alignment).any()
    assert found.arena_bytes == (found.offsets + intervals.padded).max(initial=0)
    assert found.lower_bound == alive_bytes(intervals) <= found.arena_bytes
    assert found.proven or found.arena_bytes > found.lower_bound


@given(instances(), st.integers(0, 3))
def test_same_seed_same_packing_and_more_work_is_never_worse(intervals, seed) -> None:
    runs = [pack(intervals, work_limit=w, seed=seed) for w in (0, 2000, 10_000, 40_000)]
    arenas = [r.arena_bytes for r in runs]
    assert arenas == sorted(arenas, reverse=True)
    again = pack(intervals, work_limit=10_000, seed=seed)
    assert (again.offsets == runs[2].offsets).all() and again.work == runs[2].work


@settings(max_examples=15)
@given(instances(most=6, alignments=(16,)))
def test_small_instances_are_packed_optimally(intervals) -> None:
    assert pack(intervals, work_limit=40_000).arena_bytes == optimum(intervals)


@given(instances(most=20))
def test_no_greedy_order_is_better(intervals) -> None:
    found = pack(intervals, work_limit=40_000).arena_bytes
    for _, order, best_fit in orders(intervals):
        assert found <= intervals.arena(place(intervals, order, best_fit, lambda work: None))


@given(instances(most=20))
def test_components_share_no_time_and_are_complete(intervals) -> None:
    parts = intervals.components()
    assert sorted(np.concatenate(parts).tolist() if parts else []) == list(range(len(intervals)))
    for a, b in pairwise(parts):
        assert intervals.upper[a].max() <= intervals.lower[b].min()


@pytest.mark.parametrize("name", INSTANCES)
def test_large_instances_stay_near_the_bound(name) -> None:
    count = 40 if name == "cut" else 2000
    intervals = INSTANCES[name](count, np.random.default_rng(1))
    assert len(intervals) == count
    found = pack(intervals, work_limit=300_000)
    assert colliding(intervals, found.offsets) is None
    assert found.gap <= (0.2 if name == "cut" else 0.02)


def fit(intervals: Intervals, capacity: int, tries: int = 30) -> np.ndarray | None:
    """Offsets by the search alone; None: it has shown that there are none."""
    search = Fit(intervals, np.random.default_rng(0), lambda work: None)
    answers = (search.attempt(capacity, luby(k + 1)) for k in range(tries))
    found = next(answer for answer in answers if answer is not None)
    return search.offsets if found else None


@pytest.mark.parametrize("count", [24, 120])
def test_the_search_finds_a_packing_without_gaps(count) -> None:
    intervals = cut(count, np.random.default_rng(0), height=1024)
    offsets = fit(intervals, intervals.lower_bound)
    assert offsets is not None and colliding(intervals, offsets) is None
    assert intervals.arena(offsets) == intervals.lower_bound == 1024 * 64
    assert fit(intervals, intervals.lower_bound - 1) is None


@settings(max_examples=25)
@given(instances(most=6, alignments=(16,)), st.integers(-2, 2))
def test_the_search_decides_whether_a_capacity_can_be_kept(intervals, more) -> None:
    sized = intervals.take(np.flatnonzero(intervals.size))
    least = optimum(sized)
    for component in sized.components() if least else ():
        few = sized.take(component)
        capacity = optimum(few) + 16 * more
        offsets = fit(few, capacity)
        assert (offsets is not None) == (more >= 0)
        if offsets is not None:
            assert not overlaps(few, offsets) and few.arena(offsets) <= capacity


@settings(max_examples=25)
@given(instances(most=6, alignments=(16,)))
def test_what_is_proven_is_the_optimum(intervals) -> None:
    found = pack(intervals, work_limit=100_000)
    assert found.proven and found.arena_bytes == optimum(intervals)


def packable(intervals: Intervals, capacity: int, offsets: tuple[int, ...] = ()) -> bool:
    """Whether the rest can be placed at some offsets: all of them are tried."""
    b = len(offsets)
    if b == len(intervals):
        return True
    lo, up, size = intervals.lower, intervals.upper, intervals.size
    meets = [c for c in range(b) if lo[b] < up[c] and lo[c] < up[b]]
    return any(
        packable(intervals, capacity, (*offsets, at))
        for at in range(capacity - int(size[b]) + 1)
        if all(at + size[b] <= offsets[c] or offsets[c] + size[c] <= at for c in meets)
    )


def test_a_bound_that_no_packing_reaches_is_proven_to_be_out_of_reach() -> None:
    """Four bytes are alive at each time, yet five are needed."""
    rows = [(0, 1, 3), (1, 2, 1), (1, 3, 2), (0, 4, 1), (3, 4, 1), (2, 5, 1), (4, 5, 2)]
    intervals = Intervals.of([*rows, (3, 6, 1), (5, 6, 3)])
    found = pack(intervals, work_limit=10**6)
    assert (found.lower_bound, found.arena_bytes, found.proven) == (4, 5, True)
    assert found.work < 10**6
    assert packable(intervals, 5) and not packable(intervals, 4)


def test_a_small_interval_does_not_rise_step_by_step() -> None:
    """Each 64 bytes of the way would be a turn of one deduction, millions in all."""
    large, rows = 96 << 20, [(9, 17, 12 << 20), (16, 58, 64)]
    rows += [(begin, begin + 2, large) for begin in (14, 15, 44, 45)]
    found = pack(Intervals.of(rows), work_limit=40_000)
    assert found.arena_bytes <= found.lower_bound + 64


def test_attempts_have_the_lengths_of_luby() -> None:
    assert [luby(k) for k in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]


def test_a_capacity_ends_the_search() -> None:
    intervals = staggered(300, np.random.default_rng(0))
    generous = pack(intervals, capacity=2 * intervals.lower_bound, work_limit=10**9)
    assert generous.fits and generous.work < 100_000
    tight = pack(intervals, capacity=intervals.lower_bound - 1, work_limit=1000)
    assert not tight.fits


def test_a_clock_may_end_the_search() -> None:
    intervals = mixed(300, np.random.default_rng(0))
    stopped = pack(intervals, work_limit=10**12, stop=lambda: True)
    assert colliding(intervals, stopped.offsets) is None


def test_sections_keep_every_greatest_load() -> None:
    intervals = nested(500, np.random.default_rng(3))
    assert intervals.lower_bound == alive_bytes(intervals)
    assert intervals.sections[2] < len(np.unique(intervals.lower))


@pytest.mark.parametrize("row", [(1, 1, 5), (2, 1, 5), (0, 1, -1)])
def test_malformed_intervals_are_refused(row) -> None:
    with pytest.raises(PycError) as caught:
        pack(Intervals.of([(0, 1, 1), row]))
    assert caught.value.code is ReasonCode.BAD_ARGUMENT and "interval 1" in str(caught.value)


@pytest.mark.parametrize("size", [2**64, 2**63 - 1, 2**59])
def test_sums_of_sizes_stay_within_64_bits(size) -> None:
    with pytest.raises(PycError, match="intervals: expected") as caught:
        pack(Intervals.of([(0, 3, size), (1, 2, size)]))
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_bytes_are_aligned_to_one_where_nothing_is_said() -> None:
    intervals = Intervals.of([(0, 2, 3), (1, 3, 5)])
    assert intervals.alignment.tolist() == [1, 1]
    assert pack(intervals).arena_bytes == intervals.lower_bound == 8


def test_colliding_sees_time_bytes_and_alignment() -> None:
    two = Intervals.of([(0, 2, 10), (1, 3, 10)], 2)
    assert colliding(two, np.array([0, 10])) is None
    assert colliding(two, np.array([0, 8])) == 1
    assert colliding(two, np.array([11, 0])) == 0
    apart = Intervals.of([(0, 1, 10), (1, 3, 10)])
    assert colliding(apart, np.array([0, 0])) is None


def test_bench_reads_csv_and_stores_what_was_asked_for(tmp_path) -> None:
    source, out = tmp_path / "small.csv", tmp_path / "out.json"
    source.write_text("id,lower,upper,size\n7,0,3,4\n8,3,9,4\n9,0,9,4\n")
    assert pyc_bench.main(["pack", str(source), "--capacity", "9", "--json", str(out)]) == 0
    (row,) = Report.load(out).records
    assert {k: row[k] for k in ("file", "buffers", "lower_bound", "arena_bytes", "proven")} == {
        "file": str(source), "buffers": 3, "lower_bound": 8, "arena_bytes": 8, "proven": True,
    }  # fmt: skip
    assert row["seconds"] >= 0


def test_bench_makes_instances_where_no_file_is_named(tmp_path) -> None:
    out = tmp_path / "out.json"
    arguments = ["pack", "--quick", "--time-limit", "0.2", "--json", str(out)]
    assert pyc_bench.main(arguments) == 0
    rows = Report.load(out).records
    assert [r["file"].split(",")[0] for r in rows] == list(INSTANCES)
    assert all(r["lower_bound"] <= r["arena_bytes"] for r in rows)


HEAD = "id,lower,upper,size\n"


@pytest.mark.parametrize(
    "text", ["", HEAD, f"{HEAD}1,5,5,4\n", "id,lower\n1,2\n", f"{HEAD}1,2,x,4\n"]
)
def test_bench_refuses_other_files(tmp_path, text, capsys) -> None:
    source = tmp_path / "bad.csv"
    source.write_text(text)
    assert pyc_bench.main(["pack", str(source), "--json", str(tmp_path / "out.json")]) == 1
    assert "bad.csv: expected lines of id,lower,upper,size" in capsys.readouterr().err
    source.unlink()
    assert pyc_bench.main(["pack", str(source), "--json", str(tmp_path / "out.json")]) == 1
    assert "FILE_ACCESS" in capsys.readouterr().err


@pytest.mark.skipif(MINIMALLOC is None, reason="PYC_MINIMALLOC names no folder of instances")
def test_public_instances_fit_into_their_capacity() -> None:
    """The capacity is part of the name: A.1048576.csv."""
    for path in sorted(Path(MINIMALLOC or "").glob("*.csv")):
        capacity = int(path.suffixes[0][1:])
        intervals = read_csv(path)
        found = pack(intervals, capacity=capacity, work_limit=20_000_000)
        assert found.fits and colliding(intervals, found.offsets) is None


def listed(intervals: Intervals) -> dict[str, np.ndarray]:
    """Orders that simple packers use, each by its definition alone."""
    size, life = intervals.size, intervals.upper - intervals.lower
    times = np.unique(intervals.lower)
    alive = (intervals.lower[:, None] <= times) & (times < intervals.upper[:, None])
    load = size @ alive
    met = np.where(alive, load, 0).max(1)
    # TFLite's: steps by breadth, what is alive at each by size.
    by_breadth = [b for t in np.argsort(-load, kind="stable") for b in np.lexsort((-size,))
                  if alive[b, t]]  # fmt: skip
    return {
        "size": np.argsort(-size, kind="stable"),
        "area": np.argsort(-size * life, kind="stable"),
        "lifetime": np.argsort(-life, kind="stable"),
        "birth": np.argsort(intervals.lower, kind="stable"),
        "death": np.argsort(intervals.upper, kind="stable"),
        "breadth": np.array(list(dict.fromkeys(by_breadth))),
        "size, then lifetime": np.lexsort((-life, -size)),
        "minimalloc": np.lexsort((-size * life, -life, -met)),
    }


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("count", [60, 500, 3000])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.full
def test_no_listed_order_is_better_whatever_the_limit(name, count, seed) -> None:
    """The first order alone, as with a limit of 0 before, is behind on most of these."""
    intervals = FAMILIES[name](count, np.random.default_rng(seed))
    found = pack(intervals, work_limit=0, stop=lambda: True)
    assert colliding(intervals, found.offsets) is None
    named = listed(intervals) if count <= 500 else {o.name: o.order for o in orders(intervals)}
    for order, best_fit in product(named.values(), (False, True)):
        offsets = place(intervals, order, best_fit, lambda work: None)
        assert found.arena_bytes <= intervals.arena(offsets)


def test_many_intervals_begin_with_the_orders_that_mostly_win() -> None:
    """All orders are still there, each once."""
    few, many = (FAMILIES["nested"](n, np.random.default_rng(0)) for n in (NATIVE - 1, NATIVE))
    names = [[o.name for o in orders(intervals)] for intervals in (few, many)]
    assert names[0][0] == "size, first fit"
    assert names[1][: len(MANY)] == list(MANY)
    assert sorted(names[0]) == sorted(names[1]) and len(set(names[1])) == len(names[1])


def test_a_strict_limit_ends_the_orders_too() -> None:
    intervals = FAMILIES["nested"](300, np.random.default_rng(0))
    first = next(orders(intervals))
    alone = intervals.arena(place(intervals, first.order, first.best_fit, lambda work: None))
    strict = pack(intervals, work_limit=0, strict=True)
    assert strict.arena_bytes == alone > pack(intervals, work_limit=0).arena_bytes
    assert strict.work < 20_000


@pytest.mark.parametrize("count", [1, 16, 127, 128, 700])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.full
def test_machine_code_places_as_python_does(name, count) -> None:
    """Bit by bit, with mixed alignments, and as far as a limit allows."""
    random = np.random.default_rng(count)
    made = FAMILIES[name](count + 1, random)
    alignment = random.choice([1, 16, 48, 64], count + 1)
    for intervals in (made, Intervals(made.lower, made.upper, made.size, alignment)):
        for _, order, best_fit in orders(intervals):
            arguments = intervals, order, best_fit, lambda work: None
            expected = place_in_python(*arguments, ANYWHERE)
            assert expected is not None
            assert (place_natively(*arguments, ANYWHERE) == expected).all()
            arena = intervals.arena(expected)
            assert place_natively(*arguments, arena) is not None
            assert place_natively(*arguments, arena - 1) is None
            assert place_in_python(*arguments, arena - 1) is None


def test_compiling_the_loop_starts_no_thread() -> None:
    """A process that has packed may fork."""
    before = len(os.listdir("/proc/self/task"))
    _engine.__wrapped__()
    assert len(os.listdir("/proc/self/task")) == before


def test_the_bench_compares_with_every_order(tmp_path) -> None:
    out = tmp_path / "out.json"
    assert pyc_bench.main(["pack-orders", "--quick", "--sizes", "60", "--json", str(out)]) == 0
    rows = [r for r in Report.load(out).records if r["metric"] == METRIC]
    best = {r["workload"]: r["value"] for r in rows if r["candidate"] == "best order"}
    assert [name.split(",")[0] for name in best] == list(FAMILIES)
    assert all(r["value"] <= best[r["workload"]] for r in rows)
