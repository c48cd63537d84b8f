"""The suite `checksums`: what checksums in products cost, which faults they find, false alarms.

Cost: one product with and without checks, in turn, on one core. Faults: single bits are flipped in
sums of accumulators, in the packed weights, and in what one product leaves in memory for the next
one; a flip counts as noticeable if it moves a number of the result by more than a thousandth of its
row's root mean square. Rows whose sums nearly cancel are counted apart. Alarms: products of many
sizes without any fault, of which none may be reported as wrong.

    pyc-bench checksums --alarms 1000000
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pyc_mlir.compilation.options import make_options
from pyc_mlir.iree.compiler import compile_module
from pyc_mlir.measure.interleave import interleave, ratio
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.kernels.counts import COUNTS, MOST_WORKGROUPS
from pyc_mlir.pipelines.kernels.families.checked import CheckedGemm
from pyc_mlir.pipelines.kernels.families.gemm import Gemm
from pyc_mlir.pipelines.kernels.lang.carrier import Carrier, Kernel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device
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
FLIPS, QUICK_FLIPS = 4000, 20
ALARMS, QUICK_ALARMS = 100_000, 200
_FLIPPED = (48, 200, 512)  # rows, columns, depth
_MIXED = tuple(
    (rows, columns, depth)
    for rows in (1, 3, 6, 17, 48)
    for columns, depth in ((16, 32), (64, 64), (200, 96), (130, 333), (256, 512))
)
_NOTICEABLE = 1e-3
_F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Found:
    """The result of one product, and counts of tiles."""

    result: np.ndarray
    suspected: int
    repaired: int
    lasting: int


class Products:
    """Kernels of the family `gemm`, compiled for this machine, on one core."""

    def __init__(self, target: Target, knobs: Sequence[Gemm | CheckedGemm]) -> None:
        """Compile them in one module."""
        kernels = [k.kernel(f"k{i}") for i, k in enumerate(knobs)]
        carrier = Carrier(target)
        carrier.add(*kernels)
        for kernel in kernels:
            carrier.call(kernel)
        self.device = Device("local-sync")
        code = Executable(compile_module(carrier.bytecode(), target), self.device)
        self._entries = [code.entry(k.name, _types(k)) for k in kernels]
        self._knobs = knobs

    def arguments(
        self, number: int, a: np.ndarray, b: np.ndarray, flip: Sequence[float] = ()
    ) -> list[Array]:
        """Return what a product takes of A[rows, depth] and B[depth, columns]."""
        layouts = [o.layout for o in self._knobs[number].kernel("k").inputs if o.layout]
        arrays = [a, *(layout.pack(b) for layout in layouts)]
        knobs = self._knobs[number]
        if isinstance(knobs, CheckedGemm) and knobs.injected:
            arrays.append(np.asarray(flip, np.float32))
        if isinstance(knobs, CheckedGemm):
            arrays.append(np.zeros(MOST_WORKGROUPS * COUNTS, np.float32))
        return [to_device(x, self.device) for x in arrays]

    def call(self, number: int, arguments: Sequence[Array]) -> list[Array]:
        """Run one product."""
        return self._entries[number](arguments)

    def found(self, number: int, arguments: Sequence[Array]) -> Found:
        """Run a checked product, whose counts begin at 0."""
        fresh = to_device(np.zeros(MOST_WORKGROUPS * COUNTS, np.float32), self.device)
        result, counts = self.call(number, [*arguments[:-1], fresh])
        totals = counts.numpy().reshape(-1, COUNTS).sum(axis=0)
        return Found(result.numpy(), *map(int, totals))


def _types(kernel: Kernel) -> list[ResultType]:
    return [ResultType(_F32, None) for _ in kernel.results]


@suite(
    "checksums",
    15,
    option("--alarms", type=int, default=ALARMS, help="products without a fault"),
)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Cost of checksums in products, the share of flipped bits that they find, false alarms."""
    bench.settings["threads"] = [1]
    target = make_options().target
    for size in QUICK_SIZES if bench.quick else SIZES:
        yield from cost(target, size, bench.rounds)
    flips = QUICK_FLIPS if bench.quick else FLIPS
    yield from faults(target, flips)
    yield between(target, flips // 5)
    yield from alarms(target, QUICK_ALARMS if bench.quick else bench.options.alarms)


def cost(target: Target, size: int, rounds: int) -> list[Record]:
    """Measure a square product with and without checks."""
    plain = Gemm.on(target, size, size, size, workgroups=(1, 1))
    products = Products(target, [plain, CheckedGemm(plain)])
    values = np.random.default_rng(size)
    a, b = (values.normal(size=(size, size)).astype(np.float32) for _ in range(2))
    both = [products.arguments(i, a, b) for i in range(2)]
    calls: Mapping[str, Callable[[], object]] = {
        "plain": lambda: products.call(0, both[0]),
        "checked": lambda: products.call(1, both[1]),
    }
    timings = interleave(calls, rounds=rounds, min_seconds=0.05)
    name, of = f"product {size}x{size}x{size}", ratio(timings, of="checked", to="plain")
    note(f"{name}: {of.median:.3f} of the time without checks")
    times = timing_records(name, timings)
    return [*times, spread_record(name, "checked", "checked / plain", "times", of)]


def distributions(values: np.random.Generator) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield A and B: by name, of `_FLIPPED` sizes."""
    rows, columns, depth = _FLIPPED
    a, b = values.normal(size=(rows, depth)), values.normal(size=(depth, columns))
    yield "normal", a, b
    yield "positive", np.abs(a), np.abs(b)
    yield "relu", np.maximum(a, 0), b
    yield "heavy tails", a * np.exp(values.normal(size=a.shape)), b
    yield "rows that cancel", np.ones_like(a), b - b.mean(axis=0)


def faults(target: Target, flips: int) -> list[Record]:
    """Flip bits of sums and of packed weights; count the noticeable ones, and those found."""
    rows, columns, depth = _FLIPPED
    knobs = Gemm.on(target, rows, columns, depth, workgroups=(1, 1))
    products = Products(target, [CheckedGemm(knobs, injected=True)])
    values = np.random.default_rng(5)
    records = []
    for name, *pair in distributions(values):
        a, b = (x.astype(np.float32) for x in pair)
        nowhere = (-1.0, 0.0, 0.0)
        sound = products.found(0, products.arguments(0, a, b, nowhere)).result
        scale = np.sqrt(np.mean(sound.astype(np.float64) ** 2, axis=1))
        sums = [_flip_sum(products, a, b, sound, scale, values) for _ in range(flips // 5)]
        weights = [_flip_weight(products, a, b, sound, scale, values) for _ in range(flips // 5)]
        for site, outcomes in (("sums", sums), ("packed weights", weights)):
            records.append(_share(f"{site}, {name}", outcomes))
    return records


def between(target: Target, flips: int) -> Record:
    """Flip bits of what a product leaves for the next one, between their dispatches.

    The second one computes its sums from the damaged numbers too, so that none is expected to be
    found.
    """
    rows, columns, depth = _FLIPPED
    sizes = ((rows, depth, depth), (rows, columns, depth))
    knobs = [CheckedGemm(Gemm.on(target, *s, workgroups=(1, 1))) for s in sizes]
    products, values = Products(target, knobs), np.random.default_rng(7)
    drawn = [values.normal(size=s) for s in ((rows, depth), (depth, depth), (depth, columns))]
    a, *weights = (x.astype(np.float32) for x in drawn)
    middle = products.found(0, products.arguments(0, a, weights[0])).result
    arguments = products.arguments(1, middle, weights[1])
    sound = products.found(1, arguments).result
    scale = np.sqrt(np.mean(sound.astype(np.float64) ** 2, axis=1))
    outcomes = []
    for _ in range(flips):
        memory = middle.copy()
        place = values.integers(memory.size)
        memory.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << values.integers(32))
        found = products.found(1, [to_device(memory, products.device), *arguments[1:]])
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.abs(found.result.astype(np.float64) - sound)
        noticeable = not (off <= _NOTICEABLE * scale[:, None]).all()
        outcomes.append((noticeable, found.repaired + found.lasting > 0))
    return _share("between two products, normal", outcomes)


Outcome = tuple[bool, bool]


def _share(what: str, outcomes: Sequence[Outcome]) -> Record:
    """Return the share of the noticeable flips that are found."""
    noticeable = [found for seen, found in outcomes if seen]
    share = 100 * sum(noticeable) / len(noticeable) if noticeable else 100.0
    note(f"{what}: {share:.2f} % of {len(noticeable)} noticeable flips found")
    more = {"of": len(noticeable), "flips": len(outcomes)}
    return record(what, "checked", "noticeable flips found", "%", share, **more)


def _flip_sum(
    products: Products,
    a: np.ndarray,
    b: np.ndarray,
    sound: np.ndarray,
    scale: np.ndarray,
    values: np.random.Generator,
) -> Outcome:
    """Flip one bit of a sum: whether that is noticeable, and whether it is repaired."""
    row, column = values.integers(sound.shape[0]), values.integers(sound.shape[1])
    mask = np.uint32(1 << values.integers(32))
    wrong = (sound[row, column].view(np.uint32) ^ mask).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        off = abs(float(wrong) - float(sound[row, column]))
    flip = (float(row), float(column), float(mask.view(np.float32)))
    found = products.found(0, products.arguments(0, a, b, flip))
    repaired = found.repaired > 0 and not found.lasting and np.array_equal(found.result, sound)
    return not off <= _NOTICEABLE * scale[row], repaired


def _flip_weight(
    products: Products,
    a: np.ndarray,
    b: np.ndarray,
    sound: np.ndarray,
    scale: np.ndarray,
    values: np.random.Generator,
) -> Outcome:
    """Flip one bit of the packed weights: whether that is noticeable, and whether it is found."""
    arguments = products.arguments(0, a, b, (-1.0, 0.0, 0.0))
    packed = arguments[1].numpy().copy()
    place = values.integers(packed.size)
    packed.view(np.uint32)[place] ^= np.uint32(1 << values.integers(32))
    arguments[1] = to_device(packed, products.device)
    found = products.found(0, arguments)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(found.result.astype(np.float64) - sound)
    noticeable = not (off <= _NOTICEABLE * scale[:, None]).all()
    return noticeable, found.lasting > 0


def alarms(target: Target, count: int) -> list[Record]:
    """Compute products of many sizes without any fault; count what is suspected and reported."""
    knobs = [CheckedGemm(Gemm.on(target, *s, workgroups=(1, 1))) for s in _MIXED]
    products, values = Products(target, knobs), np.random.default_rng(6)
    pool = values.normal(size=1 << 20).astype(np.float32)
    pool[:: 1 << 6] *= 100  # outliers
    suspected = reported = 0
    for number, (rows, columns, depth) in enumerate(_MIXED):
        b = values.normal(size=(depth, columns)).astype(np.float32)
        arguments = products.arguments(number, pool[: rows * depth].reshape(rows, depth), b)
        for _ in range(-(-count // len(_MIXED))):
            start = int(values.integers(pool.size - rows * depth))
            a = pool[start : start + rows * depth].reshape(rows, depth)
            found = products.found(number, [to_device(a, products.device), *arguments[1:]])
            suspected += found.suspected > 0
            reported += found.repaired + found.lasting > 0
    total = len(_MIXED) * -(-count // len(_MIXED))
    note(f"{total} products without a fault: {reported} reported, {suspected} computed again")
    name = "products without a fault"
    return [
        record(name, "checked", "reported as faulty", "products", reported, of=total),
        record(name, "checked", "computed again in vain", "products", suspected, of=total),
    ]
