"""The base of ATen handlers, their table by overload, and torch's element types as numpy's.

    @aten("elu.default")
    def elu(b: Any, x: Any, *, alpha: float = 1, scale: float = 1) -> Any:
        '''out = scale * x where x > 0, else scale * alpha * (e^x - 1).'''

A handler's parameters are the operator's arguments: the positional ones by their place in its
schema, those after `*` by name, with a default where the call gives none. Tensors come as values of
the builder, anything else as it is, and must be known at import. Operands of `promoted` handlers,
numbers among them, come in the element type of the result. The first parameter is the call `n`, or
its builder where it is named `b`.

A handler returns its node's output, or a tuple of outputs (None for one that it does not compute).
It raises `unsupported(why)` for a form that PyC cannot express. What has a handler is kept whole;
what has none is decomposed by torch before the import (export.py).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize

_BY_NAME = {**{d.name: d for d in DTYPES.values()}, "bool": DTYPES["i1"]}
HANDLERS: dict[str, Callable[["AtenCall"], Any]] = {}
# The operators that draw random numbers, from the seed of a call.
RANDOM: set[str] = set()
Enter = Callable[[Callable[..., Any]], Callable[..., Any]]


def aten(*overloads: str) -> Enter:
    """Enter a handler under overloads of the namespace `aten`: ``aten("add.Tensor")``."""
    return operators(*(f"aten.{overload}" for overload in overloads))


def promoted(*overloads: str, meaning: str = "") -> Enter:
    """Enter a handler under overloads of `aten`; its operands have the result's element type."""
    targets = (f"aten.{overload}" for overload in overloads)
    return operators(*targets, promotes=True, meaning=meaning)


def operators(*targets: str, promotes: bool = False, meaning: str = "") -> Enter:
    """Enter a handler under overloads of any namespace: ``operators("mylib.add.default")``.

    meaning: what the documents say of it, in place of the handler's docstring.
    """

    def enter(handler: Callable[..., Any]) -> Callable[..., Any]:
        bound = _bound(handler, promotes)
        bound.__doc__ = meaning or handler.__doc__
        for name in targets:
            assert name not in HANDLERS, name
            HANDLERS[name] = bound
        return handler

    return enter


def draws(*targets: str) -> Enter:
    """Enter a handler of operators that draw random numbers: ``draws("aten.rand.default")``."""
    RANDOM.update(targets)
    return operators(*targets)


def _bound(handler: Callable[..., Any], promotes: bool) -> Callable[["AtenCall"], Any]:
    first, *parameters = inspect.signature(handler).parameters.values()
    operands = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    named = {p.name: _default(p) for p in parameters if p.kind is p.KEYWORD_ONLY}

    @wraps(handler)
    def run(n: "AtenCall") -> Any:
        dtype = n.dtype if promotes else None
        places = zip(operands, n.arguments, strict=False)
        given = [n.operand(name, _default(p), dtype) for p, name in places]
        keywords = {name: n.static(name, default) for name, default in named.items()}
        return handler(n.b if first.name == "b" else n, *given, **keywords)

    return run


def _default(parameter: inspect.Parameter) -> Any:
    return None if parameter.default is parameter.empty else parameter.default


@dataclass(frozen=True)
class Draw:
    """The seed among a node's operands, and the node's number among those that draw."""

    seed: "Ref"
    number: int


@dataclass(frozen=True)
class Ref:
    """A tensor among a node's arguments: its number among the operands."""

    index: int


