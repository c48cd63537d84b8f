"""Import exported PyTorch programs as pyc programs, node by node.

    module = import_torch(from_torch(model, inputs))

Parameters and buffers become `pyc.constant` over torch's own memory; nodes whose operands are known
are computed at import; sizes are symbolic. Ops carry the location
``loc("encoder.layer.0/linear"("model.py":12:1))``: the module's path and the user's line. Buffers
that the program writes are its last arguments and its last results.
"""

import operator
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.artifact.import_report import NODES, Finding, ImportReport, UnsupportedModel
from pyc_mlir.artifact.signature import RANGES
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import load, new_context
from pyc_mlir.frontends.frame.builders import GraphBuilder
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.frame.importer import MISSING, Argument, Importer, Lift, Site
from pyc_mlir.frontends.frame.shaping import reshape_to
from pyc_mlir.frontends.frame.sizes import Size
from pyc_mlir.frontends.torch import ops as torch_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.torch.export import TorchModel
from pyc_mlir.frontends.torch.frame.dtypes import numpy_view, pyc_dtype
from pyc_mlir.frontends.torch.frame.handler import HANDLERS, Node, Ref
from pyc_mlir.frontends.torch.frame.symbols import Symbols

UNKNOWN_OP = "no handler and no decomposition"
# An operand that keeps a node with dynamic sizes among its arguments from being computed now.
_DYNAMIC = object()
# Checks of sizes and metadata, which guards and types make.
_CHECKS = (
    "aten._assert_scalar", "aten._assert_tensor_metadata", "aten.sym_constrain_range",
    "aten._assert_async", "aten.sym_constrain_range_for_size",
)  # fmt: skip
# Regions of Python's context managers that change nothing of an inference.
_REGIONS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
_MAX_SIZE = 1 << 62


def import_torch(
    model: TorchModel, *, context: ir.Context | None = None, name: str = "main"
) -> ir.Module:
    """The pyc module with one function `name` that computes `model`.

    Raises UnsupportedModel with all nodes that PyC lacks; PycError (UNSUPPORTED_DTYPE).
    """
    active = new_context() if context is None else context
    load(active)
    with active, ir.Location.unknown():
        return _Import(model).run(name)


