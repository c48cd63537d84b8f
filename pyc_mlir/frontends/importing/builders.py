"""The builders that a node handler may meet: one handler, three ways to run it.

`GraphBuilder` emits pyc ops and knows the `SymbolicSize` of every dynamic dimension of every value;
`ConstantBuilder` computes at once (all operands are known); `SizesBuilder` computes on shapes.

GraphBuilder finds the sizes by probing: it runs an op's own `infer` rule twice with large primes
in place of the dynamic dimensions. A result dimension that has the same factors both times is
that product of dimensions, or one of the operands' sizes plus such a product or a number; anything
else becomes a new dimension. Where a rule asks that sizes agree (a static size contracted with a
dynamic one, two names), a probe lets them agree.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir import divisions
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder, NumpyBuilder
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import FoldWork, OpDef
from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.quantized import widens_weights
from pyc_mlir.dialects.types import DTYPES, I64, TensorType, is_integer
from pyc_mlir.dialects.util.index_ranges import IndexRange
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import chain, take, vector
from pyc_mlir.frontends.importing.sizes import (
    Computed,
    Dimension,
    Extent,
    SymbolicSize,
    SymbolicSizes,
    bounds,
    total,
)

# The first primes above each of two numbers, in place of dynamic dimensions.
_PROBES = tuple(
    tuple(start + more for more in offsets)
    for start, offsets in (
        (10**9, (7, 9, 21, 33, 87, 93, 97, 103, 123, 181, 207, 223, 241, 271, 289, 297)),
        (2 * 10**9, (11, 33, 63, 87, 89, 99, 137, 141, 143, 153, 203, 227, 239, 243, 269, 273)),
    )
)
# Numbers that a size may have more than a dimension.
_MAX_MORE = 50_000
# Integers of a tensor that the program computes and that are read as sizes.
_MAX_NUMBERS = 8
# Bytes that a step of folding may make of less.
MAX_FOLDED = 1 << 26


class NotWrittenOut(Exception):
    """A known value that is not to be written out: the program makes it when it runs."""


class ConstantBuilder(NumpyBuilder):
    """Folds a node whose operands are all known, as long as there is work left."""

    def __init__(self, work: FoldWork | None = None) -> None:
        super().__init__()
        self._work = FoldWork() if work is None else work

    def emit(self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]) -> np.ndarray:
        """Evaluate the reference. Raises TooLarge before it would make more than it was given."""
        types = [self.type_of(v) for v in operands]
        out = op.infer(*types, **params)
        if out.is_static and out.nbytes > max(MAX_FOLDED, sum(t.nbytes for t in types)):
            raise NotWrittenOut(op.name)
        # Quantized weights stay bytes: pyc-recognize makes products of integers of them.
        if types and widens_weights(op.name, types[0]):
            raise NotWrittenOut(op.name)
        if not self._work.takes(op, types, out, **params):
            raise NotWrittenOut(op.name)
        return super().emit(op, operands, params)

    def dims(self, value: np.ndarray) -> tuple[Extent, ...]:
        """Return the array's shape."""
        return value.shape


