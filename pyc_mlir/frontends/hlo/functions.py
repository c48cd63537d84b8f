"""The functions of a module whose calls an importer writes out, and the bounds of doing so."""

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir

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
    public = {
        n: f
        for n, f in functions.items()
        if "sym_visibility" not in f.attributes
        or ir.StringAttr(f.attributes["sym_visibility"]).value == "public"
    }
    if "main" in public:
        return "main", public["main"]
    if len(public) == 1:
        return next(iter(public.items()))
    raise PycError(
        ReasonCode.INVALID_IR,
        f"{source}: expected a function `main` or one public function, got {len(public)}",
    )


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
