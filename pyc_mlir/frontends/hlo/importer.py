"""The bases of importers of XLA's programs and of modules: unrolling, branches, composites, calls.

pyc has no loop. A loop whose condition is known at import is unrolled up to `MAX_UNROLLED`
operations; that covers every loop over layers, over a fixed number of steps, and over a sequence of
static length. Other loops are refused with a code. All branches of an unknown condition are
computed, and one is selected: every pyc op is pure.

Composites are functions that a program names and whose decomposition it carries.
`pyc_mlir.jax.nn` writes these names (`jax.lax.composite`), StableHLO keeps them as
``stablehlo.composite "pyc.softmax"``. A composite that is not listed, or whose attributes PyC's op
does not have, is imported by its decomposition.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.artifact.import_report import ImportReport, UnsupportedModel
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.ir.interpreter import choose_entry, public_functions
from pyc_mlir.dialects.names import name_in
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.movement import top_k
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import (
    MISSING,
    Argument,
    Importer,
    Lift,
    SourceNode,
    Stated,
)
from pyc_mlir.frontends.importing.sizes import Extent, sizes
from pyc_mlir.util.logs import COMPILE, warn

# Operations that all unrolled loops of a program may make, and how many are told.
MAX_UNROLLED, MANY_UNROLLED = 20_000, 1_000
# Operations that an import may visit, calls and loops written out, and calls within calls: hostile
# modules name one function many times over, or itself.
MAX_VISITED, MAX_CALLS = 200_000, 64

Composite = Callable[[Call, Mapping[str, Any]], Any]
COMPOSITES: dict[str, Composite] = {
    "pyc.softmax": lambda call, a: call.b.softmax(call.x(), axis=int(a.get("axis", -1))),
    "pyc.log_softmax": lambda call, a: call.b.log_softmax(call.x(), axis=int(a.get("axis", -1))),
    # Over the last dimension: x, scale, bias.
    "pyc.layer_norm": lambda call, a: call.b.layernorm(
        *call.all(), axis=-1, epsilon=float(a["epsilon"])),
    "pyc.rms_norm": lambda call, a: call.b.rmsnorm(
        *call.all(), axis=-1, epsilon=float(a["epsilon"])),
    "pyc.gelu": lambda call, a: call.b.gelu(
        call.x(), approximate="tanh" if a["approximate"] else "none"),
    # On [batch, heads, length, depth]: query, key, value and perhaps a mask.
    "pyc.attention": lambda call, a: call.b.attention(
        *call.all(), scale=float(a["scale"]), is_causal=bool(a["is_causal"])),
    # The k largest along the last dimension and their indices.
    "chlo.top_k": lambda call, a: top_k(call.b, call.x(), int(a["k"])),
}  # fmt: skip


class Loops:
    """The loops of a program: how many operations unrolling has written out so far."""

    def __init__(self) -> None:
        self._steps = self._written = 0

    def step(self, operations: int) -> None:
        """Take one step of a loop. Raises PycError (UNSUPPORTED_ATTRIBUTE) beyond the bound."""
        self._steps += 1
        self._written += max(operations, 1)
        if self._written > MAX_UNROLLED:
            raise unsupported(
                f"loops of more than {MAX_UNROLLED} operations when unrolled, after {self._steps} "
                "steps: expected fewer steps; compile one step and call it in a loop"
            )

    def tell(self) -> None:
        """Warn of many operations (LOOP_UNROLLED), once the program is imported."""
        if self._written > MANY_UNROLLED:
            warn(
                COMPILE,
                ReasonCode.LOOP_UNROLLED.name,
                f"loops: expected at most {MANY_UNROLLED} operations, got {self._written} in "
                f"{self._steps} steps, since each step is written out; compile time and code grow "
                "with them: compile one step and call it in a loop, take fewer steps, or bound the "
                "time by `max_compile_seconds`",
            )

    def goes_on(self, condition: Any) -> bool:
        """Return whether a loop takes another step. Raises PycError if import cannot know it."""
        if not isinstance(condition, np.ndarray):
            raise unsupported(
                "a loop whose number of steps is known only when the program runs: expected a "
                "condition that depends on constants and on the steps taken"
            )
        return bool(condition)


class HloImporter:
    """State of one import.

    source: the program's name in messages. count: the operations that were visited so far.
    """

    def __init__(self, source: str, weight_bytes: int = 0) -> None:
        self.source = source
        self.importer = Importer(source, weight_bytes)
        self.loops = Loops()
        self.count = 0

    def function(
        self,
        name: str,
        arguments: Sequence[Argument],
        results: Callable[[Sequence[ir.Value]], Sequence[tuple[str, Any]]],
    ) -> ir.Module:
        """Make the module; raise UnsupportedModel after all operations were tried."""

        def body(values: Sequence[ir.Value]) -> list[tuple[str, ir.Value]]:
            named = results(values)
            if self.importer.findings:
                breaks, untried = tuple(self.importer.findings), len(self.importer.untried)
                report = ImportReport(self.count, "nodes", self.source, breaks, untried)
                raise UnsupportedModel(report)
            return [(label, self.importer.emitted(v)) for label, v in named]

        made = self.importer.function(name, arguments, body)
        self.loops.tell()
        return made

    def refused(self, site: SourceNode, error: PycError) -> Sequence[Any]:
        """Note that an operation cannot be imported, which so has no results.

        Raises the error if it is one about the whole program.
        """
        if isinstance(error, UnsupportedModel):
            raise error
        self.importer.record(site, error)
        return ()

    def unknown(self, site: SourceNode, what: str) -> Sequence[Any]:
        """Note that PyC lacks an operation; return no results."""
        why = f"PyC has no rule for this {what}"
        return self.refused(site, unsupported(why, ReasonCode.UNSUPPORTED_OP))

    def one(
        self, site: SourceNode, operands: Sequence[Any], apply: Callable[[Any, Lift], Any]
    ) -> Any:
        """Return the result of a node at a place; MISSING if it cannot be imported."""
        outputs = self.importer.node(site, operands, apply)
        return outputs[0] if outputs else MISSING

    def selected(
        self, site: SourceNode, which: Any, branches: Sequence[Sequence[Any]]
    ) -> list[Any]:
        """Select among the results of branches by an i32.

        An index out of range names the last branch, as XLA's `case` does; jaxprs clamp it before.
        """
        count = len(branches)

        def select(b: Any, lift: Lift) -> Any:
            number, out = lift(0), lift(count)
            for i in reversed(range(1, count)):
                here = b.compare(number, b.scalar(i - 1, number), predicate="eq")
                out = b.select(here, lift(i), out)
            return out

        return [self.one(site, [which, *cases], select) for cases in zip(*branches, strict=True)]

    def size(self, site: SourceNode, extent: Extent) -> Any:
        """Return a dimension as an i32 scalar, followed as a `SymbolicSize` if it is dynamic."""

        def scalar(b: Any, lift: Lift) -> Any:
            return b.cast(b.reshape(lift(0), shape=()), dtype=DTYPES["i32"])

        return self.one(site, [sizes([extent])], scalar)

    def composite(
        self, site: SourceNode, operands: Sequence[Any], name: str, given: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Build the op of a composite's name; nothing where its decomposition is to be imported."""
        known, before = COMPOSITES.get(name), len(self.importer.findings)
        if known is None:
            return ()
        stated = Stated(given, "attribute", {})
        out = self.importer.node(
            site, operands, lambda b, lift: known(Call(b, operands, lift), stated), stated
        )
        if not out:
            del self.importer.findings[before:]
        return out


