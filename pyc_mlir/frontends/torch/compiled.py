"""Import the graphs that `torch.compile` hands to a backend, after AOTAutograd.

    made = import_compiled(graph_module, frozen={0: weight})
    made.module, made.arguments, made.results

AOTAutograd's graphs are functional: weights and buffers are placeholders, mutations are results,
sizes that the graph takes or gives are integers beside the tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import load, new_context
from pyc_mlir.frontends.frame.sizes import SymbolicSize
from pyc_mlir.frontends.torch.frame.dtypes import numpy_view
from pyc_mlir.frontends.torch.graph import GraphImport, Symbolic


@dataclass(frozen=True)
class CompiledGraph:
    """A graph as a pyc module, and how a call's arguments and results belong to it.

    arguments: for each of the program's inputs, its number among the graph's placeholders.
    results: for each output of the graph a result's number, a plain value, or a function of the
        call's arguments (a size).
    """

    module: ir.Module
    arguments: tuple[int, ...]
    results: tuple[int | Callable[[Sequence[Any]], Any], ...]


def import_compiled(graph_module: Any, name: str, frozen: Mapping[int, Any]) -> CompiledGraph:
    """The pyc module of a graph; placeholders in `frozen` become constants.

    Raises UnsupportedModel with all nodes that PyC lacks.
    """
    context = new_context()
    load(context)
    with context, ir.Location.unknown():
        return _Import(graph_module, name, frozen).run()


class _Import:
    """One import: what the placeholders and the outputs of AOTAutograd's graph are."""

    def __init__(self, graph_module: Any, name: str, frozen: Mapping[int, Any]) -> None:
        self.module, self.frozen = graph_module, frozen
        size = sum(t.nbytes for t in frozen.values())
        self.graph = GraphImport(name, {}, size)
        self.placeholders = graph_module.graph.find_nodes(op="placeholder")
        self.results: list[Any] = []

    def run(self) -> CompiledGraph:
        """Build the module; raise UnsupportedModel after all nodes were tried."""
        numbers, arguments, nodes = [], [], []
        for i, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            if i in self.frozen:
                self.graph.values[node] = numpy_view(self.frozen[i])
            elif hasattr(value, "dtype"):
                numbers.append(i)
                arguments.append(self.graph.argument(str(node.name), value))
                nodes.append(node)
            else:
                known = Symbolic(value) if hasattr(value, "node") else value
                self.graph.values[node] = known
        self._require_sized([d for a in arguments for d in a.dims])
        body = partial(self._body, nodes)
        module = self.graph.importer.function("main", arguments, body)
        return CompiledGraph(module, tuple(numbers), tuple(self.results))

    def _require_sized(self, dims: Sequence[Any]) -> None:
        """Raise PycError for a size that comes as a number and that no tensor has."""
        sized = {a for d in dims if isinstance(d, SymbolicSize) for a in d.atoms}
        for node in self.placeholders:
            value = node.meta.get("val")
            size = self.graph.symbols.extent(value) if hasattr(value, "node") else 1
            missing = set(size.atoms) - sized if isinstance(size, SymbolicSize) else set()
            if missing:
                raise PycError(
                    ReasonCode.UNSUPPORTED_ATTRIBUTE,
                    f"{self.graph.name}: argument `{node.name}`: expected a size of some tensor, "
                    f"got a number that is computed from none ({', '.join(sorted(missing))}); "
                    "pass it as a tensor, or compile with `dynamic=False`",
                )

    def _body(self, nodes: Sequence[Any], values: Sequence[ir.Value]) -> list[tuple[str, ir.Value]]:
        self.graph.values.update(zip(nodes, values, strict=True))
        outputs = self.graph.graph(self.module, self.graph.values)
        self.graph.check()
        emitted: list[tuple[str, ir.Value]] = []
        for i, value in enumerate(outputs):
            if value is None or isinstance(value, bool | int | float):
                self.results.append(partial(_constant, value))
            elif isinstance(value, Symbolic):
                self.results.append(self._size(value.size))
            else:
                self.results.append(len(emitted))
                emitted.append((f"out{i}", self.graph.emitted(value, f"out{i}")))
        return emitted

    def _size(self, size: Any) -> Callable[[Sequence[Any]], Any]:
        """How to compute a size from a call's arguments."""
        import sympy  # pyright: ignore[reportMissingImports]

        found: dict[Any, Callable[[Sequence[Any]], Any]] = {}
        for i, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            if hasattr(value, "node"):
                found.setdefault(value.node.expr, partial(_argument, i))
            for axis, dim in enumerate(getattr(value, "shape", ())):
                if hasattr(dim, "node"):
                    found.setdefault(dim.node.expr, partial(_dimension, i, axis))
        expression = size.node.expr
        if expression in found:
            return found[expression]
        symbols = sorted(expression.free_symbols, key=str)
        evaluate = sympy.lambdify(symbols, expression)
        return lambda args: int(evaluate(*(found[s](args) for s in symbols)))


def _constant(value: Any, args: Sequence[Any]) -> Any:
    return value


def _argument(index: int, args: Sequence[Any]) -> Any:
    return args[index]


def _dimension(index: int, axis: int, args: Sequence[Any]) -> Any:
    return args[index].shape[axis]
