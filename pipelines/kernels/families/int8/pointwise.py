"""The kernel family ``int8_elementwise``: y = program(x, reads...) to or from quantized tensors.

What lies between quantized tensors and is no product: dequantization, residual additions,
quantization, also by a scale that is known at run time only. Bytes become f32 where they are
loaded, exactly; the program is the group's own, in f32; a result of bytes is rounded and cut as the
group says, four vectors at once (`narrow.py`).
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.elementwise import Elementwise
from pyc_mlir.pipelines.kernels.families.int8.narrow import BOUNDS, NARROW, Narrow
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import least
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, find, sources
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow, refuse_target
from pyc_mlir.pipelines.kernels.variants import UNROLLS, knob_space, parts_of
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import F32, Input, Work, WorkOp, nominal, sizes

_BYTES = tuple(BOUNDS)
_BOUNDS = {DTYPES[n]: n for n in BOUNDS}
# By op, the largest size of a result, from those of the operands.
_LARGEST: Mapping[str, Callable[..., float]] = {
    **dict.fromkeys(("add", "sub"), operator.add),
    **dict.fromkeys(("maximum", "minimum"), max),
    **dict.fromkeys(("neg", "abs"), lambda a: a),
    **dict.fromkeys(("erf", "tanh"), lambda a: 1.0),
    "mul": operator.mul,
    "round": lambda a: a + 1,
}
_HUGE = 1e38
_MOST_READ = 1 << 24  # numbers of a constant
_SIZES = {"f32": 4, "i8": 1, "ui8": 1}
# Whole numbers below it are exact in f32.
_EXACT = 1 << 24
# Shorter rows leave most of a vector empty.
_NARROW = 8
# Below it a dispatch costs more than its work.
_WORTH_NUMBERS = 1 << 10


@dataclass(frozen=True)
class ByteElementwise:
    """The knobs of y[rows, columns] = program(x[rows, columns], reads...).

    `dtypes` are those of x and the reads, f32 or bytes; one of them or the `result` is of bytes,
    made by `narrow`. A workgroup has `rows_part` rows of `columns_part` columns, `unroll` is how
    many vectors a block has.
    """

    rows: Dim
    columns: Dim
    program: Pointwise
    dtypes: tuple[str, ...]
    result: str = "f32"
    narrow: Narrow = NARROW
    rows_part: int = 1
    columns_part: int = 1 << 16
    unroll: int = 4

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        counts = (self.rows, self.columns, self.rows_part, self.columns_part, self.unroll)
        if any(isinstance(n, int) and n < 1 for n in counts) or self.columns_part % 16:
            raise no_kernel("int8_elementwise", "sizes of at least 1, parts in lines of 16", self)
        known = {*self.dtypes, self.result} <= {"f32", *_BYTES}
        if not known or len(self.dtypes) != 1 + len(self.program.reads):
            raise no_kernel("int8_elementwise", "x and each read of f32 or bytes", self.dtypes)
        if self.result in BOUNDS and self.narrow.dtype != self.result:
            raise no_kernel("int8_elementwise", f"a conversion to {self.result}", self.narrow)

    @staticmethod
    def on(
        target: Target, rows: Dim, columns: Dim, program: Pointwise, *others: Any
    ) -> "ByteElementwise":
        """Choose the knobs, those of `Elementwise`; `others` are the fields from `dtypes` on."""
        like = Elementwise.on(target, rows, columns, program)
        made = ByteElementwise(rows, columns, program, *others)
        return replace(made, rows_part=like.rows_part, columns_part=like.columns_part)

    @property
    def _plain(self) -> Elementwise:
        parts = (self.rows_part, self.columns_part)
        return Elementwise(self.rows, self.columns, self.program, *parts)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: x, the program's reads, y."""
        plain = self._plain.kernel(name)
        *inputs, y = plain.operands
        typed = [replace(o, dtype=d) for o, d in zip(inputs, self.dtypes, strict=True)]
        alike = tuple(
            (result, source)
            for result, source in plain.in_place
            if next(o.dtype for o in typed if o.name == source) == self.result
        )
        operands = (*typed, replace(y, dtype=self.result))
        return Kernel(name, operands, plain.grid, self._body, alike)

    def _body(self, k: Build, x: Memory, *others: Memory) -> None:
        *reads, y = others
        start, length = self._plain.share_of_columns(k, x.shape[1])
        held = InKernel(k, self.program, tuple(reads))
        first = k.workgroup(1) * self.rows_part
        with k.range(first, least(first + self.rows_part, x.shape[0])) as i:
            apply = held.row(i)

            @k.blocks(length, self.unroll)
            def _(places: Sequence[Lanes]) -> None:
                moved = [Lanes(start + at.start, at.mask) for at in places]
                values = [apply(x.load(i, at), at) for at in moved]
                if self.result == "f32":
                    for value, at in zip(values, moved, strict=True):
                        y.store(value, i, at)
                else:
                    mask = moved[0].mask
                    self.narrow.store(k, y, values, (i,), moved[0].start, mask=mask)


