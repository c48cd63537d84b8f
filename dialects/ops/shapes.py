"""Shape arithmetic shared by the op definitions: broadcasting, axes, and their errors.

A dynamic dimension (None) never broadcasts at run time: against another dimension it must turn
out equal, which the compiled program checks. Only a dimension known to be 1 is stretched.
"""

from collections.abc import Sequence

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.types import Shape, TensorType, dtype_name


def require(condition: bool, message: str) -> None:
    """Raise VerificationError with `message` unless `condition` holds."""
    if not condition:
        raise VerificationError(message)


def merge(a: int | None, b: int | None) -> int | None:
    """Return the dimension that is both `a` and `b`: the static one when only one is known."""
    return b if a is None else a


def agree(a: int | None, b: int | None) -> bool:
    """Return False only when both are known and differ."""
    return a is None or b is None or a == b


def broadcast_dim(a: int | None, b: int | None) -> int | None:
    """Return numpy's rule for one dimension. Raises VerificationError when the two cannot meet."""
    if a == 1:
        return b
    if b == 1:
        return a
    require(agree(a, b), f"dimensions {a} and {b} do not broadcast")
    return merge(a, b)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return numpy's rule for whole shapes, aligned at the last dimension."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[int | None] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, start=rank - len(shape)):
            try:
                out[i] = broadcast_dim(out[i], dim)
            except VerificationError as error:
                listed = " and ".join(show(s) for s in shapes)
                raise VerificationError(f"shapes {listed}: {error.message}") from None
    return tuple(out)


def show(shape: Shape) -> str:
    """Return a shape for error messages: ``[2, ?]``."""
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def normalize_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Return the axis counted from 0. Raises VerificationError outside [-rank, rank)."""
    require(-rank <= axis < rank, f"`{name}`: expected -{rank}..{rank - 1}, got {axis}")
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int, name: str = "axes") -> tuple[int, ...]:
    """Return sorted axes counted from 0, without repetition."""
    out = tuple(sorted(normalize_axis(a, rank, name) for a in axes))
    require(len(set(out)) == len(out), f"`{name}`: an axis is named twice in {list(axes)}")
    return out


def same_dtype(*types: TensorType) -> None:
    """Raise VerificationError unless all element types are equal."""
    if any(t.dtype != types[0].dtype for t in types):
        kinds = sorted({dtype_name(t.dtype) for t in types})
        raise VerificationError(f"expected operands of one element type, got {kinds}")
