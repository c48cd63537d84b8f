"""A chosen kernel as a call: operands under the shapes that the kernel has, weights packed.

The kernel stands in the module as a private function without a body, whose attribute
``pyc.kernel = {family, knobs}`` says all there is to know of it; equal kernels share one. On
IREE's side such calls become dispatches of generated code (`pyc_mlir/iree/compiler.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, count, pairwise
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import to_mlir
from pyc_mlir.dialects.names import kernel_symbol
from pyc_mlir.dialects.types import DTYPES, TensorType, storage
from pyc_mlir.pipelines.kernels.counts import COUNTED, fed_inputs
from pyc_mlir.pipelines.kernels.knobs import decode
from pyc_mlir.pipelines.kernels.lang.attributes import ATTRIBUTE
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand, rows_of
from pyc_mlir.pipelines.kernels.match import Feed
from pyc_mlir.pipelines.kernels.registry import FAMILIES
from pyc_mlir.pipelines.linalg.elementwise import cast
from pyc_mlir.pipelines.linalg.lowering import LoweredDim, LoweredTensor, Lowering, product
from pyc_mlir.pipelines.linalg.products import window_count
from pyc_mlir.pipelines.linalg.structured import reshape
from pyc_mlir.pipelines.pyc.constants import lowered_constants, stored_bytes
from pyc_mlir.pipelines.pyc.groups import AttachedKernel


@dataclass
class KernelCalls:
    """The kernels of one module, by family and knobs."""

    module: ir.Module
    _kernels: dict[tuple[str, str], Kernel] = field(default_factory=dict)
    # Constants by what lays them out: each once, whatever kernels and calls use it.
    # The counts so far, by the name of the operand; every kernel that counts hands them on.
    counts: dict[str, ir.Value] = field(default_factory=dict)
    _packed: dict[tuple[ir.Attribute, tuple[int, ...], Any], LoweredTensor] = field(
        default_factory=dict
    )

    def emit(
        self,
        b: Lowering,
        attached: AttachedKernel,
        values: Sequence[LoweredTensor],
        result: TensorType,
    ) -> LoweredTensor:
        """Call the kernel on the `values` that its feeds name; its result as type `result`.

        Raises PycError (INVALID_IR) for an attribute that does not fit.
        """
        kernel = self._kernel(attached.family, attached.knobs)
        # What follows the first result is scratch memory, or counts.
        out, *_ = kernel.results
        inputs = fed_inputs(kernel)
        names = ", ".join(map(_text, inputs))
        fed = len(attached.feeds) == len(inputs)
        _require(fed, f"{len(inputs)} feeds for {names}", len(attached.feeds))
        sizes = _Sizes(b, f"of a {attached.family} kernel")
        operands = []
        for operand, feed in zip(inputs, attached.feeds, strict=True):
            _require(0 <= feed.value < len(values), f"one of {len(values)} values", feed)
            value = values[feed.value]
            if operand.dtype == "i8" and value.dtype == np.bool_:
                value = cast(b, value, dtype=np.dtype(np.int8))
            tensor = self._view(b, value, feed, operand)
            _require(_fits(tensor, operand), f"a value for {_text(operand)}", tensor.type)
            sizes.meet(operand, value, feed)
            operands.append(_under(b.value(tensor), _declared(operand)))
        sizes.count(kernel)
        known = sizes.of_operand(out)
        dims = sizes.of_result(out, result)
        sizes.meet_result(kernel, dims)
        for operand, feed in zip(inputs, attached.feeds, strict=True):
            sizes.meet_rows(operand, values[feed.value], dims)
        counted = [o for o in kernel.inputs if o in COUNTED]
        operands += [self.counts.get(o.name) or zero_counts(o) for o in counted]
        made = ir.Operation.create(
            "func.call",
            results=[_declared(o) for o in kernel.results],
            operands=operands,
            attributes={"callee": ir.FlatSymbolRefAttr.get(kernel.name)},
        )
        for operand in counted:
            self.counts[operand.name] = made.results[kernel.results.index(operand)]
        # Unsigned integers are held as signed ones.
        dtype = result.dtype if storage(result.dtype) == _dtype(out) else _dtype(out)
        returned = LoweredTensor(dtype, known, _under(made.results[0], b.tensor_type(known, dtype)))
        return reshape(b, returned, dims)

    def _view(
        self, b: Lowering, tensor: LoweredTensor, feed: Feed, operand: Operand
    ) -> LoweredTensor:
        """Return the value with its dimensions grouped for the operand; constants laid out."""
        cuts = (0, *feed.cuts, tensor.rank)
        _require(list(cuts) == sorted(cuts), f"cuts of {tensor.rank} dimensions", feed.cuts)
        dims = [product(tensor.dims[i:j]) for i, j in pairwise(cuts)]
        if operand.layout is None:
            return reshape(b, tensor, dims)
        constant = tensor.constant
        _require(constant is not None, f"a constant as {operand.name}", tensor.type)
        assert constant is not None
        sizes = tuple(d.coefficient for d in dims)
        wanted = operand.layout.shape
        _require(sizes == wanted, f"a constant of {wanted} as {operand.name}", sizes)
        key = (constant, sizes, operand.layout)
        if key not in self._packed:
            laid_out = operand.layout.pack(array_of(constant).reshape(sizes))
            self._packed[key] = b.constant(laid_out)
        return self._packed[key]

    def larger_bytes(self, alignment: int) -> int:
        """Return the bytes of laid out constants, less those of originals that nothing reads."""
        if not self._packed:
            return 0
        read = {op.attributes["value"] for op in lowered_constants(self.module)}
        laid_out = [t.constant for t in self._packed.values() if t.constant is not None]
        replaced = {original for original, *_ in self._packed} - read
        return stored_bytes(laid_out, alignment) - stored_bytes(replaced, alignment)

    def return_counts(self, function: ir.Operation, asked: Sequence[str]) -> None:
        """Make the counts, and those asked for that no kernel has, the last results."""
        wanted = [o for o in COUNTED if o.name in self.counts or o.name in asked]
        if not wanted:
            return
        block = function.regions[0].blocks[0]
        end = block.operations[len(block.operations) - 1]
        with ir.InsertionPoint(end), end.location:
            counts = [self.counts.get(o.name) or zero_counts(o) for o in wanted]
            ir.Operation.create(end.operation.name, operands=[*end.operands, *counts])
        end.operation.erase()
        kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        made = ir.FunctionType.get(kind.inputs, [*kind.results, *(c.type for c in counts)])
        function.attributes["function_type"] = ir.TypeAttr.get(made)
        if "res_attrs" in function.attributes:
            named = ir.ArrayAttr(function.attributes["res_attrs"])
            more = [ir.DictAttr.get({})] * len(counts)
            function.attributes["res_attrs"] = ir.ArrayAttr.get([*named, *more])
        self.counts.clear()

    def _kernel(self, family: str, knobs: str) -> Kernel:
        """Return the kernel, declared in the module under a symbol that it does not have yet."""
        key = (family, knobs)
        if key in self._kernels:
            return self._kernels[key]
        _require(family in FAMILIES, f"a family of {', '.join(FAMILIES)}", family)
        ops = (op.operation.attributes for op in self.module.body.operations)
        taken = {ir.StringAttr(a["sym_name"]).value for a in ops if "sym_name" in a}
        wanted = kernel_symbol(family, len(self._kernels))
        name = next(n for n in (wanted + "_" * i for i in count()) if n not in taken)
        kernel = self._kernels[key] = decode(FAMILIES[family].knobs, knobs).kernel(name)
        inputs, results = (list(map(_declared, side)) for side in (kernel.inputs, kernel.results))
        text = {"family": ir.StringAttr.get(family), "knobs": ir.StringAttr.get(knobs)}
        ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": ir.StringAttr.get(kernel.name),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(inputs, results)),
                "sym_visibility": ir.StringAttr.get("private"),
                ATTRIBUTE: ir.DictAttr.get(text),
            },
            regions=1,
            ip=ir.InsertionPoint.at_block_begin(self.module.body),
        )
        return kernel


def _fits(tensor: LoweredTensor, operand: Operand) -> bool:
    wanted = [d if isinstance(d, int) else None for d in operand.shape]
    same = len(wanted) == tensor.rank and storage(tensor.dtype) == _dtype(operand)
    return same and all(w in (None, d.static) for w, d in zip(wanted, tensor.dims, strict=True))


@dataclass
class _Sizes:
    """The dynamic sizes of one call: `runs` has the dimensions that a kernel's size is made of."""

    b: Lowering
    what: str
    runs: dict[str, tuple[LoweredDim, ...]] = field(default_factory=dict)

    def meet(self, operand: Operand, value: LoweredTensor, feed: Feed) -> None:
        """Check values that share a size in every dimension of it, not in the product only."""
        if operand.layout is not None:
            return
        cuts = (0, *feed.cuts, value.rank)
        for name, (start, end) in zip(operand.shape, pairwise(cuts), strict=True):
            if not isinstance(name, str):
                continue
            run = _counting(value.dims[start:end])
            known = self.runs.setdefault(name, run)
            if len(known) != len(run):
                known, run = (product(known),), (product(run),)
            for a, b in zip(known, run, strict=True):
                self.b.require_equal(a, b, f"sizes `{name}` {self.what}")

    def count(self, kernel: Kernel) -> None:
        """Add the sizes of results that follow from those of the inputs."""
        for window in kernel.window_counts:
            size = product(self.runs[window.size])
            self.runs[window.name] = (window_count(self.b, size, window.reach, window.stride),)

    def of_operand(self, operand: Operand) -> tuple[LoweredDim, ...]:
        """Return the dimensions as the kernel has them."""
        shape = operand.shape
        return tuple(LoweredDim(d) if isinstance(d, int) else product(self.runs[d]) for d in shape)

    def of_result(self, out: Operand, result: TensorType) -> list[LoweredDim]:
        """Return the dimensions of the result: unknown ones are, in order, parts of its sizes."""
        parts = [part for d in out.shape if isinstance(d, str) for part in self.runs[d]]
        returned = product(self.of_operand(out))
        for picked in combinations(parts, result.shape.count(None)):
            unknown = iter(picked)
            dims = [next(unknown) if d is None else LoweredDim(d) for d in result.shape]
            if product(dims) == returned:
                return dims
        raise _misfit(f"a result like {_text(out)}", result)

    def meet_result(self, kernel: Kernel, dims: Sequence[LoweredDim]) -> None:
        """Check an input of the size of the result's first dimensions against each of them.

        The kernel may see rows of the result as several dimensions, or as fewer.
        """
        for name, number in kernel.merged:
            run = self.runs.get(name, ())
            first = _counting(dims[: len(dims) - len(kernel.results[0].shape) + number])
            # An input of a lower rank lacks leading dimensions.
            for a, b in zip(reversed(first), reversed(run), strict=False):
                self.b.require_equal(a, b, f"sizes `{name}` {self.what}")

    def meet_rows(self, operand: Operand, value: LoweredTensor, dims: Sequence[LoweredDim]) -> None:
        """Check a value that is repeated over rows of the result in each of its dimensions."""
        if rows_of(operand.name) in operand.shape:
            for a, b in zip(reversed(value.dims), reversed(dims), strict=False):
                if a.static != 1:
                    self.b.require_equal(a, b, f"sizes of `{operand.name}` {self.what}")


