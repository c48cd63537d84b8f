"""Injected miscompiles: a pyc module with one fault that a wrong compiler might have made.

An operator names a kind of fault and lists the ways to make it at one op; a `Mutant` is one of
these, addressed by the op's position, so that it can be made in any copy of the module.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.attributes import array_of, encode, params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.numerics.rounding import roundoff
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.ops.movement import END, START
from pyc_mlir.dialects.types import BOOL, is_float

Apply = Callable[[], None]
# Programs that differ by so many roundings only are equal.
ROUNDINGS = 16
# Of these the order of operands is no part of the meaning; of all others it is.
COMMUTATIVE = ("add", "mul", "maximum", "minimum", "and", "or", "xor")


@dataclass(frozen=True)
class Mutant:
    """The `way`-th fault of a kind at the op of this position."""

    operator: str
    position: int
    way: int

    def apply(self, module: ir.Module) -> None:
        """Make the fault in `module`."""
        with module.context, ir.Location.unknown():
            list(OPERATORS[self.operator](ops_in(module)[self.position]))[self.way]()


def ops_in(module: ir.Module) -> list[ir.Operation]:
    """The pyc ops of the entry function, in order."""
    block = entry_function(module).regions[0].blocks[0]
    return [o.operation for o in block.operations if o.operation.name.startswith("pyc.")]


def mutants_of(module: ir.Module) -> list[Mutant]:
    """Every fault that can be made, whether it verifies and matters or not."""
    with module.context, ir.Location.unknown():
        return [
            Mutant(name, position, way)
            for position, op in enumerate(ops_in(module))
            for name, ways in OPERATORS.items()
            for way, _ in enumerate(ways(op))
        ]


def _name(op: ir.Operation) -> str:
    return op.name.removeprefix("pyc.")


def _set(op: ir.Operation, name: str, value: Any) -> Apply:
    kind = next(p.kind for p in OPS[_name(op)].params if p.name == name)

    def apply() -> None:
        op.attributes[name] = encode(value, kind)

    return apply


def _both(first: Apply, second: Apply) -> None:
    first()
    second()


def _params(op: ir.Operation) -> dict[str, Any]:
    return OPS[_name(op)].bind(params_of(OPS[_name(op)], op))


def wrong_constant(op: ir.Operation) -> Iterator[Apply]:
    """One element of a constant, a fill value or a scale."""
    params = _params(op)
    if op.name == "pyc.constant":
        value = array_of(op.attributes["value"])
        if value.size:
            for place in {0, value.size // 2, value.size - 1}:
                wrong = value.copy()
                flat = wrong.reshape(-1)
                flat[place] = ~flat[place] if value.dtype == BOOL else flat[place] + 1
                yield _set(op, "value", wrong)
    for name in ("value", "scale"):
        if isinstance(params.get(name), float) and np.isfinite(params[name]):
            yield _set(op, name, params[name] + 1.0)


def swapped_operands(op: ir.Operation) -> Iterator[Apply]:
    """Two operands of one type."""
    if _name(op) in COMMUTATIVE:
        return
    for i, j in combinations(range(len(op.operands)), 2):
        if op.operands[i].type == op.operands[j].type:

            def apply(i: int = i, j: int = j) -> None:
                op.operands[i], op.operands[j] = op.operands[j], op.operands[i]

            yield apply


def dropped_epilogue(op: ir.Operation) -> Iterator[Apply]:
    """The op is left out: an operand takes the place of its result."""
    for i, operand in enumerate(op.operands):
        if operand.type == op.result.type:
            yield lambda i=i: op.result.replace_all_uses_with(op.operands[i])


def off_by_one(op: ir.Operation) -> Iterator[Apply]:
    """A window that begins one element too late or too early."""
    params = _params(op)
    for first, last, sign in (("starts", "stops", 1), ("low", "high", -1)):
        if not isinstance(params.get(first), tuple):
            continue
        for axis in range(len(params[first])):
            for step in (1, -1):
                starts, stops = list(params[first]), list(params[last])
                if {starts[axis], stops[axis]} & {START, END}:
                    continue
                starts[axis] += step
                stops[axis] += sign * step

                yield partial(_both, _set(op, first, tuple(starts)), _set(op, last, tuple(stops)))
    if "pads" in params:
        top, left, bottom, right = params["pads"]
        yield _set(op, "pads", (top + 1, left, bottom - 1, right))
        yield _set(op, "pads", (top, left + 1, bottom, right - 1))


def wrong_axis(op: ir.Operation) -> Iterator[Apply]:
    """Another axis, or another order of dimensions; those of other shapes do not verify."""
    params = _params(op)
    rank = ir.RankedTensorType(op.operands[0].type).rank if len(op.operands) else 0
    if isinstance(params.get("axis"), int):
        yield from (_set(op, "axis", a) for a in range(rank) if a != params["axis"] % max(rank, 1))
    if isinstance(params.get("axes"), tuple):
        now = [a % max(rank, 1) for a in params["axes"]]
        for i, other in product(range(len(now)), sorted(set(range(rank)) - set(now))):
            yield _set(op, "axes", tuple(sorted((*now[:i], other, *now[i + 1 :]))))
    if isinstance(params.get("permutation"), tuple):
        order = params["permutation"]
        for i in range(len(order) - 1):
            wrong = list(order)
            wrong[i], wrong[i + 1] = wrong[i + 1], wrong[i]
            yield _set(op, "permutation", tuple(wrong))


def lost_cast(op: ir.Operation) -> Iterator[Apply]:
    """The first of two conversions in a row: as if the type between had never been."""
    if op.name != "pyc.cast":
        return
    source = op.operands[0].owner
    if isinstance(source, ir.Block):
        return
    source = source if isinstance(source, ir.Operation) else source.operation
    if source.name != "pyc.cast":
        return
    if source.operands[0].type == op.result.type:
        yield lambda: op.result.replace_all_uses_with(source.operands[0])
    else:
        yield lambda: op.operands.__setitem__(0, source.operands[0])


def wrong_op(op: ir.Operation) -> Iterator[Apply]:
    """A predicate, a mask or a window that means something else."""
    params = _params(op)
    if "predicate" in params:
        wrong = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq"}
        yield _set(op, "predicate", wrong[params["predicate"]])
    for name in ("is_causal", "count_include_pad"):
        if name in params:
            yield _set(op, name, not params[name])


OPERATORS: dict[str, Callable[[ir.Operation], Iterator[Apply]]] = {
    "wrong constant": wrong_constant,
    "swapped operands": swapped_operands,
    "dropped epilogue": dropped_epilogue,
    "off by one": off_by_one,
    "wrong axis": wrong_axis,
    "lost cast": lost_cast,
    "wrong op": wrong_op,
}


def differs(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    """Whether any value is another one, by more than a few roundings of the result's scale.

    Programs that are equal but for rounding are no miscompiles: a normalization after a shift, say.
    """
    for a, b in zip(first, second, strict=True):
        if a.shape != b.shape:
            return True
        if not is_float(a.dtype):
            if not (a == b).all():
                return True
            continue
        wide, other = a.astype(np.float64), b.astype(np.float64)
        scale = np.abs(other).max(where=np.isfinite(other), initial=1.0)
        near = np.abs(wide - other) <= ROUNDINGS * roundoff(a.dtype) * scale
        if not (near | (wide == other) | (np.isnan(wide) & np.isnan(other))).all():
            return True
    return False
