"""torch's symbolic sizes (sympy expressions) as the importers' sizes, under the user's names.

A sum or product of symbols is a `SymbolicSize`. Any other expression, such as ``(s - 1)//2``, is an
atom of its own, named as it is written. The builder gets a function that computes it at run time,
and calls it only if no tensor has that dimension.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.frontends.importing.builders import GraphBuilder
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import take, vector
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize, total


class Symbols:
    """The sizes of one program. `names` maps torch's symbols (``s77``) to the user's names."""

    def __init__(self, names: Mapping[str, str], builder: GraphBuilder) -> None:
        self._names = dict(names)
        self._b = builder
        self._known: dict[Any, Extent] = {}

    def name(self, symbol: Any) -> str:
        """Return the name of a symbol: the user's, or torch's own."""
        return self._names.setdefault(str(symbol), str(symbol))

    def extent(self, size: Any) -> Extent:
        """Return an int, a SymInt or a sympy expression as a size."""
        if isinstance(size, int):
            return size
        expression = size.node.expr if hasattr(size, "node") else size
        if expression not in self._known:
            self._known[expression] = self._extent(expression)
        return self._known[expression]

    def extents(self, shape: Any) -> tuple[Extent, ...]:
        """Return the dims of a shape."""
        return tuple(map(self.extent, shape))

    def _extent(self, expression: Any) -> Extent:
        import sympy  # pyright: ignore[reportMissingImports]

        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return SymbolicSize(1, (self.name(expression),))
        if expression.is_Add:
            expression = sympy.factor(expression)
        factors = expression.as_ordered_factors() if expression.is_Mul else [expression]
        out: Extent = 1
        for factor in factors:
            base, power = factor.as_base_exp()
            if not power.is_Integer or power < 0:
                base, power = factor, 1
            for _ in range(int(power)):
                out = self._factor(base) * out
        return out

    def _factor(self, expression: Any) -> Extent:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return SymbolicSize(1, (self.name(expression),))
        if expression.is_Add:
            return total(map(self.extent, expression.as_ordered_terms()))
        named = expression.xreplace({s: _symbol(self.name(s)) for s in expression.free_symbols})
        atom = re.sub(r"\s+", "", str(named))
        self._b.define(atom, partial(self._vector, expression))
        return SymbolicSize(1, (atom,))

    def _vector(self, expression: Any) -> Any:
        """Return an i64 vector of that length. Raises unsupported for other functions of sizes."""
        b, name = self._b, type(expression).__name__
        if name == "FloorDiv":
            numerator, divisor = expression.args
            if divisor.is_Integer and divisor > 0:
                whole = vector(b, self.extent(numerator))
                return take(b, whole, 0, int(divisor) - 1, END, int(divisor))
        raise unsupported(
            f"the size {expression}, which no tensor has: expected sums, products and quotients "
            "of dimensions"
        )


def _symbol(name: str) -> Any:
    import sympy  # pyright: ignore[reportMissingImports]

    return sympy.Symbol(name)
