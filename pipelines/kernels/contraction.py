"""Contractions: products of batched matrices, stored in any order of dimensions.

A `Contraction` names the dimensions of three operands by letters: m are rows, n columns, k the
depth, all others the batch. ``left="bmck", right="bnck", result="bcmn"`` are the scores of the
heads c of an attention layer, queries by transposed keys, read from what a projection made. It is
the part of knobs that says what a kernel computes; inside the kernel, `Operands` walk the batch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.knobs import Sized, known
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory, Place
from pyc_mlir.pipelines.kernels.lang.pointwise import Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index
from pyc_mlir.pipelines.kernels.nest import share


@dataclass(frozen=True)
class Contraction(Sized):
    """result[.., rows, columns] = the sum of left[.., rows, k] right[.., k, columns] over k.

    `batch` are the sizes of the letters of `result` other than m and n, in their order there; an
    operand that lacks one of them is the same for all of it. `result` ends with n, `right` with n
    or, transposed, with k.
    """

    batch: tuple[Dim, ...]
    rows: Dim
    columns: Dim
    depth: Dim
    left: str = "bmk"
    right: str = "bkn"
    result: str = "bmn"

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for orders or sizes that make no product."""
        dims = (*self.batch, self.rows, self.columns, self.depth)
        if min((1, *(d for d in dims if isinstance(d, int)))) < 1:
            raise _refusal("sizes of at least 1", dims)
        letters = self.letters
        wrong = (
            len(letters) != len(self.batch)
            or sorted(self.result) != sorted(f"{letters}mn")
            or not _covers(self.left, "mk", letters)
            or not _covers(self.right, "kn", letters)
        )
        if wrong or self.result[-1] != "n" or self.right[-1] not in "kn":
            raise _refusal(
                "left of m, k and batches, right of k, n and batches, ending with k or n, result "
                "of the batches, m and, last, n",
                (self.batch, *self.orders),
            )

    @property
    def letters(self) -> str:
        """The letters of the batch."""
        return self.result.replace("m", "").replace("n", "")

    @property
    def sizes(self) -> dict[str, Dim]:
        """Every letter's size."""
        own = {"m": self.rows, "n": self.columns, "k": self.depth}
        return {**dict(zip(self.letters, self.batch, strict=True)), **own}

    @property
    def orders(self) -> tuple[str, str, str]:
        """The letters of left, right and result."""
        return self.left, self.right, self.result

    @property
    def transposed(self) -> bool:
        """True where the depth of `right` is its last dimension."""
        return self.right[-1] == "k"

    @property
    def flops(self) -> float:
        """Those of the products."""
        return 2.0 * prod(map(known, self.sizes.values()))

    @property
    def matrix(self) -> tuple[Dim, Dim]:
        """The rows and columns that an epilogue sees: all dimensions but the last one are rows.

        Rows are the size ``rows_of_c`` where their number cannot be told.
        """
        outer = [self.sizes[x] for x in self.result[:-1]]
        numbers = [d for d in outer if isinstance(d, int)]
        if len(numbers) == len(outer):
            return prod(numbers), self.columns
        return (outer[0] if len(outer) == 1 else "rows_of_c"), self.columns

    def operands(self, epilogue: Pointwise) -> tuple[Operand, ...]:
        """Return a kernel's operands: a, b, what the epilogue reads, c."""
        left, right, result = (tuple(self.sizes[x] for x in o) for o in self.orders)
        reads = epilogue.operands("e", *self.matrix)
        return (Operand("a", left), Operand("b", right), *reads, Operand("c", result, "out"))


@dataclass(frozen=True)
class BatchMatrix:
    """One matrix within an operand, at a place of the batch."""

    memory: Memory
    order: str
    batch: Mapping[str, Index]

    def at(self, **place: Place) -> list[Place]:
        """Return a position from those of the matrix's two letters."""
        known: dict[str, Place] = {**self.batch, **place}
        return [known[x] for x in self.order]

    def indices(self, **place: Index) -> list[Index]:
        """Return the same for one number."""
        known = {**self.batch, **place}
        return [known[x] for x in self.order]

    def row(self, **place: Index) -> Index:
        """Return the number of a row, all dimensions but the last one taken as rows."""
        number = Index.of(0)
        for letter, size in zip(self.order[:-1], self.memory.shape, strict=False):
            number = number * size + {**self.batch, **place}[letter]
        return number


@dataclass(frozen=True)
class Matrices:
    """The three matrices of one place of the batch."""

    a: BatchMatrix
    b: BatchMatrix
    c: BatchMatrix


@dataclass(frozen=True)
class Operands:
    """The memory of a contraction inside a kernel."""

    k: Build
    what: Contraction
    a: Memory
    b: Memory
    c: Memory

    def each(self, parts: int, work: Callable[[Matrices], None]) -> None:
        """`work` on the matrices of this workgroup, one of `parts` along its first dimension."""
        if not self.what.batch:
            return work(self._matrices({}))
        count = Index.of(1)
        for size in self.what.batch:
            count = count * self.k.size(size)
        first, end = share(self.k, 0, parts, count)
        with self.k.range(first, end) as number:
            work(self._matrices(dict(self._unravel(number))))
        return None

    def _matrices(self, batch: Mapping[str, Index]) -> Matrices:
        memories = zip((self.a, self.b, self.c), self.what.orders, strict=True)
        return Matrices(*(BatchMatrix(memory, order, batch) for memory, order in memories))

    def _unravel(self, number: Index) -> Iterator[tuple[str, Index]]:
        """Yield a number within the batch as one for each letter, the last one changing fastest."""
        sizes, letters = self.what.sizes, self.what.letters
        for letter in reversed(letters[1:]):
            yield letter, number % self.k.size(sizes[letter])
            number = number // self.k.size(sizes[letter])
        yield letters[0], number


def _covers(order: str, own: str, letters: str) -> bool:
    """Return whether an operand has its own letters and some of the batch's, none of them twice."""
    rest = set(order) - set(own)
    return len(set(order)) == len(order) and set(own) <= set(order) and rest <= set(letters)


def _refusal(expected: str, came: object) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"product kernel: expected {expected}, got {came!r}")