class GraphBuilder(IRBuilder):
    """Emits ops; `dims(value)` is the shape with a `SymbolicSize` for each dynamic dimension."""

    def __init__(self) -> None:
        # Of the arguments, and the number of ops whose indices are computed; no range is declared
        # while what is imported may not run.
        self.indices: dict[IndexRange, None] = {}
        self.clamped = 0
        self.may_not_run = False
        self._unplaced: set[ir.Value] = set()
        self._dims: dict[ir.Value, tuple[Extent, ...]] = {}
        self._sources: dict[str, tuple[ir.Value, int]] = {}
        # Sizes that the program computes: the tensors that hold them, and where.
        self._numbers: dict[str, tuple[ir.Value, tuple[int, ...]]] = {}
        self._as_sizes: dict[ir.Value, SymbolicSizes] = {}

    def name_dims(self, value: ir.Value, dims: Sequence[Extent]) -> None:
        """State the dims of a value; the first value with an atom as a dimension is its source."""
        self._dims[value] = tuple(dims)
        for axis, dim in enumerate(dims):
            if isinstance(dim, SymbolicSize) and dim.factor == 1 and len(dim.atoms) == 1:
                self._sources.setdefault(dim.atoms[0], (value, axis))

    def define(self, name: str, value: ir.Value, *place: int) -> None:
        """State which integer a size is: the one of a scalar, or at a place of a vector."""
        self._numbers.setdefault(name, (value, place))

    def numbers(self, value: ir.Value) -> SymbolicSizes | None:
        """Return a few integers that the program computes as sizes; None for other values."""
        type_ = self.type_of(value)
        few = type_.is_static and type_.rank < 2 and type_.elements <= _MAX_NUMBERS
        if not few or type_.dtype not in (DTYPES["i32"], I64):
            return None
        if value not in self._as_sizes:
            entries = np.empty([d or 0 for d in type_.shape], object)
            for place in np.ndindex(*entries.shape):
                name = f"%{len(self._numbers)}"
                self.define(name, value, *place)
                entries[place] = SymbolicSize(1, (Dimension(name, -inf),))
            self._as_sizes[value] = SymbolicSizes(entries, type_.dtype)
        return self._as_sizes[value]

    def declare_indices(self, indices: ir.Value, size: Extent, negative: bool = True) -> None:
        """Declare the range of indices that are an argument; count them where they are computed."""
        value: Any = indices
        while not isinstance(value.owner, ir.Block) and _keeps_integers(value.owner):
            value = value.owner.operands[0]
        place = _place(value)
        if place is None and value.owner.name == "pyc.constant":
            return
        found = (size, -1) if isinstance(size, int) else self._axis_of_argument(size)
        if place is None or found is None or self.may_not_run:
            self.clamped += 1
        else:
            self.indices[IndexRange(place, *found, negative)] = None

    def _axis_of_argument(self, size: SymbolicSize) -> tuple[int, int] | None:
        """Return the argument and its axis that have a dynamic size; None where none does."""
        if size.factor != 1 or len(size.atoms) != 1 or size.atoms[0] not in self._sources:
            return None
        value, axis = self._sources[size.atoms[0]]
        place = _place(value)
        return None if place is None else (place, axis)

    def _source(self, name: str) -> tuple[ir.Value, int]:
        """Return a value with the dynamic dimension `name`, and the axis. Raises unsupported."""
        if name not in self._sources:
            made = self._joined(name) if isinstance(name, Computed) else None
            made = self.range(self._number(name)) if made is None else made
            self.name_dims(made, (SymbolicSize(1, (name,)),))
        return self._sources[name]

    def _number(self, name: str) -> ir.Value:
        """Return an atom as a rank-0 i64. Raises unsupported for one that nothing makes."""
        if name in self._numbers:
            value, place = self._numbers[name]
            for i in place:
                value = self.reshape(take(self, value, 0, i, i + 1), shape=())
            return self.convert(value, I64)
        if name in self._sources:
            return self.size(*self._source(name))
        if not isinstance(name, Computed):
            raise unsupported(f"the size {name}, which is computed from data: expected sizes")
        parts = map(self.extent, name.terms)
        if name.function in ("floor", "mod"):
            if bounds(name.terms[0])[0] >= 0:
                return (self.div if name.function == "floor" else self.rem)(*parts)
            return divisions.floor_divmod(self, *parts)[name.function == "mod"]
        combine = {"sum": self.add, "min": self.minimum, "max": self.maximum}[name.function]
        return reduce(combine, parts)

    def of_size(self, size: SymbolicSize) -> ir.Value:
        """Return a value of which a dimension has a size."""
        atom = size.factor == 1 and len(size.atoms) == 1
        return self._source(size.atoms[0])[0] if atom else vector(self, size)

    def _joined(self, name: Computed) -> ir.Value | None:
        """Join a vector for each term of a sum, then drop as many as a negative number says.

        None for other functions, and for differences of dimensions.
        """
        *sizes, last = name.terms
        number = last if isinstance(last, int) else 0
        sizes += [] if number else [last]
        lengths = all(isinstance(t, SymbolicSize) and t.is_length for t in sizes)
        if name.function != "sum" or not lengths:
            return None
        parts = [vector(self, t) for t in (*sizes, *((number,) if number > 0 else ()))]
        return take(self, chain(self, parts, 0), 0, max(0, -number), END)

    def dims(self, value: ir.Value) -> tuple[Extent, ...]:
        """Return the size of each dimension."""
        if value in self._dims:
            return self._dims[value]
        shape = self.type_of(value).shape
        return tuple(d for d in shape if d is not None)

    def unplaced(self, value: np.ndarray) -> ir.Value:
        """Return a constant that enters the program before the first op that takes it."""
        made = self.constant(value)
        made.owner.detach_from_parent()
        self._unplaced.add(made)
        return made

    def placed(self, value: ir.Value) -> ir.Value:
        """Return a value that is in the program, where it now is if it was not."""
        if value in self._unplaced:
            self._unplaced.remove(value)
            ir.InsertionPoint.current.insert(value.owner)
        return value

    def emit(self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]) -> ir.Value:
        """Create the operation and find its result's sizes."""
        for operand in operands:
            self.placed(operand)
        out = super().emit(op, operands, params)
        type_ = self.type_of(out)
        if not type_.is_static:
            self.name_dims(out, self._derive(op, operands, params, type_))
        return out

    def _derive(
        self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any], out: TensorType
    ) -> list[Extent]:
        """Derive a size for each dimension of a result whose type is not static."""
        shapes = [self.dims(v) for v in operands]
        types = [self.type_of(v) for v in operands]
        atoms = sorted(
            {a for s in shapes for d in s if isinstance(d, SymbolicSize) for a in d.atoms}
        )
        first, second = (_probe(op, types, shapes, params, atoms, primes) for primes in _PROBES)
        dims: list[Extent] = []
        for axis, known in enumerate(out.shape):
            same = first and second and first[axis] == second[axis]
            tracked = first[axis] if first and same else None
            if known is not None:
                dims.append(known)
            elif isinstance(tracked, SymbolicSize):
                dims.append(tracked)
            else:
                dims.append(SymbolicSize(1, (f"%{len(self._dims)}.{axis}",)))
        return dims

    def atom(self, name: str) -> ir.Value:
        """Return an i64 vector whose length is the dynamic dimension `name`."""
        value, axis = self._source(name)
        shape = tuple(-1 if i == axis else 1 for i in range(self.type_of(value).rank))
        return self.reshape(self.iota(value, shape=shape, axis=axis, dtype=I64), shape=(-1,))

    def extent(self, size: Extent) -> ir.Value:
        """Return a size as a rank-0 i64 that is computed when the program runs."""
        if not isinstance(size, SymbolicSize):
            return self.constant(np.array(size, np.int64))
        out = None if size.factor == 1 else self.constant(np.array(size.factor, np.int64))
        for name in size.atoms:
            length = self._number(name)
            out = length if out is None else self.mul(out, length)
        assert out is not None
        return out

    def materialize(self, value: SymbolicSizes) -> ir.Value:
        """Build a tensor of sizes that is computed when the program runs."""
        parts = [self.reshape(self.extent(e), shape=(1,)) for e in value.entries.reshape(-1)]
        while len(parts) > 1:
            pairs = [
                self.concat(a, b, axis=0) for a, b in zip(parts[::2], parts[1::2], strict=False)
            ]
            parts = pairs + parts[len(pairs) * 2 :]
        whole = self.reshape(parts[0], shape=value.entries.shape)
        return whole if value.dtype == I64 else self.cast(whole, dtype=value.dtype)


