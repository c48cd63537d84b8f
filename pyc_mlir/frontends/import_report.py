"""How much of a model can be imported, and what breaks the graph: every break is told."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyc_mlir.dialects.errors import PycError, ReasonCode


@dataclass(frozen=True)
class Finding:
    """A graph break: one node that cannot be imported, and its place in the model, from 1."""

    node: str
    op: str
    code: ReasonCode
    why: str
    place: int | None = None

    def __str__(self) -> str:
        return f"{self.node} ({self.op}): {self.code.name}: {self.why}"


@dataclass(frozen=True)
class ImportReport:
    """What an import found: all nodes are compiled, or the model is refused as a whole.

    nodes: of the model, after its functions were inlined. untried: those that need the result of a
    break, of which nothing is known.
    """

    name: str
    nodes: int
    breaks: tuple[Finding, ...]
    untried: int = 0

    @property
    def score(self) -> float:
        """The share of nodes that can be imported, 0 to 1."""
        return (self.nodes - len(self.breaks) - self.untried) / max(self.nodes, 1)

    @property
    def by_op(self) -> Mapping[str, int]:
        """How many breaks each op makes, the most frequent first."""
        return dict(Counter(b.op for b in self.breaks).most_common())

    @property
    def first(self) -> str:
        """Where the first break is, as locations name it: ``model.onnx:3``."""
        place = self.breaks[0].place if self.breaks else None
        return self.name if place is None else f"{self.name}:{place}"

    def __str__(self) -> str:
        ops = ", ".join(f"{op} {count}" for op, count in self.by_op.items())
        fit = self.nodes - len(self.breaks) - self.untried
        untried = f", {self.untried} were not tried" if self.untried else ""
        return (
            f"{fit} of {self.nodes} nodes ({self.score:.0%}) can be imported{untried}; "
            f"breaks by op: {ops or 'none'}; the first at {self.first}"
        )


class UnsupportedModel(PycError):
    """A model with nodes that PyC cannot import: `report.breaks` has them all, in graph order.

    The code is theirs when they agree, else UNSUPPORTED_OP.
    """

    def __init__(
        self, name: str, findings: Sequence[Finding], nodes: int, untried: int = 0
    ) -> None:
        codes = {f.code for f in findings}
        code = codes.pop() if len(codes) == 1 else ReasonCode.UNSUPPORTED_OP
        self.report = ImportReport(name, nodes, tuple(findings), untried)
        lines = "".join(f"\n  {f}" for f in findings)
        count = f"{len(findings)} node{'s' if len(findings) > 1 else ''}"
        super().__init__(
            code, f"{name}: {count} cannot be imported:{lines}\n{self.report}\n{code.remedy}"
        )

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The breaks."""
        return self.report.breaks
