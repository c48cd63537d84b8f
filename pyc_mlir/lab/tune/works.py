"""The kernels' works of a program: what can be chosen for each, as a space, and their shares.

Comes in: a `Job`. The front end and the passes on pyc ops run once; nothing is compiled. Goes out:
frozen `TunedWork`s, each with one space over all of its alternatives and their knobs. `with_known`
adds what a database knows, `allot` shares evaluations among them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from math import log2, sqrt

import numpy as np

from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import optimized
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.exchange import measured
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.identity import WORK, works_of
from pyc_mlir.lab.evidence.rows import MEASURED, Graph, Implementation
from pyc_mlir.measure.environment import Environments
from pyc_mlir.pipelines.choices.space import Config, Knob, KnobSpace, split_variant, variant_name
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT

ALTERNATIVE = "alternative"
# By how much of its time a choice may be improved, as a share, while nothing was measured: the
# quickest of the legal knob sets of 12 kernels took 0.4 to 0.93 of the default's time, the quickest
# of the alternatives without knobs 0.6 to 1.
WITH_KNOBS, WITHOUT_KNOBS = 0.5, 0.2
# Evaluations are handed out in blocks: a search of one or two has no significance.
BLOCK = 8
# Combinations that are listed one by one to find the legal ones.
_LISTED = 1 << 12
# Choices of a neighbour that are tried first.
_NEIGHBOURS = 8
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class SiteAlternative:
    """One alternative of a choice, and the space of its knobs, whose default the name means."""

    name: str
    space: KnobSpace | None = None

    @property
    def default(self) -> Config:
        """The knobs that the name means; none without a space."""
        return () if self.space is None else self.space.default

    def choice(self, knobs: Config) -> str:
        """Return the choice's name with these knobs."""
        return self.name if self.space is None else variant_name(self.name, self.space.label(knobs))

    def knobs(self, label: str) -> Config | None:
        """Return the knobs of a variant's label; None if there is no such variant here."""
        if self.space is None:
            return None if label else ()
        try:
            return self.space.labelled(label)
        except PycError:
            return None


@dataclass(frozen=True)
class ChoiceSpace(KnobSpace):
    """All choices of one site: its alternatives, and for each of them its own knobs.

    The axes are the alternative and every knob of every alternative; knobs of the others stand at
    their defaults. A step changes one knob of the alternative, or takes another one's default.
    """

    alternatives: tuple[SiteAlternative, ...] = ()

    @staticmethod
    def of(alternatives: Sequence[SiteAlternative]) -> "ChoiceSpace":
        """Return the space of these alternatives, the first one's default being the incumbent."""
        axes = [Knob(ALTERNATIVE, tuple(alternative.name for alternative in alternatives))]
        for alternative in alternatives:
            axes += (Knob(f"{alternative.name}.{a.name}", a.values) for a in _axes(alternative))
        made = ChoiceSpace(tuple(axes), alternatives=tuple(alternatives))
        object.__setattr__(made, "is_legal", made._holds)
        return made

    def place(self, config: Config) -> tuple[SiteAlternative, Config]:
        """Return the alternative of a configuration, and that of its own knobs."""
        return self.alternatives[config[0]], config[self._slices[config[0]]]

    def at(self, alternative: int, knobs: Config) -> Config:
        """Return the configuration of an alternative with these knobs."""
        parts = [w.default if n != alternative else knobs for n, w in enumerate(self.alternatives)]
        return (alternative, *(index for part in parts for index in part))

    @property
    def defaults(self) -> tuple[Config, ...]:
        """Each alternative with the knobs that its name means, in order."""
        return tuple(
            self.at(n, alternative.default) for n, alternative in enumerate(self.alternatives)
        )

    @cached_property
    def size(self) -> int:
        """An upper bound on the number of choices: the product of knobs, over alternatives."""
        return sum(
            1 if alternative.space is None else alternative.space.combinations
            for alternative in self.alternatives
        )

    def sample(self, rng: np.random.Generator) -> Config:
        """Draw a random choice: of few any one, of many an alternative first and then its knobs."""
        if self._listed is not None:
            return self._listed[int(rng.integers(len(self._listed)))]
        number = int(np.searchsorted(self._shares, rng.random()))
        space = self.alternatives[number].space
        return self.at(number, () if space is None else space.sample(rng))

    def neighbours(self, config: Config) -> Iterator[Config]:
        """Yield the choices with one knob changed, or another alternative at its default."""
        alternative, knobs = self.place(config)
        yield from (c for n, c in enumerate(self.defaults) if n != config[0])
        if alternative.space is not None:
            yield from (self.at(config[0], other) for other in alternative.space.neighbours(knobs))

    def every(self) -> Iterator[Config]:
        """Yield all legal choices, an alternative after the other, its default first."""
        for number, alternative in enumerate(self.alternatives):
            yield self.at(number, alternative.default)
            for knobs in product(*(range(len(axis.values)) for axis in _axes(alternative))):
                if (
                    knobs != alternative.default
                    and alternative.space is not None
                    and alternative.space.is_legal(knobs)
                ):
                    yield self.at(number, knobs)

    @cached_property
    def _listed(self) -> list[Config] | None:
        return list(self.every()) if self.size <= _LISTED else None

    @cached_property
    def _shares(self) -> np.ndarray:
        """Ends of the alternatives' shares of (0, 1).

        By the logarithms of their sizes: beside one of millions a small one would not be drawn.
        """
        sizes = [1 if w.space is None else w.space.combinations for w in self.alternatives]
        ends = np.cumsum([1 + log2(size) for size in sizes])
        return ends / ends[-1]

    @cached_property
    def _slices(self) -> list[slice]:
        ends = np.cumsum([1, *(len(_axes(alternative)) for alternative in self.alternatives)])
        return [slice(int(a), int(b)) for a, b in pairwise(ends)]

    def _holds(self, config: Config) -> bool:
        alternative, knobs = self.place(config)
        legal = alternative.space is None or alternative.space.is_legal(knobs)
        return legal and self.at(config[0], knobs) == config


