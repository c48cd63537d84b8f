"""Carry a kernel through IREE as the body of a `stream.executable`, dispatched by flow.

A `Kernel` is data: operands with shapes, a grid, and the function that builds its code. `Carrier`
is a module of such kernels and of functions that call them, in a context of its own or one that
is given; its bytecode compiles like any other module. IREE leaves the body alone
(``no_pipeline``): it is already vectors and loops. The memory plan sees an ordinary dispatch.

Thousands of ops make every pass on the way slower although none of them looks at a body. So a
kernel may also travel as a stub: one op that holds the operands and says by an attribute which
kernel it stands for; `write_body` puts the code in its place when the dispatches are final.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from math import prod
from typing import Any, Protocol

import numpy as np

from pyc_mlir.pipelines.kernels.lang.attributes import HELD
from pyc_mlir.pipelines.kernels.lang.language import ELEMENTS, HALVES, SIZES, Build, Memory, stream
from pyc_mlir.pipelines.kernels.lang.values import Index, IndexLike, shared_constants
from pyc_mlir.pipelines.streams.ir import FLOPS, IN_PLACE, dialect, ir
from pyc_mlir.pipelines.target.target import Target

builtin = dialect("builtin")
flow = dialect("flow")
func = dialect("func")
tensor = dialect("tensor")
# IREE's own tiling and vectorization are switched off for a body that is already both.
_UNTOUCHED = "#iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline>"
_DIALECTS = ("arith", "flow", "func", "llvm", "math", "memref", "scf", "stream", "tensor", "vector")
# Holds the operands of a stub: it has effects, so none of them is dropped, and any operand.
STUB = "util.optimization_barrier"
Dim = int | str
Grid = Callable[[Callable[[Dim], Index]], Sequence[IndexLike]]


class ConstantLayout(Protocol):
    """The layout that a kernel wants of a constant: hashable data."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the constants that `pack` takes."""
        ...

    def pack(self, array: np.ndarray, /) -> np.ndarray:
        """Return the constant as the kernel's operand."""
        ...


@dataclass(frozen=True)
class Operand:
    """Memory of a kernel: a dimension is a number, or the name of a dynamic size.

    `role` is ``in``, ``out`` (fresh memory) or ``update`` (read and overwritten in place), `dtype`
    one of `language.ELEMENTS`. What is passed for a `layout`, a constant of its shape, is laid out
    when compiling; equal layouts share the result.
    """

    name: str
    shape: tuple[Dim, ...]
    role: str = "in"
    dtype: str = "f32"
    layout: ConstantLayout | None = None

    @property
    def nbytes(self) -> int:
        """The bytes, where all dimensions are known."""
        return SIZES[self.dtype] * prod(d for d in self.shape if isinstance(d, int))


def rows_of(operand: str) -> str:
    """Return the name of an unknown number of rows that an operand has for itself."""
    return f"{operand}_rows"


