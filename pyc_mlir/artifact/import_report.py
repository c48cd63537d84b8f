"""The import report: how much of a program can be compiled, and every break of its graph.

Every import has an `ImportReport`: of one that succeeds it stands in the artifact, of one that is
refused in the error (`UnsupportedModel.report`). Needs no compiler: a deployment reads it too.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.dialects.errors import PycError, ReasonCode

NODES, OPS = "nodes", "ops"
# The attribute of a function that is an island, with the op of the node that it stands for.
ISLAND = "pyc.island"


@dataclass(frozen=True)
class GraphBreak:
    """A graph break: one node that cannot be imported, and its place in the model, from 1.

    family: the kind of op that it is, as its front end groups them: ``rnn``, ``numpy``.
    line: of the user's code that made it, ``model.py:12``; empty where none is known.
    """

    node: str
    op: str
    code: ReasonCode
    why: str
    place: int | None = None
    family: str = "other"
    line: str = ""

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        return f"{self.node} ({self.op}){at}: {self.code.name}: {self.why}"


@dataclass(frozen=True)
class ImportReport:
    """The findings of an import. A program is compiled as a whole, or refused if it has a break.

    total: counted are the ``ops`` of a program, constants aside, or the ``nodes`` of an ONNX model
        that is refused, after its functions were inlined. Of a Python function that is refused,
        those up to the break.
    name: what is refused, as locations name it; empty for what was imported, since artifacts
        carry no paths.
    untried: those that need the result of a break, of which nothing is known; None where not even
        their number is: nothing is recorded of a Python function after its first break.
    foreign: ops that IREE compiles and PyC knows nothing about.
    unraised: the ops because of which a foreign program was not raised to pyc ops.
    islands: nodes that torch-mlir lowered for IREE, since PyC has no rule for them: breaks of the
        graph, between which it compiles. They are counted in `foreign` too.
    clamped: ops of a source in which an index out of range is an error, and whose indices the
        program computes: no guard sees them, and they are clamped.
    flops: of all of them, and `lost_flops` of breaks and what was not tried; None where a shape is
        dynamic or an op's work is not known.
    """

    complete: ClassVar[bool] = True
    total: int = 0
    counted: str = OPS
    name: str = ""
    breaks: tuple[GraphBreak, ...] = ()
    untried: int | None = 0
    foreign: int = 0
    flops: int | None = None
    lost_flops: int | None = 0
    unraised: tuple[GraphBreak, ...] = ()
    islands: tuple[GraphBreak, ...] = ()
    clamped: int = 0

    @property
    def score(self) -> float | None:
        """The share that can be compiled in one graph, 0 to 1; None where the total is not known.

        A break counts against it, and so does an island.
        """
        if self.untried is None:
            return None
        broken = len(self.breaks) + len(self.islands)
        return _share(self.total - broken - self.untried, self.total)

    @property
    def flop_score(self) -> float | None:
        """The share of the flops that can be compiled; None where they are not known."""
        if self.flops is None or self.lost_flops is None:
            return None
        return _share(self.flops - self.lost_flops, self.flops)

    @property
    def own(self) -> int:
        """How many PyC itself compiles."""
        return self.total - len(self.breaks) - self.foreign - (self.untried or 0)

    @property
    def where(self) -> Mapping[str, int | None]:
        """How many PyC compiles, IREE alone compiles, are refused, and were not tried."""
        refused = len(self.breaks)
        return {"pyc": self.own, "iree": self.foreign, "refused": refused, "untried": self.untried}

    @property
    def by_op(self) -> Mapping[str, int]:
        """How many breaks each op makes, the most frequent first."""
        return dict(Counter(b.op for b in self.breaks).most_common())

    @property
    def by_family(self) -> Mapping[str, int]:
        """How many breaks each family of ops makes, the most frequent first."""
        return dict(Counter(b.family for b in self.breaks).most_common())

    @property
    def first(self) -> str:
        """The location of the first break: ``model.onnx:3``, ``model.py:12``."""
        place = self.breaks[0].place if self.breaks else None
        if self.breaks and self.breaks[0].line:
            return self.breaks[0].line
        return self.name if place is None else f"{self.name}:{place}"

    def __str__(self) -> str:
        return self._refused() if self.breaks else self._whole()

    def _whole(self) -> str:
        work = "" if self.flops is None else f", {self.flops:,} flops"
        where = f"{self.foreign} left to IREE" if self.foreign else "all of it by PyC"
        if self.unraised:
            first = self.unraised[0]
            where += f", since {len(self.unraised)} could not be raised to pyc, the first {first}"
        if self.islands:
            ops = Counter(i.op for i in self.islands).most_common()
            listed = ", ".join(f"{op} {count}" for op, count in ops)
            breaks = f"{len(self.islands)} graph break{'s' if len(self.islands) > 1 else ''}"
            where += f"; {breaks} by islands ({listed}): score {self.score:.0%}"
        if self.clamped:
            where += f"; computed indices of {self.clamped} are clamped where they are out of range"
        return f"{self.total} of {self.total} {self.counted} (100%) can be compiled{work}: {where}"

    def _refused(self) -> str:
        if self.score is None:
            head = f"{self.own} {self.counted} recorded before the break"
        else:
            untried = f", {self.untried} were not tried" if self.untried else ""
            flops = self.flop_score
            work = "" if flops is None else f", {flops:.0%} of the flops"
            share = f"{self.score:.0%}{work}"
            head = f"{self.own} of {self.total} {self.counted} ({share}) can be imported{untried}"
        families = "; ".join(f"{f} {n} ({self._ops_of(f)})" for f, n in self.by_family.items())
        return f"{head}; breaks by family: {families}; the first at {self.first}"

    def _ops_of(self, family: str) -> str:
        counts = Counter(b.op for b in self.breaks if b.family == family)
        return ", ".join(f"{op} {count}" for op, count in counts.most_common())

    def __post_init__(self) -> None:
        """Raise ValueError for counts that no import has."""
        optional = (self.untried, self.flops, self.lost_flops)
        counts = [self.total, self.foreign, self.clamped, *(c for c in optional if c is not None)]
        if (
            self.counted not in (NODES, OPS)
            or min(self.own, *counts) < 0
            or len(self.islands) > self.foreign
            or (self.flops is not None and self.flops < (self.lost_flops or 0))
        ):
            raise ValueError(f"expected counts that agree, got {self!r:.200}")


def _share(part: int, whole: int) -> float:
    """Return part / whole; 1 of nothing, since all of it can be compiled."""
    return part / whole if whole else 1.0


class UnsupportedModel(PycError):
    """A program with ops that PyC cannot import: `report.breaks` has them all, in graph order.

    Of a Python function it has the first. The code is theirs when they agree, else UNSUPPORTED_OP;
    the message lists them, if no other one is given.
    """

    def __init__(self, report: ImportReport, message: str = "") -> None:
        codes = {f.code for f in report.breaks}
        code = codes.pop() if len(codes) == 1 else ReasonCode.UNSUPPORTED_OP
        self.report = report
        super().__init__(code, message or _listed(report, code))

    @property
    def findings(self) -> tuple[GraphBreak, ...]:
        """The breaks."""
        return self.report.breaks


def _listed(report: ImportReport, code: ReasonCode) -> str:
    lines = "".join(f"\n  {f}" for f in report.breaks)
    count = f"{len(report.breaks)} node{'s' if len(report.breaks) > 1 else ''}"
    return f"{report.name}: {count} cannot be imported:{lines}\n{report}\n{code.value.remedy}"
