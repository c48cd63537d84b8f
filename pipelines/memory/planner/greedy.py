"""Place intervals one after another, each as low as it goes: an order decides everything.

The classic heuristic of static memory allocation (TFLite's and IREE's planners sort by size).
Placed intervals are kept sorted by offset in flat arrays, so that one placement is a handful of
vector operations. Many intervals are placed by machine code, which MLIR's execution engine compiles
once in a process: the same offsets, ten times sooner or more. There, placed intervals lie in
chunks, sorted by offset: a query compares the lives of sixteen at a time and visits those that it
meets; an insertion moves at most one chunk."""

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from pyc_mlir.pipelines.memory.planner.intervals import MOST_BYTES, Intervals, Ints

NOWHERE = np.int64(MOST_BYTES)
# Above every offset: sums of sizes that are rounded up to alignments.
ANYWHERE = (1 << 63) - 1
# From this many intervals on machine code places them: compiling it costs a tenth of a second.
NATIVE = 400
# What comes first for as many: of made families of 50,000 these reach the bound of three within
# 1.4 seconds (docs/results/pack-orders.json), where all orders to their ends took up to 26.
MANY = ("load, life, first fit", "load, area, best fit")


class Order(NamedTuple):
    """The order in which intervals are placed (by number); `best_fit` takes the tightest gap."""

    name: str
    order: Ints
    best_fit: bool


