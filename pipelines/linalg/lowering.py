"""The state of a conversion to linalg: sizes, tensors with their sizes, and the rules by op name.

A rule gets the `Lowering`, the operands as `LoweredTensor`s and the op's parameters, emits upstream
ops at the current insertion point, and returns a `LoweredTensor`. Rules register themselves with
`@lowers`.

A size is a `LoweredDim`, an integer coefficient times a product of atoms, so that equal sizes are
known to be equal; an atom is an `index` value of the program whose size nothing else is known about
(a dynamic dimension of an argument, a clamped slice length). [b, s, 768] collapsed is
``768*b*s``, and expanding it again needs no check."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pyc_mlir.dialects.ir.attributes import array_of, elements_attr
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir, storage_type, to_mlir
from pyc_mlir.dialects.types import I64, Shape, TensorType, is_unsigned, storage
from pyc_mlir.pipelines.linalg.functions import Number, constant_scalar, emit


class LoweredDim(NamedTuple):
    """``coefficient * product(atoms)``; atoms are numbers given by `Lowering.atom`, sorted.

    A named tuple, because sizes are compared and hashed all the time.
    """

    coefficient: int = 1
    atoms: tuple[int, ...] = ()

    @property
    def static(self) -> int | None:
        """The size when it is known."""
        return None if self.atoms and self.coefficient else self.coefficient

    def __mul__(self, other: "LoweredDim") -> "LoweredDim":  # type: ignore[override]
        if 0 in (self.coefficient, other.coefficient):
            return LoweredDim(0)
        atoms = tuple(sorted(self.atoms + other.atoms))
        return LoweredDim(self.coefficient * other.coefficient, atoms)

    def without_shared(self, other: "LoweredDim") -> "tuple[LoweredDim, LoweredDim]":
        """Return both without the atoms that they share, any of which may be 0."""
        shared = Counter(self.atoms) & Counter(other.atoms)
        left = [tuple(sorted((Counter(d.atoms) - shared).elements())) for d in (self, other)]
        return LoweredDim(self.coefficient, left[0]), LoweredDim(other.coefficient, left[1])

    def divide(self, other: "LoweredDim") -> "LoweredDim | None":
        """Return the exact quotient, or None when it is not a monomial."""
        over, under = self.without_shared(other)
        if under.atoms or under.coefficient == 0 or over.coefficient % under.coefficient:
            return None
        return LoweredDim(over.coefficient // under.coefficient, over.atoms)


def product(dims: Iterable[LoweredDim]) -> LoweredDim:
    """Return the product of all; 1 for none."""
    return math.prod(dims, start=LoweredDim(1))


def reassociation(
    source: list[LoweredDim], target: list[LoweredDim]
) -> list[tuple[list[int], list[int]]] | None:
    """Split both shapes into consecutive groups of equal size, as many groups as possible.

    None when the sizes cannot be shown to agree. Dimensions of size 1 at the end join the last
    group.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        left, right = [i], [j]
        a, b = source[i], target[j]
        while a != b:
            more, elsewhere = i + 1 < len(source), j + 1 < len(target)
            # The source group grows where it is the smaller one.
            if more and (not elsewhere or b.divide(a) is not None):
                i += 1
                left.append(i)
                a = a * source[i]
            elif elsewhere:
                j += 1
                right.append(j)
                b = b * target[j]
            else:
                return None
        groups.append((left, right))
        i, j = i + 1, j + 1
    rest_left, rest_right = list(range(i, len(source))), list(range(j, len(target)))
    ones = [source[k] for k in rest_left] + [target[k] for k in rest_right]
    if any(d != LoweredDim(1) for d in ones):
        return None
    if (rest_left or rest_right) and groups:
        groups[-1][0].extend(rest_left)
        groups[-1][1].extend(rest_right)
    return groups


@dataclass(eq=False, slots=True)
class PendingPointwise:
    """An elementwise computation that was not emitted yet: inputs by loop numbers, scalar body.

    As a `LoweredTensor` never assigned to: there are several for each op of a program.
    """

    inputs: tuple[tuple["LoweredTensor", tuple[int, ...]], ...]
    body: Callable[..., ir.Value]


