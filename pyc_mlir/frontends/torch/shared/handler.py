"""The base of ATen handlers, and their table by overload.

    @aten("relu.default")
    def relu(n: Node) -> Any:
        '''out = max(x, 0).'''
        return n.b.relu(n.x("self"))

A handler returns its node's output, or a tuple of outputs (None for one that it does not compute).
It raises `unsupported(why)` for a form that PyC cannot express. What has a handler is kept whole;
what has none is decomposed by torch before the import (decompose.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.importing.builders import GraphBuilder
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.torch.shared.dtypes import pyc_dtype

Handler = Callable[["AtenCall"], Any]
HANDLERS: dict[str, Handler] = {}
# The operators that draw random numbers, from the seed of a call.
RANDOM: set[str] = set()


def aten(*overloads: str) -> Callable[[Handler], Handler]:
    """Enter a handler under overloads of the namespace `aten`: ``aten("add.Tensor")``."""
    return operators(*(f"aten.{overload}" for overload in overloads))


def operators(*targets: str) -> Callable[[Handler], Handler]:
    """Enter a handler under overloads of any namespace: ``operators("mylib.add.default")``."""

    def enter(handler: Handler) -> Handler:
        for name in targets:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return enter


def draws(*targets: str) -> Callable[[Handler], Handler]:
    """Enter a handler of operators that draw random numbers: ``draws("aten.rand.default")``."""
    RANDOM.update(targets)
    return operators(*targets)


@dataclass(frozen=True)
class Draw:
    """The seed among a node's operands, and the node's number among those that draw."""

    seed: "Ref"
    number: int


@dataclass(frozen=True)
class Ref:
    """A tensor among a node's arguments: its number among the operands."""

    index: int


class AtenCall:
    """One call of an ATen operator, its tensors as values of the builder `b`.

    op: the operator's name without the overload, ``add``.
    arguments: by the schema's names; tensors are `Ref`, symbolic sizes `SymbolicSize`.
    metas: torch's own description of each argument, by name.
    results: torch's description of each result.
    used: the numbers of the results that somebody reads.
    """

    def __init__(
        self,
        target: str,
        arguments: Mapping[str, Any],
        metas: Mapping[str, Any],
        results: Sequence[Any],
        builder: Any,
        operands: Sequence[Any],
        lift: Callable[[int], Any],
        dims_of: Callable[[Any], tuple[Extent, ...]],
        used: frozenset[int] = frozenset({0}),
        draw: Draw | None = None,
    ) -> None:
        _, self.op, self.overload = target.split(".")
        self.arguments = arguments
        self.metas = metas
        self.results = results
        self.b = builder
        self.operands = operands
        self._lift = lift
        self.dims_of = dims_of
        self._used = used
        self._draw = draw

    @property
    def emits(self) -> bool:
        """True when ops are emitted, False when the result is computed now."""
        return isinstance(self.b, GraphBuilder)

    def wants(self, *indices: int) -> bool:
        """Return True when somebody reads one of these results."""
        return any(i in self._used for i in indices)

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
        if self._draw is None:
            raise unsupported(
                "random numbers: expected a model without, since nothing gives an exported program "
                'a seed; call `.eval()` before the export, or `torch.compile(model, backend="pyc")`'
            )
        return self._lift(self._draw.seed.index), self._draw.number

    def arg(self, name: str, default: Any = None) -> Any:
        """Return an argument that is no tensor: a number, a list of sizes, a flag."""
        value = self.arguments.get(name)
        return default if value is None else value

    def static(self, name: str, default: Any = None) -> Any:
        """Return an argument as `arg` does, which must not depend on a dynamic dimension."""
        value = self.arg(name, default)
        entries = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(e, (SymbolicSize, Ref)) for e in entries):
            raise unsupported(f"`{name}` is computed when the program runs: expected a constant")
        return value

    def ints(self, name: str, default: Any = None) -> tuple[int, ...]:
        """Return a list of static integers."""
        return tuple(int(v) for v in self.static(name, default) or ())

    def x(self, name: str = "self", dtype: np.dtype | None = None) -> Any:
        """Return a tensor or number as a builder's value, in the element type `dtype` if given."""
        value = self.arguments[name]
        if isinstance(value, Ref):
            out = self._lift(value.index)
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
        values = [None if r is None else self._lift(r.index) for r in self.arguments[name]]
        if dtype is None:
            return values
        return [None if v is None else self.b.convert(v, dtype) for v in values]

    def type(self, name: str = "self") -> TensorType:
        """Return the type of a tensor argument."""
        return self.b.type_of(self.x(name))

    def rank(self, name: str = "self") -> int:
        """Return the number of dimensions of a tensor argument."""
        return self.type(name).rank

    def dims(self, name: str = "self") -> tuple[Extent, ...]:
        """Return a tensor argument's sizes: ints, and `SymbolicSize` for dynamic dimensions."""
        return self.b.dims(self.x(name))

    def axis(self, name: str = "dim", default: int | None = None, extra: int = 0) -> int:
        """Return an axis of `self` counted from 0; `extra` for one of a result of higher rank."""
        rank = max(self.rank() + extra, 1)
        return int(self.static(name, default)) % rank

    def axes(self, name: str = "dim") -> tuple[int, ...]:
        """Return axes of `self` counted from 0; all if none are named."""
        rank = self.rank()
        given = self.static(name)
        if given is None or given == []:
            return tuple(range(rank))
        listed = given if isinstance(given, (list, tuple)) else [given]
        return tuple(sorted({int(a) % max(rank, 1) for a in listed})) if rank else ()

    def common(self, *names: str) -> list[Any]:
        """Return arguments in the element type that torch promotes them to."""
        dtype = self.common_dtype(*names)
        return [self.x(name, dtype) for name in names]

    def common_dtype(self, *names: str) -> np.dtype:
        """Return the element type that torch promotes the arguments to (`torch.result_type`)."""
        from torch._prims_common import (  # pyright: ignore[reportMissingImports]
            ELEMENTWISE_TYPE_PROMOTION_KIND,
            elementwise_dtypes,
        )

        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        metas = [self.metas[name] for name in names]
        return pyc_dtype(elementwise_dtypes(*metas, type_promotion_kind=kind)[1])
