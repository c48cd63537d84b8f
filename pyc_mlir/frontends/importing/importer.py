"""The base of all importers of graphs: values, folding, symbolic sizes, locations, graph breaks.

A vocabulary (ONNX, ATen, jaxpr) walks its own nodes in order and hands each one to `Importer.node`:

    outputs = importer.node(site, operands, lambda builder, lift: handler(...), stated)

An operand is a numpy array (known at import), `SymbolicSizes` (integers that depend on dynamic
dimensions), an MLIR value, None for an input that is left out, or `MISSING` for the result of a
node that could not be imported. The handler runs in the cheapest way that gives an answer: on
arrays, on sizes, or emitting pyc ops. What the node states beside its operands (`Stated`) must all
have been read by then. Nodes that cannot be imported are collected in `findings`, so that a refusal
lists all of them.

The attributes, parameters, inner functions and regions of a node reach the handler as a `Stated`,
which notes what it looks up. A node with an entry that nobody read is refused: passing over it
could silently change the result. One table of each front end lists the entries that change no
result, with the reason.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.artifact.import_report import GraphBreak
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.irtypes import to_mlir
from pyc_mlir.dialects.opdef import FoldWork
from pyc_mlir.dialects.types import DTYPES, TensorType, dtype_name
from pyc_mlir.dialects.util.index_ranges import CLAMPED, INDICES, ranges_text
from pyc_mlir.frontends.importing.builders import ConstantBuilder, GraphBuilder, NotWrittenOut
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.sizes import (
    Extent,
    SizesBuilder,
    SymbolicSize,
    SymbolicSizes,
    Untracked,
    settle,
)

_SHOWN = 80
# Entries that change no result: name -> why.
Ignored = Mapping[str, str]


class Stated(Mapping[str, Any]):
    """The entries of one node by name; looking one up counts as reading it.

    kind: what messages call an entry. ignored: entries that change no result, with the reason.
    has_no_effect: whether an entry states what holds without it, such as an operator's default.
    """

    def __init__(
        self, entries: Mapping[str, Any], kind: str, ignored: Ignored,
        has_no_effect: Callable[[str, Any], bool] = lambda name, value: False,
    ) -> None:  # fmt: skip
        self._entries = dict(entries)
        self._kind = kind
        self._ignored = ignored
        self._has_no_effect = has_no_effect
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self) -> None:
        """Forget what was read: another handler, or another builder, begins."""
        self._read.clear()

    def require_all_read(self) -> None:
        """Raise PycError (UNSUPPORTED_ATTRIBUTE) for an entry that changes results and that the
        handler did not look up."""
        for name in sorted(self._entries.keys() - self._read - self._ignored.keys()):
            if not self._has_no_effect(name, self._entries[name]):
                raise not_read(self._kind, name, self._entries[name])


def not_read(kind: str, name: str, value: Any) -> PycError:
    """Return the error for an entry that changes results and that no handler reads."""
    shown = " ".join(str(value).split())
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return unsupported(f"{kind} `{name}` is {shown}: PyC computes this operation only without it")


# A folded result is kept only if it is small or no larger than what it was computed from.
_FOLD_BYTES = 1 << 16
# All of them: so many times the weights, and as much again as a small model may have. Beyond that
# the program computes the rest when it runs.
_FOLD_TIMES, _FOLD_ALL = 8, 1 << 28
_COLLECTED = frozenset(
    {
        ReasonCode.UNSUPPORTED_OP,
        ReasonCode.UNSUPPORTED_ATTRIBUTE,
        ReasonCode.UNSUPPORTED_DTYPE,
        ReasonCode.INVALID_IR,
    }
)

# From the index of an operand to its value in the builder that the handler works with.
Lift = Callable[[int], Any]
# A node's handler with its attributes bound: from a builder and `Lift` to the node's results.
Apply = Callable[[Any, Lift], Any]


class _Missing:
    """The output of a node that was not imported."""


MISSING = _Missing()


@dataclass(frozen=True)
class SourceNode:
    """One node of the source graph: its name, its op and its place from 1, for messages.

    location: of the ops that the node becomes; by default the place in the source of the import.
    line: of the user's code that made it, ``model.py:12``, if it is known.
    """

    name: str
    op: str
    place: int
    location: ir.Location | None = None
    line: str = ""


@dataclass(frozen=True)
class Argument:
    """An argument or a result of the imported function; a `SymbolicSize` is a dynamic dimension."""

    name: str
    dtype: np.dtype
    dims: tuple[Extent, ...]

    @property
    def type(self) -> TensorType:
        """The tensor type; dynamic dimensions are None."""
        return TensorType(
            tuple(None if isinstance(d, SymbolicSize) else d for d in self.dims), self.dtype
        )

    @property
    def attributes(self) -> ir.DictAttr:
        """`pyc.name`, and `pyc.dims` where a dimension is dynamic ("" is static or unnamed)."""
        attributes: dict[str, ir.Attribute] = {"pyc.name": ir.StringAttr.get(self.name)}
        if any(isinstance(d, SymbolicSize) for d in self.dims):
            names = [_dimension_name(d) for d in self.dims]
            attributes["pyc.dims"] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in names])
        return ir.DictAttr.get(attributes)


def _dimension_name(extent: Extent) -> str:
    """Return the name of a dynamic dimension that the source names, as ``d`` or ``2*d``.

    "#" marks one that it does not.
    """
    named = isinstance(extent, SymbolicSize) and not any("#" in a for a in extent.atoms)
    return str(extent) if named else ""


class Importer:
    """State of one import.

    source: what locations and messages call the model.
    weight_bytes: of all weights; folding may make a multiple of them.
    """

    def __init__(self, source: str, weight_bytes: int = 0) -> None:
        self.source = source
        self.b = GraphBuilder()
        self.findings: list[GraphBreak] = []
        self.untried: list[int] = []  # places of nodes that need the result of a missing one
        self._constants: dict[int, tuple[Any, ir.Value]] = {}
        self._fold_bytes = _FOLD_ALL + _FOLD_TIMES * weight_bytes
        self._fold_work = FoldWork()

    def function(
        self,
        name: str,
        arguments: Sequence[Argument],
        body: Callable[[Sequence[ir.Value]], Sequence[tuple[str, ir.Value]]],
    ) -> ir.Module:
        """Make a module of one function; `body` emits it and returns its results with names.

        Call it with a context and a location active. Raises what `body` raises.
        """
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp(name, ([to_mlir(a.type) for a in arguments], []))
        block = function.add_entry_block()
        for argument, value in zip(arguments, block.arguments, strict=True):
            self.b.name_dims(value, argument.dims)
        with ir.InsertionPoint(block):
            results = body(list(block.arguments))
            func.ReturnOp([value for _, value in results])
        signature = ir.FunctionType.get(
            [v.type for v in block.arguments], [v.type for _, v in results]
        )
        function.attributes["function_type"] = ir.TypeAttr.get(signature)
        function.arg_attrs = ir.ArrayAttr.get([a.attributes for a in arguments])
        names = [{"pyc.name": ir.StringAttr.get(n)} for n, _ in results]
        function.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(n) for n in names])
        if self.b.indices:
            function.attributes[INDICES] = ir.StringAttr.get(ranges_text(self.b.indices))
        if self.b.clamped:
            number = ir.IntegerAttr.get(ir.IndexType.get(), self.b.clamped)
            function.attributes[CLAMPED] = number
        return module

    def node(
        self, site: SourceNode, operands: Sequence[Any], apply: Apply,
        stated: Stated | None = None,
    ) -> Sequence[Any]:  # fmt: skip
        """Import one node and return its results; none if it cannot be imported, see `findings`.

        stated: the node's attributes and parameters, all of which `apply` must read. None for a
        node that the importer itself makes from those of the source's node.
        Raises PycError, naming the node, for errors that end the import: a malformed model.
        """
        if any(operand is MISSING for operand in operands):
            self.untried.append(site.place)
            return ()
        try:
            with self._located(site):
                out = self._outputs(operands, apply, stated)
        except PycError as error:
            self.record(site, error)
            return ()
        return out if isinstance(out, tuple) else (out,)

    def record(self, site: SourceNode, error: PycError) -> None:
        """Note that a node cannot be imported. Raises PycError for an error of another kind."""
        if error.code not in _COLLECTED:
            where = f"{self.source}: node {site.name} ({site.op})"
            raise PycError(error.code, f"{where}: {error.message}") from error
        broken = error.code is ReasonCode.INVALID_IR
        code = ReasonCode.UNSUPPORTED_ATTRIBUTE if broken else error.code
        found = GraphBreak(site.name, site.op, code, error.message, site.place, line=site.line)
        self.findings.append(found)

    def emitted(self, value: Any) -> ir.Value:
        """Return a value as an MLIR value; a constant is emitted once."""
        return self.b.placed(self._lifted(value))

    def _lifted(self, value: Any) -> ir.Value:
        """Return a value as an MLIR value; a constant enters the program with its first use."""
        if isinstance(value, ir.Value):
            return value
        if id(value) not in self._constants:
            if isinstance(value, SymbolicSizes):
                made = self.b.materialize(value)
            else:
                if dtype_name(value.dtype) not in DTYPES:
                    raise unsupported(
                        f"constant of element type {value.dtype}: expected one of "
                        f"{', '.join(DTYPES)}",
                        ReasonCode.UNSUPPORTED_DTYPE,
                    )
                made = self.b.unplaced(value)
            # The array is kept, so that its id stays its own.
            self._constants[id(value)] = value, made
        return self._constants[id(value)][1]

    @contextmanager
    def _located(self, site: SourceNode) -> Iterator[None]:
        """Give ops the location ``loc("node name"("model.onnx":node:1))``."""
        if site.location is not None:
            with site.location:
                yield
            return
        place = ir.Location.file(self.source, site.place, 1)
        with ir.Location.name(site.name, place):
            yield

    def _outputs(self, operands: Sequence[Any], apply: Apply, stated: Stated | None) -> Any:
        """Run a handler in the cheapest way: folded, on sizes, or emitting ops."""

        def run(builder: Any, lift: Lift) -> Any:
            if stated is None:
                return apply(builder, lift)
            stated.begin()
            out = apply(builder, lift)
            stated.require_all_read()
            return out

        out = self._computed(operands, run)
        if out is not None:
            return out
        try:
            return run(self.b, lambda i: self._lifted(operands[i]))
        except Untracked as error:
            raise unsupported(f"a dynamic size in {error}: expected a static one") from error

    def _computed(self, operands: Sequence[Any], apply: Apply) -> Any:
        """Return the outputs as arrays or sizes if they are known now, else None."""
        given = [o for o in operands if o is not None]
        if all(isinstance(o, np.ndarray) for o in given):
            try:
                out = apply(ConstantBuilder(self._fold_work), operands.__getitem__)
            except NotWrittenOut:
                return None
            return out if self._worth_keeping(out, given) else None
        if any(isinstance(o, SymbolicSizes) for o in given):
            # Beside sizes, integers that the program computes are sizes too.
            numbers = [self.b.numbers(o) if isinstance(o, ir.Value) else o for o in operands]
            operands = [o if n is None else n for o, n in zip(operands, numbers, strict=True)]
        if not all(o is None or isinstance(o, (np.ndarray, SymbolicSizes)) for o in operands):
            return None
        lifted = [SymbolicSizes(o, o.dtype) if isinstance(o, np.ndarray) else o for o in operands]
        try:
            out = apply(SizesBuilder(), lifted.__getitem__)
        except (Untracked, PycError):
            # Not shape arithmetic: it is computed when the program runs, or refused there.
            return None
        outputs = out if isinstance(out, tuple) else (out,)
        return tuple(settle(o) if isinstance(o, SymbolicSizes) else o for o in outputs)

    def _worth_keeping(self, out: Any, inputs: Sequence[np.ndarray]) -> bool:
        """Return False for a result that would bloat the program: large, and beyond its inputs."""
        made = sum(o.nbytes for o in (out if isinstance(out, tuple) else (out,)) if o is not None)
        self._fold_bytes -= made
        return made <= max(_FOLD_BYTES, sum(i.nbytes for i in inputs)) and self._fold_bytes >= 0