@dataclass(eq=False, slots=True)
class LoweredTensor:
    """A value with its element type and sizes. Never assigned to; not frozen, as that is slow.

    Constants, pointwise results, reshapes and concatenations are materialized when their value is
    first needed, so that a chain of elementwise ops becomes one, a chain of reshapes at most one,
    and a tree of concatenations copies each element once.
    """

    dtype: np.dtype
    dims: tuple[LoweredDim, ...]
    value: ir.Value | None = None
    constant: ir.Attribute | None = None
    pending: PendingPointwise | None = None
    # What this is a reshape of, with as many elements.
    source: "LoweredTensor | None" = None
    # What this has side by side, along which dimension.
    joined: tuple[tuple["LoweredTensor", ...], int] | None = None
    # The one value that all elements of a constant have.
    splat: Any | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def shape(self) -> Shape:
        """The sizes, None where they are dynamic."""
        return tuple([d.static for d in self.dims])

    @property
    def type(self) -> TensorType:
        """The tensor type."""
        return TensorType(self.shape, self.dtype)

    @property
    def array(self) -> np.ndarray | None:
        """The contents, for a constant."""
        return None if self.constant is None else array_of(self.constant).view(self.dtype)


def constant_tensor(attr: ir.Attribute, array: np.ndarray) -> LoweredTensor:
    """Return a constant, and whether it repeats one value; `attr` may hold unsigned integers."""
    if is_unsigned(array.dtype) and from_mlir(attr.type).dtype == array.dtype:
        attr = elements_attr(array.view(storage(array.dtype)))
    dims = tuple([LoweredDim(d) for d in array.shape])
    repeats = isinstance(attr, ir.DenseElementsAttr) and attr.is_splat and array.size > 0
    splat = array.reshape(-1)[0] if repeats else None
    return LoweredTensor(array.dtype, dims, constant=attr, splat=splat)


Index = int | ir.AffineExpr
Rule = Callable[..., LoweredTensor]
RULES: dict[str, Rule] = {}


