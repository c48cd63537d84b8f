"""Matrix products: MatMul, Gemm and Einsum."""

from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.types import is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import product, reshape_to, swap_last, take
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node


@node("MatMul")
def matmul(n: OnnxNode) -> Any:
    """numpy's matmul."""
    return n.b.matmul(n.x(0), n.x(1))


@node("Gemm")
def gemm(n: OnnxNode) -> Any:
    """out = alpha * A' @ B' + beta * C; A' and B' are A and B, transposed if requested."""
    b = n.b
    lhs = swap_last(b, n.x(0)) if n.attr("transA", 0) else n.x(0)
    rhs = swap_last(b, n.x(1)) if n.attr("transB", 0) else n.x(1)
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    out = scaled_product(n, lhs, rhs, alpha)
    return b.add(out, _scaled(n, n.x(2), beta)) if n.has(2) else out


def scaled_product(n: OnnxNode, lhs: Any, rhs: Any, factor: float) -> Any:
    """factor * lhs @ rhs; of 16-bit floats the product before it may leave their range."""
    if factor == 1.0:
        return n.b.matmul(lhs, rhs)
    return accumulated(n.b, lhs, lambda x, y: _scaled(n, n.b.matmul(x, y), factor), rhs)


def _scaled(n: OnnxNode, x: Any, factor: float) -> Any:
    if factor == 1.0:
        return x
    if not is_float(n.type().dtype) and factor != int(factor):
        raise unsupported(f"factor {factor} with integers: expected a whole number")
    return n.b.mul(x, n.b.scalar(factor, x))


_MAX_DETERMINANT = 4


@node("Det")
def determinant(n: OnnxNode) -> Any:
    """Build determinants of matrices of up to 4 rows, by cofactors."""
    size, rank = n.type().shape[-1], n.type().rank
    if size is None or size != n.type().shape[-2] or not 0 < size <= _MAX_DETERMINANT:
        raise unsupported(f"matrices of {size} rows: expected 1 to {_MAX_DETERMINANT}, static")
    dims = n.dims()[:-2]

    def entry(x: Any, row: int, column: int) -> Any:
        one = take(n.b, take(n.b, x, rank - 2, row, row + 1), rank - 1, column, column + 1)
        return reshape_to(n.b, one, dims)

    def minor(x: Any, row: int, columns: tuple[int, ...]) -> Any:
        total = None
        for place, column in enumerate(columns):
            term = entry(x, row, column)
            if rest := (*columns[:place], *columns[place + 1 :]):
                term = n.b.mul(term, minor(x, row + 1, rest))
            if total is None:
                total = term
            else:
                total = n.b.sub(total, term) if place % 2 else n.b.add(total, term)
        return total

    return accumulated(n.b, n.x(), lambda x: minor(x, 0, tuple(range(size))))


@node("Einsum")
def einsum(n: OnnxNode) -> Any:
    """Build sums of products by named indices, two operands at a time: a batched matmul each."""
    inputs, out = _labels(n)
    terms = [_plain(n.b, n.x(i), label) for i, label in enumerate(inputs)]
    while len(terms) > 1:
        wanted = set(out).union(*(label for _, label in terms[2:]))
        last = len(terms) == 2
        both = "".join(dict.fromkeys(terms[0][1] + terms[1][1]))
        label = out if last else "".join(c for c in both if c in wanted)
        terms[:2] = [(_product(n.b, terms[0], terms[1], label), label)]
    return _permuted(n.b, *terms[0], out)


