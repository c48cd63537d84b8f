"""The suite `approximate`: what approximate products gain, what their checks cost and catch.

Speed: one square product in f32 and in each way that this CPU has an instruction for, in turn, on
one core; and each way without its checks, which shows what these cost. Soak: products of many sizes
and many kinds of numbers, with outliers of up to 10,000 times the rest; an answer is wrong if an
element is off by more than what is allowed of the greatest one of its tile. Damage: single bits of
the rounded weights are flipped.

    pyc-bench approximate --calls 100000
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations

import numpy as np

from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.numerics.approximation import WAYS
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.measure.interleave import interleave, ratio
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.kernels.counts import COUNTS, MOST_WORKGROUPS
from pyc_mlir.pipelines.kernels.families.approximate import ApproximateGemm
from pyc_mlir.pipelines.kernels.families.approximate_forms import best_form
from pyc_mlir.pipelines.kernels.families.gemm import Gemm
from pyc_mlir.pipelines.kernels.lang.carrier import Carrier, Kernel
from pyc_mlir.pipelines.kernels.lang.values import ROUNDING
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device, host_cpu
from pyc_mlir.runtime.executable import Executable, ResultType
from pyc_mlir.tools.bench.report.suite import (
    SuiteRun,
    note,
    option,
    spread_record,
    suite,
    timing_records,
)

SIZES, QUICK_SIZES = (256, 512, 1024, 2048), (64,)
CALLS, QUICK_CALLS = 100_000, 60
FLIPS, QUICK_FLIPS = 2000, 20
_ALLOWED = 0.1
_SHAPES = tuple(combinations((8, 13, 32), (16, 100, 192), (32, 200, 512)))
_BOUNDS = (0.2, 0.05, 0.02, 0.005, 0.001)
_FLIPPED = (48, 192, 512)  # rows, columns, depth
_F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Found:
    """The result of one product, and the counts of its tiles."""

    result: np.ndarray
    tiles: int
    by_bound: int
    by_sums: int


class Products:
    """Approximate products and plain ones, compiled for one target, on one core."""

    def __init__(self, target: Target, knobs: Sequence[Gemm | ApproximateGemm]) -> None:
        """Compile them in one module."""
        kernels = [k.kernel(f"k{i}") for i, k in enumerate(knobs)]
        carrier = Carrier(target)
        carrier.add(*kernels)
        for kernel in kernels:
            carrier.call(kernel)
        self.device = Device("local-sync")
        code = Executable(compile_module(carrier.bytecode(), target), self.device)
        self._entries = [code.entry(k.name, _types(k)) for k in kernels]
        self.knobs = knobs

    def arguments(self, number: int, a: np.ndarray, b: np.ndarray) -> list[Array]:
        """Return what a product takes of A[rows, depth] and B[depth, columns]."""
        knobs = self.knobs[number]
        if isinstance(knobs, ApproximateGemm):
            layouts = (knobs.product.panels, knobs.words, knobs.facts)
            packed = (layout.pack(b.astype(np.float32)) for layout in layouts)
            arrays = [a, *packed, np.zeros(MOST_WORKGROUPS * COUNTS, np.float32)]
        else:
            arrays = [a, knobs.panels.pack(b)]
        return [to_device(x, self.device) for x in arrays]

    def call(self, number: int, given: Sequence[Array]) -> list[Array]:
        """Run one product."""
        return self._entries[number](given)

    def found(self, number: int, given: Sequence[Array]) -> Found:
        """Run an approximate product, whose counts begin at 0."""
        fresh = to_device(np.zeros(MOST_WORKGROUPS * COUNTS, np.float32), self.device)
        result, _, counts = self.call(number, [*given[:-1], fresh])
        totals = counts.numpy().reshape(-1, COUNTS).sum(axis=0)
        return Found(result.numpy(), *map(int, totals))


def _types(kernel: Kernel) -> list[ResultType]:
    return [ResultType(_F32, None) for _ in kernel.results]


def ways_of(target: Target, product: Gemm, allowed: float) -> dict[str, ApproximateGemm]:
    """Return the product in each way that the target has an instruction for."""
    forms = {way: best_form(target, way) for way in WAYS}
    found = {w: ApproximateGemm.on(target, product, w, allowed, f) for w, f in forms.items() if f}
    # One form may stand for two ways.
    first = {knobs.form: way for way, knobs in reversed(found.items())}
    return {way: knobs for way, knobs in found.items() if first[knobs.form] == way}


@suite(
    "approximate",
    11,
    option("--calls", type=int, default=CALLS, help="products of the soak"),
)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Time of approximate products and of their checks, and wrong answers among many calls."""
    bench.settings["threads"] = [1]
    host, cpu = make_options().target, host_cpu()
    targets = [host]
    if cpu is not None and host.vector_bytes > 32:
        targets.append(Target.named("cpu-avx2").on(cpu))
    for target, size in combinations(targets, QUICK_SIZES if bench.quick else SIZES):
        yield from speed(target, size, bench.rounds, bench.min_seconds)
    yield from soak(host, QUICK_CALLS if bench.quick else bench.options.calls)
    yield from damage(host, QUICK_FLIPS if bench.quick else FLIPS)


