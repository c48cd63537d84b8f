"""Refuse programs whose calls have no end: IREE writes every call out, and would never finish."""

from graphlib import CycleError, TopologicalSorter
from typing import Any

from iree.compiler import ir

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line

# Operations once every call is written out, or as many times those of the module: forty functions
# that call one another twice stand for 10^12. IREE takes about 2 ms for each.
MAX_WRITTEN_OUT, MAX_TIMES = 200_000, 64
_CALLED = ("callee", "decomposition")


def check_calls(module: Any) -> None:
    """Check a module (an operation of IREE's bindings).

    Raises PycError (UNSUPPORTED_ATTRIBUTE): a public function reaches one that calls itself, or
    stands for more operations than it may.
    """
    functions = {}
    for view in module.regions[0].blocks[0]:
        name = view.operation.attributes.get("sym_name")
        if name is not None:
            functions[ir.StringAttr(name).value] = view.operation
    calls, sizes = dict[str, list[str]](), dict[str, int]()
    hidden = {
        n for n, f in functions.items() if "private" in str(f.attributes.get("sym_visibility"))
    }
    waiting = [*functions.keys() - hidden]
    while waiting:
        name = waiting.pop()
        if name in functions and name not in calls:
            sizes[name], calls[name] = _calls(functions[name])
            waiting += calls[name]
    try:
        order = [*TopologicalSorter(calls).static_order()]
    except CycleError as error:
        cycle = [one_line(name) for name in reversed(error.args[1])]
        got = f"{' -> '.join(cycle)}; write it as a loop (`stablehlo.while`, `scf.for`)"
        raise _refused(cycle[0], f"no function that calls itself, got {got}") from None
    most = max(MAX_WRITTEN_OUT, MAX_TIMES * sum(sizes.values()))
    for name in order:
        sizes[name] = sizes.get(name, 0) + sum(sizes[called] for called in calls.get(name, ()))
        if sizes[name] > most:
            expected = f"at most {most} operations with all calls written out, got more"
            raise _refused(one_line(name), f"{expected}; write repeated calls as a loop")


def _calls(function: Any) -> tuple[int, list[str]]:
    """Return the number of operations under a function, and the functions that they call."""
    found, count = list[str](), 0

    def visit(op: Any) -> Any:
        nonlocal count
        count += 1
        for attribute in map(op.attributes.get, _CALLED):
            if isinstance(attribute, ir.FlatSymbolRefAttr):
                found.append(attribute.value)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return count, found


def _refused(name: str, text: str) -> PycError:
    where = f"function `{name}`"
    return PycError(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"expected {text}", where=where)
