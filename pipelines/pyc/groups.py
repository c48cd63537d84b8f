"""Groups of pyc ops as `Work`, and the attribute by which a kernel is attached to one.

``pyc.kernel = {family = "rows", knobs = "Rows(...)", covers = 1, feeds = ["0|1", "1|"]}``: the
knobs as text (`kernels/knobs.py`), how many of the group's ops the kernel computes, and for each of
its inputs the value and the cuts of its dimensions (`kernels/match.py`). A lone op counts as a
group of one.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.pipelines.kernels.lang.attributes import ATTRIBUTE
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.pyc.rewriting import (
    defining_op,
    definition_of,
    functions_of,
    made_by,
    params_of,
)
from pyc_mlir.pipelines.target.cost_model import totals
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp


@dataclass(frozen=True)
class Members:
    """The ops of a group in order, the values from outside that they read, and the group."""

    ops: tuple[ir.Operation, ...]
    inputs: tuple[ir.Value, ...]
    whole: ir.Operation

    @staticmethod
    def of(op: ir.Operation) -> "Members | None":
        """Return those of a group or a lone op; None where an op of another dialect is inside."""
        ops = (op,)
        if op.name == "pyc.group":
            ops = tuple(o.operation for o in op.regions[0].blocks[0].operations)[:-1]
        if any(definition_of(o) is None or o.name == "pyc.constant" for o in ops):
            return None
        made = {o.result for o in ops}
        read = dict.fromkeys(v for o in ops for v in o.operands if v not in made)
        return Members(ops, tuple(read), op)

    @staticmethod
    def within(function: ir.Operation) -> "Iterator[Members]":
        """Yield those of the groups and lone pyc ops of a function's block, in order."""
        for op in [o.operation for o in function.regions[0].blocks[0].operations]:
            members = Members.of(op) if op.name.startswith("pyc.") else None
            if members is not None:
                yield members

    def work(self) -> Work:
        """Return the group as data."""
        numbers = {v: i for i, v in enumerate((*self.inputs, *(o.result for o in self.ops)))}
        nodes = []
        for op in self.ops:
            definition = definition_of(op)
            assert definition is not None
            operands = tuple(numbers[v] for v in op.operands)
            params = params_of(definition, op)
            nodes.append(WorkOp(definition.name, operands, params, from_mlir(op.result.type)))
        inputs = []
        for value in self.inputs:
            maker, constant = defining_op(value), made_by(value, "constant")
            array = None if constant is None else partial(array_of, constant.attributes["value"])
            inputs.append(Input(from_mlir(value.type), array, _name(maker) if maker else ""))
        readers = (_name(use.owner.operation) for use in self.whole.result.uses)
        return Work(tuple(inputs), tuple(nodes), tuple(readers))


def _name(op: ir.Operation) -> str:
    """Return a pyc op's name without the dialect; "" for others."""
    return op.name[4:] if op.name.startswith("pyc.") else ""


@dataclass(frozen=True)
class AttachedKernel:
    """A kernel on a group: what the attribute says."""

    family: str
    knobs: str
    covers: int
    feeds: tuple[Feed, ...]

    def attach(self, op: ir.Operation) -> None:
        """Put the kernel on a group or a lone op."""
        i64 = ir.IntegerType.get_signless(64, op.context)
        feeds = [f"{f.value}|{','.join(map(str, f.cuts))}" for f in self.feeds]
        op.attributes[ATTRIBUTE] = ir.DictAttr.get(
            {
                "family": ir.StringAttr.get(self.family, op.context),
                "knobs": ir.StringAttr.get(self.knobs, op.context),
                "covers": ir.IntegerAttr.get(i64, self.covers),
                "feeds": ir.ArrayAttr.get(
                    [ir.StringAttr.get(f, op.context) for f in feeds], op.context
                ),
            },
            op.context,
        )

    @staticmethod
    def read(op: ir.Operation) -> "AttachedKernel | None":
        """Return the kernel on an op. Raises PycError (INVALID_IR) for a malformed attribute."""
        if ATTRIBUTE not in op.attributes:
            return None
        try:
            data = ir.DictAttr(op.attributes[ATTRIBUTE])
            feeds = []
            for text in ir.ArrayAttr(data["feeds"]):
                value, _, cuts = ir.StringAttr(text).value.partition("|")
                feeds.append(Feed(int(value), tuple(map(int, cuts.split(","))) if cuts else ()))
            return AttachedKernel(
                ir.StringAttr(data["family"]).value,
                ir.StringAttr(data["knobs"]).value,
                ir.IntegerAttr(data["covers"]).value,
                tuple(feeds),
            )
        except (KeyError, ValueError) as error:
            raise PycError(
                ReasonCode.INVALID_IR,
                f"{op.location}: expected {ATTRIBUTE} with family, knobs, covers and feeds, "
                f"got {op.attributes[ATTRIBUTE]} ({error})",
            ) from None


@dataclass(frozen=True)
class KernelCoverage:
    """How much of a program's arithmetic is done by kernels of some families.

    kernels: their number; flops: their operations, of `of` in all, both with nominal sizes.
    """

    kernels: int = 0
    flops: int = 0
    of: int = 0

    def __str__(self) -> str:
        return f"{100 * self.flops / max(1, self.of):.1f} % of the arithmetic"


def coverage(module: ir.Module, families: Collection[str]) -> KernelCoverage:
    """Count the groups with an attached kernel of a family."""
    kernels, flops, of = 0, 0, 0
    for function in functions_of(module):
        for members in Members.within(function):
            work, attached = members.work(), AttachedKernel.read(members.whole)
            of += totals(work)[0]
            if attached is not None and attached.family in families:
                kernels += 1
                flops += totals(replace(work, nodes=work.nodes[: attached.covers]))[0]
    return KernelCoverage(kernels, flops, of)
