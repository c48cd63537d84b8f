"""The tunable parts of a model: its works with their choices, and the model as a subject.

Comes in: a model as `compile` takes it. Goes out: a `TunedProgram`. The front end and the passes on
pyc ops run once, with PyC's own choices; nothing is compiled.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from pyc_mlir.compilation.compile_options import CompileOptions
from pyc_mlir.compilation.lower import context_of
from pyc_mlir.compilation.options import resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.signatures import shapes_text
from pyc_mlir.frontends.sources import Source
from pyc_mlir.lab.evidence.database.exchange import measured
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.identity import WORK, works_of
from pyc_mlir.lab.evidence.rows import Graph, Implementation
from pyc_mlir.lab.evidence.states import MEASURED
from pyc_mlir.lab.sessions.session import MeasuredProgram
from pyc_mlir.lab.sessions.subjects import subject_of_program
from pyc_mlir.lab.tune.sites import (
    WITH_KNOBS,
    WITHOUT_KNOBS,
    ChoiceSpace,
    SiteAlternative,
    TunedWork,
)
from pyc_mlir.measure.environment import Environments
from pyc_mlir.pipelines.choices.choices import TunableSite
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.select_kernels import select

# Choices of a neighbour that are tried first.
_NEIGHBOURS = 8
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class TunedProgram:
    """A model: as a subject, and the works at which something can be chosen."""

    subject: MeasuredProgram
    works: tuple[TunedWork, ...]


def program_of(
    source: Any,
    inputs: Sequence[Any] | None = None,
    options: CompileOptions | None = None,
    dims: Mapping[str, int] | None = None,
) -> TunedProgram:
    """Read a model. Raises PycError as the front ends do; BAD_ARGUMENT if it is no pyc program."""
    given = options or CompileOptions()
    resolved, model = resolve(given), Source.of(source, given.islands, given.function)
    subject = subject_of_program(model, inputs, given, dims)
    with new_context() as context, ir.Location.unknown():
        loaded = model.load(inputs, context)
        if loaded.module is None:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"{loaded.name}: expected a program of pyc ops, got one that IREE compiles as it "
                "is; it has no choices to tune",
            )
        module = loaded.module
        with module.context, ir.Location.unknown():
            passes = context_of(resolved)
            if inputs and not model.takes_inputs:
                run_pipeline(module, f"pyc-infer-shapes{{shapes={shapes_text(inputs)}}}", passes)
            run_pipeline(module, resolved.passes, passes)
            select(module, passes, "+".join(passes.kernels or ()))
            graphs = {found.graph.graph_id: found.graph for found in works_of(module)}
            return TunedProgram(subject, _works(passes.choices.tunable, graphs))


def _works(sites: Sequence[TunableSite], graphs: Mapping[str, Graph]) -> tuple[TunedWork, ...]:
    """Sites of one work and one set of alternatives are tuned as one."""
    groups: dict[str, list[TunableSite]] = {}
    for one in sites:
        if one.site.work in graphs:
            groups.setdefault(one.site.work, []).append(one)
    return tuple(_work(graphs[name], group) for name, group in groups.items())


def _work(graph: Graph, group: Sequence[TunableSite]) -> TunedWork:
    first = group[0]
    ways = [SiteAlternative(a.name, first.spaces.get(a.name)) for a in first.alternatives]
    own = first.alternatives[0]
    return TunedWork(
        graph,
        first.site.pass_name,
        ChoiceSpace.of(ways),
        tuple(one.site.key for one in group),
        own.name,
        0.0 if own.cost is None else own.cost.seconds,
        WITH_KNOBS if first.spaces else WITHOUT_KNOBS,
    )


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
        elif _shape_free(graph) == _shape_free(work.graph):
            near.append(choice)
    return tuple(dict.fromkeys((*own, *near[-_NEIGHBOURS:])))


def _shape_free(graph: Graph) -> str:
    """Return the text of a work without its numbers: equal for works of the same ops."""
    return _NUMBER.sub("", graph.text)
