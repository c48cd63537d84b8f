"""Sizes that a reader chooses for the dynamic dimensions of a program, filled into its formulas.

Formulas are sums, products and alignments of numbers and sizes, as IREE writes them:
``8960 * hal.buffer_view.dim(arg0, index=0 : index) + util.align(...)``. Readers see
``8960 * batch + align(...)``.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.manifest import MEMORY, OUTPUTS
from pyc_mlir.artifact.memory import Account
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.evidence import Evidence
from pyc_mlir.util.logs import RUN, warn

_DIM = re.compile(r"hal\.buffer_view\.dim\(arg(\d+), index=(\d+) : index\)")
_FLAGS = re.compile(r", overflowFlags=#arith\.overflow<\w+>")
# Operations of formulas on sizes, which are no negative numbers.
_WORDS = {
    **{"arith.addi": "({} + {})", "arith.subi": "({} - {})", "arith.muli": "({} * {})"},
    **{"arith.maxsi": "max({}, {})", "arith.minsi": "min({}, {})", "util.align": "align({}, {})"},
    **{"arith.ceildivsi": "ceil({} / {})", "arith.divsi": "floor({} / {})"},
    **{"arith.floordivsi": "floor({} / {})", "arith.remsi": "({} % {})"},
}
_CALL = re.compile("|".join(rf"{re.escape(name)}\(" for name in _WORDS))


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
        return _in_words(_FLAGS.sub("", _DIM.sub(lambda m: str(self._dim(m)), text)))

    def bytes_of(self, formula: str) -> int | None:
        """Evaluate a formula at the chosen sizes; None if one is missing, or it is no number of
        bytes.
        """
        try:
            size = _value(ast.parse(self.readable(formula), mode="eval").body)
            return size if size >= 0 else None
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
            return f"arg{argument}[{axis}]"
        return self.chosen.get(name, name)


def _in_words(text: str) -> str:
    """Write the operations of a formula as a reader of arithmetic knows them."""
    parts, start = [], 0
    for found in _CALL.finditer(text):
        if found.start() < start:
            continue  # a part of the operation before
        arguments, end = _arguments(text, found.end())
        form = _WORDS[found[0][:-1]]
        if len(arguments) == form.count("{}"):
            parts += [text[start : found.start()], form.format(*map(_in_words, arguments))]
            start = end
    return "".join([*parts, text[start:]]).replace("+ -", "- ")


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    """Return the arguments of a call and where it ends; none if the text is cut off before."""
    depth, first, found = 0, start, []
    for at in range(start, len(text)):
        if text[at] in ",)" and not depth:
            found.append(text[first:at].strip())
            first = at + 1
            if text[at] == ")":
                return found, at + 1
        depth += {"(": 1, ")": -1}.get(text[at], 0)
    return [], start


_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: lambda x, y: x % max(y, 1),
}
# The second argument of a division is another size, which may be 0.
_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "align": lambda x, y: -(-x // max(y, 1)) * y,
    "ceil": lambda x, y: -(-x // max(y, 1)),
    "floor": lambda x, y: x // max(y, 1),
    "max": max,
    "min": min,
}


def _value(node: ast.expr) -> int:
    """Evaluate the arithmetic of numbers that `_WORDS` writes. Raises ValueError for others."""
    match node:
        case ast.Constant(value=int() as number) if type(number) is int:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(node.left), _value(node.right))
        case ast.Call(func=ast.Name(id=name), args=[ast.BinOp(op=ast.Div()) as ratio]):
            arguments = [ratio.left, ratio.right]
        case ast.Call(func=ast.Name(id=name), args=arguments):
            pass
        case _:
            raise ValueError(ast.dump(node))
    if name not in _FUNCTIONS or len(arguments) != 2:
        raise ValueError(ast.dump(node))
    return _FUNCTIONS[name](*map(_value, arguments))
