"""Programs of integers and conditions: all values, or some that differ.

Comes in: two programs. Goes out: a counterexample by the ops' references, which is a theorem for
integers; or True where all values agree, tried one by one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OPS, Trait, evaluate
from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.driver.base import Relation
from pyc_mlir.pipelines.pyc.equivalence.answers import Counterexample
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import Program, evaluated
from pyc_mlir.pipelines.pyc.equivalence.floats import MOST_WORK, arguments, run, work
from pyc_mlir.pipelines.pyc.terms.nodes import VALUE, TermNode

# Bits of all arguments of an element, at most, to try all of their values.
_MOST_BITS = 20
_SAMPLES = 8


def tried(
    first: Program, second: Program, seed: int, relation: Relation
) -> Counterexample | bool | None:
    """Return a counterexample, True where all values agree, or None where it is not known.

    Programs with floats are tried for equality of bits only.
    """
    nodes = {*first.nodes, *second.nodes, *first.inputs}
    floats = any(is_float(n.type.dtype) for n in nodes)
    if floats and relation is not Relation.BITS:
        return None
    if work(first) + work(second) > MOST_WORK:
        return None
    for inputs in _samples(first, seed):
        if (found := differing(first, second, inputs, floats)) is not None:
            return found
    if not floats and (columns := _all_values(first, nodes)) is not None:
        sides = [_columns(p, columns) for p in (first, second)]
        agree = all(np.array_equal(a, b) for a, b in zip(*sides, strict=True))
        if agree:
            return True
    return None


def _samples(given: Program, seed: int) -> Iterator[list[np.ndarray]]:
    """Yield arguments: ordinary ones, all bits at random, the ends of each type, equal ones."""
    for number in range(_SAMPLES):
        rng = np.random.default_rng([seed, number])
        inputs = arguments(given, "ordinary", seed + number)
        for i, type_ in enumerate(given.input_types):
            shape = [d or 0 for d in type_.shape]
            if is_float(type_.dtype):
                special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3.0e38, 1e-40])
                with np.errstate(all="ignore"):
                    mixed = np.where(rng.random(shape) < 0.2 * (number > 3),
                                     rng.choice(special, shape), inputs[i])  # fmt: skip
                    inputs[i] = mixed.astype(type_.dtype)
            elif type_.dtype != np.bool_ and number:
                info = np.iinfo(type_.dtype)
                ends = np.array([info.min, info.max, 0, 1, info.max - 1], type_.dtype)
                bits = rng.bytes(int(np.prod(shape)) * type_.dtype.itemsize)
                drawn = np.frombuffer(bits, type_.dtype).reshape(shape)
                inputs[i] = np.where(rng.random(shape) < 0.3, rng.choice(ends, shape), drawn)
        if number % 4 == 2:  # arguments that are equal
            alike = dict(zip(given.input_types, inputs, strict=True))
            inputs = [alike[t] for t in given.input_types]
        yield inputs


def differing(
    first: Program, second: Program, inputs: Sequence[np.ndarray], floats: bool
) -> Counterexample | None:
    """Return a counterexample if the references give other bits for these arguments."""
    with np.errstate(all="ignore"):
        sides = [run(p, inputs) for p in (first, second)]
    for output, (a, b) in enumerate(zip(*sides, strict=True)):
        places = np.argwhere(~_same_bits(a, b))
        if len(places):
            at = tuple(int(i) for i in places[0])
            kind = "the bits of floats differ" if floats else "unequal integers"
            relation = Relation.BITS if floats else Relation.ROUNDED
            values = str(a[at]), str(b[at])
            return Counterexample(relation, kind, tuple(inputs), output, at, *values)
    return None


def _same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not is_float(a.dtype):
        return a == b
    bits = f"u{a.dtype.itemsize}"
    same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    return same.reshape(a.shape) | (np.isnan(a) & np.isnan(b))


def _all_values(given: Program, nodes: set[TermNode]) -> list[np.ndarray] | None:
    """Return all values of the arguments of one element; None where elements meet or are many."""
    bits = [1 if t.dtype == np.bool_ else 8 * t.dtype.itemsize for t in given.input_types]
    plain = all(n.name == VALUE or n.number is not None or n.has(Trait.ELEMENTWISE) for n in nodes)
    # A broadcast argument meets other elements, each by itself: sizes do not count.
    if not plain or sum(bits) > _MOST_BITS or not bits:
        return None
    codes = np.arange(1 << sum(bits), dtype=np.uint64)
    columns = []
    for width, type_ in zip(bits, given.input_types, strict=True):
        part = codes & np.uint64((1 << width) - 1)
        codes = codes >> np.uint64(width)
        kind = np.bool_ if width == 1 else f"u{width // 8}"
        column = part.astype(kind)
        columns.append(column if width == 1 else column.view(type_.dtype))
    return columns


def _columns(given: Program, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the results for each row of values of the arguments."""

    def compute(node: TermNode, operands: list[Any]) -> np.ndarray:
        if node.name == VALUE:
            return columns[node.params["number"]]
        if node.name == "constant":
            return np.asarray(node.params["value"]).reshape(-1)[0]
        return evaluate(OPS[node.name], [np.asarray(o) for o in operands], **node.params)

    values = evaluated(given, compute)
    rows = columns[0].shape
    return [np.broadcast_to(values[o], rows) for o in given.outputs]
