"""The predicted seconds of a call on one core: the groups of a module, one after the other.

Comes in: a module whose kernels are chosen, at known sizes. Each kernel is priced by its family, by
the knobs that it has; what no kernel computes is priced as IREE's code.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.opdef import Trait, has
from pyc_mlir.pipelines.kernels.knobs import decode
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.pyc.groups import AttachedKernel, Members
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work


def predicted_seconds(
    module: ir.Module, target: Target, measured: Mapping[str, float] | None = None
) -> tuple[float, float]:
    """Return the seconds of all groups in turn, each a dispatch, on one core of the target.

    measured: seconds of groups by their canonical ids, which the model does not answer for. The
    second number are those among the first that were measured.
    """
    core = replace(target, cores=1, peak_flops=target.peak_flops / target.cores)
    rows = measured or {}
    modelled, known, seen = [], [], Counter[str]()
    for function in functions_of(module):
        ids = OpIds(function, seen) if rows else None
        for op in (o.operation for o in function.regions[0].blocks[0].operations):
            members = Members.of(op) if op.name.startswith("pyc.") else None
            if members is None:
                continue
            row = None if ids is None else rows.get(ids[op])
            if row is None:
                modelled.append(_seconds(members, core))
            else:
                known.append(row)
    return math.fsum((*modelled, *known)), math.fsum(known)


def _seconds(members: Members, core: Target) -> float:
    """Return a group's seconds: its kernel, and IREE's code for the rest, each a dispatch."""
    work, attached = members.work(), AttachedKernel.read(members.whole)
    model = CostModel(core)
    if all(has(node.name, Trait.VIEW) for node in work.nodes):
        return 0.0
    if attached is None:
        return model.dispatch_seconds + model.work(work).seconds
    own = _kernel_seconds(attached, work, core) + model.dispatch_seconds
    if attached.covers == len(work.nodes):
        return own
    return own + model.work(work, attached.covers).seconds + model.dispatch_seconds


def _kernel_seconds(attached: AttachedKernel, work: Work, core: Target) -> float:
    """Return the seconds of a kernel; for one of any size, those of the likest of this size."""
    family = FAMILIES[attached.family]
    knobs = decode(family.knobs, attached.knobs)
    if not knobs.kernel("k").sizes:
        return family.cost(knobs, core, {}).seconds
    offers = [o for o in family.match(work, core) if o.covers == attached.covers]
    likest = max(offers, key=lambda o: _alike(o.knobs, knobs), default=None)
    first = replace(work, nodes=work.nodes[: attached.covers])
    return CostModel(core).work(first).seconds if likest is None else likest.cost.seconds


def _alike(one: Any, other: Any) -> int:
    """Count the knobs that two kernels share."""
    return sum(getattr(one, f.name) == getattr(other, f.name, None) for f in fields(one))