def lowers(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of a primitive op; that of several ops gets the op's name by keyword."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"two rules for pyc.{name}"
            RULES[name] = rule if len(names) == 1 else partial(rule, name=name)
        return rule

    return register


# Emits a pending tensor, with what is pending below it.
Emit = Callable[["Lowering", LoweredTensor], ir.Value]


class Lowering:
    """The state that rules share while one function is converted: index values, sizes, checks."""

    def __init__(self, block: ir.Block, emit: Emit) -> None:
        """Begin a function's `block`. `emit` emits a pending tensor and its pending operands."""
        self.block = block
        self._emit = emit
        # Whether powers of smaller floats may be computed in f64.
        self.f64_math = True
        self.index = ir.IndexType.get()
        self._atoms: list[ir.Value] = []
        self._atom_of: dict[ir.Value, int] = {}
        self._sizes: dict[LoweredDim, ir.Value] = {}
        self._checked: set[tuple[LoweredDim, LoweredDim]] = set()
        self._forced: dict[LoweredTensor, ir.Value] = {}
        self._made: dict[tuple[Any, ...], Any] = {}
        self.checks = 0

    def once(self, *key: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` made under a key: equal types, attributes and values are one."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    # Values.

    def value(self, tensor: LoweredTensor) -> ir.Value:
        """Return the SSA value of a tensor; constants and pending computations are emitted here."""
        if tensor.value is not None:
            return tensor.value
        if tensor.constant is None:
            if tensor not in self._forced:
                self._forced[tensor] = self._emit(self, tensor)
            return self._forced[tensor]
        return ir.Operation.create(
            "arith.constant",
            results=[self.tensor_type(tensor.dims, tensor.dtype)],
            attributes={"value": tensor.constant},
        ).result

    def is_pending(self, tensor: LoweredTensor) -> bool:
        """Return True for a computation that has not been emitted."""
        return tensor.pending is not None and tensor not in self._forced

    def is_emitted(self, tensor: LoweredTensor) -> bool:
        """Return True for a tensor that has a value in the program."""
        return tensor.value is not None or tensor in self._forced

    def constant(self, array: np.ndarray) -> LoweredTensor:
        """Return a constant tensor."""
        return constant_tensor(elements_attr(array.view(storage(array.dtype))), array)

    def rank_0(self, value: Any, dtype: np.dtype) -> LoweredTensor:
        """Return a constant tensor of rank 0; equal ones are one."""
        array = np.array(value, dtype)
        return self.once("rank 0", array.tobytes(), dtype, make=lambda: self.constant(array))

    def scalar(self, value: Any, dtype: np.dtype) -> ir.Value:
        """Return a scalar constant of an element type, made once, at the function's begin."""
        return self._constant(value, np.asarray(value, dtype).tobytes(), self.element(dtype))

    def number(self, value: int) -> ir.Value:
        """Return an index constant, made once, at the function's begin."""
        return self._constant(value, value.to_bytes(16, "little", signed=True), self.index)

    def _constant(self, value: Any, data: bytes, type_: ir.Type) -> ir.Value:
        def make() -> ir.Value:
            with ir.InsertionPoint.at_block_begin(self.block):
                return constant_scalar(value, type_)

        return self.once("scalar", data, type_, make=make)

    # Indices.

    def loop(self, number: int) -> Number:
        """Return the index of a loop of the op whose body is emitted."""
        i64 = ir.IntegerType.get_signless(64)
        attributes = {"dim": ir.IntegerAttr.get(i64, number)}
        made = ir.Operation.create("linalg.index", results=[self.index], attributes=attributes)
        return Number(made.result, self.number)

    def loops(self, begin: int, end: int) -> list[Number]:
        """Return the indices of the loops from `begin` to before `end`."""
        return [self.loop(i) for i in range(begin, end)]

    def at(self, value: ir.Value, dtype: np.dtype = I64) -> Number:
        """Return an integer of type `dtype` as an index."""
        name = "arith.index_castui" if is_unsigned(dtype) else "arith.index_cast"
        return Number(emit(name, value, result=self.index), self.number)

    def index_of(self, value: int) -> Number:
        """Return a constant index."""
        return Number(self.number(value), self.number)

    # Types.

    def element(self, dtype: np.dtype) -> ir.Type:
        """Return the element type of values: integers have no sign."""
        return self.once("element", dtype, make=lambda: storage_type(dtype))

    def tensor_type(self, dims: Sequence[LoweredDim], dtype: np.dtype) -> ir.Type:
        """Return MLIR's tensor type."""
        shape = tuple(d.static for d in dims)
        kind = TensorType(shape, storage(dtype))
        return self.once("type", shape, dtype, make=lambda: to_mlir(kind))

    # Attributes of structured ops.

    def segments(self, *counts: int) -> ir.Attribute:
        """``operandSegmentSizes``."""
        return self.once("segments", counts, make=lambda: ir.DenseI32ArrayAttr.get(list(counts)))

    def loop_attributes(
        self, maps: Sequence[Sequence[Index]], iterators: Sequence[str]
    ) -> dict[str, ir.Attribute]:
        """Return the attributes of a linalg.generic: an index map an operand, each loop's kind."""

        def index_map(indices: Sequence[Index]) -> ir.Attribute:
            exprs = [ir.AffineDimExpr.get(i) if isinstance(i, int) else i for i in indices]
            return ir.AffineMapAttr.get(ir.AffineMap.get(len(iterators), 0, exprs))

        def make() -> dict[str, ir.Attribute]:
            kinds = [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in iterators]
            return {
                "indexing_maps": ir.ArrayAttr.get(list(map(index_map, maps))),
                "iterator_types": ir.ArrayAttr.get(kinds),
            }

        return self.once("loops", tuple(map(tuple, maps)), tuple(iterators), make=make)

    # Sizes.

    def atom(self, index: Number) -> LoweredDim:
        """Return the size that an index holds."""
        value = index.value
        if value not in self._atom_of:
            self._atom_of[value] = len(self._atoms)
            self._atoms.append(value)
        dim = LoweredDim(1, (self._atom_of[value],))
        self._sizes.setdefault(dim, value)
        return dim

    def size(self, dim: LoweredDim) -> ir.Value:
        """Return a size as an index value."""
        if dim not in self._sizes:
            value = self.number(dim.coefficient)
            for i, atom_ in enumerate(self._atoms[a] for a in dim.atoms):
                first = i == 0 and dim.coefficient == 1
                value = atom_ if first else emit("arith.muli", value, atom_)
            self._sizes[dim] = value
        return self._sizes[dim]

    def count(self, dim: LoweredDim) -> Number:
        """Return a size as an index to compute with."""
        return Number(self.size(dim), self.number)

    def sizes(self, dims: Sequence[LoweredDim]) -> list[ir.Value]:
        """Return the dynamic ones of `dims` as index values."""
        return [self.size(d) for d in dims if d.static is None]

    def argument(self, value: ir.Value, type_: TensorType) -> LoweredTensor:
        """Return a tensor whose sizes are read from the value itself."""
        dims = []
        for axis, size in enumerate(type_.shape):
            if size is not None:
                dims.append(LoweredDim(size))
                continue
            read = emit("tensor.dim", value, self.number(axis), result=self.index)
            dims.append(self.atom(Number(read, self.number)))
        return LoweredTensor(type_.dtype, tuple(dims), value)

    def require_equal(self, a: LoweredDim, b: LoweredDim, what: str) -> LoweredDim:
        """Return the size that both are, checked unless known: `a`, or a static `b`."""
        if a != b and (a, b) not in self._checked:
            self._checked |= {(a, b), (b, a)}
            self.check("eq", self.count(a), self.count(b), f"{what} must agree")
        return b if a.static is None and b.static is not None else a

    def check(self, predicate: str, lhs: Number, rhs: Number | int, message: str) -> None:
        """Emit a run-time assertion on two indices."""
        self.checks += 1
        holds = lhs.compare(predicate, rhs).value
        text = ir.StringAttr.get(f"DIMENSION_MISMATCH: {message}")
        ir.Operation.create("cf.assert", operands=[holds], attributes={"msg": text})

    # Agreement with what ops declare.

    def reconcile(self, tensor: LoweredTensor, declared: TensorType, what: str) -> LoweredTensor:
        """Return the tensor under its op's declared type; sizes known better are checked."""
        if tensor.shape == declared.shape:
            return tensor
        dims = list(tensor.dims)
        for i, want in enumerate(declared.shape):
            if dims[i].static is None and want is not None:
                dims[i] = self.require_equal(dims[i], LoweredDim(want), f"{what}: dimension {i}")
        return self.with_dims(tensor, dims)

    def with_dims(self, tensor: LoweredTensor, dims: Sequence[LoweredDim]) -> LoweredTensor:
        """Return the same tensor under sizes known to be equal to its own (a tensor.cast)."""
        if tuple(d.static for d in dims) == tensor.shape:
            value = None if tensor.constant is not None else self.value(tensor)
            return LoweredTensor(
                tensor.dtype, tuple(dims), value, tensor.constant, splat=tensor.splat
            )
        return self.made("tensor.cast", [self.value(tensor)], dims, tensor.dtype)

    def made(
        self,
        name: str,
        operands: Sequence[ir.Value],
        dims: Sequence[LoweredDim],
        dtype: np.dtype,
        **attributes: ir.Attribute,
    ) -> LoweredTensor:
        """Return the one result of an op, of these sizes."""
        type_ = self.tensor_type(dims, dtype)
        op = ir.Operation.create(name, [type_], operands, attributes)
        return LoweredTensor(dtype, tuple(dims), op.result)

    def empty(self, dims: Sequence[LoweredDim], dtype: np.dtype) -> LoweredTensor:
        """Return an uninitialized tensor; equal ones are one."""

        def make() -> LoweredTensor:
            return self.made("tensor.empty", self.sizes(dims), dims, dtype)

        return self.once("empty", tuple(dims), dtype, make=make)
