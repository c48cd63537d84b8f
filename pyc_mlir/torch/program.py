"""A compiled module that is called as the module is: torch tensors in the same trees, in and out.

    model = pyc_mlir.torch.compile(module, (TensorSpec("f32", "batch", 784),))
    model(images)

State that the module writes (caches, running statistics) lives on the program's device between
calls; `model.state` shows it. Its memory is donated to the new state where the plan proves that
this is safe, so that a cache is neither copied nor held twice; an array of `model.state` is then
gone with the next call, and after a call that the device failed.
"""

from collections.abc import Mapping, Sequence
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
            tensor_of(_on_host(next(values))) if _is_tensor(a) else a.value for a in self._users
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


def _is_tensor(argument: Any) -> bool:
    """Return whether a result of the signature is a tensor; else a constant."""
    return not hasattr(argument, "value")