def speed(target: Target, size: int, rounds: int, min_seconds: float) -> list[Record]:
    """Measure a square product in f32, in each way, and in each way without checks."""
    plain = Gemm.on(target, size, size, size, workgroups=(1, 1))
    ways = ways_of(target, plain, _ALLOWED)
    bare = {f"{way} unchecked": replace(knobs, checked=False) for way, knobs in ways.items()}
    names = ["f32", *ways, *bare]
    products = Products(target, [plain, *ways.values(), *bare.values()])
    values = np.random.default_rng(size)
    a, b = (values.normal(size=(size, size)).astype(np.float32) for _ in range(2))
    given = [products.arguments(i, a, b) for i in range(len(names))]

    def call(number: int) -> Callable[[], object]:
        return lambda: products.call(number, given[number])

    calls: Mapping[str, Callable[[], object]] = {n: call(i) for i, n in enumerate(names)}
    timings = interleave(calls, rounds=rounds, min_seconds=min_seconds)
    title = f"{target.name}, product {size}x{size}x{size}"
    records = timing_records(title, timings)
    for way in ways:
        gain = ratio(timings, of="f32", to=way)
        records.append(spread_record(title, way, "f32 / way", "times", gain))
        of, without = (ratio(timings, of=n, to="f32").median for n in (way, f"{way} unchecked"))
        checks = 100 * (of - without)
        records.append(record(title, way, "checks / f32", "%", checks))
        note(f"{title}: {way} {gain.median:.2f} times as fast, checks {checks:.1f} % of f32's time")
    return records


