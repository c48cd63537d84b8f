"""Import the graphs that `torch.compile` hands to a backend, after AOTAutograd.

    made = import_compiled(graph_module, frozen={0: weight})
    made.module, made.arguments, made.results

AOTAutograd's graphs are functional: weights and buffers are placeholders, mutations are results,
sizes that the graph takes or gives are integers beside the tensors. Numbers that no tensor has as a
size (Python numbers that change between calls, factors computed from sizes) become arguments of
rank 0; those that the graph uses as sizes become arguments of that length.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import load, new_context
from pyc_mlir.dialects.types import BOOL, DTYPES, I64
from pyc_mlir.frontends.importing.importer import Argument
from pyc_mlir.frontends.importing.sizes import SymbolicSize
from pyc_mlir.frontends.torch.graph import GraphImport, Symbolic
from pyc_mlir.frontends.torch.ops.handler import RANDOM, numpy_view

# An argument that the graph's placeholders have as a number, and how a call makes its array.
_Added = tuple[Argument, Callable[[Sequence[Any]], np.ndarray]]
_NUMBERS = {"SymInt": I64, "SymFloat": DTYPES["f64"], "SymBool": BOOL}


@dataclass(frozen=True)
class CompiledGraph:
    """A graph as a pyc module, and how a call's arguments and results belong to it.

    arguments: for each of the program's inputs, the number of the tensor among the graph's
        placeholders, or a function of the call's arguments that makes the array.
    results: for each output of the graph a result's number, a plain value, or a function of the
        call's arguments (a size).
    """

    module: ir.Module
    arguments: tuple[int | Callable[[Sequence[Any]], np.ndarray], ...]
    results: tuple[int | Callable[[Sequence[Any]], Any], ...]


def import_compiled(graph_module: Any, name: str, frozen: Mapping[int, Any]) -> CompiledGraph:
    """Return the pyc module of a graph; placeholders in `frozen` become constants.

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
        sources: list[int | Callable[[Sequence[Any]], np.ndarray]] = []
        arguments, nodes = [], []
        for i, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            if i in self.frozen:
                self.graph.values[node] = numpy_view(self.frozen[i])
            elif hasattr(value, "dtype"):
                sources.append(i)
                arguments.append(self.graph.argument(str(node.name), value))
                nodes.append(node)
            else:
                known = Symbolic(value) if hasattr(value, "node") else value
                self.graph.values[node] = known
        if self._draws:
            sources.append(_drawn_seed)
            arguments.append(Argument("seed", DTYPES["ui64"], ()))
        sized = _names(arguments)
        lengths = self._lengths(sized)
        numbers = self._numbers(sized | _names([a for a, _ in lengths]))
        added = [*lengths, *map(self._number, numbers)]
        arguments += [argument for argument, _ in added]
        sources += [source for _, source in added]
        body = partial(self._body, nodes, numbers)
        module = self.graph.importer.function("main", arguments, body)
        # torch's guards keep calls within the bounds that it knows (`mark_dynamic(..., max=...)`).
        self.graph.declare_ranges(module, arguments, self._bounds())
        return CompiledGraph(module, tuple(sources), tuple(self.results))

    def _bounds(self) -> dict[Any, Any]:
        """Return the bounds of the sizes' symbols."""
        values = [n.meta.get("val") for n in self.placeholders]
        sizes = [d for v in values for d in (v, *getattr(v, "shape", ())) if hasattr(d, "node")]
        environments = {id(e := d.node.shape_env): e for d in sizes}.values()
        used = _symbols(sizes)
        return {s: e.var_to_range[s] for e in environments for s in used if s in e.var_to_range}

    def _lengths(self, sized: set[str]) -> list[_Added]:
        """Return arguments for the graph's sizes that no argument has."""
        used: set[Any] = set()
        for node in self._calls():
            found = node.meta["val"]
            for value in found if isinstance(found, (tuple, list)) else (found,):
                used |= _symbols(getattr(value, "shape", ()))
            used |= _symbols(_given_sizes(node))
        made: list[_Added] = []
        for i, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            if hasattr(value, "node") and value.node.expr in used:
                name = self.graph.symbols.name(value.node.expr)
                if name not in sized:
                    dims = (SymbolicSize(1, (name,)),)
                    argument = Argument(str(node.name), DTYPES["i8"], dims)
                    made.append((argument, partial(_length, i)))
        return made

    def _numbers(self, sized: set[str]) -> list[Any]:
        """Return the nodes of symbolic numbers that operators read and that are no sizes."""
        found: dict[Any, None] = {}
        known = set(self._places)
        for node in self._calls():
            for given in node.all_input_nodes:
                value = given.meta.get("val")
                symbols = _symbols((value,))
                names = {self.graph.symbols.name(s) for s in symbols}
                is_size = type(value).__name__ == "SymInt" and names <= sized
                if symbols and symbols <= known and not is_size:
                    found[given] = None
        return list(found)

    @cached_property
    def _draws(self) -> bool:
        return any(str(node.target) in RANDOM for node in self._calls())

    def _calls(self) -> list[Any]:
        """Return the nodes that compute something with an operator of torch."""
        nodes = self.module.graph.nodes
        return [n for n in nodes if hasattr(n.target, "_schema") and n.meta.get("val") is not None]

    def _number(self, node: Any) -> _Added:
        """Return an argument for a symbolic number, and the function by which a call makes it."""
        value = node.meta["val"]
        dtype = _NUMBERS[type(value).__name__]
        compute = self._size(value)
        return Argument(str(node.name), dtype, ()), lambda args: np.array(compute(args), dtype)

    @cached_property
    def _places(self) -> dict[Any, Callable[[Sequence[Any]], Any]]:
        """How to find symbols and the sizes of tensors among a call's arguments."""
        found: dict[Any, Callable[[Sequence[Any]], Any]] = {}
        for i, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            if hasattr(value, "node"):
                found.setdefault(value.node.expr, partial(_argument, i))
            for axis, dim in enumerate(getattr(value, "shape", ())):
                if hasattr(dim, "node"):
                    found.setdefault(dim.node.expr, partial(_dimension, i, axis))
        return found

    def _body(
        self, nodes: Sequence[Any], numbers: Sequence[Any], values: Sequence[ir.Value]
    ) -> list[tuple[str, ir.Value]]:
        self.graph.values.update(zip(nodes, values, strict=False))
        self.graph.seed = values[len(nodes)] if self._draws else None
        self.graph.numbers.update(zip(numbers, values[len(values) - len(numbers) :], strict=True))
        outputs = self.graph.graph(self.module, self.graph.values)
        tensors = {n: i for i, n in enumerate(self.placeholders)}
        returned = self.module.graph.output_node().args[0]
        self.graph.check()
        emitted: list[tuple[str, ir.Value]] = []
        for i, (value, output) in enumerate(zip(outputs, returned, strict=True)):
            if value is None or isinstance(value, bool | int | float):
                self.results.append(partial(_constant, value))
            elif isinstance(value, Symbolic):
                self.results.append(self._size(value.size))
            elif output in tensors:
                # What is saved for the backward graph, or handed back: the call's own tensor.
                self.results.append(partial(_argument, tensors[output]))
            else:
                self.results.append(len(emitted))
                emitted.append((f"out{i}", self.graph.emitted(value, f"out{i}")))
        return emitted

    def _size(self, size: Any) -> Callable[[Sequence[Any]], Any]:
        """Return the function that computes a symbolic number from a call's arguments."""
        from torch.utils._sympy.interp import sympy_interp  # pyright: ignore[reportMissingImports]
        from torch.utils._sympy.reference import (  # pyright: ignore[reportMissingImports]
            PythonReferenceAnalysis,
        )

        expression = size.node.expr
        places = self._places
        if expression in places:
            return places[expression]
        symbols = sorted(expression.free_symbols, key=str)

        @lru_cache(maxsize=256)
        def evaluate(*values: Any) -> Any:
            known = dict(zip(symbols, values, strict=True))
            return sympy_interp(PythonReferenceAnalysis, known, expression)

        return lambda args: evaluate(*(places[s](args) for s in symbols))


