"""A policy that draws: any legal alternative, the same for the same seed, site and names."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pyc_mlir.pipelines.choices.choices import Alternative, Site


@dataclass(frozen=True)
class Dice:
    """Draws an alternative for each site by a hash of seed, site and the alternatives' names."""

    seed: int
    planner_modes: tuple[str, ...] = ("latency_first", "balanced", "memory_first")

    @property
    def name(self) -> str:
        """The policy's name in logs."""
        return f"dice-{self.seed}"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the name of the alternative that is drawn."""
        names = sorted(a.name for a in alternatives)
        text = f"{self.seed} {site.key} {names}".encode()
        return names[int.from_bytes(hashlib.sha256(text).digest()[:8]) % len(names)]
