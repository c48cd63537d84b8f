"""The expected results of a subject: the numpy references, and tolerances of rounding analysis.

    reference = reference_of(source, inputs, arguments)
    reference.problem(results)          "" or why they are wrong

A candidate counts only after its results lie within the tolerances of `dialects/numerics/`; what
enters at IREE is compared with IREE's interpreter vmvx, as under the contract's `max_error`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import ExpectedResult, compare
from pyc_mlir.artifact.verification import Oracle
from pyc_mlir.compilation.lower import bytecode_of
from pyc_mlir.compilation.references import ForeignOracle, PycOracle
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.signatures import signature_of
from pyc_mlir.frontends.sources import Source
from pyc_mlir.iree.foreign import read_entry
from pyc_mlir.lab.evidence.identity import graph_of_program
from pyc_mlir.lab.evidence.rows import Graph


@dataclass(frozen=True)
class Reference:
    """The expected results of one call."""

    expected: tuple[ExpectedResult, ...]

    @property
    def finite_share(self) -> float:
        """The share of elements that are finite and compared."""
        sizes = sum(e.value.size for e in self.expected)
        good = sum(
            int((np.isfinite(np.asarray(e.value, np.float64)) & e.compared).sum())
            for e in self.expected
        )
        return good / sizes if sizes else 1.0

    def problem(self, results: Sequence[bytes]) -> str:
        """Return why the raw bytes of results are wrong; empty where they are within their
        tolerances.
        """
        arrays = []
        for number, (raw, want) in enumerate(zip(results, self.expected, strict=True)):
            if len(raw) != want.value.nbytes:
                return f"result {number}: expected {want.value.nbytes} bytes, got {len(raw)}"
            arrays.append(np.frombuffer(raw, want.value.dtype).reshape(want.value.shape))
        return compare(arrays, self.expected).wrong


@dataclass(frozen=True)
class Described:
    """A program as it came in: its oracle and signature, and its row; no row for foreign ones."""

    oracle: Oracle
    signature: Signature
    graph: Graph | None

    def reference(self, arguments: Sequence[np.ndarray]) -> Reference:
        """Compute the results of a call. Raises PycError (NO_ORACLE, DIMENSION_MISMATCH)."""
        return Reference(tuple(self.oracle.expect(list(arguments))))


def described(source: Any, inputs: Sequence[Any] | None = None) -> Described:
    """Read a program; inputs as `compile` takes them. Raises PycError as the front ends do."""
    source = Source.of(source)
    found = _described(source, inputs)
    if inputs is None or source.takes_inputs or len(inputs) != len(found.signature.inputs):
        return found
    # Shapes refine the dynamic dimensions of what is no function.
    shapes = [tuple(getattr(given, "shape", given)) for given in inputs]
    pairs = zip(found.signature.inputs, shapes, strict=True)
    refined = tuple(replace(a, shape=s) if len(s) == len(a.shape) else a for a, s in pairs)
    return replace(found, signature=replace(found.signature, inputs=refined))


def _described(source: Source, inputs: Sequence[Any] | None) -> Described:
    with new_context() as context, ir.Location.unknown():
        loaded = source.load(inputs, context)
        if loaded.module is None:
            entry = read_entry(loaded.foreign, loaded.name)
            oracle = ForeignOracle(loaded.foreign, entry.name, entry.signature)
            return Described(oracle, entry.signature, None)
        with loaded.module.context:
            function = entry_function(loaded.module)
            name = ir.StringAttr(function.attributes["sym_name"]).value
            oracle = PycOracle(bytecode_of(loaded.module), name)
            return Described(oracle, signature_of(function), graph_of_program(function))