def _drawn_seed(args: Sequence[Any]) -> np.ndarray:
    """Return a number from torch's generator, so that `torch.manual_seed` makes calls repeat."""
    import torch  # pyright: ignore[reportMissingImports]

    return np.array(torch.empty((), dtype=torch.int64).random_().item(), np.uint64)


def _constant(value: Any, args: Sequence[Any]) -> Any:
    return value


def _argument(index: int, args: Sequence[Any]) -> Any:
    return args[index]


def _dimension(index: int, axis: int, args: Sequence[Any]) -> Any:
    return args[index].shape[axis]


def _length(index: int, args: Sequence[Any]) -> np.ndarray:
    """Make an array whose length is an argument. Raises PycError if it is negative."""
    if args[index] < 0:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            "call: expected a number of 0 or more where the graph has it as a size, got "
            f"{args[index]}; compile with `dynamic=False`, which makes it a constant",
        )
    return np.zeros(args[index], np.int8)


def _names(arguments: Iterable[Argument]) -> set[str]:
    """Return the names that alone are a size of some argument: a program can read them."""
    dims = (d for a in arguments for d in a.dims if isinstance(d, SymbolicSize))
    return {d.atoms[0] for d in dims if d.factor == 1 and len(d.atoms) == 1}


def _symbols(values: Iterable[Any]) -> set[Any]:
    return {s for v in values if hasattr(v, "node") for s in v.node.expr.free_symbols}


def _given_sizes(node: Any) -> list[Any]:
    """Return the symbolic numbers of a call that its schema declares to be sizes."""
    schema = node.target._schema.arguments
    given = dict(zip((a.name for a in schema), node.args, strict=False)) | dict(node.kwargs)
    named = (given.get(a.name) for a in schema if "SymInt" in str(a.real_type))
    flat = [e for v in named for e in (v if isinstance(v, (list, tuple)) else (v,))]
    return [e.meta.get("val") for e in flat if e is not None and hasattr(e, "meta")]
