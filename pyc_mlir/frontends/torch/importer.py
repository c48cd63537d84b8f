"""Import exported PyTorch programs as pyc programs, node by node.

    module = import_torch(from_torch(model, inputs))

Parameters and buffers become `pyc.constant` over torch's own memory; nodes whose operands are known
are computed at import; sizes are symbolic. Ops carry the location
``loc("encoder.layer.0/linear"("model.py":12:1))``: the module's path and the user's line. Buffers
that the program writes are its last arguments and its last results.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import load, new_context
from pyc_mlir.frontends.importing.importer import Argument
from pyc_mlir.frontends.torch.export import TorchModel
from pyc_mlir.frontends.torch.graph import GraphImport, Symbolic
from pyc_mlir.frontends.torch.ops.handler import numpy_view


def import_torch(
    model: TorchModel, *, context: ir.Context | None = None, name: str = "main"
) -> ir.Module:
    """Return the pyc module with one function `name` that computes `model`.

    Raises UnsupportedModel with all nodes that PyC lacks; PycError (UNSUPPORTED_DTYPE).
    """
    active = new_context() if context is None else context
    load(active)
    with active, ir.Location.unknown():
        return _Import(model).run(name)


class _Import:
    """One import: what the placeholders and the outputs of an exported program are."""

    def __init__(self, model: TorchModel) -> None:
        self.model = model
        self.program = model.program

    def run(self, name: str) -> ir.Module:
        """Build the module; raise UnsupportedModel after all nodes were tried."""
        weights = self._weights()
        size = sum(v.nbytes for v in weights.values())
        self.graph = GraphImport(self.model.name, self.model.names, size)
        arguments, nodes = self._arguments(weights)
        body = partial(self._body, nodes)
        module = self.graph.importer.function(name, arguments, body)
        self.graph.declare_ranges(module, arguments, self.program.range_constraints)
        return module

    def _weights(self) -> dict[str, np.ndarray]:
        """Return the parameters and buffers that the program only reads, by placeholder.

        Raises PycError (UNSUPPORTED_DTYPE), naming the parameter.
        """
        program, signature = self.program, self.program.graph_signature
        written = set(signature.buffers_to_mutate.values())
        targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        targets |= signature.inputs_to_lifted_tensor_constants
        views: dict[int, np.ndarray] = {}
        found = {}
        for node, target in targets.items():
            if target in written:
                continue
            tensor = program.state_dict.get(target)
            tensor = program.constants[target] if tensor is None else tensor
            try:
                # A tensor under two names is one constant.
                found[node] = views.setdefault(id(tensor), numpy_view(tensor))
            except PycError as error:
                message = f"{self.model.name}: `{target}`: {error.message}"
                raise PycError(error.code, message) from error
        return found

    def _arguments(self, weights: Mapping[str, np.ndarray]) -> tuple[list[Argument], list[Any]]:
        """Return the arguments with their placeholders: user inputs, then written buffers."""
        signature, values = self.program.graph_signature, self.graph.values
        names = dict(zip(signature.user_inputs, self.model.inputs, strict=False))
        users, states = [], []
        for node in self.program.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if node.name in weights:
                values[node] = weights[node.name]
            elif not hasattr(value, "dtype"):
                values[node] = value if not hasattr(value, "node") else Symbolic(value)
            elif node.name in signature.inputs_to_buffers:
                states.append(
                    (self.graph.argument(signature.inputs_to_buffers[node.name], value), node)
                )
            else:
                users.append(
                    (self.graph.argument(str(names.get(node.name, node.name)), value), node)
                )
        pairs = [*users, *states]
        return [a for a, _ in pairs], [n for _, n in pairs]

    def _body(self, nodes: Sequence[Any], values: Sequence[ir.Value]) -> list[tuple[str, ir.Value]]:
        self.graph.values.update(zip(nodes, values, strict=True))
        outputs = self.graph.graph(self.program.graph_module, self.graph.values)
        self.graph.check()
        return self._results(outputs)

    def _results(self, outputs: Sequence[Any]) -> list[tuple[str, ir.Value]]:
        """Return the user's results by their paths, then written values by their targets."""
        specs = self.program.graph_signature.output_specs
        users, written = [], []
        names = iter(self.model.outputs)
        for value, spec in zip(outputs, specs, strict=True):
            kind = spec.kind.name
            if kind == "USER_OUTPUT":
                name = next(names, "out")
                if value is not None and not isinstance(value, bool | int | float | str):
                    users.append((name, self.graph.emitted(value, name)))
            elif kind in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
                written.append((f"{spec.target}.new", self.graph.emitted(value, spec.target)))
            else:
                raise PycError(
                    ReasonCode.UNSUPPORTED_OP,
                    f"{self.model.name}: expected results and mutations, got a {kind}",
                )
        return [*users, *written]