class Placed:
    """The intervals placed so far, sorted by offset."""

    def __init__(self, capacity: int) -> None:
        self.count = 0
        self.first = np.empty(capacity, np.int32)
        self.past = np.empty(capacity, np.int32)
        self.offset = np.empty(capacity, np.int64)
        self.end = np.empty(capacity, np.int64)

    def lowest(self, first: int, past: int, size: int, align: int, best_fit: bool) -> int:
        """Return the lowest offset (or the tightest gap's) where [first, past) x size is free."""
        n = self.count
        hit = ((self.first[:n] < past) & (self.past[:n] > first)).nonzero()[0]
        if not len(hit):
            return 0
        below = np.empty(len(hit) + 1, np.int64)
        below[0] = 0
        np.maximum.accumulate(self.end[hit], out=below[1:])
        if align > 1:
            below = -(-below // align) * align
        gaps = self.offset[hit] - below[:-1]
        if not best_fit:
            gap = int((gaps >= size).argmax())
            return int(below[gap] if gaps[gap] >= size else below[-1])
        gaps[gaps < size] = NOWHERE
        gap = int(gaps.argmin())
        return int(below[gap] if gaps[gap] < NOWHERE else below[-1])

    def add(self, first: int, past: int, offset: int, size: int) -> None:
        """Put an interval at an offset where it is free."""
        n = self.count
        at = int(self.offset[:n].searchsorted(offset))
        rows = (
            (self.first, first),
            (self.past, past),
            (self.offset, offset),
            (self.end, offset + size),
        )
        for column, value in rows:
            column[at + 1 : n + 1] = column[at:n]
            column[at] = value
        self.count = n + 1


def place(
    intervals: Intervals, order: Ints, best_fit: bool, spend: Callable[[float], None]
) -> Ints:
    """Return offsets in bytes of the intervals placed in `order`; `spend` counts the work."""
    offsets = place_below(intervals, order, best_fit, spend)
    assert offsets is not None, "without a limit everything finds a place"
    return offsets


def place_below(
    intervals: Intervals,
    order: Ints,
    best_fit: bool,
    spend: Callable[[float], None],
    limit: int = ANYWHERE,
) -> Ints | None:
    """Run `place`; None as soon as an interval would end above `limit` bytes."""
    if len(order) >= NATIVE:
        return place_natively(intervals, order, best_fit, spend, limit)
    return place_in_python(intervals, order, best_fit, spend, limit)


def place_in_python(
    intervals: Intervals, order: Ints, best_fit: bool, spend: Callable[[float], None], limit: int
) -> Ints | None:
    """Run `place_below` for few intervals, as the reference for many."""
    first, past = (part.tolist() for part in intervals.sections[:2])
    size, alignment, granule = intervals.padded.tolist(), intervals.alignment, intervals.granule
    placed = Placed(len(intervals))
    offsets = np.zeros(len(intervals), np.int64)
    for b in order.tolist():
        align = int(alignment[b])
        offset = placed.lowest(
            first[b], past[b], size[b], 1 if align == granule else align, best_fit
        )
        spend(20 + placed.count / 250)
        if offset + size[b] > limit:
            return None
        placed.add(first[b], past[b], offset, size[b])
        offsets[b] = offset
    return offsets


def orders(intervals: Intervals) -> Iterator[Order]:
    """Yield the greedy orders, each with first fit and best fit, what mostly packs well first.

    By size (TFLite, IREE), lifetime, both in several mixtures, breadth (TFLite), the load that an
    interval meets (two of minimalloc's), classes of sizes with the longest first or as lanes (what
    boxes come to: Buchsbaum et al., 2003, and idealloc after them), births and deaths.
    """
    size = intervals.padded.astype(np.float64)
    life = (intervals.upper - intervals.lower).astype(np.float64)
    first, past, _ = intervals.sections
    width = (past - first).astype(np.float64)
    born, dead = intervals.lower, intervals.upper
    widest, met = _heaviest(intervals)
    classes = np.floor(np.log2(np.maximum(size, 1)))
    keys = (
        ("size", (-size, -life, born)),
        ("load, life", (-met, -life, -size * life, born)),
        ("classes, life", (-classes, -life, born)),
        ("size x life^0.3", (-size * width**0.3, -size, -life, born)),
        ("size x steps", (-size * width, -size, -life, born)),
        ("area", (-size * life, -size, -life, born)),
        ("classes, lanes", (-classes, _lanes(intervals, classes), born)),
        ("life", (-life, -size, born)),
        ("steps", (-width, -size, -life, born)),
        ("load, area", (-met, -size * life, -life, born)),
        ("breadth", (-met, widest, -size)),
        ("death, last first", (-dead, -size)),
        ("death", (dead, -size)),
        ("birth, largest first", (born, -size)),
        ("birth", (born,)),
    )
    fits = [(f"{name}, {fit} fit", columns) for name, columns in keys for fit in ("first", "best")]
    if len(intervals) >= NATIVE:
        fits.sort(key=lambda fit: MANY.index(fit[0]) if fit[0] in MANY else len(MANY))
    for name, columns in fits:
        yield Order(name, np.lexsort(columns[::-1]), name.endswith("best fit"))


def _heaviest(intervals: Intervals) -> tuple[Ints, Ints]:
    """Return each interval's first section of greatest load, and that load."""
    first, past, count = intervals.sections
    # Loads as ranks, ties to the earlier section: the least rank of a range names its section.
    by_load = np.lexsort((np.arange(count), -intervals.load))
    rank = np.empty(count, np.int64)
    rank[by_load] = np.arange(count)
    level = np.log2(past - first).astype(np.int64)
    least = np.empty(len(intervals), np.int64)
    for k in range(int(level.max(initial=0)) + 1):
        if k:
            half = 1 << (k - 1)
            rank = np.minimum(rank[:-half], rank[half:])
        here = np.flatnonzero(level == k)
        least[here] = np.minimum(rank[first[here]], rank[past[here] - (1 << k)])
    widest = by_load[least]
    return widest, intervals.load[widest]


def _lanes(intervals: Intervals, classes: Ints) -> Ints:
    """Assign lanes of intervals that do not meet within each class: as few as it needs."""
    lane = np.zeros(len(intervals), np.int64)
    free: dict[float, list[int]] = {}
    busy: dict[float, list[tuple[int, int]]] = {}
    used: dict[float, int] = {}
    order = np.argsort(intervals.lower, kind="stable")
    columns = (order, classes[order], intervals.lower[order], intervals.upper[order])
    for b, kind, lower, upper in zip(*(c.tolist() for c in columns), strict=True):
        idle, running = free.setdefault(kind, []), busy.setdefault(kind, [])
        while running and running[0][0] <= lower:
            heappush(idle, heappop(running)[1])
        if not idle:
            idle.append(used.get(kind, 0))
            used[kind] = idle[0] + 1
        lane[b] = heappop(idle)
        heappush(running, (upper, int(lane[b])))
    return lane


# Entries of a chunk: a multiple of the sixteen that are compared at once.
CHUNK = 128
# Placements between two looks at the budget.
SLICE = 2048
# The life of an empty entry begins after every query.
_NEVER = np.iinfo(np.int32).max

_CODE = """
func.func @greedy(
    %first: memref<?xi32>, %past: memref<?xi32>, %size: memref<?xi64>, %align: memref<?xi64>,
    %order: memref<?xindex>, %asked: memref<?xi64>, %steps: memref<?xindex>,
    %begins: memref<?xi32>, %ends: memref<?xi32>, %bottoms: memref<?xi64>,
    %tops: memref<?xi64>, %counts: memref<?xindex>, %chunks: memref<?xindex>,
    %offsets: memref<?xi64>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %lanes = arith.constant 16 : index
  %full = arith.constant CHUNK : index
  %half = arith.constant HALF : index
  %never = arith.constant NEVER : i32
  %i0 = arith.constant 0 : i64
  %i1 = arith.constant 1 : i64
  %none = arith.constant -1 : i64
  %infinite = arith.constant 0x7fffffffffffffff : i64
  %m0 = arith.constant 0 : i16
  %m1 = arith.constant 1 : i16
  %best_fit = memref.load %asked[%c0] : memref<?xi64>
  %first_fit = arith.cmpi eq, %best_fit, %i0 : i64
  %limit = memref.load %asked[%c1] : memref<?xi64>
  %begin = memref.load %steps[%c0] : memref<?xindex>
  %n = memref.load %steps[%c1] : memref<?xindex>
  %filled = memref.load %steps[%c2] : memref<?xindex>
  cf.br ^next(%begin, %filled : index, index)

^next(%i: index, %used: index):  // i have been placed; they fill that many chunks
  %more = arith.cmpi ult, %i, %n : index
  memref.store %used, %steps[%c2] : memref<?xindex>
  cf.cond_br %more, ^query, ^end(%i : index)
^query:
  %b = memref.load %order[%i] : memref<?xindex>
  %f = memref.load %first[%b] : memref<?xi32>
  %p = memref.load %past[%b] : memref<?xi32>
  %s = memref.load %size[%b] : memref<?xi64>
  %a = memref.load %align[%b] : memref<?xi64>
  %any = arith.cmpi eq, %a, %i1 : i64
  %a_less = arith.subi %a, %i1 : i64
  %fs = vector.broadcast %f : i32 to vector<16xi32>
  %ps = vector.broadcast %p : i32 to vector<16xi32>
  cf.br ^chunk(%c0, %i0, %infinite, %none : index, i64, i64, i64)

^chunk(%c: index, %top: i64, %tight: i64, %at: i64):  // top: above all met; at: the gap to take
  %inside = arith.cmpi ult, %c, %used : index
  cf.cond_br %inside, ^enter, ^found(%top, %at : i64, i64)
^enter:
  %k = memref.load %chunks[%c] : memref<?xindex>
  %base = arith.muli %k, %full : index
  %count = memref.load %counts[%k] : memref<?xindex>
  %stop = arith.addi %base, %count : index
  cf.br ^lanes(%base, %top, %tight, %at : index, i64, i64, i64)
^lanes(%j: index, %top1: i64, %tight1: i64, %at1: i64):
  %left = arith.cmpi ult, %j, %stop : index
  %c_next = arith.addi %c, %c1 : index
  cf.cond_br %left, ^compare, ^chunk(%c_next, %top1, %tight1, %at1 : index, i64, i64, i64)
^compare:
  %bs = vector.load %begins[%j] : memref<?xi32>, vector<16xi32>
  %es = vector.load %ends[%j] : memref<?xi32>, vector<16xi32>
  %early = arith.cmpi slt, %bs, %ps : vector<16xi32>
  %late = arith.cmpi sgt, %es, %fs : vector<16xi32>
  %both = arith.andi %early, %late : vector<16xi1>
  %word = vector.bitcast %both : vector<16xi1> to vector<1xi16>
  %met = vector.extract %word[0] : i16 from vector<1xi16>
  cf.br ^hits(%met, %top1, %tight1, %at1 : i16, i64, i64, i64)
^hits(%m: i16, %top2: i64, %tight2: i64, %at2: i64):
  %empty = arith.cmpi eq, %m, %m0 : i16
  %j_next = arith.addi %j, %lanes : index
  cf.cond_br %empty, ^lanes(%j_next, %top2, %tight2, %at2 : index, i64, i64, i64), ^hit
^hit:
  %bit = math.cttz %m : i16
  %lane = arith.index_cast %bit : i16 to index
  %e = arith.addi %j, %lane : index
  %low = memref.load %bottoms[%e] : memref<?xi64>
  %high = memref.load %tops[%e] : memref<?xi64>
  %gap = arith.subi %low, %top2 : i64
  %large = arith.cmpi sge, %gap, %s : i64
  %m_less = arith.subi %m, %m1 : i16
  %m_next = arith.andi %m, %m_less : i16
  cf.cond_br %large, ^candidate, ^rise(%tight2, %at2 : i64, i64)
^candidate:
  %tighter = arith.cmpi slt, %gap, %tight2 : i64
  %tight3 = arith.select %tighter, %gap, %tight2 : i64
  %at3 = arith.select %tighter, %top2, %at2 : i64
  %exact = arith.cmpi eq, %gap, %s : i64
  %enough = arith.ori %exact, %first_fit : i1
  cf.cond_br %enough, ^found(%top2, %at3 : i64, i64), ^rise(%tight3, %at3 : i64, i64)
^rise(%tight4: i64, %at5: i64):
  cf.cond_br %any, ^above(%high : i64), ^round
^round:
  %padded = arith.addi %high, %a_less : i64
  %blocks = arith.divui %padded, %a : i64
  %rounded = arith.muli %blocks, %a : i64
  cf.br ^above(%rounded : i64)
^above(%over: i64):
  %top3 = arith.maxsi %top2, %over : i64
  cf.br ^hits(%m_next, %top3, %tight4, %at5 : i16, i64, i64, i64)

^found(%top4: i64, %at4: i64):
  %in_gap = arith.cmpi sge, %at4, %i0 : i64
  %o = arith.select %in_gap, %at4, %top4 : i64
  %o_end = arith.addi %o, %s : i64
  %exceeds = arith.cmpi sgt, %o_end, %limit : i64
  cf.cond_br %exceeds, ^end(%i : index), ^put
^put:
  memref.store %o, %offsets[%b] : memref<?xi64>
  cf.br ^bisect(%c0, %used : index, index)
^bisect(%lo: index, %hi: index):  // the chunks before lo begin below the offset
  %open = arith.cmpi ult, %lo, %hi : index
  cf.cond_br %open, ^halve, ^chosen
^halve:
  %sum = arith.addi %lo, %hi : index
  %mid = arith.divui %sum, %c2 : index
  %mid_k = memref.load %chunks[%mid] : memref<?xindex>
  %mid_base = arith.muli %mid_k, %full : index
  %mid_low = memref.load %bottoms[%mid_base] : memref<?xi64>
  %below = arith.cmpi slt, %mid_low, %o : i64
  %mid_next = arith.addi %mid, %c1 : index
  %lo_next = arith.select %below, %mid_next, %lo : index
  %hi_next = arith.select %below, %hi, %mid : index
  cf.br ^bisect(%lo_next, %hi_next : index, index)
^chosen:
  %positive = arith.maxui %lo, %c1 : index
  %d = arith.subi %positive, %c1 : index
  %dk = memref.load %chunks[%d] : memref<?xindex>
  %d_base = arith.muli %dk, %full : index
  %d_count = memref.load %counts[%dk] : memref<?xindex>
  %d_stop = arith.addi %d_base, %d_count : index
  cf.br ^shift(%d_stop : index)
^shift(%x: index):  // entry x is free
  %lowest = arith.cmpi ule, %x, %d_base : index
  cf.cond_br %lowest, ^write, ^look
^look:
  %y = arith.subi %x, %c1 : index
  %y_low = memref.load %bottoms[%y] : memref<?xi64>
  %y_stays = arith.cmpi slt, %y_low, %o : i64
  cf.cond_br %y_stays, ^write, ^move
^move:
  func.call @copy(%y, %x, %begins, %ends, %bottoms, %tops)
    : (index, index, memref<?xi32>, memref<?xi32>, memref<?xi64>, memref<?xi64>) -> ()
  cf.br ^shift(%y : index)
^write:
  memref.store %f, %begins[%x] : memref<?xi32>
  memref.store %p, %ends[%x] : memref<?xi32>
  memref.store %o, %bottoms[%x] : memref<?xi64>
  memref.store %o_end, %tops[%x] : memref<?xi64>
  %d_more = arith.addi %d_count, %c1 : index
  memref.store %d_more, %counts[%dk] : memref<?xindex>
  %i_next = arith.addi %i, %c1 : index
  %overfull = arith.cmpi eq, %d_more, %full : index
  cf.cond_br %overfull, ^split, ^next(%i_next, %used : index, index)
^split:
  %new_base = arith.muli %used, %full : index
  %upper = arith.addi %d_base, %half : index
  scf.for %z = %c0 to %half step %c1 {
    %from = arith.addi %upper, %z : index
    %to = arith.addi %new_base, %z : index
    func.call @copy(%from, %to, %begins, %ends, %bottoms, %tops)
      : (index, index, memref<?xi32>, memref<?xi32>, memref<?xi64>, memref<?xi64>) -> ()
    memref.store %never, %begins[%from] : memref<?xi32>
  }
  memref.store %half, %counts[%dk] : memref<?xindex>
  memref.store %half, %counts[%used] : memref<?xindex>
  %after = arith.addi %d, %c1 : index
  cf.br ^open(%used : index)
^open(%v: index):  // the chunks behind the split one move up
  %behind = arith.cmpi ugt, %v, %after : index
  cf.cond_br %behind, ^up, ^place
^up:
  %w = arith.subi %v, %c1 : index
  %moved = memref.load %chunks[%w] : memref<?xindex>
  memref.store %moved, %chunks[%v] : memref<?xindex>
  cf.br ^open(%w : index)
^place:
  memref.store %used, %chunks[%after] : memref<?xindex>
  %used_next = arith.addi %used, %c1 : index
  cf.br ^next(%i_next, %used_next : index, index)

^end(%placed: index):
  memref.store %placed, %steps[%c0] : memref<?xindex>
  return
}

func.func private @copy(
    %from: index, %to: index, %begins: memref<?xi32>, %ends: memref<?xi32>,
    %bottoms: memref<?xi64>, %tops: memref<?xi64>) {
  %begin = memref.load %begins[%from] : memref<?xi32>
  %end = memref.load %ends[%from] : memref<?xi32>
  %bottom = memref.load %bottoms[%from] : memref<?xi64>
  %top = memref.load %tops[%from] : memref<?xi64>
  memref.store %begin, %begins[%to] : memref<?xi32>
  memref.store %end, %ends[%to] : memref<?xi32>
  memref.store %bottom, %bottoms[%to] : memref<?xi64>
  memref.store %top, %tops[%to] : memref<?xi64>
  return
}
"""
_TO_LLVM = (
    "builtin.module(convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,"
    "convert-arith-to-llvm,convert-index-to-llvm,finalize-memref-to-llvm,convert-func-to-llvm,"
    "convert-cf-to-llvm,reconcile-unrealized-casts)"
)


def place_natively(
    intervals: Intervals, order: Ints, best_fit: bool, spend: Callable[[float], None], limit: int
) -> Ints | None:
    """Run `greedy.place_below` natively; `spend` is told of the work slice by slice."""
    first, past, _ = intervals.sections
    free = intervals.alignment == intervals.granule
    entries = (len(order) // (CHUNK // 2) + 2) * CHUNK
    steps = np.array([0, 0, 1], np.int64)  # placed, to be placed, chunks in use
    offsets = np.zeros(len(intervals), np.int64)
    arrays = [
        first,
        past,
        intervals.padded,
        np.where(free, 1, intervals.alignment),
        order.astype(np.int64),
        np.array([best_fit, limit], np.int64),
        steps,
        np.full(entries, _NEVER, np.int32),
        np.empty(entries, np.int32),
        np.empty(entries, np.int64),
        np.empty(entries, np.int64),
        np.zeros(entries // CHUNK, np.int64),
        np.zeros(entries // CHUNK, np.int64),
        offsets,
    ]
    arguments = [ctypes.pointer(ctypes.pointer(_MemRef.of(array))) for array in arrays]
    for begin in range(0, len(order), SLICE):
        steps[1] = min(begin + SLICE, len(order))
        _engine().invoke("greedy", *arguments)
        spend(SLICE * (1 + begin / 2500))
        if steps[0] < steps[1]:
            return None
    return offsets


class _MemRef(ctypes.Structure):
    """MLIR's descriptor of a vector: two pointers, an offset, a size and a stride."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("aligned", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )

    @staticmethod
    def of(array: np.ndarray) -> "_MemRef":
        return _MemRef(array.ctypes.data, array.ctypes.data, 0, len(array), 1)


@cache
def _engine() -> Any:
    """Return the compiled loop. It starts no threads, so that a process may fork afterwards."""
    from pyc_mlir.dialects.ir.bindings import execution_engine, ir, passmanager

    text = _CODE
    for name, number in (("CHUNK", CHUNK), ("HALF", CHUNK // 2), ("NEVER", _NEVER)):
        text = text.replace(f"constant {name} ", f"constant {number} ")
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        module.body.operations[0].attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        passmanager.PassManager.parse(_TO_LLVM).run(module.operation)
        return execution_engine.ExecutionEngine(module, 3)
