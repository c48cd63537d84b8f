"""Which operators torch decomposes before the import: all that have no handler, if it can."""

import warnings
from functools import cache
from typing import Any

from pyc_mlir.frontends.torch import ops as torch_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.torch.shared.handler import HANDLERS


def decomposed(program: Any) -> Any:
    """Decompose operators without handlers of an `ExportedProgram`, as far as torch can.

    Raises what torch's decompositions raise.
    """
    if all(_is_importable(module) for module in program.graph_module.modules()):
        return program
    # torch copies specs of trees by a class that it deprecates itself: nothing that users may mend.
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning, "copyreg")
    return program.run_decompositions(decompositions().copy())


def _is_importable(module: Any) -> bool:
    """Return whether each operator of a module's graph, if it has one, has a handler."""
    nodes = module.graph.nodes if hasattr(module, "graph") else ()
    called = (n.target for n in nodes if n.op == "call_function")
    return all(
        str(t) in HANDLERS or str(t).startswith("aten.sym_") or not hasattr(t, "_schema")
        for t in called
    )


@cache
def decompositions() -> Any:
    """Make a table for `ExportedProgram.run_decompositions`.

    torch's default table decomposes to core ATen; for operators without a handler that it keeps,
    the decompositions of its compiler follow. Composites with a handler (attention, linear, norms)
    are taken out of the table: written out, they are several times as many nodes.
    """
    import torch  # pyright: ignore[reportMissingImports]
    from torch._decomp import (  # pyright: ignore[reportMissingImports]
        global_decomposition_table,
    )

    table = torch.export.default_decompositions()
    for overload, function in global_decomposition_table["post_autograd"].items():
        if isinstance(overload, torch._ops.OpOverload) and overload not in table:
            table[overload] = function
    for overload in list(table):
        if str(overload) in HANDLERS:
            table.pop(overload)
    return table
