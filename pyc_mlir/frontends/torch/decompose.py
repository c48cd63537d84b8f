"""Which operators torch decomposes before the import: all that have no handler, if it can."""

from typing import Any

from pyc_mlir.frontends.torch import ops as torch_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.torch.frame.handler import HANDLERS


def decompositions() -> Any:
    """A table for `ExportedProgram.run_decompositions`.

    torch's default table decomposes to core ATen; where that keeps what has no handler, the
    decompositions of its compiler follow. Composites with a handler (attention, linear, norms) are
    taken out of the table: written out, they are several times as many nodes.
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
