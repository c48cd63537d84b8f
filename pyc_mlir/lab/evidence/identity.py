"""Programs and their kernels as rows: what evidence is kept under.

    graph_of_program(function)      exact id and text, and the structure's id
    graph_of_work(work)             a kernel group's
    works_of(module)                the works of a module's groups, each with how often it stands

Comes in: a function or module of pyc ops, for `works_of` one that is fused (`pyc-fuse`). Goes out:
`Graph` rows. docs/evidence.md describes what each id covers.
"""

from collections import Counter
from dataclasses import dataclass

from pyc_mlir.dialects.ir import ids as structure
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds, structure_of
from pyc_mlir.lab.evidence.rows import Graph
from pyc_mlir.pipelines.pyc.groups import Members
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target import work as works
from pyc_mlir.pipelines.target.work import Work

PROGRAM, WORK = "program", "work"


def graph_of_program(function: ir.Operation) -> Graph:
    """Return the row of a program, whose function is as the user gave it: before any pass."""
    exact = structure_of(function, exact=True)
    graph_id, structure_id = OpIds(function).graph_id, structure_of(function).id
    return Graph(graph_id, PROGRAM, structure_id, exact.text, exact.ops, structure.NORMALIZER)


def graph_of_work(work: Work) -> Graph:
    """Return the row of a kernel group's work."""
    name, text = works.work_id(work), works.work_text(work)
    return Graph(name, WORK, name, text, len(work.nodes), works.NORMALIZER)


@dataclass(frozen=True)
class ModuleWork:
    """A work of a module: its row, the work itself, and how many groups have it."""

    graph: Graph
    work: Work
    count: int


def works_of(module: ir.Module) -> list[ModuleWork]:
    """Return the works of a fused module in the order in which they first stand."""
    counts: Counter[str] = Counter()
    first: dict[str, tuple[Graph, Work]] = {}
    for function in functions_of(module):
        for op in function.regions[0].blocks[0].operations:
            pyc = op.operation.name.startswith("pyc.")
            members = Members.of(op.operation) if pyc else None
            if members is None:
                continue
            work = members.work()
            graph = graph_of_work(work)
            counts[graph.graph_id] += 1
            first.setdefault(graph.graph_id, (graph, work))
    return [ModuleWork(graph, work, counts[name]) for name, (graph, work) in first.items()]