def _axes(alternative: SiteAlternative) -> tuple[Knob, ...]:
    return () if alternative.space is None else alternative.space.axes


@dataclass(frozen=True, eq=False)
class TunedWork:
    """A choice to tune: one kernel's work, at all sites of the program that have it.

    graph: the work's row. pass_name: whose choice. sites: the keys of the program's sites.
    incumbent: the choice that is to be beaten. seconds: predicted of one call of one site.
    uncertainty: by how much of that a choice may improve, as a share (`WITH_KNOBS`).
    known: choices that are tried first: of wisdom, of neighbours.
    """

    graph: Graph
    pass_name: str
    space: ChoiceSpace
    sites: tuple[str, ...]
    incumbent: str
    seconds: float
    uncertainty: float
    known: tuple[str, ...] = ()

    def choice(self, config: Config) -> str:
        """Return the name of a configuration, as recipes and wisdom have it."""
        alternative, knobs = self.space.place(config)
        return alternative.choice(knobs)

    def config(self, choice: str) -> Config | None:
        """Return the configuration that a choice names; None if this space lacks it."""
        name, label = split_variant(choice)
        for number, alternative in enumerate(self.space.alternatives):
            if alternative.name == name:
                knobs = alternative.knobs(label)
                return None if knobs is None else self.space.at(number, knobs)
        return None

    @property
    def first(self) -> tuple[Config, ...]:
        """The choices that a search begins with: the incumbent, what is known elsewhere, every
        alternative.
        """
        named = (self.config(choice) for choice in (self.incumbent, *self.known))
        found = (*(c for c in named if c is not None), *self.space.defaults)
        return tuple(dict.fromkeys(found))

    @property
    def all_seconds(self) -> float:
        """Predicted seconds of a call of the program at all of its sites."""
        return len(self.sites) * self.seconds

    @property
    def weight(self) -> float:
        """Seconds of a call of the program that tuning may save: what it gets evaluations by."""
        return self.all_seconds * self.uncertainty

    @property
    def names(self) -> tuple[str, ...]:
        """The alternatives, each with the knobs that its name means."""
        return tuple(alternative.name for alternative in self.space.alternatives)

    @property
    def ops(self) -> str:
        """Its ops and the type of its result, for people."""
        lines = [line.partition(") ")[2] for line in self.graph.text.splitlines()[1:]]
        made = [line for line in lines if not line.startswith(("input ", "constant ", "read by"))]
        names = "+".join(line.split("{")[0].split(" ")[0] for line in made)
        return f"{names} -> {made[-1].rpartition(' : ')[2] if made else '?'}"


