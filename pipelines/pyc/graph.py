"""One block of a function as data: ops by position, values by number, read once.

Passes that need more subclass `BlockGraph` (`FusionGraph`, `ChunkGraph`, `LayoutGraph`) or make
their nodes from one (`equivalence/nodes.py`, `memory/pyc_problem.py`). Operations are named by
their positions, since an `ir.Operation` changes its hash with its operands.
"""

from functools import cached_property
from typing import Any

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.pyc.rewriting import definition_of, params_of, tensor_types, values_read


class BlockGraph:
    """The first block of a function.

    values: its arguments, then the results of its ops, in order; `types` are their tensor types,
    None for what is no tensor. definitions: by op, None for what is no op of the pyc dialect.
    operands, reads: by op the numbers of its operands, and of these and all that its regions
    capture; values of other blocks are left out. makers: by value the op that makes it, None for
    arguments. makes: by op the number of its first result, or of the next value.
    """

    def __init__(self, function: ir.Operation) -> None:
        block = function.regions[0].blocks[0]
        self.ops = [op.operation for op in block.operations]
        self.definitions = [definition_of(op) for op in self.ops]
        self.values: list[ir.Value] = [*block.arguments]
        self.makers: list[int | None] = [None] * len(self.values)
        self.makes: list[int] = []
        for i, op in enumerate(self.ops):
            self.makes.append(len(self.values))
            self.values += op.results
            self.makers += [i] * (len(self.values) - len(self.makers))
        known = tensor_types(self.values)
        self.types = [known.get(value.type) for value in self.values]
        number = {value: n for n, value in enumerate(self.values)}
        self.operands: list[list[int]] = []
        self.reads: list[list[int]] = []
        for op in self.ops:
            read = [number[v] for v in values_read(op) if v in number]
            self.operands.append(read[: len(op.operands)])
            self.reads.append(read)

    @cached_property
    def producers(self) -> list[list[int]]:
        """The ops that make what each op reads, as often as it reads them."""
        made = [[self.makers[n] for n in read] for read in self.reads]
        return [[i for i in found if i is not None] for found in made]

    @cached_property
    def users(self) -> list[list[int]]:
        """The ops that read what each op makes, as often as they do."""
        users: list[list[int]] = [[] for _ in self.ops]
        for i, made in enumerate(self.producers):
            for producer in made:
                users[producer].append(i)
        return users

    @cached_property
    def readers(self) -> list[list[int]]:
        """The ops that read each value, each once."""
        readers: list[list[int]] = [[] for _ in self.values]
        for i, read in enumerate(self.reads):
            for n in dict.fromkeys(read):
                readers[n].append(i)
        return readers

    def name(self, i: int) -> str:
        """Return the name of a pyc op without the dialect; empty for other ops and groups."""
        definition = self.definitions[i]
        return "" if definition is None else definition.name

    def has(self, i: int, traits: Trait) -> bool:
        """Return whether an op has one of these traits."""
        definition = self.definitions[i]
        return definition is not None and definition.has(traits)

    def anchor(self, i: int) -> str:
        """Return the kind of the groups that an op starts; empty where it starts none."""
        definition = self.definitions[i]
        return "" if definition is None else definition.anchor

    def params(self, i: int) -> dict[str, Any]:
        """Return the complete parameters of a pyc op."""
        definition = self.definitions[i]
        assert definition is not None, "only pyc ops are asked"
        return params_of(definition, self.ops[i])

    def axis(self, i: int) -> int:
        """Return the parameter `axis` of an op, counted from the first dimension."""
        return self.params(i)["axis"] % self.type(self.makes[i]).rank

    def is_constant(self, n: int) -> bool:
        """Return whether a value is known when compiling."""
        maker = self.makers[n]
        return maker is not None and self.name(maker) == "constant"

    def type(self, n: int) -> TensorType:
        """Return the type of a value that is a tensor."""
        found = self.types[n]
        assert found is not None, "only tensors are asked"
        return found

    def result(self, i: int) -> TensorType | None:
        """Return the type of an op's one result; None where it is no tensor, or there are more."""
        n = self.makes[i]
        one = n < len(self.values) and self.makers[n : n + 2].count(i) == 1
        return self.types[n] if one else None
