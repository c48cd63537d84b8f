"""Fold the scales of output channels into the weights of convolutions.

``conv(x, w) * s + t = conv(x, w * s) + t`` for s and t that are constant and vary along the output
channels at most: a batch norm of inference behind a convolution, once `pyc-decompose` has written
it as a product and a sum, or written so by the model itself. Sums before the product go into t. The
products are rounded before the sum in place of after it, within the tolerance of a sum of so many
terms, so each fold is a choice. f32 and f64 only: the weights of 16-bit floats are rounded far more
coarsely than their sums. Jacob et al., 2018, section 3.2.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder, create
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.interpreter import flush_subnormals
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.driver.base import PassContext, Relation
from pyc_mlir.pipelines.pyc.rewriting import (
    Exact,
    Exacts,
    carry_marks,
    constant_array,
    functions_of,
    is_unused,
    made_by,
    only_user,
    params_of,
    replace,
)
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.work import nominal

FOLD, KEEP = "fold", "keep"


@dataclass(frozen=True)
class FoldNorms:
    """Fold constant scales of output channels into the weights of convolutions."""

    name: ClassVar[str] = "pyc-fold-norms"

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Choose for every convolution with such a scale behind it."""
        count = 0
        seen: Counter[str] = Counter()
        for function in functions_of(module):
            block = function.regions[0].blocks[0]
            ops = [op.operation for op in block.operations]
            found = [f for op in ops if op.name == "pyc.conv2d" and (f := _fold(op)) is not None]
            ids = OpIds(function, seen) if found else None
            chosen = [fold for fold in found if ids and _is_chosen(fold, ids, context)]
            for fold in chosen:
                _apply(fold)
            count += len(chosen)
        return {"folded": count}


@dataclass(frozen=True)
class Fold:
    """A convolution, the ops behind it that become one sum, the new weights and the summand.

    steps: the ops by name, with their constants, as `_composed` takes them.
    """

    conv: ir.Operation
    ops: tuple[ir.Operation, ...]
    steps: tuple[tuple[str, np.ndarray], ...]
    weights: np.ndarray
    shift: np.ndarray

    @property
    def sums(self) -> bool:
        """True if a sum is left."""
        return any(op.name in ("pyc.add", "pyc.sub") for op in self.ops)


@np.errstate(all="ignore")
def _fold(conv: ir.Operation) -> Fold | None:
    """Return the part to fold into a convolution; None for nothing, or where it is inexact."""
    weights, out = constant_array(conv.operands[1]), from_mlir(conv.result.type)
    if weights is None or not is_float(out.dtype) or out.dtype.itemsize < 4:
        return None
    axis = 1 if params_of(OPS["conv2d"], conv)["layout"] == "NCHW" else 3
    filters = weights.shape[0 if axis == 1 else 3]
    scale, shift = np.ones(filters), np.zeros(filters)
    ops: list[ir.Operation] = []
    steps: list[tuple[str, np.ndarray]] = []
    value = conv.result
    while (op := only_user(value)) is not None and (given := _operand(op, value, axis)):
        name, vector = given
        scale, shift = _composed(name, scale, shift, vector)
        ops.append(op)
        steps.append(given)
        value = op.result
    if all(op.name in ("pyc.add", "pyc.sub") for op in ops):
        return None
    wide = flush_subnormals(weights) * (scale.reshape(-1, 1, 1, 1) if axis == 1 else scale)
    new, offset = wide.astype(out.dtype), shift.astype(out.dtype)
    lost = (np.abs(new) < np.finfo(out.dtype).tiny) & (wide != 0)
    if lost.any() or not (np.isfinite(new).all() and np.isfinite(offset).all()):
        return None
    offset = offset.reshape((-1, 1, 1) if axis == 1 else (-1,))
    return Fold(conv, tuple(ops), tuple(steps), new, offset)


