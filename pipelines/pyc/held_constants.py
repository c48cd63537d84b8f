"""The constants that the ways to compute a group read, in the forms in which they lie in memory.

A form is a constant in one layout: ``constant.3f9a`` as the model has it, ``constant.3f9a 81c0`` as
a kernel packs it. Readers of one form share its memory.
"""

import hashlib
from collections.abc import Mapping, Sequence
from math import prod

from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.pipelines.kernels.lang.carrier import Operand
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.pyc.groups import Members
from pyc_mlir.pipelines.pyc.rewriting import defining_op
from pyc_mlir.pipelines.target.work import Work

_BYTES = {"f32": 4, "i8": 1, "i32": 4, "i64": 8}
# Of each constant among a group's inputs, by the input's number: its id, and bytes in the model.
Constants = Mapping[int, tuple[str, int]]
# Bytes by form.
Forms = Mapping[str, int]


def constants_of(members: Members, work: Work, ids: OpIds) -> Constants:
    """Return the constants among a group's inputs: their ids without repetition, and bytes."""
    found = {}
    for number, value in enumerate(members.inputs):
        maker = defining_op(value)
        if maker is not None and maker.name == "pyc.constant":
            found[number] = (ids[maker].partition("#")[0], work.inputs[number].type.nbytes)
    return found


def forms_of_model(constants: Constants, values: Sequence[int]) -> Forms:
    """Return the constants among `values` as the model has them."""
    return {constants[v][0]: constants[v][1] for v in values if v in constants}


def forms_of_kernel(offer: KernelOffer, constants: Constants, work: Work) -> Forms:
    """Return the forms that a kernel reads, and the code for the ops that it leaves."""
    if not constants:
        return {}
    found: dict[str, int] = {}
    packed = set()
    for operand, feed in zip(offer.knobs.kernel("k").inputs, offer.feeds, strict=True):
        if operand.layout is not None and feed.value in constants:
            packed.add(feed.value)
            found[f"{constants[feed.value][0]} {_digest(repr(operand.layout))}"] = size_of(operand)
    later = {v for node in work.nodes[offer.covers :] for v in node.operands}
    fed = {feed.value for feed in offer.feeds} - packed
    return {**found, **forms_of_model(constants, sorted(fed | later))}


def constant_of(form: str) -> str:
    """Return the id of the constant that a form is of."""
    return form.partition(" ")[0]


def size_of(operand: Operand) -> int:
    """Return the bytes of a kernel's operand; dynamic sizes are none here."""
    return prod(d for d in operand.shape if isinstance(d, int)) * _BYTES[operand.dtype]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