def soak(target: Target, calls: int) -> list[Record]:
    """Compute products of many kinds; count wrong answers, and tiles that were computed exactly."""
    each = []
    for n, (rows, columns, depth) in enumerate(_SHAPES):
        allowed = _BOUNDS[n % len(_BOUNDS)]
        plain = Gemm.on(target, rows, columns, depth, workgroups=(1, 1))
        each += ways_of(target, plain, allowed).items()
    products, values = Products(target, [knobs for _, knobs in each]), np.random.default_rng(9)
    records, turns = [], -(-calls // len(each))
    totals = {way: np.zeros(5, np.int64) for way, _ in each}
    for number, (way, knobs) in enumerate(each):
        shape = knobs.product.depth, knobs.product.columns
        for turn in range(turns):
            if turn % 50 == 0:
                b = drawn(shape[::-1], values).T
                given = products.arguments(number, np.zeros((knobs.product.rows, shape[0])), b)
            a = drawn((knobs.product.rows, shape[0]), values)
            found = products.found(number, [to_device(a, products.device), *given[1:]])
            wrong = is_wrong(knobs, a, b, found.result)
            totals[way] += [1, wrong, found.tiles, found.by_bound, found.by_sums]
    for way, (of, wrong, tiles, by_bound, by_sums) in totals.items():
        note(f"soak, {way}: {wrong} of {of} wrong; {by_bound}+{by_sums} of {tiles} tiles exact")
        title = f"{of} products of many kinds"
        records += [
            record(title, way, "answers off by more than allowed", "products", int(wrong)),
            record(title, way, "tiles computed exactly by their bound", "tiles", int(by_bound)),
            record(title, way, "tiles computed exactly by their sums", "tiles", int(by_sums)),
            record(title, way, "tiles", "tiles", int(tiles)),
        ]
    return records


def drawn(shape: tuple[int, int], values: np.random.Generator) -> np.ndarray:
    """Draw a matrix whose rows are of one of many kinds."""
    x = values.normal(size=shape)
    kind = values.integers(9)
    if kind == 1:
        x[values.random(shape) < 0.003] *= 10.0 ** values.integers(1, 5)
    elif kind == 2:
        x[:, values.integers(shape[1], size=2)] *= 10.0 ** values.integers(1, 5)
    elif kind == 3:
        x *= np.exp(values.normal(0, 5, (shape[0], 1)))
    elif kind == 4:
        x[values.random(shape[0]) < 0.5] = 0
    elif kind == 5:
        x = np.where(x > 0, 1.0, values.random())
    elif kind == 6:
        x = np.full(shape, values.random()) + 0.01 * (values.random(shape) < 0.1)
    elif kind == 7:
        x = values.integers(0, 256, shape) / 255
    elif kind == 8:
        x = np.maximum(x, 0) * np.exp(values.normal(size=shape))
    return x.astype(np.float32)


def is_wrong(knobs: ApproximateGemm, a: np.ndarray, b: np.ndarray, got: np.ndarray) -> bool:
    """Return whether an element is off by more than what is allowed of its tile, and f32's own."""
    product = knobs.product
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact = wide_a @ wide_b
    # The error of sums in any order (Higham, 2002, section 3.1).
    own = (product.depth + 4) * ROUNDING * (np.abs(wide_a) @ np.abs(wide_b)) + 2.0**-120
    rows = range(0, exact.shape[0], product.height)
    columns = range(0, exact.shape[1], product.panel)
    most = np.maximum.reduceat(np.maximum.reduceat(np.abs(exact), rows, 0), columns, 1)
    tall = np.repeat(most, product.height, 0)[: exact.shape[0]]
    greatest = np.repeat(tall, product.panel, 1)[:, : exact.shape[1]]
    return not (np.abs(got - exact) <= knobs.allowed * greatest + own).all()


def damage(target: Target, flips: int) -> list[Record]:
    """Flip bits of rounded weights; count answers that are wrong then, and flips that were seen."""
    rows, columns, depth = _FLIPPED
    plain = Gemm.on(target, rows, columns, depth, workgroups=(1, 1))
    ways = ways_of(target, plain, _ALLOWED)
    products, values = Products(target, list(ways.values())), np.random.default_rng(5)
    a, b = (values.normal(size=s).astype(np.float32) for s in ((rows, depth), (depth, columns)))
    records = []
    for number, (way, knobs) in enumerate(ways.items()):
        given = products.arguments(number, a, b)
        wrong = seen = 0
        for _ in range(flips):
            words = given[2].numpy().copy()
            place = values.integers(words.size)
            words.view(np.uint32)[place] ^= np.uint32(1 << values.integers(32))
            found = products.found(
                number, [*given[:2], to_device(words, products.device), *given[3:]]
            )
            seen += found.by_sums + found.by_bound > 0
            wrong += is_wrong(knobs, a, b, found.result)
        note(f"damage, {way}: {seen} of {flips} flips seen, {wrong} answers off by more")
        title = f"{flips} flipped bits of rounded weights"
        records += [
            record(title, way, "answers off by more than allowed", "products", wrong, of=flips),
            record(title, way, "flips seen", "flips", seen, of=flips),
        ]
    return records
