"""The state of a conversion to linalg: tensors with their sizes, and the rules by op name.

A rule gets the `Lowering`, the operands as `LoweredTensor`s and the op's parameters, emits upstream
ops at the current insertion point, and returns a `LoweredTensor`. Rules register themselves with
`@lowers`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.attributes import array_of, elements_attr
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir, storage_type, to_mlir
from pyc_mlir.dialects.types import Shape, TensorType, is_unsigned, storage
from pyc_mlir.pipelines.linalg.base.dims import LoweredDim


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
    """Register the rule of one or more primitive ops."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"two rules for pyc.{name}"
            RULES[name] = rule
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
        self._maps: dict[tuple[int, tuple[Index, ...]], ir.Attribute] = {}
        self._iterators: dict[str, ir.Attribute] = {}
        self._loops: dict[tuple[Any, ...], dict[str, ir.Attribute]] = {}
        self._elements: dict[np.dtype, ir.Type] = {}
        self._types: dict[tuple[tuple[LoweredDim, ...], np.dtype], ir.Type] = {}
        self._segments: dict[tuple[int, ...], ir.Attribute] = {}
        self._forced: dict[LoweredTensor, ir.Value] = {}
        self._scalars: dict[tuple[bytes, ir.Type], ir.Value] = {}
        self._rank_0: dict[tuple[bytes, np.dtype], LoweredTensor] = {}
        self._empty: dict[tuple[tuple[LoweredDim, ...], np.dtype], LoweredTensor] = {}
        self.filled: dict[tuple[tuple[LoweredDim, ...], np.dtype, bytes], LoweredTensor] = {}
        self.checks = 0

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
        key = (array.tobytes(), dtype)
        if key not in self._rank_0:
            self._rank_0[key] = self.constant(array)
        return self._rank_0[key]

    def scalar(self, value: Any, dtype: np.dtype) -> ir.Value:
        """Return a scalar constant of an element type, made once, at the function's begin."""
        return self._constant(value, np.asarray(value, dtype).tobytes(), self.element(dtype))

    def number(self, value: int) -> ir.Value:
        """Return an index constant, made once, at the function's begin."""
        return self._constant(value, value.to_bytes(16, "little", signed=True), self.index)

    def _constant(self, value: Any, data: bytes, type_: ir.Type) -> ir.Value:
        key = (data, type_)
        if key not in self._scalars:
            with ir.InsertionPoint.at_block_begin(self.block):
                self._scalars[key] = constant_scalar(value, type_)
        return self._scalars[key]

    def arith(self, name: str, *operands: ir.Value) -> ir.Value:
        """Return one arith op on index values, e.g. ``arith("addi", a, b)``."""
        return ir.Operation.create(f"arith.{name}", results=[self.index], operands=operands).result

    # Types.

    def element(self, dtype: np.dtype) -> ir.Type:
        """Return the element type of values: integers have no sign."""
        if dtype not in self._elements:
            self._elements[dtype] = storage_type(dtype)
        return self._elements[dtype]

    def tensor_type(self, dims: Sequence[LoweredDim], dtype: np.dtype) -> ir.Type:
        """Return MLIR's tensor type."""
        key = (tuple(dims), dtype)
        if key not in self._types:
            shape = tuple(d.static for d in dims)
            self._types[key] = to_mlir(TensorType(shape, storage(dtype)))
        return self._types[key]

    # Attributes of structured ops.

    def segments(self, *counts: int) -> ir.Attribute:
        """``operandSegmentSizes``."""
        if counts not in self._segments:
            self._segments[counts] = ir.DenseI32ArrayAttr.get(list(counts))
        return self._segments[counts]

    def index_map(self, loops: int, indices: Sequence[Index]) -> ir.Attribute:
        """Return the affine map from loop numbers or affine expressions."""
        key = (loops, tuple(indices))
        if key not in self._maps:
            exprs = [ir.AffineDimExpr.get(i) if isinstance(i, int) else i for i in indices]
            self._maps[key] = ir.AffineMapAttr.get(ir.AffineMap.get(loops, 0, exprs))
        return self._maps[key]

    def loop_attributes(
        self, maps: Sequence[Sequence[Index]], iterators: Sequence[str]
    ) -> dict[str, ir.Attribute]:
        """Return the attributes of a linalg.generic: an index map an operand, each loop's kind."""
        key = (tuple(map(tuple, maps)), tuple(iterators))
        if key not in self._loops:
            count = len(iterators)
            self._loops[key] = {
                "indexing_maps": ir.ArrayAttr.get([self.index_map(count, m) for m in maps]),
                "iterator_types": ir.ArrayAttr.get([self.iterator(k) for k in iterators]),
            }
        return self._loops[key]

    def iterator(self, kind: str) -> ir.Attribute:
        """``#linalg.iterator_type<kind>``."""
        if kind not in self._iterators:
            self._iterators[kind] = ir.Attribute.parse(f"#linalg.iterator_type<{kind}>")
        return self._iterators[kind]

    # Sizes.

    def atom(self, value: ir.Value) -> LoweredDim:
        """Return the size that an index value holds."""
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
            for i, atom in enumerate(dim.atoms):
                first = i == 0 and dim.coefficient == 1
                value = self._atoms[atom] if first else self.arith("muli", value, self._atoms[atom])
            self._sizes[dim] = value
        return self._sizes[dim]

    def sizes(self, dims: Sequence[LoweredDim]) -> list[ir.Value]:
        """Return the dynamic ones of `dims` as index values."""
        return [self.size(d) for d in dims if d.static is None]

    def argument(self, value: ir.Value, type_: TensorType) -> LoweredTensor:
        """Return a tensor whose sizes are read from the value itself."""
        dims = [
            LoweredDim(d) if d is not None else self.atom(self._read_size(value, i))
            for i, d in enumerate(type_.shape)
        ]
        return LoweredTensor(type_.dtype, tuple(dims), value)

    def _read_size(self, value: ir.Value, axis: int) -> ir.Value:
        return ir.Operation.create(
            "tensor.dim", results=[self.index], operands=[value, self.number(axis)]
        ).result

    def require_equal(self, a: LoweredDim, b: LoweredDim, what: str) -> LoweredDim:
        """Return the size that both are, checked unless known: `a`, or a static `b`."""
        if a != b and (a, b) not in self._checked:
            self._checked |= {(a, b), (b, a)}
            self.check("eq", self.size(a), self.size(b), f"{what} must agree")
        return b if a.static is None and b.static is not None else a

    def check(self, predicate: str, lhs: ir.Value, rhs: ir.Value, message: str) -> None:
        """Emit a run-time assertion on two index values."""
        self.checks += 1
        holds = compare_index(predicate, lhs, rhs)
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
        type_ = self.tensor_type(dims, tensor.dtype)
        cast = ir.Operation.create("tensor.cast", results=[type_], operands=[self.value(tensor)])
        return LoweredTensor(tensor.dtype, tuple(dims), cast.result)

    def empty(self, dims: Sequence[LoweredDim], dtype: np.dtype) -> LoweredTensor:
        """Return an uninitialized tensor; equal ones are one."""
        key = (tuple(dims), dtype)
        if key not in self._empty:
            made = ir.Operation.create(
                "tensor.empty", results=[self.tensor_type(dims, dtype)], operands=self.sizes(dims)
            )
            self._empty[key] = LoweredTensor(dtype, tuple(dims), made.result)
        return self._empty[key]


_PREDICATES = {"eq": 0, "ne": 1, "slt": 2, "sle": 3, "sgt": 4, "sge": 5}


def compare_index(predicate: str, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """arith.cmpi on integers or indices."""
    i64 = ir.IntegerType.get_signless(64)
    attr = ir.IntegerAttr.get(i64, _PREDICATES[predicate])
    i1 = ir.IntegerType.get_signless(1)
    return ir.Operation.create(
        "arith.cmpi", results=[i1], operands=[lhs, rhs], attributes={"predicate": attr}
    ).result


def constant_scalar(value: Any, type_: ir.Type) -> ir.Value:
    """Return an arith.constant of a scalar type."""
    is_float = isinstance(type_, (ir.F64Type, ir.F32Type, ir.F16Type, ir.BF16Type))
    if is_float:
        attr = ir.FloatAttr.get(type_, float(value))
    else:
        # The bindings take integers as signed ones.
        width = type_.width if isinstance(type_, ir.IntegerType) else 64
        half = 1 << (width - 1)
        number = int(value)
        attr = ir.IntegerAttr.get(type_, number - 2 * half if number >= half > 1 else number)
    return ir.Operation.create("arith.constant", results=[type_], attributes={"value": attr}).result
