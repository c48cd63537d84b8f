"""Import the nodes of an FX graph of ATen operators: what both roads from PyTorch share.

`GraphImport` is the state of one import. `torch.export` (importer.py) and `torch.compile`
(compiled.py) each define the placeholders and the outputs of their graphs.
"""

import operator
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pyc_mlir.artifact.import_report import NODES, ImportReport, UnsupportedModel
from pyc_mlir.artifact.signature import RANGES
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.frontends.importing.builders import GraphBuilder
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import MISSING, Argument, Importer, Lift, SourceNode
from pyc_mlir.frontends.importing.shaping import reshape_to
from pyc_mlir.frontends.importing.sizes import (
    Extent,
    SymbolicSize,
    Untracked,
    divided,
    extremum,
    total,
)
from pyc_mlir.frontends.torch import ops as torch_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.torch.ops.handler import (
    HANDLERS,
    RANDOM,
    AtenCall,
    Draw,
    Ref,
    numpy_view,
    pyc_dtype,
)

_MAX_SIZE = 1 << 62
UNKNOWN_OP = "no handler and no decomposition"
# An operand that keeps a node with dynamic sizes among its arguments from being computed now.
_DYNAMIC = object()
# Checks of sizes and metadata, which guards and types make.
_CHECKS = (
    "aten._assert_scalar", "aten._assert_tensor_metadata", "aten.sym_constrain_range",
    "aten._assert_async", "aten.sym_constrain_range_for_size",
)  # fmt: skip
# Numbers that are read of tensors of one element.
_READS = ("aten._local_scalar_dense.default", "aten.item.default")
# Regions of Python's context managers that change nothing of an inference.
_REGIONS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}


class Symbols:
    """torch's symbolic sizes (sympy expressions) as the importers' sizes, under the user's names.

    A sum or product of symbols is a `SymbolicSize`. Any other expression, such as ``(s - 1)//2``,
    is an atom of its own, named as it is written. The builder gets a function that computes it at
    run time, and calls it only if no tensor has that dimension. names: torch's symbols (``s77``) ->
    the user's names.
    """

    def __init__(self, names: Mapping[str, str], builder: GraphBuilder) -> None:
        self._names = dict(names)
        self._b = builder
        self._known: dict[Any, Extent] = {}

    def name(self, symbol: Any) -> str:
        """Return the name of a symbol: the user's, or torch's own."""
        return self._names.setdefault(str(symbol), str(symbol))

    def extent(self, size: Any) -> Extent:
        """Return an int, a SymInt or a sympy expression as a size."""
        if isinstance(size, int):
            return size
        expression = size.node.expr if hasattr(size, "node") else size
        if expression not in self._known:
            self._known[expression] = self._extent(expression)
        return self._known[expression]

    def extents(self, shape: Any) -> tuple[Extent, ...]:
        """Return the dims of a shape."""
        return tuple(map(self.extent, shape))

    def _extent(self, expression: Any) -> Extent:
        import sympy  # pyright: ignore[reportMissingImports]

        if expression.is_Add:
            expression = sympy.factor(expression)
        factors = expression.as_ordered_factors() if expression.is_Mul else [expression]
        out: Extent = 1
        for factor in factors:
            base, power = factor.as_base_exp()
            if not power.is_Integer or power < 0:
                base, power = factor, 1
            for _ in range(int(power)):
                out = self._factor(base) * out
        return out

    def _factor(self, expression: Any) -> Extent:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return SymbolicSize(1, (self.name(expression),))
        if expression.is_Add:
            return total(map(self.extent, expression.as_ordered_terms()))
        return self._function(expression)

    def _function(self, expression: Any) -> Extent:
        """Return a function of sizes. Raises unsupported for one that sizes do not have."""
        name = type(expression).__name__
        terms = [self.extent(a) for a in expression.args]
        with suppress(Untracked):
            if name in ("FloorDiv", "CleanDiv", "Mod", "PythonMod"):
                return divided(*terms)["Mod" in name]
            if name in ("Min", "Max"):
                return extremum(name.lower(), terms)
        raise unsupported(
            f"the size {expression}: expected sums, products, floor quotients, remainders, minima "
            "and maxima of dimensions"
        )


