"""The base class of op definitions: one class states everything about an operation.

An `OpDef` subclass gives the equation (its docstring), operands, parameters, the rule for the
result type, a numpy reference, flop and byte counts and, for a composite op, its decomposition
into primitive ones. Verifier, builder, shape inference, documentation and tests are all derived
from these. What passes decide by are its traits, the kind of group that it starts and the cost
model's family: no pass keeps a list of ops. Nothing here needs the MLIR bindings.

    class Softmax(OpDef, name="softmax", operands="x"):
        '''out = exp(x - max(x)) / sum(exp(x - max(x))) along `axis`.'''

        axis: int = -1

        @staticmethod
        def infer(x, *, axis): ...
        @staticmethod
        def reference(x, *, axis): ...
        @staticmethod
        def decompose(b, x, *, axis): ..."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, ClassVar, get_type_hints

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.types import TensorType

REQUIRED = object()


class Trait(Flag):
    """Facts of an op; a class has those of its bases too."""

    # Each element is computed from the aligned elements of the operands, which broadcast.
    ELEMENTWISE = auto()
    # Each dimension of the result is the aligned one of an operand, counted from the last.
    ALIGNED = auto()
    # The elements of operand 0 in the same order, under another shape.
    VIEW = auto()
    # The elements of operand 0, repeated along dimensions.
    REPEATS = auto()
    # The elements of operand 0 in another order of dimensions.
    PERMUTES = auto()
    # The elements of operand 0 in another element type.
    CONVERTS = auto()
    # No element of an operand is read: sizes at most.
    CREATES = auto()
    # Each element is one of an operand, or follows from its index alone: code generation computes
    # it where it is read.
    INDEXED = auto()
    # The dimensions `axes` or `axis` of operand 0 are reduced, and left out unless `keepdims`.
    REDUCES = auto()
    # A window slides over the rows and columns of the images that are operand 0.
    WINDOW = auto()
    # The result may take the memory of an operand of the same size.
    OVERWRITES = auto()
    # Operands may be stored in any one order of dimensions; parameters are reordered with them.
    ANY_ORDER = auto()
    # The decomposition computes in the type that sums of the operands are kept in.
    WIDE = auto()
    # Real arithmetic on numbers: sums, products, quotients, powers, roots and conversions.
    ARITHMETIC = auto()
    # f(x, y) = f(y, x).
    COMMUTATIVE = auto()
    # f(f(x)) = f(x), or f(x, x) = x.
    IDEMPOTENT = auto()
    # f(f(x)) = x.
    INVOLUTION = auto()
    # f(-x) = -f(x).
    ODD = auto()
    # Compiled code agrees with the reference for finite operands alone: where it computes several
    # results together, NaN and infinities reach more of them.
    FINITE_OPERANDS = auto()


NO_TRAITS = Trait(0)


@dataclass(frozen=True)
class Param:
    """A compile-time parameter: its Python type decides the MLIR attribute that carries it.

    int -> i64, float -> f64, bool -> i1, str -> string, tuple[int, ...] -> array<i64>,
    tuple[float, ...] -> array<f64>, np.dtype -> type, np.ndarray -> elements.
    """

    name: str
    kind: Any
    default: Any

    @property
    def is_required(self) -> bool:
        """True when the parameter has no default."""
        return self.default is REQUIRED


class OpDef:
    """Base class of all op definitions; subclasses are never instantiated."""

    name: ClassVar[str]
    operands: ClassVar[tuple[str, ...]]
    optional: ClassVar[str | None]
    params: ClassVar[tuple[Param, ...]]
    family: ClassVar[str]
    traits: ClassVar[Trait] = NO_TRAITS
    # The kind of the fusion groups that start with the op; empty: none do, or as an elementwise op.
    anchor: ClassVar[str] = ""
    # The kernel family whose speed the cost model takes for groups that start with the op.
    cost_family: ClassVar[str] = "elementwise"

    def __init_subclass__(
        cls,
        *,
        name: str = "",
        operands: str = "",
        optional: str | None = None,
        traits: Trait = NO_TRAITS,
    ) -> None:
        cls.traits = cls.traits | traits
        if not name:
            return
        cls.name = name
        cls.operands = tuple(operands.split())
        cls.optional = optional
        cls.family = cls.__module__.rsplit(".", 1)[-1]
        hints = get_type_hints(cls)
        own = [n for n in hints if n not in OpDef.__annotations__]
        cls.params = tuple(Param(n, hints[n], cls.__dict__.get(n, REQUIRED)) for n in own)
        assert name not in OPS, f"pyc.{name} is defined twice"
        OPS[name] = cls

    # The rule for the result: (operand types..., **params) -> TensorType, or VerificationError.
    infer: ClassVar[Callable[..., TensorType]]
    # The oracle: (arrays..., **params) -> array.
    reference: ClassVar[Callable[..., np.ndarray]]
    # For composite ops: (builder, values..., **params) -> value; None for primitive ones.
    decompose: ClassVar[Callable[..., Any] | None] = None

    # Arithmetic operations for each element of the result, and of operand 0.
    flops_per_element: ClassVar[int] = 0
    flops_per_input: ClassVar[int] = 0

    @classmethod
    def has(cls, traits: Trait) -> bool:
        """Return whether the op has one of these traits."""
        return bool(cls.traits._value_ & traits._value_)  # `Flag.__and__` takes ten times as long

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Return the arithmetic operations of one execution. Static shapes only."""
        made = cls.flops_per_element * out.elements if cls.flops_per_element else 0
        return made + cls.flops_per_input * inputs[0].elements if cls.flops_per_input else made

    @classmethod
    def traffic(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Return the bytes that one execution reads and writes: each operand, the result once."""
        return sum(t.nbytes for t in inputs) + out.nbytes

    # The right operand that changes nothing, in every bit, by element type; None without one.
    neutral: ClassVar[Callable[[np.dtype], Any] | None] = None

    # What the reference takes for each element that it reads or writes, beside the flops.
    element_work: ClassVar[int] = 16

    @classmethod
    def evaluation_work(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Return about how long `evaluate` takes, in units of 0.1 ns. Static shapes only."""
        elements = sum(t.elements for t in inputs) + out.elements
        return cls.flops(inputs, out, **params) + cls.element_work * elements

    @classmethod
    def bind(cls, params: Mapping[str, Any]) -> dict[str, Any]:
        """Complete `params` with defaults. Raises VerificationError for missing or unknown ones."""
        bound = {p.name: params.get(p.name, p.default) for p in cls.params}
        if unknown := params.keys() - bound.keys():
            raise VerificationError(
                f"pyc.{cls.name}: expected parameters {sorted(bound)}, got {sorted(unknown)}"
            )
        for name, value in bound.items():
            if value is REQUIRED:
                raise VerificationError(f"pyc.{cls.name}: parameter `{name}` is missing")
        return bound

    @classmethod
    def check_arity(cls, count: int) -> None:
        """Raise VerificationError when `count` operands cannot be right."""
        least, most = len(cls.operands), len(cls.operands) + (cls.optional is not None)
        if not least <= count <= most:
            expected = str(least) if least == most else f"{least} or {most}"
            raise VerificationError(f"pyc.{cls.name}: expected {expected} operands, got {count}")


OPS: dict[str, type[OpDef]] = {}


def has(name: str, traits: Trait) -> bool:
    """Return whether `name` is an op with one of these traits."""
    return name in OPS and OPS[name].has(traits)


@np.errstate(all="ignore")
def evaluate(op: type[OpDef], arrays: Sequence[np.ndarray], **params: Any) -> np.ndarray:
    """Run the numpy reference of `op`; the result has exactly the inferred type's dtype.

    Raises VerificationError when the arrays do not fit the op.
    """
    found, dtype = unrounded(op, arrays, **params)
    return found.astype(dtype, copy=False)


@np.errstate(all="ignore")
def unrounded(
    op: type[OpDef], arrays: Sequence[np.ndarray], **params: Any
) -> tuple[np.ndarray, np.dtype]:
    """Return what the reference of `op` computes, which may be wider, and the result's dtype.

    Raises VerificationError when the arrays do not fit the op.
    """
    bound = op.bind(params)
    op.check_arity(len(arrays))
    expected = op.infer(*(TensorType(a.shape, a.dtype) for a in arrays), **bound)
    out = np.asarray(op.reference(*arrays, **bound))
    shape = [s if d is None else d for d, s in zip(expected.shape, out.shape, strict=True)]
    return out.reshape(shape), expected.dtype


# In units of `OpDef.evaluation_work`: some two seconds of numpy, thrice that for integer products.
MAX_FOLDED_WORK = 1 << 34


class FoldWork:
    """A budget of work on constants; `spent` is the work that was taken."""

    def __init__(self, most: int = MAX_FOLDED_WORK) -> None:
        self._most = most
        self.spent = 0

    def takes(
        self, op: type[OpDef], inputs: Sequence[TensorType], out: TensorType, **params: Any
    ) -> bool:
        """Return whether evaluating an op is within what is left; if so, take it from there.

        A result of dynamic shape takes nothing: only its operands decide how large it is.
        """
        work = op.evaluation_work(inputs, out, **params) if out.is_static else 0
        if self.spent + work > self._most:
            return False
        self.spent += work
        return True
