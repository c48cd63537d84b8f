"""Matrix products: MatMul, Gemm and Einsum of one or two operands."""

from typing import Any

from pyc_mlir.dialects.types import is_float
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.frame.shaping import product, reshape_to, swap_last, take
from pyc_mlir.frontends.onnx.frame.handler import Node, node


@node("MatMul")
def matmul(n: Node) -> Any:
    """numpy's matmul."""
    return n.b.matmul(n.x(0), n.x(1))


@node("Gemm")
def gemm(n: Node) -> Any:
    """out = alpha * A' @ B' + beta * C; A' and B' are A and B, transposed where asked."""
    b = n.b
    lhs = swap_last(b, n.x(0)) if n.attr("transA", 0) else n.x(0)
    rhs = swap_last(b, n.x(1)) if n.attr("transB", 0) else n.x(1)
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    out = _scaled(n, b.matmul(lhs, rhs), alpha)
    return b.add(out, _scaled(n, n.x(2), beta)) if n.has(2) else out


def _scaled(n: Node, x: Any, factor: float) -> Any:
    if factor == 1.0:
        return x
    if not is_float(n.type().dtype) and factor != int(factor):
        raise unsupported(f"factor {factor} with integers: expected a whole number")
    return n.b.mul(x, n.number(factor))


_MAX_DETERMINANT = 4


@node("Det")
def determinant(n: Node) -> Any:
    """Of matrices of up to 4 rows, by cofactors."""
    size, rank = n.type().shape[-1], n.type().rank
    if size is None or size != n.type().shape[-2] or not 0 < size <= _MAX_DETERMINANT:
        raise unsupported(f"matrices of {size} rows: expected 1 to {_MAX_DETERMINANT}, static")
    dims = n.dims()[:-2]

    def entry(row: int, column: int) -> Any:
        one = take(n.b, take(n.b, n.x(), rank - 2, row, row + 1), rank - 1, column, column + 1)
        return reshape_to(n.b, one, dims)

    def minor(row: int, columns: tuple[int, ...]) -> Any:
        total = None
        for place, column in enumerate(columns):
            term = entry(row, column)
            if rest := (*columns[:place], *columns[place + 1 :]):
                term = n.b.mul(term, minor(row + 1, rest))
            if total is None:
                total = term
            else:
                total = n.b.sub(total, term) if place % 2 else n.b.add(total, term)
        return total

    return minor(0, tuple(range(size)))


@node("Einsum")
def einsum(n: Node) -> Any:
    """One operand: transpose and sum. Two: a batched matmul between transposes and reshapes."""
    inputs, out = _labels(n)
    for label in (*inputs, out):
        if len(set(label)) != len(label):
            raise unsupported(f"equation {n.attr('equation')!r}: a repeated index (a diagonal)")
    if len(inputs) == 1:
        return _permuted(n, n.x(0), inputs[0], out)
    left, right = inputs
    shared = set(left) & set(right)
    batch = [c for c in out if c in shared]
    inner = [c for c in left if c in shared and c not in out]
    rows = [c for c in out if c in left and c not in shared]
    columns = [c for c in out if c in right and c not in shared]
    sizes = dict(zip(left, n.dims(0), strict=True)) | dict(zip(right, n.dims(1), strict=True))

    def matrix(index: int, labels: str, groups: list[list[str]]) -> Any:
        x = _permuted(n, n.x(index), labels, "".join(c for g in groups for c in g))
        flat = [product([sizes[c] for c in g]) for g in groups[-2:]]
        return reshape_to(n.b, x, [*(sizes[c] for c in batch), *flat])

    lhs = matrix(0, left, [batch, rows, inner])
    rhs = matrix(1, right, [batch, inner, columns])
    order = [*batch, *rows, *columns]
    full = reshape_to(n.b, n.b.matmul(lhs, rhs), [sizes[c] for c in order])
    return _permuted(n, full, "".join(order), out)


def _labels(n: Node) -> tuple[list[str], str]:
    """The indices of each operand and of the result; ``...`` is not supported."""
    equation = n.attr("equation").replace(" ", "")
    if "." in equation or n.count > 2:
        raise unsupported(f"equation {equation!r}: expected one or two operands and no ellipsis")
    left, arrow, out = equation.partition("->")
    if not arrow:
        letters = left.replace(",", "")
        out = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return left.split(","), out


def _permuted(n: Node, x: Any, have: str, want: str) -> Any:
    """x with indices `have` summed over those not in `want`, in the order of `want`."""
    gone = tuple(i for i, c in enumerate(have) if c not in want)
    if gone:
        x = n.b.reduce_sum(x, axes=gone)
        have = "".join(c for c in have if c in want)
    if have == want:
        return x
    return n.b.transpose(x, permutation=tuple(have.index(c) for c in want))
