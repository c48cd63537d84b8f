"""XLA's temporary memory for a program, through jax.

Compiled for the CPU and never run. XLA's `temp_size_in_bytes` counts transients only. Large
constants become arguments, which are not counted either, so that XLA does not spend minutes on
folding them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.attributes import INLINE_BYTES
from pyc_mlir.tools.bench.peers.graph import read_graph
from pyc_mlir.tools.bench.peers.jax_program import jax_function
from pyc_mlir.tools.bench.workloads.case import SuiteCase


@dataclass(frozen=True)
class XlaMemory:
    """Bytes of transients: as jax compiles by default, and with no operations given to libraries.

    By default XLA fuses operations into calls of a library of microkernels, whose own working
    memory its figure does not hold.
    """

    temp_bytes: int
    no_library_temp_bytes: int


# The kinds of operations that XLA for CPUs may give to the library: none.
_NO_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}


def temporary_memory(case: SuiteCase) -> XlaMemory | None:
    """Return XLA's transients for the program of `case`; None if jax is not installed.

    Raises PycError (UNSUPPORTED_OP) as `jax_function`.
    """
    try:
        import jax  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return None
    function, constants = _function(case)
    lowered = jax.jit(function).lower(case.arrays, constants)

    def bytes_under(options: Mapping[str, str]) -> int:
        analysis: Any = lowered.compile(compiler_options=dict(options)).memory_analysis()
        return int(analysis.temp_size_in_bytes)

    return XlaMemory(bytes_under({}), bytes_under(_NO_LIBRARY))


def evaluate(case: SuiteCase) -> list[np.ndarray]:
    """Compute the program's results by jax: the same function, run."""
    function, constants = _function(case)
    return [np.asarray(r) for r in function(case.arrays, constants)]


def _function(case: SuiteCase) -> Any:
    return jax_function(read_graph(case.source, case.specs), INLINE_BYTES + 1)
