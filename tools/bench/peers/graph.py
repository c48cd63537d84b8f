"""A traced pyc function as plain data that any peer can be handed.

In: whatever `Source` reads. Out: a `PeerGraph`, which pickles, needs no MLIR, and is built
again for each peer by a `Builder` of that peer: one definition of a workload serves all of them.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.opdef import OPS, OpDef
from pyc_mlir.dialects.types import TensorType


@dataclass(frozen=True)
class PeerOp:
    """One op: values are numbers, arguments first."""

    op: str
    operands: tuple[int, ...]
    params: Mapping[str, Any]
    result: int

    @property
    def definition(self) -> type[OpDef]:
        """The op's definition."""
        return OPS[self.op]


@dataclass(frozen=True, eq=False)
class PeerGraph:
    """A function: types of arguments 0, 1, ...; arrays of constants by value; steps in order."""

    arguments: tuple[TensorType, ...]
    constants: Mapping[int, np.ndarray]
    steps: tuple[PeerOp, ...]
    results: tuple[int, ...]

    def build(self, builder: Builder, arguments: Sequence[Any], constant: Any = None) -> list[Any]:
        """Return the results as values of `builder`; `constant` makes its constants of arrays.

        Raises PycError (UNSUPPORTED_OP) for an op that the builder has no rule for.
        """
        make = builder.constant if constant is None else constant
        values = dict(enumerate(arguments)) | {n: make(a) for n, a in self.constants.items()}
        for step in self.steps:
            operands = [values[n] for n in step.operands]
            values[step.result] = builder.build(step.definition, *operands, **step.params)
        return [values[n] for n in self.results]


@dataclass(frozen=True)
class LeastWork:
    """The least work of a program: operations, and bytes that must cross the memory bus once."""

    flops: int
    bytes: int

    def seconds(self, peak_flops: float, bandwidth: float) -> float:
        """Return the roofline (Williams et al., 2009): no program of this work takes less time.

        If everything stays in caches, the bandwidth of memory is no bound: then it may take less.
        """
        return max(self.flops / peak_flops, self.bytes / bandwidth)


def read_graph(source: Any, specs: Sequence[Any] | None) -> PeerGraph:
    """Trace or import `source`. Raises PycError as the front ends do."""
    from pyc_mlir.dialects.ir.bindings import ir
    from pyc_mlir.dialects.ir.interpreter import entry_function
    from pyc_mlir.dialects.ir.pyc import new_context
    from pyc_mlir.frontends.sources import Source

    with new_context() as context, ir.Location.unknown():
        module = Source.of(source).load(specs, context).module
        assert module is not None, "workloads are pyc programs"
        return _read_block(entry_function(module).regions[0].blocks[0])


def _read_block(block: Any) -> PeerGraph:
    from pyc_mlir.dialects.ir.attributes import params_of
    from pyc_mlir.dialects.ir.irtypes import from_mlir

    numbers = {value: i for i, value in enumerate(block.arguments)}
    constants: dict[int, np.ndarray] = {}
    steps: list[PeerOp] = []
    for op in block.operations:
        operation = op.operation
        if operation.name == "func.return":
            types = tuple(from_mlir(a.type) for a in block.arguments)
            results = tuple(numbers[v] for v in operation.operands)
            return PeerGraph(types, constants, tuple(steps), results)
        name = operation.name.removeprefix("pyc.")
        params = params_of(OPS[name], operation)
        number = numbers[operation.result] = len(numbers)
        if name == "constant":
            constants[number] = np.array(params["value"])
        else:
            steps.append(
                PeerOp(name, tuple(numbers[v] for v in operation.operands), params, number)
            )
    raise AssertionError("a verified block ends in a terminator")


def count_work(graph: PeerGraph, inputs: Sequence[np.ndarray]) -> LeastWork:
    """Count operations by the ops' definitions; bytes of arguments, constants and results."""
    types = {n: TensorType(a.shape, a.dtype) for n, a in enumerate(inputs)}
    types |= {n: TensorType(a.shape, a.dtype) for n, a in graph.constants.items()}
    ends = [types[n].nbytes for n in types]
    flops = 0
    for step in graph.steps:
        params = step.definition.bind(step.params)
        operands = [types[n] for n in step.operands]
        types[step.result] = step.definition.infer(*operands, **params)
        flops += step.definition.flops(operands, types[step.result], **params)
    return LeastWork(flops, sum(ends) + sum(types[n].nbytes for n in graph.results))


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the other system, and its type."""

    handle: Any
    type: TensorType


# (result type, operands, parameters) -> the other system's name of the result.
Rule = Callable[..., Any]


class Recorder(Builder):
    """Records each op by its rule, else by its decomposition."""

    rules: Mapping[str, Rule]

    @abstractmethod
    def constant(self, value: Any) -> Value:
        """Record an array that is part of the program."""

    def emit(self, op: type[OpDef], operands: Sequence[Value], params: dict[str, Any]) -> Value:
        """Record one op. Raises PycError (UNSUPPORTED_OP)."""
        out = op.infer(*(v.type for v in operands), **params)
        rule = self.rules.get(op.name)
        if rule is not None:
            return Value(rule(out, *operands, **params), out)
        made = op.decompose(self, *operands, **params) if op.decompose is not None else None
        if made is None:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"{type(self).__name__}: expected an op with a rule, got pyc.{op.name}; add one "
                f"to {type(self).__module__}",
            )
        return made

    def type_of(self, value: Value) -> TensorType:
        """Return the type that was inferred when the value was recorded."""
        return value.type
