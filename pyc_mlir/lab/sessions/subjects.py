"""Subjects: programs, and the works of kernel groups, as what a session measures.

    subject_of_program(source, inputs)      a whole program
    subject_of_work(work)                   a group: a `Work`, or its text in the database

A subject has the arrays that it is measured on (seeded, finite, indices in range) and, where it was
made of a work, what a call must give. The arrays follow from the seed by the raw stream of PCG64,
which numpy keeps stable (NEP 19), so that every process and machine measures on the same data. A
work becomes a program of its own that computes what the group computes.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import make_inputs
from pyc_mlir.compilation.options import CompileOptions
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import encode
from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.builder import create
from pyc_mlir.dialects.ir.irtypes import to_mlir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import BOOL, dtype_name, is_float
from pyc_mlir.lab.evidence.rows import PROGRAM, Graph, Workload
from pyc_mlir.lab.sessions.session import (
    MeasuredProgram,
    Reference,
    described,
    graph_of_work,
)
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.work import Input, Work, parse_work
from pyc_mlir.util.checksum import digest

# Of floats: on both sides of zero; positive, for what roots and logarithms are taken of.
SIGNED, POSITIVE = "signed", "positive"
# Integers that count nothing are below this.
_INTEGERS = 16
# The share of results that must be finite for data to be of use.
_FINITE = 0.99
# The passes of a work's program: it is fused already, and must stay what it is.
PASSES = "pyc-infer-shapes"
_ELEMENTWISE = "elementwise"


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
    graph = program.graph
    if graph is None:
        # A program that enters at IREE is named by its bytes.
        code = getattr(program.oracle, "code", None)
        assert isinstance(code, bytes), "only programs that enter at IREE have no graph"
        name = digest([PROGRAM, code.hex()])
        graph = Graph(name, PROGRAM, name, f"foreign {name}", 0)
    load = _workload(graph, dims, arguments, {"seed": seed})
    return MeasuredProgram(graph, load, source, inputs, arguments, options or CompileOptions())


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


def arguments_of(
    signature: Signature, seed: int, dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """Return the arguments of a program.

    dims: sizes of its dynamic dimensions, by name; else the nominal ones, within their ranges.
    """
    sizes = {}
    for name in sorted({name for a in signature.inputs for name in a.dynamic.values()}):
        low, high = signature.ranges.get(name, (0, NOMINAL_DIMENSION))
        sizes[name] = (dims or {}).get(name, min(max(NOMINAL_DIMENSION, low), high))
    # Even seeds give values without ties.
    return make_inputs(signature, 2 * seed, sizes)


def values_of(
    work: Work, seed: int, floats: str = SIGNED, dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """Return an array for each input of a work.

    floats: `SIGNED` in [-1, 1), `POSITIVE` in [0.25, 1.25). Constants of two and more dimensions
    are scaled as trained weights are, so that products stay in range. dims: ``0[1]`` for the second
    dimension of the first input; dynamic dimensions are nominal where it has none.
    """
    limits, made, given = _limits(work), [], dims or {}
    for n, value in enumerate(work.inputs):
        shape = tuple(
            given.get(f"{n}[{axis}]", NOMINAL_DIMENSION) if d is None else d
            for axis, d in enumerate(value.type.shape)
        )
        made.append(_array(value, np.random.PCG64([seed, n]), floats, limits.get(n), shape))
    return made


def _limits(work: Work) -> dict[int, int]:
    """Return the number of things that an index counts, by input that is used as an index."""
    found: dict[int, int] = {}
    for node in work.nodes:
        if node.name in ("gather", "scatter"):
            axis = node.params.get("axis", 0) if node.name == "gather" else 0
            counted = work.type(node.operands[0]).shape[axis]
            found[node.operands[1]] = NOMINAL_DIMENSION if counted is None else counted
        elif node.name == "update_slice":
            # Any start is moved to where the update fits.
            found[node.operands[2]] = 1
    return found


def _array(
    value: Input, stream: np.random.PCG64, floats: str, limit: int | None, shape: tuple[int, ...]
) -> np.ndarray:
    dtype = value.type.dtype
    raw = np.asarray(stream.random_raw(prod(shape)), np.uint64).reshape(shape)
    if dtype == BOOL:
        return (raw >> np.uint64(63)).astype(dtype)
    if not is_float(dtype):
        return ((raw >> np.uint64(32)).astype(np.int64) % max(1, limit or _INTEGERS)).astype(dtype)
    unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    numbers = unit * 2 - 1 if floats == SIGNED else unit + 0.25
    if value.array is not None and len(shape) > 1:
        numbers /= max(1, prod(shape[:-1])) ** 0.5
    return np.asarray(numbers).astype(dtype)


def work_module(work: Work, constants: Sequence[np.ndarray]) -> str:
    """Return the text of the module. constants: contents of the constant inputs, in their order.

    Raises PycError (BAD_ARGUMENT) for a work of which nothing is an argument.
    """
    arguments = [i.type for i in work.inputs if i.array is None]
    if not arguments:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            "work: expected an input that is no constant, got a work that a compile computes",
        )
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        kind = ([to_mlir(t) for t in arguments], [to_mlir(work.nodes[-1].type)])
        with ir.InsertionPoint(module.body):
            block = func.FuncOp("main", kind).add_entry_block()
        with ir.InsertionPoint(block):
            given, known = iter(block.arguments), iter(constants)
            values = [
                next(given) if i.array is None else _constant(next(known)) for i in work.inputs
            ]
            func.ReturnOp([_body(work, values)])
        is_valid = module.operation.verify()
        assert is_valid
        return str(module)


def _constant(array: np.ndarray) -> ir.Value:
    value = encode(array, np.ndarray)
    attributes = {"value": value}
    return ir.Operation.create("pyc.constant", results=[value.type], attributes=attributes).result


def _body(work: Work, inputs: Sequence[ir.Value]) -> ir.Value:
    """Build the op, several of them in a group, at the insertion point; return the value that they
    make.
    """
    if len(work.nodes) == 1:
        return _ops(work, inputs)
    names = [node.name for node in work.nodes]
    kind = next((anchor for n in names if (anchor := OPS[n].anchor)), _ELEMENTWISE)
    group = ir.Operation.create(
        "pyc.group",
        results=[to_mlir(work.nodes[-1].type)],
        attributes={
            "kind": ir.StringAttr.get(kind),
            "pyc.fused": ir.ArrayAttr.get([ir.StringAttr.get(n) for n in names]),
        },
        regions=1,
    )
    with ir.InsertionPoint(group.regions[0].blocks.append()):
        ir.Operation.create("pyc.yield", operands=[_ops(work, inputs)])
    return group.result


def _ops(work: Work, inputs: Sequence[ir.Value]) -> ir.Value:
    values = list(inputs)
    for node in work.nodes:
        params = OPS[node.name].bind(node.params)
        operands = [values[o] for o in node.operands]
        values.append(create(OPS[node.name], operands, params, node.type))
    return values[-1]