def choose(module: ir.Module, function: str, source: str) -> None:
    """Require an entry; where `function` names it, drop what it does not call.

    Raises PycError as `choose_entry`.
    """
    choose_entry(public_functions(v.operation for v in module.body.operations), function, source)
    if function:
        with module.context:
            passmanager.PassManager.parse("builtin.module(symbol-dce)").run(module.operation)


class ModuleImporter(HloImporter):
    """Imports the entry of a module, whose calls are written out, operation by operation.

    The entry is the function `main`, or the only public one. A subclass says how an argument and
    an operation are imported.
    """

    def __init__(self, module: ir.Module, source: str) -> None:
        super().__init__(source)
        self._functions: dict[str, ir.Operation] = {}
        for operation in (view.operation for view in module.body.operations):
            if operation.name == "func.func" and len(operation.regions[0].blocks) == 1:
                self._functions[operation.attributes["sym_name"].value] = operation
        self._depth = 0

    def run(self) -> ir.Module:
        """Build the module; raise UnsupportedModel after all operations were tried.

        Raises PycError (INVALID_IR) for a module without an entry.
        """
        entry = choose_entry(public_functions(self._functions.values()), where=self.source)
        block = entry.regions[0].blocks[0]
        arguments = [self.argument(i, a) for i, a in enumerate(block.arguments)]

        def body(values: Sequence[ir.Value]) -> list[tuple[str, Any]]:
            out = self.block(block, dict(zip(block.arguments, values, strict=True)))
            return [(f"result{i}", v) for i, v in enumerate(out)]

        return self.function(entry.attributes["sym_name"].value, arguments, body)

    def argument(self, index: int, value: Any) -> Argument:
        """Return the name, the type and the sizes of an argument."""
        raise NotImplementedError

    def operation(
        self, site: SourceNode, operation: ir.Operation, operands: Sequence[Any],
        values: dict[Any, Any],
    ) -> Sequence[Any]:  # fmt: skip
        """Return an operation's results, none where it is refused. values: all that are known."""
        raise NotImplementedError

    def live(self, block: Any) -> Sequence[ir.Operation]:
        """Return the operations of a block that are imported."""
        return [view.operation for view in block.operations]

    def block(self, block: Any, values: dict[Any, Any]) -> list[Any]:
        """Import a block's operations at this place; return its terminator's operands.

        values: of the block's arguments, and of values that regions around it define. Raises
        PycError (UNSUPPORTED_ATTRIBUTE) for more operations than an import may visit.
        """
        for operation in self.live(block):
            operands = [values[v] for v in operation.operands]
            if operation.name in ("func.return", "stablehlo.return"):
                return operands
            self.count += 1
            if self.count > MAX_VISITED:
                raise unsupported(
                    f"{self.source}: expected at most {MAX_VISITED} operations with calls and "
                    "loops written out"
                )
            outputs = self.operation(self.site(operation), operation, operands, values)
            for i, result in enumerate(operation.results):
                values[result] = outputs[i] if i < len(outputs) else MISSING
        raise PycError(ReasonCode.INVALID_IR, f"{self.source}: a block without a return")

    def site(self, operation: ir.Operation) -> SourceNode:
        """Return an operation's own location."""
        name = name_in(str(operation.location)) or operation.name.removeprefix("stablehlo.")
        return SourceNode(name, operation.name, self.count, operation.location)

    def call(self, name: str, operands: Sequence[Any]) -> list[Any]:
        """Write out a call. Raises PycError (UNSUPPORTED_ATTRIBUTE) for too many in one another."""
        if self._depth >= MAX_CALLS:
            raise unsupported(
                f"{self.source}: function `{name}`: expected at most {MAX_CALLS} calls within each "
                "other"
            )
        if name not in self._functions:
            raise unsupported(f"a call of `{name}`: expected a function of one block")
        block = self._functions[name].regions[0].blocks[0]
        self._depth += 1
        try:
            return self.block(block, dict(zip(block.arguments, operands, strict=True)))
        finally:
            self._depth -= 1