class _Import:
    """State of one import: the values of the graph's nodes."""

    def __init__(self, model: TorchModel) -> None:
        self.model = model
        self.program = model.program
        self.values: dict[Any, Any] = {}
        self.place = 0

    def run(self, name: str) -> ir.Module:
        """Build the module; raise UnsupportedModel after all nodes were tried."""
        weights = self._weights()
        self.importer = Importer(self.model.name, sum(v.nbytes for v in weights.values()))
        self.symbols = Symbols(self.model.names, self.importer.b)
        arguments, nodes = self._arguments(weights)
        module = self.importer.function(name, arguments, partial(self._body, nodes))
        self._declare_ranges(module, arguments)
        return module

    def _weights(self) -> dict[str, np.ndarray]:
        """Parameters and buffers that the program only reads, by the names of their placeholders.

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
        """The function's arguments with their placeholders: user inputs, then written buffers."""
        signature = self.program.graph_signature
        names = dict(zip(signature.user_inputs, self.model.inputs, strict=False))
        users, states = [], []
        for node in self.program.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if node.name in weights:
                self.values[node] = weights[node.name]
            elif not hasattr(value, "dtype"):
                self.values[node] = value if not hasattr(value, "node") else _Symbolic(value)
            elif node.name in signature.inputs_to_buffers:
                states.append((self._argument(signature.inputs_to_buffers[node.name], value), node))
            else:
                users.append((self._argument(names.get(node.name, node.name), value), node))
        pairs = [*users, *states]
        return [a for a, _ in pairs], [n for _, n in pairs]

    def _argument(self, name: str, value: Any) -> Argument:
        try:
            return Argument(name, pyc_dtype(value.dtype), self.symbols.extents(value.shape))
        except PycError as error:
            where = f"{self.model.name}: input `{name}`"
            raise PycError(error.code, f"{where}: {error.message}") from error

    def _body(self, nodes: Sequence[Any], values: Sequence[ir.Value]) -> list[tuple[str, ir.Value]]:
        self.values.update(zip(nodes, values, strict=True))
        outputs = self._graph(self.program.graph_module, self.values)
        if self.importer.findings:
            raise self._refused()
        return self._results(outputs)

    def _graph(self, module: Any, values: dict[Any, Any]) -> Sequence[Any]:
        """Import the nodes of a graph whose placeholders have values; return its outputs."""
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.place += 1
                values[node] = self._call(module, node, values)
            elif node.op == "get_attr":
                values[node] = self._attribute(module, node)
            elif node.op == "output":
                return [values[a] if hasattr(a, "op") else a for a in node.args[0]]
        return []

    def _attribute(self, module: Any, node: Any) -> Any:
        held = module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        return numpy_view(held) if hasattr(held, "dtype") else held

    def _call(self, module: Any, node: Any, values: dict[Any, Any]) -> Any:
        """The value of a node: a tensor, a tuple of them, a size, or MISSING."""
        target = str(node.target)
        if node.target is operator.getitem:
            source = values[node.args[0]]
            return source if source is MISSING else source[node.args[1]]
        if target.rpartition(".")[0] in _CHECKS or target in _CHECKS:
            return None
        meta = node.meta.get("val")
        if hasattr(meta, "node"):
            return _Symbolic(meta)
        if getattr(node.target, "__name__", "") in _REGIONS:
            return self._region(node, values)
        site = self._site(node, target)
        if target not in HANDLERS:
            self.importer.record(site, unsupported(UNKNOWN_OP, ReasonCode.UNSUPPORTED_OP))
            return MISSING
        return self._handled(node, target, site, values)

    def _handled(self, node: Any, target: str, site: Site, values: dict[Any, Any]) -> Any:
        """The outputs of a node that has a handler."""
        call = _Call(node, values, self.symbols)
        if call.symbol is not None:
            self.importer.record(site, unsupported(call.symbol))
            return MISSING
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
        n = Node(
            target, call.arguments, call.metas, results, builder, call.operands, lift,
            self.symbols.extents, frozenset(used or {0}),
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
        """A result with torch's sizes: static where torch knows them, else by torch's names."""
        expected = pyc_dtype(meta.dtype)
        found = builder.type_of(value)
        assert found.dtype == expected, f"expected {expected}, got {found.dtype}"
        if not isinstance(builder, GraphBuilder) or found.is_static:
            return value
        dims = self.symbols.extents(meta.shape)
        if any(d is None and not isinstance(e, Size) for d, e in zip(found.shape, dims, strict=True)):
            builder.name_dims(value, _agreeing(builder.dims(value), dims))
            value = reshape_to(builder, value, dims)
        known = builder.type_of(value).shape
        builder.name_dims(
            value, [e if d is None else d for d, e in zip(known, dims, strict=True)]
        )
        return value

    def _region(self, node: Any, values: dict[Any, Any]) -> Any:
        """The outputs of a graph that runs under a context manager."""
        first = _REGIONS[node.target.__name__]
        position = next(i for i, a in enumerate(node.args) if hasattr(values.get(a), "graph"))
        assert position >= first
        body = values[node.args[position]]
        inner: dict[Any, Any] = {}
        given = [values[a] if hasattr(a, "op") else a for a in node.args[position + 1 :]]
        for placeholder, value in zip(
            body.graph.find_nodes(op="placeholder"), given, strict=True
        ):
            inner[placeholder] = value
        return tuple(self._graph(body, inner))

    def _site(self, node: Any, target: str) -> Site:
        stack = node.meta.get("nn_module_stack") or {}
        paths = [v[0] for v in stack.values() if isinstance(v, tuple)]
        path = paths[-1] if paths else ""
        name = f"{path}/{node.name}" if path and not path.startswith("_") else node.name
        file, line = _user_line(node.meta.get("stack_trace") or "")
        return Site(name, target, self.place, file, line)

    def _results(self, outputs: Sequence[Any]) -> list[tuple[str, ir.Value]]:
        """The user's results by their paths, then what the program writes, by its target."""
        specs = self.program.graph_signature.output_specs
        users, written = [], []
        names = iter(self.model.outputs)
        for value, spec in zip(outputs, specs, strict=True):
            kind = spec.kind.name
            if kind == "USER_OUTPUT":
                name = next(names, "out")
                if value is not None and not isinstance(value, bool | int | float | str):
                    users.append((name, self._emitted(value, name)))
            elif kind in ("BUFFER_MUTATION", "USER_INPUT_MUTATION"):
                written.append((f"{spec.target}.new", self._emitted(value, spec.target)))
            else:
                raise PycError(
                    ReasonCode.UNSUPPORTED_OP,
                    f"{self.model.name}: expected results and mutations, got a result of kind {kind}",
                )
        return [*users, *written]

    def _emitted(self, value: Any, name: str) -> ir.Value:
        if isinstance(value, _Symbolic):
            return self.importer.b.extent(self.symbols.extent(value.size))
        try:
            return self.importer.emitted(value)
        except PycError as error:
            where = f"{self.model.name}: output `{name}`"
            raise PycError(error.code, f"{where}: {error.message}") from error

    def _declare_ranges(self, module: ir.Module, arguments: Sequence[Argument]) -> None:
        """Write the bounds that torch knows of named dimensions on the function."""
        named = {d.atoms[0] for a in arguments for d in a.dims if isinstance(d, Size)}
        found = {}
        for symbol, bounds in self.program.range_constraints.items():
            name = self.symbols.name(symbol)
            if name in named and bounds.upper.is_finite and bounds.upper < _MAX_SIZE:
                ends = [max(0, int(bounds.lower)), int(bounds.upper)]
                found[name] = ir.DenseI64ArrayAttr.get(ends)
        if found:
            function = module.body.operations[0]
            function.attributes[RANGES] = ir.DictAttr.get(found)

    def _refused(self) -> UnsupportedModel:
        findings = tuple(_with_family(f) for f in self.importer.findings)
        untried = len(self.importer.untried)
        name = self.model.name
        return UnsupportedModel(
            ImportReport(self.place, NODES, name, findings, untried, flops=None, lost_flops=None)
        )


class _Symbolic:
    """A symbolic number of torch: a SymInt, SymFloat or SymBool."""

    def __init__(self, size: Any) -> None:
        self.size = size


class _Call:
    """The arguments of a node by the schema's names, its tensors as operands.

    symbol: why the node cannot be imported for what it takes of symbolic numbers, or None.
    """

    def __init__(self, node: Any, values: Mapping[Any, Any], symbols: Symbols) -> None:
        self.operands: list[Any] = []
        self.arguments: dict[str, Any] = {}
        self.metas: dict[str, Any] = {}
        self.symbol: str | None = None
        self._values, self._symbols = values, symbols
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
        found = self._values[value]
        if isinstance(found, _Symbolic):
            if type(found.size).__name__ != "SymInt":
                self.symbol = f"{value.name} is {found.size}: expected sizes that are integers"
                return None
            extent = self._symbols.extent(found.size)
            if isinstance(extent, Size):
                self.operands.append(_DYNAMIC)
            return extent
        if found is None or isinstance(found, bool | int | float | str):
            return found
        self.operands.append(found)
        return Ref(len(self.operands) - 1)


def _agreeing(found: Sequence[Any], dims: Sequence[Any]) -> list[Any]:
    """torch's sizes in place of those that the builder has no name for."""
    return [d if isinstance(d, Size) else f for f, d in zip(found, dims, strict=True)]


def _with_family(finding: Finding) -> Finding:
    family = finding.op.split(".")[0]
    return Finding(finding.node, finding.op, finding.code, finding.why, finding.place, family)


def _user_line(trace: str) -> tuple[str, int]:
    """The innermost line of a stack trace that is not torch's own; ("", 0) without one."""
    import torch  # pyright: ignore[reportMissingImports]

    inside = os.path.dirname(torch.__file__) + os.sep
    lines = [s.strip() for s in trace.splitlines() if s.strip().startswith('File "')]
    for text in reversed(lines):
        path, _, rest = text.removeprefix('File "').partition('", line ')
        number = rest.split(",")[0]
        if number.isdigit() and os.path.isabs(path) and not path.startswith(inside):
            return path, int(number)
    return "", 0