refusal = refuse_target


def cost(knobs: ByteElementwise, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read and write of each number, by its type."""
    rows, columns = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.columns))
    each = _SIZES[knobs.dtypes[0]] + _SIZES[knobs.result]
    traffic = each * rows * columns + knobs.program.read_bytes(rows, columns)
    flops = (knobs.program.flops + 1) * rows * columns
    return CostModel(target).kernel("elementwise", flops, traffic)


@dataclass(frozen=True)
class InFloats:
    """A group whose bytes are taken for f32: its ops, the types of its inputs and of its result."""

    work: Work
    dtypes: Mapping[int, str]
    result: str


def in_floats(work: Work) -> InFloats | None:
    """Return a group on bytes and f32 as one on f32 alone; None where that is not the same.

    Casts of bytes to integers and f32 are left out, and so is the last one, to bytes. What is added
    to bytes as integers is added to f32: all are whole numbers below 2^24. Casts of whole
    numbers to bytes in between are the bounds of bytes.
    """
    names = {DTYPES[n]: n for n in ("f32", *_BYTES)}
    last = work.nodes[-1]
    dtypes = {v: names[i.type.dtype] for v, i in enumerate(work.inputs) if i.type.dtype in names}
    result = names.get(last.type.dtype, "")
    narrow = result in BOUNDS and last.name == "cast"
    if not result or (result in BOUNDS and not narrow):
        return None
    floats = _Floats(work)
    dtypes |= dict.fromkeys(floats.bounds.values(), "f32")
    whole = [n for n in work.nodes if not (narrow and n is last)]
    made = last.operands[0] if narrow else work.number_of(len(work.nodes) - 1)
    if not all(floats.take(work.number_of(i), n) for i, n in enumerate(whole)) or not floats.nodes:
        return None
    if floats.values.get(made) != len(floats.inputs) + len(floats.nodes) - 1:
        return None
    return InFloats(Work(tuple(floats.inputs), tuple(floats.nodes), work.readers), dtypes, result)


def _divided(least: float, size: float, _: float) -> float:
    return size / least


def _largest(source: Input) -> float:
    if source.array is None:
        return 255.0 if source.type.dtype in _BOUNDS else math.inf
    return source.magnitude if (sizes(source.type.shape) or 0) <= _MOST_READ else math.inf


def _least(source: Input) -> float:
    return float(np.abs(source.array()).min(initial=math.inf)) if source.array is not None else 0.0


def _is_whole(source: Input) -> bool:
    numbers = source.array() if source.array is not None else np.array(0.5)
    return bool((np.rint(numbers) == numbers).all())


class _Floats:
    """A group on f32 under construction: `values` are those of the first one, by their numbers.

    `whole` are values that hold whole numbers, `finite` those without infinities and NaN, both with
    the largest size; `rounded` are values of f32 that hold whole numbers of any size. `bounds` are
    the inputs that hold the bounds of bytes, where there are casts to bytes before the last op.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.nodes: list[WorkOp] = []
        self.inputs = [replace(i, type=TensorType(i.type.shape, F32)) for i in work.inputs]
        self.bounds: dict[float, int] = {}
        if any(n.name == "cast" and n.type.dtype in _BOUNDS for n in work.nodes[:-1]):
            for bound in sorted({b for pair in BOUNDS.values() for b in pair}):
                self.bounds[bound] = len(self.inputs)
                array = partial(np.full, (), bound, np.float32)
                self.inputs.append(Input(TensorType((), F32), array))
        self.rounded: set[int] = set()
        sizes = ((v, _largest(i)) for v, i in enumerate(work.inputs) if self.bounds)
        self.finite = {v: size for v, size in sizes if size < _HUGE}
        bytes_ = [DTYPES[n] for n in _BYTES]
        given = enumerate(i.type.dtype for i in work.inputs)
        self.values = {v: v for v, d in given if d == F32 or d in bytes_}
        self.whole = {
            v: 255.0
            for v, i in enumerate(work.inputs)
            if i.type.dtype in bytes_ and not work.is_constant(v)
        }

    def take(self, number: int, node: WorkOp) -> bool:
        """Add the op that makes a value; False for one that f32 does not compute alike."""
        if not node.operands:
            return False
        x = node.operands[0]
        if node.name == "cast" and node.type.dtype in _BOUNDS:
            return self._bound(number, node, x)
        if node.name == "cast" and x in self.whole:
            self.finite[number] = self.whole[x]
            if node.type.dtype == DTYPES["i32"]:
                self.whole[number] = self.whole[x]
            elif node.type.dtype != F32:
                return False
            self.values[number] = self.values[x]
            return True
        if node.type.dtype != F32 and not self._shift(number, node):
            return False
        if any(v not in self.values for v in node.operands):
            return False
        self.values[number] = self._add(node, [self.values[v] for v in node.operands])
        self._know(number, node)
        return True

    def _add(self, node: WorkOp, operands: Sequence[int]) -> int:
        type_ = TensorType(node.type.shape, F32)
        self.nodes.append(replace(node, operands=tuple(operands), type=type_))
        return len(self.inputs) + len(self.nodes) - 1

    def _know(self, number: int, node: WorkOp) -> None:
        """Note whether a result is finite, and whether it is of whole numbers."""
        if not self.bounds:
            return
        x, *others = node.operands
        constants = [self.work.inputs[v] for v in others if self.work.is_constant(v)]
        known = len(constants) == len(others)
        rule = _LARGEST.get(node.name)
        if node.name == "div" and known and (least := _least(constants[0])):
            rule = partial(_divided, least)
        if rule is not None and self.finite.keys() >= set(node.operands):
            size = rule(*(self.finite[v] for v in node.operands))
            if size < _HUGE:
                self.finite[number] = size
        shifted = node.name == "add" and x in self.rounded and known
        if node.name == "round" or (shifted and all(_is_whole(c) for c in constants)):
            self.rounded.add(number)

    def _bound(self, number: int, node: WorkOp, x: int) -> bool:
        """Take a cast of whole numbers to bytes as the bounds of these; NaN is 0."""
        if x not in self.rounded:
            return False
        low, high = (self.bounds[b] for b in BOUNDS[_BOUNDS[node.type.dtype]])
        own = self.values[x]
        held = self._add(replace(node, name="maximum", params={}), [own, low])
        held = self._add(replace(node, name="minimum", params={}), [held, high])
        if x not in self.finite:
            equal = replace(node, name="compare", params={"predicate": "eq"})
            sound = self._add(equal, [own, own])
            held = self._add(
                replace(node, name="select", params={}), [sound, held, self.bounds[0.0]]
            )
        self.values[number] = held
        self.whole[number] = self.finite[number] = 255.0
        return True

    def _shift(self, number: int, node: WorkOp) -> bool:
        """Take a constant that is added to whole numbers, or taken from them, as one of f32."""
        if node.name not in ("add", "sub") or node.type.dtype != DTYPES["i32"]:
            return False
        x, other = node.operands
        if x not in self.whole or not self.work.is_constant(other):
            return False
        source = self.work.inputs[other]
        self.whole[number] = self.whole[x] + source.magnitude
        read = source.array
        if self.whole[number] >= _EXACT or read is None:
            return False
        kind = TensorType(source.type.shape, F32)
        self.inputs[other] = Input(kind, lambda: read().astype(np.float32), source.maker)
        self.values[other] = other
        return True


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for a whole group of elementwise ops that reads or makes bytes."""
    floats = None if refuse_narrow(target) else in_floats(work)
    if floats is None:
        return []
    shape, end = work.nodes[-1].type.shape, len(floats.work.nodes)
    if 0 in shape:
        return []
    for own in sources(floats.work, 0, end):
        for cut in range(max(1, len(shape))):
            view = MatrixView(shape, cut)
            narrow = view.rows != 1 and (view.columns or _NARROW) < _NARROW
            found = None if narrow else find(floats.work, 0, end, own, view)
            if found is None:
                continue
            feeds = (Feed(own, (cut,)), *found.feeds)
            if all(f.value in floats.dtypes for f in feeds):
                return _offers(work, target, floats, view, found.program, feeds)
    return []


def _offers(
    work: Work,
    target: Target,
    floats: InFloats,
    view: MatrixView,
    program: Pointwise,
    feeds: tuple[Feed, ...],
) -> list[KernelOffer]:
    """Return the offer for a program; none where no memory is of bytes."""
    dtypes, result = tuple(floats.dtypes[f.value] for f in feeds), floats.result
    if not {*dtypes, result} & BOUNDS.keys():
        return []
    narrow = NARROW
    if result in BOUNDS:
        program, narrow = Narrow.of(program, result)
        narrow = replace(narrow, finite=False)
    knobs = ByteElementwise.on(
        target, view.rows or "m", view.columns or "n", program, dtypes, result, narrow
    )
    taken = {"m": nominal(view.shape[: view.cut]), "n": nominal(view.shape[view.cut :])}
    worth = (sizes(view.shape) or 0) >= _WORTH_NUMBERS
    return [KernelOffer(knobs, len(work.nodes), feeds, cost(knobs, target, taken), worth)]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary parts of workgroups and vectors of a block."""
    knobs: ByteElementwise = offer.knobs
    rows = knobs.rows if isinstance(knobs.rows, int) else None
    return knob_space(
        knobs,
        {
            "rows_part": (1, 4, 16, 64) if rows is None else parts_of(target, rows),
            "unroll": UNROLLS,
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("int8_elementwise", ByteElementwise, refusal, cost, match, space)