class GraphImport:
    """State of one import: the values of the graph's nodes.

    name: what messages call the model. names: torch's symbols of sizes -> the user's names.
    """

    def __init__(self, name: str, names: Mapping[str, str], weight_bytes: int = 0) -> None:
        self.name = name
        self.values: dict[Any, Any] = {}
        # Nodes of symbolic numbers that are arguments of the program.
        self.numbers: dict[Any, ir.Value] = {}
        # The seed of a call, for random numbers, and how many operators have drawn some.
        self.seed: ir.Value | None = None
        self._draws = 0
        self.place = 0
        self.importer = Importer(name, weight_bytes)
        self.symbols = Symbols(names, self.importer.b)

    def argument(self, name: str, value: Any) -> Argument:
        """Return a placeholder's type and sizes. Raises PycError (UNSUPPORTED_DTYPE)."""
        try:
            return Argument(name, pyc_dtype(value.dtype), self.symbols.extents(value.shape))
        except PycError as error:
            where = f"{self.name}: input `{name}`"
            raise PycError(error.code, f"{where}: {error.message}") from error

    def declare_ranges(
        self, module: ir.Module, arguments: Sequence[Argument], bounds: Mapping[Any, Any]
    ) -> None:
        """Write torch's bounds of dimensions on the function: those of ``2*s`` before s's."""
        named = {d for a in arguments for d in a.dims if isinstance(d, SymbolicSize)}
        known, found = {}, {}
        for size, ends in bounds.items():
            if ends.upper.is_finite and ends.upper < _MAX_SIZE:
                with suppress(PycError):
                    known[self.symbols.extent(size)] = max(0, int(ends.lower)), int(ends.upper)
        for dim in named:
            base = dim if dim in known else SymbolicSize(1, dim.atoms)
            if base in known:
                ends = [e * (dim.factor // base.factor) for e in known[base]]
                found[str(dim)] = ir.DenseI64ArrayAttr.get(ends)
        if found:
            function = module.body.operations[0]
            function.attributes[RANGES] = ir.DictAttr.get(found)

    def graph(self, module: Any, values: dict[Any, Any]) -> Sequence[Any]:
        """Import the nodes of a graph whose placeholders have values; return its outputs."""
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.place += 1
                values[node] = self._call(module, node, values)
            elif node.op == "get_attr":
                held = module
                for part in str(node.target).split("."):
                    held = getattr(held, part)
                values[node] = numpy_view(held) if hasattr(held, "dtype") else held
            elif node.op == "output":
                return [values[a] if hasattr(a, "op") else a for a in node.args[0]]
        return []

    def _call(self, module: Any, node: Any, values: dict[Any, Any]) -> Any:
        """Return the value of a node: a tensor, a tuple of them, a size, or MISSING."""
        target = str(node.target)
        if node.target is operator.getitem:
            source = values[node.args[0]]
            return source if source is MISSING else source[node.args[1]]
        if target.rpartition(".")[0] in _CHECKS or target in _CHECKS:
            return None
        meta = node.meta.get("val")
        if hasattr(meta, "node"):
            if target in _READS and meta.node.expr.is_Symbol:
                number = self.emitted(values[node.args[0]], node.name)
                self.importer.b.define(self.symbols.name(meta.node.expr), number)
            return Symbolic(meta)
        if getattr(node.target, "__name__", "") in _REGIONS:
            return self._region(node, values)
        site = self._site(node, target)
        if target not in HANDLERS:
            self.importer.record(site, unsupported(UNKNOWN_OP, ReasonCode.UNSUPPORTED_OP))
            return MISSING
        return self._handled(node, target, site, values)

    def _handled(self, node: Any, target: str, site: SourceNode, values: dict[Any, Any]) -> Any:
        call = _Call(node, values, self.symbols, self.numbers)
        if call.symbol is not None:
            self.importer.record(site, unsupported(call.symbol))
            return MISSING
        if target in RANDOM and self.seed is not None:
            call.draw = Draw(call.add(self.seed), self._draws)
            self._draws += 1
        apply = partial(self._apply, node, target, call)
        outputs = self.importer.node(site, call.operands, apply)
        several = isinstance(node.meta["val"], (tuple, list))
        if not outputs:
            return MISSING
        # An output that its handler does not compute is MISSING to whoever reads it.
        return tuple(MISSING if o is None else o for o in outputs) if several else outputs[0]

    def _apply(self, node: Any, target: str, call: "_Call", builder: Any, lift: Lift) -> Any:
        """Run a handler; give its outputs the sizes that torch found."""
        results = node.meta["val"]
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        used = {u.args[1] for u in node.users if u.target is operator.getitem}
        _, op, overload = target.split(".")
        n = AtenCall(
            op, overload, call.arguments, call.metas, results, frozenset(used or {0}),
            call.operands, call.draw, self.symbols.extents, builder, lift,
        )  # fmt: skip
        out = HANDLERS[target](n)
        outputs = out if isinstance(out, tuple) else (out,)
        for i in sorted(used):
            if i >= len(outputs) or outputs[i] is None:
                raise unsupported(f"result {i}: expected a use of the first results only")
        return tuple(
            o if o is None else self._settled(builder, o, r)
            for o, r in zip(outputs, results, strict=False)
        )

    def _settled(self, builder: Any, value: Any, meta: Any) -> Any:
        """Give a result torch's sizes: static where torch knows them, else by torch's names."""
        expected = pyc_dtype(meta.dtype)
        found = builder.type_of(value)
        assert found.dtype == expected, f"expected {expected}, got {found.dtype}"
        if not isinstance(builder, GraphBuilder) or found.is_static:
            return value
        dims = self.symbols.extents(meta.shape)
        if any(
            d is None and not isinstance(e, SymbolicSize)
            for d, e in zip(found.shape, dims, strict=True)
        ):
            # torch's sizes in place of those that the builder has no name for.
            named = zip(builder.dims(value), dims, strict=True)
            builder.name_dims(value, [d if isinstance(d, SymbolicSize) else f for f, d in named])
            value = reshape_to(builder, value, dims)
        known = builder.type_of(value).shape
        builder.name_dims(value, [e if d is None else d for d, e in zip(known, dims, strict=True)])
        return value

    def _region(self, node: Any, values: dict[Any, Any]) -> Any:
        first = _REGIONS[node.target.__name__]
        position = next(i for i, a in enumerate(node.args) if hasattr(values.get(a), "graph"))
        assert position >= first
        body = values[node.args[position]]
        inner: dict[Any, Any] = {}
        given = [values[a] if hasattr(a, "op") else a for a in node.args[position + 1 :]]
        for placeholder, value in zip(body.graph.find_nodes(op="placeholder"), given, strict=True):
            inner[placeholder] = value
        return tuple(self.graph(body, inner))

    def _site(self, node: Any, target: str) -> SourceNode:
        stack = node.meta.get("nn_module_stack") or {}
        paths = [v[0] for v in stack.values() if isinstance(v, tuple)]
        path = paths[-1] if paths else ""
        name = f"{path}/{node.name}" if path and not path.startswith("_") else node.name
        file, line = _user_line(node.meta.get("stack_trace") or "")
        place = ir.Location.file(file, line, 1) if file else None
        op = _called(node, target)
        where = f"{file}:{line}" if file else ""
        return SourceNode(name, op, self.place, place and ir.Location.name(name, place), where)

    def emitted(self, value: Any, name: str) -> ir.Value:
        """Return a result as an MLIR value."""
        if isinstance(value, Symbolic):
            return self.importer.b.extent(self.symbols.extent(value.size))
        try:
            return self.importer.emitted(value)
        except PycError as error:
            where = f"{self.name}: output `{name}`"
            raise PycError(error.code, f"{where}: {error.message}") from error

    def check(self) -> None:
        """Raise UnsupportedModel with all nodes that could not be imported, if there are any."""
        findings, untried = self.importer.findings, len(self.importer.untried)
        if findings:
            found = tuple(replace(f, family=f.op.split(".")[0]) for f in findings)
            raise UnsupportedModel(
                ImportReport(
                    self.place, NODES, self.name, found, untried, flops=None, lost_flops=None
                )
            )


class Symbolic:
    """A symbolic number of torch: a SymInt, SymFloat or SymBool."""

    def __init__(self, size: Any) -> None:
        self.size = size


class _Call:
    """The arguments of a node by the schema's names, its tensors as operands.

    symbol: why the node cannot be imported for what it takes of symbolic numbers, or None.
    """

    def __init__(
        self, node: Any, values: Mapping[Any, Any], symbols: Symbols, numbers: Mapping[Any, Any]
    ) -> None:
        self.operands: list[Any] = []
        self.arguments: dict[str, Any] = {}
        self.metas: dict[str, Any] = {}
        self.symbol: str | None = None
        self.draw: Draw | None = None
        self._values, self._symbols, self._numbers = values, symbols, numbers
        schema = node.target._schema.arguments
        given = dict(zip((a.name for a in schema), node.args, strict=False)) | dict(node.kwargs)
        for argument in schema:
            value = given.get(argument.name, argument.default_value)
            self.arguments[argument.name] = self._argument(value)
            meta = value.meta.get("val") if hasattr(value, "meta") else value
            self.metas[argument.name] = meta

    def _argument(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._argument(v) for v in value]
        if not hasattr(value, "op"):
            return value
        found = self._numbers.get(value, self._values[value])
        if isinstance(found, Symbolic):
            if type(found.size).__name__ != "SymInt":
                self.symbol = f"{value.name} is {found.size}: expected sizes that are integers"
                return None
            extent = self._symbols.extent(found.size)
            if isinstance(extent, SymbolicSize):
                self.operands.append(_DYNAMIC)
            return extent
        if found is None or isinstance(found, bool | int | float | str):
            return found
        return self.add(found)

    def add(self, operand: Any) -> Ref:
        """Return a new operand's reference."""
        self.operands.append(operand)
        return Ref(len(self.operands) - 1)


def _called(node: Any, target: str) -> str:
    """Return the operator that the user called, also if torch decomposed it into its primitives."""
    original = node.meta.get("original_aten")
    return target if original is None or not target.startswith("prims.") else str(original)


def _user_line(trace: str) -> tuple[str, int]:
    """Return the innermost line of a stack trace that is not torch's own; ("", 0) without one."""
    import torch  # pyright: ignore[reportMissingImports]

    inside = os.path.dirname(torch.__file__) + os.sep
    lines = [s.strip() for s in trace.splitlines() if s.strip().startswith('File "')]
    for text in reversed(lines):
        path, _, rest = text.removeprefix('File "').partition('", line ')
        number = rest.split(",")[0]
        if number.isdigit() and os.path.isabs(path) and not path.startswith(inside):
            return path, int(number)
    return "", 0
