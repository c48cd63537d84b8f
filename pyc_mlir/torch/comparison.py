"""Compare a compiled module with the module itself.

print(compare(module, (images,)))
# out: 3.1e-07 of the largest 2.41, at (0, 17)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch.utils import _pytree as pytree  # pyright: ignore[reportMissingImports]

from pyc_mlir.torch.program import TorchProgram, compile


@dataclass(frozen=True)
class Difference:
    """How one result differs.

    error: the largest absolute difference; NaN where only one side has a NaN, infinite where the
        shapes or element types differ.
    largest: the largest absolute value of torch's result; place: where the difference is.
    """

    name: str
    error: float
    largest: float
    place: tuple[int, ...] = ()
    problem: str = ""

    @property
    def relative(self) -> float:
        """The error as a part of the largest value."""
        return self.error / self.largest if self.largest else self.error

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        where = f", at {self.place}" if self.error else ""
        return f"{self.name}: {self.relative:.2g} of the largest {self.largest:.4g}{where}"


@dataclass(frozen=True)
class Comparison:
    """The differences of all results, in torch's order."""

    differences: tuple[Difference, ...]

    @property
    def worst(self) -> float:
        """The largest relative difference; NaN if any is."""
        return float(np.max([0.0, *(d.relative for d in self.differences)]))

    def agrees(self, tolerance: float = 1e-4) -> bool:
        """Return whether no result differs by more than that part of its largest value."""
        return bool(self.worst <= tolerance)

    def __str__(self) -> str:
        return "\n".join(map(str, self.differences))


def compare(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    program: TorchProgram | None = None,
    **options: Any,
) -> Comparison:
    """Run a module in torch and compiled, on the same inputs.

    args, kwargs: tensors. program: what `pyc_mlir.torch.compile` gave for the module; None
        compiles it for these inputs. options: as of `pyc_mlir.compile`.
    Raises as `pyc_mlir.torch.compile`.
    """
    kwargs = dict(kwargs or {})
    if program is None:
        program = compile(module, args, kwargs, **options)
    copies = pytree.tree_map(_copied, (tuple(args), kwargs))
    got = program(*copies[0], **copies[1])
    with torch.no_grad():
        want = module(*args, **kwargs)
    named = pytree.tree_flatten_with_path(want)[0]
    names = program.model.outputs or tuple(pytree.keystr(p) or "out" for p, _ in named)
    found = [
        _difference(name, g, w)
        for name, g, (_, w) in zip(names, pytree.tree_leaves(got), named, strict=True)
        if isinstance(w, torch.Tensor)
    ]
    return Comparison(tuple(found))


def _copied(leaf: Any) -> Any:
    """Copy a tensor: a module may write its inputs."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _difference(name: str, got: Any, want: Any) -> Difference:
    if got.shape != want.shape or got.dtype != want.dtype:
        problem = f"expected {want.dtype} {tuple(want.shape)}, got {got.dtype} {tuple(got.shape)}"
        return Difference(name, float("inf"), 1.0, problem=problem)
    if not want.numel():
        return Difference(name, 0.0, 0.0)
    one, other = (t.detach().to(torch.float64) for t in (got, want))
    same = (one == other) | (one.isnan() & other.isnan())
    gap = torch.where(same, 0.0, (one - other).abs())
    # A NaN on one side only is the worst difference.
    ranked = torch.where(gap.isnan(), torch.inf, gap)
    place = np.unravel_index(int(ranked.argmax()), tuple(want.shape)) if want.dim() else ()
    finite = other[other.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return Difference(
        name, float(gap.reshape(-1)[int(ranked.argmax())]), largest, tuple(map(int, place))
    )
