"""The kernel family ``approximate_gemm``: products of f32 in fewer bits, with checks.

C = epilogue(A B) with constant weights, as `gemm`, where an error of `allowed` of the greatest
element of its row of a tile, before the epilogue, may be spent. Each tile is checked in each call;
one that fails is computed exactly (see `product.py`). A contract that bounds the error offers these
kernels (`approximated`) where it leaves room for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyc_mlir.dialects.numerics.approximation import WAYS
from pyc_mlir.pipelines.kernels.families import gemm
from pyc_mlir.pipelines.kernels.families.approximate.facts import ApproximateWords, Facts
from pyc_mlir.pipelines.kernels.families.approximate.forms import (
    FORMS,
    Form,
    best_form,
    has_form,
)
from pyc_mlir.pipelines.kernels.families.approximate.product import (
    ApproximateProduct,
    Approximation,
)
from pyc_mlir.pipelines.kernels.families.approximate.rows import RoundedRows, RowScratch
from pyc_mlir.pipelines.kernels.families.gemm import Gemm
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.kernels.shared.counts import (
    APPROXIMATIONS,
    MOST_WORKGROUPS,
    Counter,
)
from pyc_mlir.pipelines.kernels.shared.epilogues import overwritable
from pyc_mlir.pipelines.kernels.shared.unpacked import row_block
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target

# Rows below which rounding them takes what the products gain.
_LEAST_ROWS = 8
_MOST_DEPTH = 1 << 16
# Products of a form in the time of one of f32, at 512 x 512 x 512 (results/approximate.md); that of
# bf16 was measured with another library.
_FASTER = {"bytes": 2.7, "pairs": 1.5, "madd": 1.1, "plain": 0.5, "bf16": 1.4}


@dataclass(frozen=True)
class ApproximateGemm:
    """The knobs: those of the product, the way to compute it, and what error is allowed.

    `way`: how many bits (`WAYS`); `form`: by which instruction; `allowed`: the greatest error of an
    element as a share of the greatest one of its row of a tile, before the epilogue; `block`:
    rows that are rounded at once. Tiles are not `checked` in measurements only.
    """

    product: Gemm
    way: str
    allowed: float
    form: str
    block: int = 96
    checked: bool = True

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        rows, columns = self.product.workgroups
        if rows * columns > MOST_WORKGROUPS:
            raise no_kernel("approximate_gemm", f"at most {MOST_WORKGROUPS} workgroups", self)
        if self.way not in WAYS or self.form not in FORMS[self.way]:
            raise no_kernel("approximate_gemm", f"a way of {WAYS} and a form of it", self)
        if not 0 < self.allowed < 1 or self.block < 1:
            raise no_kernel("approximate_gemm", "an error above 0 and below 1, and rows", self)
        if self.product.depth > _MOST_DEPTH:
            raise no_kernel("approximate_gemm", f"a depth of at most {_MOST_DEPTH}", self)

    @staticmethod
    def on(target: Target, product: Gemm, way: str, allowed: float, form: str) -> "ApproximateGemm":
        """Return the knobs for a target's caches."""
        made = Form(form, product.depth)
        panel = 4 * made.groups * product.panel
        rows = row_block(target, product.height, panel, 4 * (product.depth + made.pitch))
        return ApproximateGemm(product, way, allowed, form, rows)

    @property
    def of_form(self) -> Form:
        """The form for the depth."""
        return Form(self.form, self.product.depth)

    @property
    def words(self) -> ApproximateWords:
        """The layout of the rounded weights."""
        return ApproximateWords(self.of_form, self.product.columns, self.product.panel)

    @property
    def facts(self) -> Facts:
        """The layout of what the checks know of B."""
        return Facts(self.of_form, self.product.columns, self.product.panel)

    @property
    def scratch(self) -> RowScratch:
        """The layout of one workgroup's scratch memory."""
        rows = self.product.rows
        most = min(self.block, rows) if isinstance(rows, int) else self.block
        return RowScratch(self.of_form, most, self.facts.count)

    def kernel(self, name: str) -> Kernel:
        """Return the kernel `name`.

        Operands: a, b (packed), words, facts, the epilogue's, c, scratch, approximations.
        """
        plain = self.product.kernel(name)
        a, b, *reads, c = plain.operands
        words, facts = self.words, self.facts
        rows, columns = self.product.workgroups
        operands = (
            a,
            b,
            Operand("words", (words.panels.size,), dtype="i32", layout=words),
            Operand("facts", (facts.size,), layout=facts),
            *reads,
            c,
            Operand("scratch", (rows * columns * self.scratch.size,), "out"),
            APPROXIMATIONS,
        )
        alike = overwritable(self.product.epilogue, self.product.rows, once=True)
        return replace(plain, operands=operands, body=self._body, in_place=alike)

    def _body(
        self, k: Build, a: Memory, b: Memory, words: Memory, facts: Memory, *others: Memory
    ) -> None:
        *reads, c, scratch, counts = others
        product, places = self.product, self.scratch
        number = k.workgroup(0) * product.workgroups[1] + k.workgroup(1)
        start = number * places.size
        rows = RoundedRows(k, a, facts, scratch, self.facts, places, start)
        counter = Counter.of(k, counts, product.workgroups[0])
        own = Approximation(
            *(self.of_form, words, self.words, facts, self.facts),
            *(rows, counter, self.allowed, places.rows, self.checked),
        )
        epilogue = InKernel(k, product.epilogue, tuple(reads))
        ApproximateProduct(k, product, a, b, c, epilogue, approximation=own).build()


def refusal(knobs: ApproximateGemm, target: Target) -> str:
    """Refuse what `gemm` refuses, a form without its instruction, and more rows than lanes."""
    if reason := gemm.refusal(knobs.product, target):
        return reason
    if not has_form(target, knobs.form):
        return f"approximate_gemm: expected a CPU with the instruction of {knobs.form!r}"
    lanes = target.vector_bytes // 4
    if knobs.product.height > lanes:
        return f"approximate_gemm: expected at most {lanes} rows a tile, got {knobs.product.height}"
    return ""


def cost(knobs: ApproximateGemm, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count what `gemm` counts, in less time, and the words and facts as constants."""
    plain = gemm.cost(knobs.product, target, sizes)
    more = 4 * (knobs.words.panels.size + knobs.facts.size)
    quicker = replace(plain, seconds=plain.seconds / _FASTER[knobs.form])
    return quicker + Cost(constant_bytes=more)


def approximated(
    offer: KernelOffer, target: Target, way: str, allowed: float
) -> KernelOffer | None:
    """Return an offer of `gemm` computed in a way; None without an instruction, or for few rows."""
    form = best_form(target, way)
    product: Gemm = offer.knobs
    rows, columns = product.workgroups
    few = isinstance(product.rows, int) and product.rows < _LEAST_ROWS
    if form is None or few or rows * columns > MOST_WORKGROUPS or product.depth > _MOST_DEPTH:
        return None
    knobs = ApproximateGemm.on(target, product, way, allowed, form)
    if refusal(knobs, target):
        return None
    first, weights, *others = offer.feeds
    more = Cost(constant_bytes=4 * (knobs.words.panels.size + knobs.facts.size))
    quicker = replace(offer.cost, seconds=offer.cost.seconds / _FASTER[form])
    feeds = (first, weights, weights, weights, *others)
    return replace(offer, knobs=knobs, feeds=feeds, cost=quicker + more)


FAMILY = Family(
    "approximate_gemm",
    ApproximateGemm,
    refusal,
    cost,
    approximated=approximated,
)