def allot(works: Sequence[TunedWork], evaluations: int) -> list[int]:
    """Allot evaluations to each work, `evaluations` in all at most, by highest averages of the
    weights.

    A work gets blocks of `BLOCK`, and no more evaluations than it has choices; a work with one
    choice gets none.
    """
    given = [0] * len(works)
    most = [0 if work.space.size < 2 else work.space.size for work in works]
    left = evaluations
    while left > 0:
        open_ = [n for n in range(len(works)) if given[n] < most[n]]
        if not open_:
            break
        best = max(open_, key=lambda n: (works[n].weight / (given[n] // BLOCK + 1), -n))
        block = min(BLOCK, left, most[best] - given[best])
        given[best] += block
        left -= block
    return given


def kernel_works(job: Job, required: bool = False) -> tuple[TunedWork, ...]:
    """Return the works of a program's kernels, in order; none of a program that enters at IREE.

    Sites of one work are one. Raises PycError as a compile does, and BAD_ARGUMENT for a program
    that enters at IREE where works are `required`.
    """
    with optimized(job) as (made, context):
        if made.module is None and required:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"{made.name}: expected a program of pyc ops, got one that IREE compiles as it "
                "is; it has no choices to tune",
            )
        if made.module is None:
            return ()
        graphs = {found.graph.graph_id: found.graph for found in works_of(made.module)}
        tunable = {one.site.key: one for one in context.choices.tunable}
        log = [d for d in context.choices.log if d.site.pass_name == SELECT]
    groups = {name: [d for d in log if d.site.work == name] for name in graphs}
    works = []
    for name in dict.fromkeys(d.site.work for d in log if d.site.work in graphs):
        first = groups[name][0]
        site = tunable.get(first.site.key)
        listed, spaces = (site.alternatives, site.spaces) if site else (first.alternatives, {})
        own = listed[0]
        work = TunedWork(
            graphs[name],
            SELECT,
            ChoiceSpace.of([SiteAlternative(a.name, spaces.get(a.name)) for a in listed]),
            tuple(d.site.key for d in groups[name]),
            own.name,
            own.cost.seconds if own.cost else 0.0,
            WITH_KNOBS if spaces else WITHOUT_KNOBS,
        )
        works.append(work)
    return tuple(works)


def with_known(
    store: EvidenceStore, works: Sequence[TunedWork], place: Environments
) -> tuple[TunedWork, ...]:
    """Return the works with what the database knows of them.

    What to try first: choices that it calls measured, those of the work itself, then those of its
    neighbours: works of the same ops with other sizes, wherever they were measured. A neighbour's
    choice is a candidate, no answer. Of a work of which n choices were measured here, the
    uncertainty is divided by the root of 1 + n.
    """
    found: list[tuple[Graph, Implementation]] = []
    for impl_id in dict.fromkeys(s.impl_id for s in store.states(state=MEASURED)):
        one = store.get(Implementation, impl_id)
        graph = None if one is None else store.get(Graph, one.graph_id)
        if one is not None and graph is not None and graph.kind == WORK:
            found.append((graph, one))
    tried: dict[str, set[str]] = {}
    names = [work.graph.graph_id for work in works]
    for trace in measured(store, names, place.hardware, place.toolchain) if works else ():
        tried.setdefault(trace.graph_id, set()).add(trace.impl_id)
    return tuple(
        replace(
            work,
            known=_known(work, found),
            uncertainty=work.uncertainty / sqrt(1 + len(tried.get(work.graph.graph_id, ()))),
        )
        for work in works
    )


def _known(work: TunedWork, found: Sequence[tuple[Graph, Implementation]]) -> tuple[str, ...]:
    own, near = [], []
    for graph, one in found:
        choice = one.recipe.get(work.pass_name)
        if choice is None or choice == work.incumbent or work.config(choice) is None:
            continue
        if graph.graph_id == work.graph.graph_id:
            own.append(choice)
        elif _NUMBER.sub("", graph.text) == _NUMBER.sub("", work.graph.text):
            near.append(choice)
    return tuple(dict.fromkeys((*own, *near[-_NEIGHBOURS:])))