def _product(b: Any, lhs: tuple[Any, str], rhs: tuple[Any, str], out: str) -> Any:
    """Multiply two operands with their indices and sum over the indices not in `out`."""
    lhs, rhs = _without_ones(b, lhs, rhs), _without_ones(b, rhs, lhs)
    (x, left), (y, right) = lhs, rhs
    shared = set(left) & set(right)
    batch = [c for c in out if c in shared]
    inner = [c for c in left if c in shared and c not in out]
    rows = [c for c in out if c in left and c not in shared]
    columns = [c for c in out if c in right and c not in shared]
    sizes = dict(zip(left, b.dims(x), strict=True)) | dict(zip(right, b.dims(y), strict=True))

    def matrix(value: Any, labels: str, groups: list[list[str]]) -> Any:
        value = _permuted(b, value, labels, "".join(c for g in groups for c in g))
        flat = [product([sizes[c] for c in g]) for g in groups[-2:]]
        return reshape_to(b, value, [*(sizes[c] for c in batch), *flat])

    order = [*batch, *rows, *columns]
    whole = b.matmul(
        matrix(x, left, [batch, rows, inner]), matrix(y, right, [batch, inner, columns])
    )
    return _permuted(b, reshape_to(b, whole, [sizes[c] for c in order]), "".join(order), out)


def _without_ones(b: Any, term: tuple[Any, str], other: tuple[Any, str]) -> tuple[Any, str]:
    """Drop the dimensions of size 1 that the other operand has larger: they broadcast."""
    (x, label), sizes = term, dict(zip(other[1], b.dims(other[0]), strict=True))
    dims = dict(zip(label, b.dims(x), strict=True))
    kept = "".join(c for c in label if not (dims[c] == 1 and sizes.get(c, 1) != 1))
    return (x, label) if kept == label else (reshape_to(b, x, [dims[c] for c in kept]), kept)


def _plain(b: Any, x: Any, label: str) -> tuple[Any, str]:
    """Make the indices of an operand all different: a repeated one selects the diagonal."""
    if b.type_of(x).rank != len(label):
        raise PycError(ReasonCode.BAD_MODEL, f"indices {label!r}: expected {b.type_of(x).rank}")
    while len(set(label)) < len(label):
        place = next(i for i, c in enumerate(label) if c in label[:i])
        first = label.index(label[place])
        same = b.compare(b.iota_like(x, first), b.iota_like(x, place), predicate="eq")
        x = b.reduce_sum(b.select(same, x, b.scalar(0, x)), axes=(place,), keepdims=False)
        label = label[:place] + label[place + 1 :]
    return x, label


def _labels(n: OnnxNode) -> tuple[list[str], str]:
    """Return the indices of each operand and of the result; ``...`` becomes unused letters."""
    equation = n.attr("equation").replace(" ", "")
    left, arrow, out = equation.partition("->")
    labels = left.split(",")
    named, shown = [*labels, out], equation[:80]
    if len(labels) != n.count or not all(c.isalpha() for c in equation.translate(_MARKS)):
        raise PycError(ReasonCode.BAD_MODEL, f"equation {shown!r}: expected {n.count} terms")
    if any(t.replace("...", "", 1).count(".") for t in named):
        raise PycError(ReasonCode.BAD_MODEL, f"equation {shown!r}: expected one ellipsis")
    spare = [c for c in map(chr, range(0x391, 0x3CA)) if c not in equation]
    depths = [n.type(i).rank - len(t) + 3 if "..." in t else 0 for i, t in enumerate(labels)]
    most = max(depths, default=0)
    if not min(depths, default=0) >= 0 or most > len(spare):
        raise PycError(ReasonCode.BAD_MODEL, f"equation {shown!r}: expected other ranks")
    letters = "".join(spare[:most])
    full = [t.replace("...", letters[most - d :]) for t, d in zip(labels, depths, strict=True)]
    if arrow:
        return full, out.replace("...", letters)
    alone = "".join(full)
    return full, letters + "".join(
        sorted(c for c in set(alone) - set(letters) if alone.count(c) == 1)
    )


_MARKS = str.maketrans("", "", ".,->")


def _permuted(b: Any, x: Any, have: str, want: str) -> Any:
    """x with indices `have` summed over those not in `want`, in the order of `want`."""
    gone = tuple(i for i, c in enumerate(have) if c not in want)
    if gone:
        x = b.reduce_sum(x, axes=gone)
        have = "".join(c for c in have if c in want)
    if sorted(have) != sorted(want):
        raise PycError(ReasonCode.BAD_MODEL, f"indices {want!r}: expected those of the operands")
    if have == want:
        return x
    return b.transpose(x, permutation=tuple(have.index(c) for c in want))