def _counting(dims: Sequence[LoweredDim]) -> tuple[LoweredDim, ...]:
    """Return the dimensions that are not 1: a number a row ends in one, [n, h, w, 1]."""
    return tuple(d for d in dims if d.static != 1)


def _under(value: ir.Value, type_: ir.Type) -> ir.Value:
    if value.type == type_:
        return value
    return ir.Operation.create("tensor.cast", results=[type_], operands=[value]).result


def _declared(operand: Operand) -> ir.Type:
    shape = tuple(d if isinstance(d, int) else None for d in operand.shape)
    return to_mlir(TensorType(shape, _dtype(operand)))


def zero_counts(operand: Operand) -> ir.Value:
    """Emit the counts of nothing."""
    kind = _declared(operand)
    value = ir.DenseElementsAttr.get_splat(kind, ir.FloatAttr.get(ir.F32Type.get(), 0.0))
    return ir.Operation.create("arith.constant", [kind], attributes={"value": value}).result


def _dtype(operand: Operand) -> np.dtype:
    return storage(DTYPES[operand.dtype])


def _text(operand: Operand) -> str:
    return f"{operand.name}<{'x'.join(map(str, operand.shape))}>"


def _require(holds: bool, expected: str, came: object) -> None:
    if not holds:
        raise _misfit(expected, came)


def _misfit(expected: str, came: object) -> PycError:
    return PycError(
        ReasonCode.INVALID_IR,
        f"{ATTRIBUTE}: expected {expected}, got {came}; leave the attribute to "
        "pyc-select-kernels, or write one that fits",
    )
