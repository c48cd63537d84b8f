"""An estimate beside that of the program as it is, as text: what changes, and on what grounds."""

from collections.abc import Iterator

from pyc_mlir.lab.simulation.estimate import Estimate, SiteEstimate
from pyc_mlir.util.units import quantity

_SHORT = 48


def comparison(estimate: Estimate, before: Estimate) -> str:
    """Return the estimate of a recipe beside that of the program as it is."""
    return "".join((*_head(estimate, before), *_sites(estimate), *_notes(estimate)))


def _head(estimate: Estimate, before: Estimate) -> Iterator[str]:
    for name, one in (("as compiled", before), ("recipe", estimate)):
        held = "unknown" if one.bytes is None else quantity(one.bytes, "B")
        exact = "exact" if one.exact else "not exact"
        yield (
            f"{name:12} {quantity(one.seconds, 's'):>9} ({quantity(one.lo, 's')} to "
            f"{quantity(one.hi, 's')})  {held}, {exact}: {one.why_bytes}\n"
        )
    ratio = estimate.seconds / before.seconds if before.seconds else 1.0
    width = estimate.width
    grounds = (
        f"covers {estimate.coverage:.0%} by {width.rows} programs measured here"
        if width.calibrated
        else f"not calibrated: {width.rows} programs measured here are too few"
    )
    yield f"ratio        {ratio:9.3f}  interval {grounds}\n"
    yield (
        f"rests on     {quantity(estimate.measured, 's')} measured, "
        f"{quantity(estimate.predicted, 's')} predicted, {quantity(estimate.overhead, 's')} of "
        f"the call; {len(estimate.unknown)} works without a row of here\n"
    )


def _sites(estimate: Estimate) -> Iterator[str]:
    """Yield the sites that differ, the largest difference first; how many others there are."""
    differ = [s for s in estimate.sites if s.price != s.before]
    for site in sorted(differ, key=lambda s: (-abs(s.difference), s.site)):
        yield _line(site)
    yield f"{len(estimate.sites) - len(differ)} of {len(estimate.sites)} kernels are the same\n"


def _line(site: SiteEstimate) -> str:
    sign = "+" if site.difference >= 0 else "-"
    return (
        f"  {site.site[:_SHORT]:{_SHORT}} {site.choice}: {quantity(site.before.seconds, 's')} "
        f"{site.before.grounds} -> {quantity(site.price.seconds, 's')} {site.price.grounds} "
        f"({sign}{quantity(abs(site.difference), 's')}; {site.price.why})\n"
    )


def _notes(estimate: Estimate) -> Iterator[str]:
    return (f"not priced: {note}\n" for note in estimate.notes)
