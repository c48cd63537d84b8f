"""A program as plain data that any peer can be handed.

In: whatever `Source` reads. Out: a `PeerGraph`, which pickles, needs no MLIR, and is built again
for each peer by a `Builder` of that peer: one definition of a workload serves all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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

    def least_work(self, inputs: Sequence[np.ndarray]) -> LeastWork:
        """Count operations by the ops' definitions; bytes of arguments, constants and results."""
        arrays = {**dict(enumerate(inputs)), **self.constants}
        types = {n: TensorType(a.shape, a.dtype) for n, a in arrays.items()}
        flops, ends = 0, sum(t.nbytes for t in types.values())
        for step in self.steps:
            params = step.definition.bind(step.params)
            operands = [types[n] for n in step.operands]
            made = types[step.result] = step.definition.infer(*operands, **params)
            if all(t.is_static for t in (*operands, made)):
                flops += step.definition.flops(operands, made, **params)
        return LeastWork(flops, ends + sum(types[n].nbytes for n in self.results))


def read_graph(source: Any, specs: Sequence[Any] | None) -> PeerGraph:
    """Trace or import `source`. Raises PycError as the front ends do."""
    from pyc_mlir.dialects.ir.attributes import params_of
    from pyc_mlir.dialects.ir.bindings import ir
    from pyc_mlir.dialects.ir.interpreter import entry_function
    from pyc_mlir.dialects.ir.irtypes import from_mlir
    from pyc_mlir.dialects.ir.pyc import new_context
    from pyc_mlir.frontends.sources import Source

    with new_context() as context, ir.Location.unknown():
        module = Source.of(source).load(specs, context).module
        assert module is not None, "workloads are pyc programs"
        block = entry_function(module).regions[0].blocks[0]
        numbers = {value: i for i, value in enumerate(block.arguments)}
        constants: dict[int, np.ndarray] = {}
        steps: list[PeerOp] = []
        *operations, last = (op.operation for op in block.operations)
        for operation in operations:
            name = operation.name.removeprefix("pyc.")
            params = params_of(OPS[name], operation)
            number = numbers[operation.result] = len(numbers)
            if name == "constant":
                constants[number] = np.array(params["value"])
            else:
                operands = tuple(numbers[v] for v in operation.operands)
                steps.append(PeerOp(name, operands, params, number))
        types = tuple(from_mlir(a.type) for a in block.arguments)
        return PeerGraph(types, constants, tuple(steps), tuple(numbers[v] for v in last.operands))