def _place(value: ir.Value) -> int | None:
    """Return the number of the argument that a value is; None for what is computed."""
    return ir.BlockArgument(value).arg_number if isinstance(value.owner, ir.Block) else None


def _keeps_integers(op: Any) -> bool:
    """Return whether the elements of an op's result are those of its operand, all and no other.

    A cast to 8 or 16 bits wraps what it does not hold; i32 and wider hold all indices of an axis.
    """
    if op.name != "pyc.cast":
        return op.name in ("pyc.reshape", "pyc.transpose")
    given, made = (from_mlir(v.type).dtype for v in (op.operands[0], op.results[0]))
    return is_integer(given) and (np.can_cast(given, made) or made.itemsize >= 4)


def _probe(
    op: type[OpDef], types: Sequence[TensorType], shapes: Sequence[Sequence[Extent]],
    params: dict[str, Any], atoms: Sequence[str], primes: Sequence[int],
) -> list[Extent] | None:  # fmt: skip
    """Infer the dims with primes for the atoms, read back as sizes; None if `infer` objects.

    If it does, infer once more with one atom as large as a static size, or as another atom.
    """
    if len(atoms) > len(primes):
        return None
    values = dict(zip(atoms, primes, strict=False))
    shape = _inferred(op, types, shapes, params, values)
    if shape is not None:
        sizes = [d for s in shapes for d in s]
        return [_summed(d, values, sizes) for d in shape]
    # Where min(n, 512) has to be n, or 1, it is n.
    limited = {m: values[n] for m in values if (n := _limited(m)) in values}
    shape = _inferred(op, types, shapes, params, values | limited) if limited else None
    if shape is not None:
        return [_factored(d, {a: n for a, n in values.items() if a not in limited}) for d in shape]
    static = sorted({d for s in shapes for d in s if not isinstance(d, SymbolicSize) and d > 1})
    for atom, size in product(atoms, (*static, *values.values())):
        shape = _inferred(op, types, shapes, params, {**values, atom: size})
        if shape is not None:
            # What depends on the size that was chosen is not known to be that.
            others = {a: n for a, n in values.items() if a != atom and n != size}
            return [0 if d % size == 0 else _factored(d, others) for d in shape]
    return None


