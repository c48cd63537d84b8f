"""A compiled module that is called as the module is: torch tensors in the same trees, in and out.

    model = pyc_mlir.torch.compile(module, (TensorSpec("f32", "batch", 784),))
    model(images)

State that the module writes (caches, running statistics) lives on the program's device between
calls; `model.state` shows it. Its memory is donated to the new state where the plan proves that
this is safe, so that a cache is neither copied nor held twice; an array of `model.state` is then
gone with the next call, and after a call that the device failed.

    print(compare(module, (images,)))
    # out: 3.1e-07 of the largest 2.41, at (0, 17)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch.utils import _pytree as pytree  # pyright: ignore[reportMissingImports]

import pyc_mlir.api as api
from pyc_mlir.artifact.signature import flat
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.torch.export import TorchModel, from_torch
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.program import Program
from pyc_mlir.torch.tensors import array_of, arrays_of, tensor_of


def compile(
    source: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    **options: Any,
) -> "TorchProgram":
    """Compile a module, a function of tensors, or an ExportedProgram.

    args, kwargs, dynamic_shapes, strict: as of `from_torch`; options: as of `pyc_mlir.compile`.
    Raises as both.
    """
    model = from_torch(source, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
    return TorchProgram(model, api.compile(model, **options))


class TorchProgram:
    """A program behind the interface of the module that it was made of."""

    def __init__(self, model: TorchModel, program: Program) -> None:
        self.model, self.program = model, program
        exported = model.program
        self._in_spec = exported.call_spec.in_spec
        self._out_spec = exported.call_spec.out_spec
        signature = exported.graph_signature
        self._plain: list[tuple[Any, ...]] = []
        kinds = [s.kind.name for s in signature.output_specs]
        specs = signature.output_specs
        self._users = [s.arg for s, k in zip(specs, kinds, strict=True) if k == "USER_OUTPUT"]
        self._written = [
            (k, s.target) for s, k in zip(specs, kinds, strict=True) if k != "USER_OUTPUT"
        ]
        self._inputs = list(signature.user_inputs)
        held = {**exported.state_dict, **exported.constants}
        placeholders = {n.name for n in exported.graph.find_nodes(op="placeholder")}
        changed = set(signature.buffers_to_mutate.values())
        order = [t for n, t in signature.inputs_to_buffers.items() if n in placeholders]
        self.state = {
            t: to_device(array_of(held[t].detach()), program.device) for t in order if t in changed
        }
        count = len(program.signature.inputs)
        self._donate = program.donatable(range(count - len(self.state), count))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's results. Raises PycError as a program's call, or BAD_ARGUMENT."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            leaves = self._reordered(args, kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        arrays = arrays_of(tensors)
        results = flat(self.program(*arrays, *self.state.values(), donate=self._donate))
        count = len(results) - len(self._written)
        self._write(leaves, results[count:])
        values = iter(results[:count])
        users = [
            # A constant among the results has its value in the signature.
            a.value if hasattr(a, "value") else tensor_of(_on_host(next(values)))
            for a in self._users
        ]
        return pytree.tree_unflatten(users, self._out_spec)

    def _reordered(self, args: Any, kwargs: Any) -> list[Any]:
        """Return the leaves of keyword arguments in another order than at the export."""
        from torch.export._tree_utils import (  # pyright: ignore[reportMissingImports]
            reorder_kwargs,
        )

        try:
            ordered = reorder_kwargs(kwargs, self._in_spec)
            leaves, spec = pytree.tree_flatten((args, ordered))
        except (ValueError, KeyError) as error:
            raise PycError(ReasonCode.BAD_ARGUMENT, f"call: {error}") from error
        if spec != self._in_spec:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"call: expected arguments in the trees {self._in_spec}, got {spec}; export again "
                "for other trees",
            )
        return leaves

    def _write(self, leaves: Sequence[Any], written: Sequence[Any]) -> None:
        """Keep what the module writes: buffers as state, inputs in place."""
        for (kind, target), value in zip(self._written, written, strict=True):
            if kind == "BUFFER_MUTATION":
                self.state[target] = value
            else:
                leaves[self._inputs.index(target)].copy_(tensor_of(_on_host(value)))


def _on_host(value: Any) -> np.ndarray:
    """Return a fresh result as numpy, without a copy on CPUs."""
    return value.host() if isinstance(value, Array) else value


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
