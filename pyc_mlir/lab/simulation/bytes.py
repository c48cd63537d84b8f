"""Bytes of a program under another memory plan, from the sizes that its compile recorded.

    transients' = transients + (bytes of the other plan - bytes of the plan that was chosen)

A log states for each plan of a region what that region allocates under it, carried out on the IR.
The equation is exact where one region decides, which `bytes_of` checks:

- the recipe changes memory plans alone: another kernel may write in place where this one does not,
  so the region would have another problem;
- all sizes are known, and the call has one region;
- a call of the arena entry still needs no more than one of the plain entry, or a compile would
  leave the arena entry out.

Elsewhere the bytes of the program as it is are given, and `exact` is False.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyc_mlir.lab.simulation.program import PricedProgram, PricedSite

AS_COMPILED = "as the compile states it"


@dataclass(frozen=True)
class Bytes:
    """A program's memory in all; whether that is exact, and why."""

    total: int | None
    exact: bool
    why: str


def bytes_of(program: PricedProgram, changed: Mapping[str, str]) -> Bytes:
    """Return the bytes under a recipe; `changed` has its choices that are not the program's."""
    total = program.account.total()
    if total is None:
        return Bytes(None, False, "no memory plan, or sizes that depend on the call")
    plans = {one.site.key: one for one in program.plans}
    others = [key for key in changed if key not in plans]
    if others:
        return Bytes(total, False, f"of the program as it is: {others[0]} changes what is planned")
    if not changed:
        return Bytes(total, True, AS_COMPILED)
    entry = [one for one in program.plans if one.site.key in program.entry]
    if len(entry) != 1:
        return Bytes(total, False, "of the program as it is: a call has not one region")
    (region,) = entry
    transients = program.account.scratch or 0
    more = _chosen(region, changed) - region.costs[region.chosen].workspace_bytes
    if transients + more < 0 or not transients:
        return Bytes(total, False, "of the program as it is: the call's peak lies elsewhere")
    if not _keeps_entry(program, region, changed, transients + more):
        why = "of the program as it is: the plain entry would need less than the arena entry"
        return Bytes(total, False, why)
    return Bytes(total + more, True, "sizes of the recorded plans")


def _keeps_entry(
    program: PricedProgram, region: PricedSite, changed: Mapping[str, str], transients: int
) -> bool:
    """Return whether a call of the entry needs at most what one of the plain entry does."""
    plain = [one for one in program.plans if one is not region]
    outputs = program.account.outputs or 0
    return all(transients + outputs <= _chosen(one, changed) for one in plain)


def _chosen(region: PricedSite, changed: Mapping[str, str]) -> int:
    """Return bytes that a region allocates under the recipe's plan."""
    return region.costs[changed.get(region.site.key, region.chosen)].workspace_bytes