@dataclass(frozen=True)
class WindowCount:
    """The size `name`: how many steps a window of `reach` positions, less padding, takes of `size`.

    That is ``max(0, floor((size - reach) / stride) + 1)``.
    """

    name: str
    size: str
    reach: int
    stride: int

    def of(self, size: int) -> int:
        """Return the count for a size."""
        return max(0, (size - self.reach) // self.stride + 1)


@dataclass(frozen=True)
class Kernel:
    """A kernel for any number of calls. `grid` gives the workgroups from sizes, at most three.

    `in_place` are pairs of names (result, input): the result may be the input's memory, since
    each of its numbers is written after all that are read of the input for it or for others.
    `merged` are pairs (name, number): the size is that of so many first dimensions of the first
    result as one, in which an input must agree with the result. `window_counts` are the sizes of
    results that follow from one of the inputs.
    """

    name: str
    operands: tuple[Operand, ...]
    grid: Grid = field(compare=False)
    body: Callable[..., None] = field(compare=False)
    in_place: tuple[tuple[str, str], ...] = ()
    merged: tuple[tuple[str, int], ...] = ()
    window_counts: tuple[WindowCount, ...] = ()

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of dynamic dimensions, in the order of their first use."""
        return tuple(dict.fromkeys(d for o in self.operands for d in o.shape if isinstance(d, str)))

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that a call passes, in order."""
        return tuple(o for o in self.operands if o.role != "out")

    @property
    def results(self) -> tuple[Operand, ...]:
        """The operands that a call returns, in order."""
        return tuple(o for o in self.operands if o.role != "in")

    @property
    def operands_of_work(self) -> tuple[Operand, ...]:
        """The operands that are read, and the first result: others are scratch memory."""
        return (*self.inputs, self.results[0])


class Carrier:
    """A module that carries kernels, ready to be compiled by IREE for `target`."""

    def __init__(self, target: Target, context: Any = None) -> None:
        self.target = target
        self.context = ir.Context() if context is None else context
        for name in _DIALECTS:
            # An op of a dialect that is not loaded yet cannot be built.
            self.context.get_dialect_descriptor(name)
        with self.context, ir.Location.unknown():
            self.module = ir.Module.create()
        self._executables: dict[str, str] = {}

    def add(
        self,
        *kernels: Kernel,
        operations: Mapping[str, int] | None = None,
        stubs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Put the kernels' code into the module, as one executable ``<name of the first>_exe``.

        Kernels of one executable are compiled together: quicker than one by one. `operations` are
        floating-point operations of a call by kernel, for the memory planner's estimates. A kernel
        of `stubs` gets a stub with these attributes in place of its code.
        """
        name = f"{kernels[0].name}_exe"
        with self.context, ir.Location.unknown(), ir.InsertionPoint(self.module.body):
            executable = stream.executable(name, sym_visibility="private")
            with ir.InsertionPoint(executable.regions[0].blocks.append()):
                for kernel in kernels:
                    self._export(kernel)
                    self._executables[kernel.name] = name
                inner = builtin.ModuleOp()
                with ir.InsertionPoint(inner.body):
                    for kernel in kernels:
                        function = self._function(kernel, (operations or {}).get(kernel.name, 0))
                        self._fill(function, kernel, (stubs or {}).get(kernel.name))
                stream.executable_end()

    def call(self, kernel: Kernel, constants: Mapping[str, np.ndarray] | None = None) -> None:
        """Emit a public function ``<name>`` that runs the kernel once.

        Its arguments are the kernel's inputs without `constants`, which become part of the
        program; its results are the kernel's.
        """
        constants = constants or {}
        with self.context, ir.Location.unknown(), ir.InsertionPoint(self.module.body):
            open_ = [o for o in kernel.inputs if o.name not in constants]
            kind = ir.FunctionType.get(
                [_tensor(o) for o in open_], [_tensor(o) for o in kernel.results]
            )
            function = func.FuncOp(kernel.name, kind)
            with ir.InsertionPoint(function.add_entry_block()):
                values = {}
                for name, array in constants.items():
                    data, f32 = np.ascontiguousarray(array, np.float32), ir.F32Type.get()
                    tensor_ = ir.RankedTensorType.get(array.shape, f32)
                    held = ir.DenseResourceElementsAttr.get_from_buffer(data, name, tensor_)
                    values[name] = dialect("arith").constant(tensor_, held)
                values |= dict(zip((o.name for o in open_), function.arguments, strict=True))
                func.return_(self.dispatch(kernel, values))

    def dispatch(self, kernel: Kernel, values: Mapping[str, Any]) -> list[Any]:
        """Run the kernel on tensors by operand, at the current insertion point; its results."""
        sizes: dict[str, Any] = {}
        for operand in kernel.inputs:
            for position, dim in enumerate(operand.shape):
                if isinstance(dim, str) and dim not in sizes:
                    sizes[dim] = tensor.dim(values[operand.name], Index.of(position).value)
        for window in kernel.window_counts:
            sizes[window.name] = _steps(window, sizes[window.size])
        taken = [sizes[s] for s in kernel.sizes]

        def dims(operands: Sequence[Operand]) -> list[Any]:
            return [sizes[d] for o in operands for d in o.shape if isinstance(d, str)]

        names = [o.name for o in kernel.inputs]
        ties = [names.index(o.name) if o.role == "update" else -1 for o in kernel.results]
        index, entry = ir.IndexType.get(), [self._executables[kernel.name], kernel.name]
        made = flow.dispatch(
            [_tensor(o) for o in kernel.results],
            [*taken, _unknown()],
            ir.ArrayAttr.get([ir.SymbolRefAttr.get(entry)]),
            [*[values[n] for n in names], *taken],
            dims(kernel.inputs),
            dims(kernel.results),
            tied_operands=ir.ArrayAttr.get([ir.IntegerAttr.get(index, t) for t in ties]),
        )
        return [made] if isinstance(made, ir.Value) else list(made)

    def bytecode(self) -> bytes:
        """Return the verified module as MLIR bytecode. Raises MLIRError for no legal one."""
        self.module.operation.verify()
        stream_ = BytesIO()
        self.module.operation.write_bytecode(stream_)
        return stream_.getvalue()

    def _export(self, kernel: Kernel) -> None:
        export = stream.executable_export(kernel.name, kernel.name, sym_visibility="public")
        index = ir.IndexType.get()
        block = export.regions[0].blocks.append(*[index] * (len(kernel.sizes) + 1))
        with ir.InsertionPoint(block):
            sizes = dict(zip(kernel.sizes, map(Index, block.arguments), strict=False))
            grid = [Index.of(g) for g in kernel.grid(Build(self.target, sizes).size)]
            grid += [Index.of(1)] * (3 - len(grid))
            stream.return_([g.value for g in grid])

    def _function(self, kernel: Kernel, operations: int) -> Any:
        binding, index = ir.Type.parse("!stream.binding"), ir.IndexType.get()
        kinds = [index if isinstance(o, str) else binding for o in _arguments(kernel)]
        function = func.FuncOp(kernel.name, ir.FunctionType.get(kinds, []))
        function.attributes["translation_info"] = ir.Attribute.parse(_UNTOUCHED)
        bindings = [o.name for o in _arguments(kernel) if isinstance(o, Operand)]
        pairs = [[bindings.index(name) for name in pair] for pair in kernel.in_place]
        function.attributes[FLOPS] = _integer(operations)
        function.attributes[IN_PLACE] = ir.ArrayAttr.get(
            [ir.ArrayAttr.get(list(map(_integer, pair))) for pair in pairs]
        )
        return function

    def _fill(self, function: Any, kernel: Kernel, stub: Mapping[str, Any] | None) -> None:
        """Emit the function's operands as memory, and on them the kernel's code or its stub."""
        with ir.InsertionPoint(function.add_entry_block()):
            pairs = list(zip(_arguments(kernel), function.arguments, strict=True))
            sizes = {o: Index(a) for o, a in pairs if isinstance(o, str)}
            build = Build(self.target, sizes)
            bound = {}
            for operand, binding in pairs:
                if isinstance(operand, Operand):
                    element = "i16" if operand.dtype in HALVES else operand.dtype
                    held = ir.MemRefType.get(_static(operand), ELEMENTS[element]())
                    unknown = [s.value for s in _shape(operand, build) if s.number is None]
                    start = Index.of(0).value
                    bound[operand.name] = stream.binding_subspan(held, binding, start, unknown)
            memory = [bound[o.name] for o in kernel.operands]
            if stub is None:
                _write(kernel, build, memory)
            else:
                held = [*memory, *(sizes[name].value for name in kernel.sizes)]
                kinds = [value.type for value in held]
                ir.Operation.create(STUB, results=kinds, operands=held, attributes=dict(stub))
            func.return_([])


def _steps(window: WindowCount, size: Any) -> Any:
    """Emit the count, which nothing of it may take for one of `Index`: a part may be negative."""
    arith, one, none = dialect("arith"), Index.of(1).value, Index.of(0).value
    reach = arith.constant(ir.IndexType.get(), window.reach)
    room = arith.floordivsi(arith.subi(size, reach), Index.of(window.stride).value)
    return arith.maxsi(arith.addi(room, one), none)


def in_type(operands: Iterable[Operand], dtype: str) -> tuple[Operand, ...]:
    """Return a kernel's operands of f32 as such of another floating-point type."""
    return tuple(replace(o, dtype=dtype) if o.dtype == "f32" else o for o in operands)


def write_body(kernel: Kernel, stub: Any, target: Target) -> None:
    """Put the code of `kernel` in the place of its stub."""
    memory, sizes = list(stub.operands)[: len(kernel.operands)], list(stub.operands)
    named = zip(kernel.sizes, sizes[len(kernel.operands) :], strict=True)
    with stub.context, ir.Location.unknown(), ir.InsertionPoint(stub):
        _write(kernel, Build(target, {name: Index(size) for name, size in named}), memory)
    stub.erase()


def _write(kernel: Kernel, build: Build, memory: Sequence[Any]) -> None:
    pairs = zip(kernel.operands, memory, strict=True)
    with shared_constants(ir.InsertionPoint.current.block):
        held = [Memory(m, _shape(o, build), build.lanes, o.dtype) for o, m in pairs]
        kernel.body(build, *held)


def _arguments(kernel: Kernel) -> list[Operand | str]:
    """Return the argument types of a kernel's function: inputs, sizes, fresh memory."""
    outs = [o for o in kernel.operands if o.role == "out"]
    return [*kernel.inputs, *kernel.sizes, *outs]


def _integer(number: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def _shape(operand: Operand, build: Build) -> list[Index]:
    return [build.size(d) for d in operand.shape]


def _static(operand: Operand) -> list[int]:
    dynamic = ir.ShapedType.get_dynamic_size()
    return [dynamic if isinstance(d, str) else d for d in operand.shape]


def _tensor(operand: Operand) -> Any:
    return ir.RankedTensorType.get(_static(operand), ELEMENTS[operand.dtype]())


def _unknown() -> Any:
    """Emit a number that IREE takes for one of the run, until `let_go`.

    With operands that are all known IREE would run a dispatch when it compiles: its stub.
    """
    kind = ir.IndexType.get()
    known = [Index.of(1).value]
    held = ir.Operation.create(STUB, [kind], known, {HELD: ir.UnitAttr.get()})
    return held.results[0]
