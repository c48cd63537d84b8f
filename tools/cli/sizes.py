"""Sizes that a reader chooses for the dynamic dimensions of a program, filled into its formulas.

Formulas are sums, products and alignments of numbers and sizes, as IREE writes them:
``8960 * hal.buffer_view.dim(arg0, index=0 : index) + util.align(...)``.
"""

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyc_mlir.artifact.account import Account
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.manifest import MEMORY, OUTPUTS
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.evidence import Evidence
from pyc_mlir.util.logs import RUN, warn

_DIM = re.compile(r"hal\.buffer_view\.dim\(arg(\d+), index=(\d+) : index\)")


@dataclass(frozen=True)
class ChosenSizes:
    """Sizes that a reader chose for dynamic dimensions of a program, by their names."""

    signature: Signature
    chosen: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def parse(texts: Sequence[str], signature: Signature) -> "ChosenSizes":
        """Read ``NAME=SIZE``. Raises PycError (BAD_ARGUMENT) for what is no dynamic dimension."""
        known = ChosenSizes(signature).names
        chosen: dict[str, int] = {}
        for text in texts:
            name, _, number = text.rpartition("=")
            if name not in known or not (number.isascii() and number.isdigit()):
                raise PycError(
                    ReasonCode.BAD_ARGUMENT,
                    f"--size {text}: expected NAME=SIZE with a dynamic dimension of the program "
                    f"({', '.join(known) or 'it has none'})"
                    f"{'' if name in known else did_you_mean(name, known)}",
                )
            chosen[name] = int(number)
            low, high = signature.ranges.get(name, (0, chosen[name]))
            if not low <= chosen[name] <= high:
                warn(
                    RUN,
                    ReasonCode.DIMENSION_OUT_OF_RANGE.name,
                    f"--size {text}: expected a size of the declared range, {low} to {high}; "
                    "calls of this one are refused",
                )
        return ChosenSizes(signature, chosen)

    @staticmethod
    def none(signature: Signature | None) -> "ChosenSizes":
        """Choose no sizes; formulas are read with the names of the dimensions."""
        return ChosenSizes(signature or Signature((), ()))

    @property
    def names(self) -> list[str]:
        """The dynamic dimensions of the program."""
        every = (n for a in self.signature.inputs for n in a.dynamic.values())
        return list(dict.fromkeys(every))

    def __str__(self) -> str:
        return ", ".join(f"{name}={number}" for name, number in self.chosen.items())

    def readable(self, text: str) -> str:
        """Return a text with the names of dimensions, or their chosen sizes, in its formulas."""
        return _DIM.sub(lambda m: str(self._dim(m)), text).replace("util.align(", "align(")

    def bytes_of(self, formula: str) -> int | None:
        """Evaluate a formula at the chosen sizes; None if one is missing or it is no sum."""
        try:
            return _value(ast.parse(self.readable(formula), mode="eval").body)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None

    def of(self, arguments: Sequence[SignatureEntry]) -> int | None:
        """Return the bytes of arguments."""
        total = 0
        for a in arguments:
            shape = [
                d if isinstance(d, int) else self.chosen.get(a.dynamic[axis])
                for axis, d in enumerate(a.shape)
            ]
            known = [d for d in shape if d is not None]
            if len(known) < len(shape):
                return None
            total += a.dtype.itemsize * math.prod(known)
        return total

    def account(self, artifact: Artifact, part: str = MEMORY) -> Account:
        """Return the account of a call of the chosen sizes, by PyC's plan or by IREE's own.

        part: MEMORY or BY_IREE, as the manifest has them.
        """
        manifest = artifact.manifest
        known = manifest.memory if part == MEMORY else manifest.memory_by_iree
        if not self.chosen:
            return known
        formulas = manifest.formulas
        inputs, outputs = self.of(artifact.signature.inputs), self._largest(formulas.get(OUTPUTS))
        needed = self._largest(formulas.get(part))
        if needed is None or outputs is None:
            return Account(known.constants, inputs, None, outputs, None)
        return Account(known.constants, inputs, max(0, needed - outputs), outputs, 0)

    def _largest(self, formulas: Sequence[str] | None) -> int | None:
        """Return the largest of some formulas; None where one cannot be told."""
        sizes = [self.bytes_of(formula) for formula in formulas or ()]
        known = [size for size in sizes if size is not None]
        return max(known) if known and len(known) == len(sizes) else None

    def filled(self, decision: Decision) -> Decision:
        """Return a decision whose evidence and reasons are `readable`."""
        return replace(
            decision,
            evidence=tuple(map(self._filled, decision.evidence)),
            alternatives=tuple(
                replace(a, reason=self.readable(a.reason)) for a in decision.alternatives
            ),
        )

    def _filled(self, fact: Evidence) -> Evidence:
        """Return a record whose texts are `readable`."""
        texts = {n: self.readable(v) for n, v in vars(fact).items() if isinstance(v, str)}
        return replace(cast(Any, fact), **texts)

    def _dim(self, match: "re.Match[str]") -> int | str:
        argument, axis = int(match[1]), int(match[2])
        try:
            name = self.signature.inputs[argument].dynamic[axis]
        except (LookupError, AttributeError):
            return match[0]
        return self.chosen.get(name, name)


def _value(node: ast.expr) -> int:
    """Evaluate sums, products and alignments of numbers. Raises ValueError for others."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _value(node.left), _value(node.right)
        return left + right if isinstance(node.op, ast.Add) else left * right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "align":
        given, to = map(_value, node.args)
        return -(-given // max(to, 1)) * to
    raise ValueError(ast.dump(node))
