"""The kernel family ``checked_gemm``: products that detect faults of hardware.

Code, tiles and results are those of `gemm`; each tile's sums are checked before the epilogue, as
`shared/checksums.py` says, and counts of faults are one result more. A contract with
``detect_faults`` takes these kernels where `gemm` has one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyc_mlir.pipelines.kernels.families import gemm
from pyc_mlir.pipelines.kernels.families.gemm import Depth, Gemm, Product, Spots, Strip
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.kernels.shared.checksums import (
    FLIP,
    PanelSums,
    TileCheck,
    TilePlace,
    flipped,
)
from pyc_mlir.pipelines.kernels.shared.counts import (
    FAULTS,
    MOST_WORKGROUPS,
    Counter,
)
from pyc_mlir.pipelines.kernels.shared.tile import ProductTile
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target


@dataclass(frozen=True)
class CheckedGemm:
    """The knobs: those of the product.

    `injected` is for tests: an operand `flip` has a row, a column and the bits of a sum that are
    wrong when it is computed first.
    """

    product: Gemm
    injected: bool = False

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        rows, columns = self.product.workgroups
        if rows * columns > MOST_WORKGROUPS:
            raise no_kernel("checked_gemm", f"at most {MOST_WORKGROUPS} workgroups", self)

    @property
    def sums(self) -> PanelSums:
        """The layout of what the checks know of B."""
        return PanelSums(self.product.columns, self.product.depth, self.product.panel)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands a, b (packed), sums, the epilogue's, c, faults."""
        plain = self.product.kernel(name)
        a, b, *reads, c = plain.operands
        sums = Operand("sums", (self.sums.size,), layout=self.sums)
        injected = (FLIP,) if self.injected else ()
        operands = (a, b, sums, *reads, *injected, c, FAULTS)
        return replace(plain, operands=operands, body=self._body)

    def _body(self, k: Build, a: Memory, b: Memory, sums: Memory, *others: Memory) -> None:
        *reads, c, faults = others
        flip = reads.pop() if self.injected else None
        product = self.product
        longest = min(product.depth, product.depth_block)
        counter = Counter.of(k, faults, product.workgroups[0])
        check = TileCheck(k, a, b, sums, counter, self.sums, longest)
        epilogue = InKernel(k, product.epilogue, tuple(reads))
        CheckedProduct(k, product, a, b, c, epilogue, check=check, flip=flip).build()


@dataclass(frozen=True)
class CheckedProduct(Product):
    """A product under construction whose tiles are checked; `flip` has the fault of a test."""

    check: TileCheck | None = None
    flip: Memory | None = None

    def _accumulated(
        self, tile: ProductTile, strip: Strip, panel: Index, depth: Depth, spots: Spots
    ) -> list[Vector]:
        def again() -> list[Vector]:
            return tile.accumulate(depth.length, self._start(depth, spots))

        before, panels = self._start(depth, spots), self.knobs.panels
        sums = tile.accumulate(depth.length, before)
        if self.flip is not None:
            pairs = zip(spots, sums, strict=True)
            sums = [flipped(self.flip, value, i, at.start) for (i, at), value in pairs]
        number = panel + (panels.full if strip.last else 0)
        packed = panel * (panels.depth * strip.width) + strip.base
        row = spots[0][0]
        place = TilePlace(row, tile.height, number, depth.start, depth.length, packed, strip.width)
        assert self.check is not None, "the field has a default for those of the base only"
        return self.check.settled(sums, before, again, place)


def refusal(knobs: CheckedGemm, target: Target) -> str:
    """Refuse what `gemm` refuses, and more rows of a tile than lanes: sums of rows lie in one."""
    if reason := gemm.refusal(knobs.product, target):
        return reason
    lanes, height = target.vector_bytes // 4, knobs.product.height
    return f"checked_gemm: expected at most {lanes} rows, got {height}" if height > lanes else ""


def cost(knobs: CheckedGemm, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count what `gemm` counts, and the sums as constants. Checks take 3 to 5 % of the time."""
    return gemm.cost(knobs.product, target, sizes) + Cost(constant_bytes=4 * knobs.sums.size)


def checked(offer: KernelOffer, target: Target) -> KernelOffer | None:
    """Return an offer of `gemm` with checks, which read the weights a second time, as sums.

    Tiles that are higher than the target's vectors are made as high.
    """
    rows, columns = offer.knobs.workgroups
    if rows * columns > MOST_WORKGROUPS:
        return None
    first, weights, *others = offer.feeds
    product = replace(offer.knobs, height=min(offer.knobs.height, target.vector_bytes // 4))
    knobs = CheckedGemm(product)
    more = Cost(constant_bytes=4 * knobs.sums.size)
    return replace(
        offer, knobs=knobs, feeds=(first, weights, weights, *others), cost=offer.cost + more
    )


FAMILY = Family("checked_gemm", CheckedGemm, refusal, cost, checked=checked)