def _operand(op: ir.Operation, x: ir.Value, axis: int) -> tuple[str, np.ndarray] | None:
    """Return the constant operand of an affine op on x as a vector along `axis` (or one element).

    The name is the op's, with an r in front where x is the right operand of a difference.
    """
    name = op.name.removeprefix("pyc.")
    if name not in ("add", "sub", "mul", "div") or op.result.type != x.type:
        return None
    on_the_right = op.operands[1] == x
    array = constant_array(op.operands[0 if on_the_right else 1])
    if array is None or (name == "div" and on_the_right):
        return None
    shape = (1,) * (4 - array.ndim) + array.shape
    if any(size != 1 for d, size in enumerate(shape) if d != axis):
        return None
    return ("r" if name == "sub" and on_the_right else "") + name, array.reshape(-1).astype(float)


def _composed(
    name: str, scale: np.ndarray, shift: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``scale * x + shift`` followed by one op with the constant c."""
    return {
        "add": lambda: (scale, shift + c),
        "sub": lambda: (scale, shift - c),
        "rsub": lambda: (-scale, c - shift),
        "mul": lambda: (scale * c, shift * c),
        "div": lambda: (scale / c, shift / c),
    }[name]()


def _is_chosen(fold: Fold, ids: OpIds, context: PassContext) -> bool:
    """Return the gain: ops behind a convolution cost arithmetic only, in its epilogue."""
    elements = nominal(from_mlir(fold.conv.result.type).shape)
    model = CostModel(context.target, context.calibration)
    cost = partial(model.kernel, "elementwise", traffic_bytes=0)
    names = "+".join(op.name.removeprefix("pyc.") for op in fold.ops)
    offers = [
        Alternative(FOLD, cost(flops=elements * fold.sums), "products are rounded before the sum"),
        Alternative(KEEP, cost(flops=elements * len(fold.ops)), f"{names} behind the convolution"),
    ]
    conv = fold.conv
    site = Site(FoldNorms.name, ids[conv], str(conv.location), ids.by_type[conv])
    return context.choices.choose(site, offers).name == FOLD


def _apply(fold: Fold) -> None:
    conv, last, builder = fold.conv, fold.ops[-1], IRBuilder()
    definition, out = OPS["conv2d"], from_mlir(conv.result.type)
    params: dict[str, Any] = params_of(definition, conv)
    with ir.InsertionPoint(conv), conv.location:
        weights = builder.constant(fold.weights)
        made = create(definition, [conv.operands[0], weights], params, out)
    carry_marks(conv, made.owner.operation)
    rounded = [weights]
    if fold.sums:
        with ir.InsertionPoint(last), last.location:
            rounded.append(builder.constant(fold.shift))
            made = builder.add(made, rounded[-1])
    old = [conv.operands[1], *(v for op in fold.ops for v in op.operands)]
    makers = dict.fromkeys(m for v in old if (m := made_by(v, "constant")) is not None)
    replace(last, made, Relation.ROUNDED, FoldNorms.name, lambda: _exact_constants(fold, rounded))
    for op in (*fold.ops[-2::-1], conv):
        op.erase()
    for maker in filter(is_unused, makers):
        maker.erase()


def _exact_constants(fold: Fold, rounded: Sequence[ir.Value]) -> Exacts:
    """Return the new weights and the summand exactly: the same steps on fractions."""
    old = constant_array(fold.conv.operands[1])
    assert old is not None, "_fold takes convolutions with constant weights"
    by_rows = fold.shift.ndim == 3
    filters = old.shape[0 if by_rows else 3]
    scale, shift = (np.array([Fraction(n)] * filters) for n in (1, 0))
    for name, vector in fold.steps:
        exact = np.array([Fraction(x) for x in vector.tolist()])
        scale, shift = _composed(name, scale, shift, exact)
    ones = np.ones((filters, 1, 1) if by_rows else (filters,), old.dtype)
    shapes = ((-1, 1, 1, 1), (-1, 1, 1)) if by_rows else ((-1,), (-1,))
    given = (Exact(old, scale.reshape(shapes[0])), Exact(ones, shift.reshape(shapes[1])))
    return dict(zip(rounded, given, strict=False))
