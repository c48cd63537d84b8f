"""The functions of a module whose calls an importer writes out, and the bounds of doing so."""

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.ir.interpreter import choose_entry, public_functions

# Operations that an import may visit, calls and loops written out, and calls within calls: hostile
# modules name one function many times over, or itself.
MAX_VISITED, MAX_CALLS = 200_000, 64


def functions_of(module: ir.Module) -> dict[str, ir.Operation]:
    """Return the functions of one block, by their names."""
    found = {}
    for view in module.body.operations:
        operation = view.operation
        if operation.name == "func.func" and len(operation.regions[0].blocks) == 1:
            found[ir.StringAttr(operation.attributes["sym_name"]).value] = operation
    return found


def entry_of(functions: dict[str, ir.Operation], source: str) -> tuple[str, ir.Operation]:
    """Return the function `main`, or the only public one. Raises PycError (INVALID_IR)."""
    entry = choose_entry(public_functions(functions.values()), where=source)
    return entry.attributes["sym_name"].value, entry


def choose(module: ir.Module, function: str, source: str) -> None:
    """Require an entry; where `function` names it, drop what it does not call.

    Raises PycError as `choose_entry`.
    """
    choose_entry(public_functions(v.operation for v in module.body.operations), function, source)
    if function:
        with module.context:
            passmanager.PassManager.parse("builtin.module(symbol-dce)").run(module.operation)


def check_visited(count: int, source: str) -> None:
    """Raise PycError (UNSUPPORTED_ATTRIBUTE) for more operations than an import may visit."""
    if count > MAX_VISITED:
        raise PycError(
            ReasonCode.UNSUPPORTED_ATTRIBUTE,
            f"{source}: expected at most {MAX_VISITED} operations with calls and loops written out",
        )


def check_depth(depth: int, name: str, source: str) -> None:
    """Raise PycError (UNSUPPORTED_ATTRIBUTE) for more calls within calls than one may make."""
    if depth >= MAX_CALLS:
        raise PycError(
            ReasonCode.UNSUPPORTED_ATTRIBUTE,
            f"{source}: function `{name}`: expected at most {MAX_CALLS} calls within each other",
        )