@dataclass(frozen=True)
class AtenCall:
    """One call of an ATen operator, its tensors as values of the builder `b`.

    op, overload: the operator's name: ``add``, ``Tensor``.
    arguments: by the schema's names, in its order; tensors are `Ref`, sizes `SymbolicSize`.
    metas: torch's own description of each argument, by name.
    results: torch's description of each result; used: the numbers of those that somebody reads.
    operands: the tensors; lift: makes one a value of `b`.
    """

    op: str
    overload: str
    arguments: Mapping[str, Any]
    metas: Mapping[str, Any]
    results: Sequence[Any]
    used: frozenset[int]
    operands: Sequence[Any]
    draw: Draw | None
    dims_of: Callable[[Any], tuple[Extent, ...]]
    b: Any
    lift: Callable[[int], Any]

    def wants(self, *indices: int) -> bool:
        """Return True when somebody reads one of these results."""
        return any(i in self.used for i in indices)

    @property
    def dtype(self) -> np.dtype:
        """The element type of the (first) result."""
        return pyc_dtype(self.results[0].dtype)

    @property
    def out_dims(self) -> tuple[Extent, ...]:
        """The sizes of the (first) result."""
        return self.dims_of(self.results[0].shape)

    def has(self, name: str) -> bool:
        """Return True when an argument is given and not None."""
        return self.arguments.get(name) is not None

    def seed(self) -> tuple[Any, int]:
        """Return the seed of the program's call, and the number of this node among those that draw.

        Raises PycError (UNSUPPORTED_ATTRIBUTE) in an exported program, which has no seed.
        """
        if self.draw is None:
            raise unsupported(
                "random numbers: expected a model without, since nothing gives an exported program "
                'a seed; call `.eval()` before the export, or `torch.compile(model, backend="pyc")`'
            )
        return self.lift(self.draw.seed.index), self.draw.number

    def arg(self, name: str, default: Any = None) -> Any:
        """Return an argument that is no tensor, and may depend on dynamic dimensions."""
        value = self.arguments.get(name)
        return default if value is None else value

    def static(self, name: str, default: Any = None) -> Any:
        """Return an argument as `arg` does, which must not depend on a dynamic dimension."""
        value = self.arg(name, default)
        entries = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(e, (SymbolicSize, Ref)) for e in entries):
            raise unsupported(f"`{name}` is computed when the program runs: expected a constant")
        return value

    def operand(self, name: str, default: Any = None, dtype: np.dtype | None = None) -> Any:
        """Return a parameter of a handler: tensors as values, also in lists, else as `static`.

        In the element type `dtype` if one is given, numbers too.
        """
        value = self.arguments[name]
        if isinstance(value, list) and any(isinstance(v, Ref) for v in value):
            return self.xs(name, dtype)
        if isinstance(value, Ref) or (dtype is not None and value is not None):
            return self.x(name, dtype)
        return self.static(name, default)

    def x(self, name: str, dtype: np.dtype | None = None) -> Any:
        """Return a tensor or number as a builder's value, in the element type `dtype` if given."""
        value = self.arguments[name]
        if isinstance(value, Ref):
            out = self.lift(value.index)
        elif isinstance(value, SymbolicSize):
            out = self.b.extent(value)
        else:
            kind = self.dtype if dtype is None else dtype
            return self.b.constant(np.array(value).astype(kind))
        return out if dtype is None else self.b.convert(out, dtype)

    def known(self, name: str) -> np.ndarray | None:
        """Return a tensor argument that is known at import, else None."""
        value = self.arguments.get(name)
        found = self.operands[value.index] if isinstance(value, Ref) else None
        return found if isinstance(found, np.ndarray) else None

    def xs(self, name: str, dtype: np.dtype | None = None) -> list[Any]:
        """Return a list of tensors; None for those that are left out."""
        values = [None if r is None else self.lift(r.index) for r in self.arguments[name]]
        if dtype is None:
            return values
        return [None if v is None else self.b.convert(v, dtype) for v in values]

    def _first(self) -> Any:
        return self.x(next(iter(self.arguments)))

    def type(self, name: str = "") -> TensorType:
        """Return the type of a tensor argument, by default the first."""
        return self.b.type_of(self.x(name) if name else self._first())

    def rank(self, name: str = "") -> int:
        """Return the number of dimensions of a tensor argument, by default the first."""
        return self.type(name).rank

    def dims(self, name: str = "") -> tuple[Extent, ...]:
        """Return a tensor argument's sizes: ints, and `SymbolicSize` for dynamic dimensions."""
        return self.b.dims(self.x(name) if name else self._first())

    def axis(self, name: str = "dim", default: int | None = None) -> int:
        """Return an axis of the first argument, counted from 0."""
        return int(self.static(name, default)) % max(self.rank(), 1)

    def axes(self, name: str = "dim") -> tuple[int, ...]:
        """Return axes of the first argument counted from 0; all if none are named."""
        rank = self.rank()
        given = self.static(name)
        if given is None or given == []:
            return tuple(range(rank))
        listed = given if isinstance(given, (list, tuple)) else [given]
        return tuple(sorted({int(a) % max(rank, 1) for a in listed})) if rank else ()

    def common_dtype(self, *names: str) -> np.dtype:
        """Return the element type that torch promotes the arguments to (`torch.result_type`)."""
        from torch._prims_common import (  # pyright: ignore[reportMissingImports]
            ELEMENTWISE_TYPE_PROMOTION_KIND,
            elementwise_dtypes,
        )

        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        metas = [self.metas[name] for name in names]
        return pyc_dtype(elementwise_dtypes(*metas, type_promotion_kind=kind)[1])


def static_size(b: Any, x: Any, axis: int, what: str) -> int:
    """Return the size of an axis. Raises unsupported for a dynamic one: `what` it is."""
    size = b.type_of(x).shape[axis]
    if size is None:
        raise unsupported(f"{what}: expected a static one")
    return size


def static_sizes(b: Any, x: Any, axes: slice, what: str) -> tuple[int, ...]:
    """Return the sizes of some axes. Raises unsupported if one is dynamic: `what` they are."""
    sizes = b.type_of(x).shape[axes]
    if None in sizes:
        raise unsupported(f"{what}: expected static ones")
    return sizes


def pyc_dtype(dtype: Any) -> np.dtype:
    """Return the numpy dtype of a ``torch.dtype``. Raises PycError (UNSUPPORTED_DTYPE)."""
    found = _BY_NAME.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise unsupported(
            f"element type {dtype}: expected one of {', '.join(DTYPES)}",
            ReasonCode.UNSUPPORTED_DTYPE,
        )
    return found


def numpy_view(tensor: Any) -> np.ndarray:
    """View a dense CPU tensor as an array over the same memory; copy those of other devices.

    Raises PycError (UNSUPPORTED_DTYPE) for types that PyC lacks, and for quantized and sparse
    tensors.
    """
    import torch  # pyright: ignore[reportMissingImports]

    if tensor.layout != torch.strided or tensor.is_quantized:
        raise unsupported(
            f"a {tensor.layout} tensor: expected a dense one; call `.to_dense()`",
            ReasonCode.UNSUPPORTED_DTYPE,
        )
    dtype = pyc_dtype(tensor.dtype)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    if dtype == DTYPES["bf16"]:
        return plain.view(torch.int16).numpy().view(dtype)
    return plain.numpy()