def _limited(atom: str) -> str:
    """Return n of an atom that is the minimum of n and a number above 1; '' of another atom."""
    match atom.terms if isinstance(atom, Computed) and atom.function == "min" else ():
        case (int(number), SymbolicSize(1, (other,))) if number > 1:
            return other
    return ""


def _inferred(
    op: type[OpDef], types: Sequence[TensorType], shapes: Sequence[Sequence[Extent]],
    params: dict[str, Any], values: dict[str, int],
) -> list[int] | None:  # fmt: skip
    """Return the result's shape with these sizes of the atoms; None if `infer` objects."""
    probes = [
        t.with_shape(tuple(_at(d, values) for d in s)) for t, s in zip(types, shapes, strict=True)
    ]
    try:
        return [d or 0 for d in op.infer(*probes, **params).shape]
    except (VerificationError, OverflowError):
        return None


def _at(dim: Extent, values: dict[str, int]) -> int:
    return dim.factor * prod(values[a] for a in dim.atoms) if isinstance(dim, SymbolicSize) else dim


def _factored(number: int, values: dict[str, int]) -> Extent:
    """Return a number as a factor times atoms."""
    atoms = []
    for atom, prime in values.items():
        while number and number % prime == 0:
            number //= prime
            atoms.append(atom)
    return SymbolicSize(number, tuple(atoms)) if atoms else number


def _summed(number: int, values: dict[str, int], sizes: Sequence[Extent]) -> Extent:
    """Return a number as a product of atoms, or as one of `sizes` and such a product more."""
    plain = _factored(number, values)
    if isinstance(plain, SymbolicSize) or plain < _PROBES[0][0]:
        return plain
    for size in sizes:
        more = _factored(number - _at(size, values), values)
        out = total((size, more))
        known = isinstance(more, SymbolicSize) or abs(more) < _MAX_MORE
        # A difference may be what a slice leaves, which is 0 of a smaller dimension.
        if known and isinstance(out, SymbolicSize) and out.is_length:
            return out
    return plain
