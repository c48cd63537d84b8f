"""Subjects: programs, and the works of kernel groups, as what a session measures.

subject_of_program(source, inputs)      a whole program
subject_of_work(work)                   a group: a `Work`, or its text in the database
subject_of_decision(decision, module)   the group that a kernel decision is about
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.compilation.compile_options import CompileOptions
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import dtype_name
from pyc_mlir.lab.evidence.identity import PROGRAM, graph_of_work, works_of
from pyc_mlir.lab.evidence.rows import Graph, Workload
from pyc_mlir.lab.sessions.data import POSITIVE, SIGNED, arguments_of, values_of
from pyc_mlir.lab.sessions.reference import Described, Reference, described
from pyc_mlir.lab.sessions.session import MeasuredProgram
from pyc_mlir.lab.sessions.works import PASSES, work_module
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.target.work import Work, parse_work
from pyc_mlir.util.checksum import digest

# The share of results that must be finite for data to be of use.
_FINITE = 0.99


def subject_of_program(
    source: Any,
    inputs: Sequence[Any] | None = None,
    options: CompileOptions | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
) -> MeasuredProgram:
    """Return a whole program; arguments are made from its types.

    dims: sizes of dynamic dimensions; nominal where it has none.
    Raises PycError as the front ends do.
    """
    program = described(source, inputs)
    arguments = arguments_of(program.signature, seed, dims)
    graph = program.graph or _foreign(program)
    load = _workload(graph, dims, arguments, {"seed": seed})
    return MeasuredProgram(graph, load, source, inputs, arguments, options or CompileOptions())


def _foreign(program: Described) -> Graph:
    """Return the row of a program that enters at IREE: by its bytes."""
    code = getattr(program.oracle, "code", None)
    assert isinstance(code, bytes), "only programs that enter at IREE have no graph"
    name = digest([PROGRAM, code.hex()])
    return Graph(name, PROGRAM, name, f"foreign {name}", 0)


def subject_of_work(
    work: Work | str,
    options: CompileOptions | None = None,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
) -> MeasuredProgram:
    """Return a kernel group's work by itself; constants stay constants, with contents made from the
    seed.

    dims: sizes of dynamic dimensions, ``0[1]`` for the second one of the first input.
    Raises PycError (BAD_ARGUMENT) for a text that is none and a work that is all constant.
    """
    work = parse_work(work) if isinstance(work, str) else work
    text, arguments, reference, data = _finite(work, seed, dims)
    graph = graph_of_work(work)
    load = _workload(graph, dims, arguments, data)
    return MeasuredProgram(
        graph, load, text, None, arguments, options or CompileOptions(), PASSES, reference
    )


_Made = tuple[str, list[np.ndarray], Reference, dict[str, Any]]


def _finite(work: Work, seed: int, dims: Mapping[str, int] | None) -> _Made:
    """Return module, arguments and expected results, for the data with the most finite results."""
    found: _Made | None = None
    for floats in (SIGNED, POSITIVE):
        values = values_of(work, seed, floats, dims)
        known = [v for v, i in zip(values, work.inputs, strict=True) if i.array is not None]
        arguments = [v for v, i in zip(values, work.inputs, strict=True) if i.array is None]
        text = work_module(work, known)
        reference = described(text).reference(arguments)
        if found is None or reference.finite_share > found[2].finite_share:
            found = (text, arguments, reference, {"seed": seed, "floats": floats})
        if reference.finite_share >= _FINITE:
            break
    assert found is not None
    return found


def subject_of_decision(
    decision: Decision, module: ir.Module, options: CompileOptions | None = None
) -> MeasuredProgram:
    """Return the work that a decision on kernels is about, in the fused module that it was made
    for.

    Raises PycError (BAD_ARGUMENT) where the module has no such work.
    """
    for found in works_of(module):
        if found.graph.graph_id == decision.site.work:
            return subject_of_work(found.work, options)
    raise PycError(
        ReasonCode.BAD_ARGUMENT,
        f"{decision.site.key}: expected a decision on a kernel of this module, got one of work "
        f"{decision.site.work[:16] or 'none'}",
    )


def _workload(
    graph: Graph,
    dims: Mapping[str, int] | None,
    arguments: Sequence[np.ndarray],
    data: Mapping[str, Any],
) -> Workload:
    dtypes = tuple(dict.fromkeys(dtype_name(a.dtype) for a in arguments))
    return Workload(
        graph.graph_id, dict(dims or {}), dtypes, dict(data), normalizer=graph.normalizer
    )
