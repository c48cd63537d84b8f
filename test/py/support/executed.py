"""Run a bufferized module on this CPU with MLIR's own execution engine: numpy in, numpy out.

Comes in: a module of linalg and memref ops (what ``pyc-bufferize-arena`` leaves). The native passes
lower a copy of it to LLVM, which is compiled in this process. Slow code, and no path to a product:
it is an execution that owes nothing to IREE.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import execution_engine, ir, passmanager
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.irtypes import dtype_of
from pyc_mlir.pipelines.memory.bufferize_arena import ARENA, RESULT

TO_LLVM = (
    "builtin.module(func.func(convert-linalg-to-loops),expand-strided-metadata,lower-affine,"
    "convert-scf-to-cf,convert-math-to-llvm,convert-math-to-libm,convert-arith-to-llvm,"
    "convert-index-to-llvm,finalize-memref-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,"
    "reconcile-unrealized-casts)"
)
_ALIGNMENT = 64
# Bytes behind every buffer that the program writes; they, and what it has not written, hold this.
_GUARD, _PATTERN = 256, 0xA5


@dataclass(frozen=True)
class _Buffer:
    """An aligned array and the memory that it lies in, with guards on both sides."""

    array: np.ndarray
    raw: np.ndarray
    role: str

    @staticmethod
    def of(type_: ir.MemRefType, role: str) -> "_Buffer":
        dtype = dtype_of(type_.element_type, f"the element type of {type_}")
        size = int(np.prod(type_.shape, dtype=int)) * dtype.itemsize
        raw = np.full(_ALIGNMENT + _GUARD + size + _GUARD, _PATTERN, np.uint8)
        start = _GUARD + -(raw.ctypes.data + _GUARD) % _ALIGNMENT
        array = raw[start : start + size].view(dtype).reshape(type_.shape)
        return _Buffer(array, raw, role)

    @property
    def is_intact(self) -> bool:
        """True if nothing outside of the array was written."""
        start = self.array.ctypes.data - self.raw.ctypes.data
        before, after = self.raw[:start], self.raw[start + self.array.nbytes :]
        return bool((before == _PATTERN).all() and (after == _PATTERN).all())


def execute(
    module: ir.Module,
    inputs: Sequence[np.ndarray],
    *,
    function: str = "main",
    opt_level: int = 0,
) -> list[np.ndarray]:
    """Run `function` on `inputs` and return its results; `module` stays as it is.

    The arena begins with a pattern, not with zeros, and is aligned to 64 bytes. `opt_level` is
    LLVM's: 0 compiles ten times faster than 2 and computes the same. Raises PycError:
    ARGUMENT_COUNT, ARGUMENT_SHAPE or ARGUMENT_DTYPE for inputs that do not fit, PASS_FAILED for a
    module that does not lower, UNSUPPORTED_DTYPE for conversions to 16-bit floats, WRONG_RESULT
    when the program wrote to an input or past a buffer.
    """
    entry = entry_function(module, function)
    name = ir.StringAttr(entry.attributes["sym_name"]).value
    with module.context:
        buffers = [_Buffer.of(type_, role) for type_, role in _arguments(entry)]
    given = [b for b in buffers if not b.role]
    if len(given) != len(inputs):
        raise PycError(
            ReasonCode.ARGUMENT_COUNT, f"{name}: expected {len(given)} arrays, got {len(inputs)}"
        )
    for i, (buffer, array) in enumerate(zip(given, inputs, strict=True)):
        _fill(buffer, array, f"{name}: input {i}")
    _call(to_llvm(module, name), name, [_descriptor(b.array) for b in buffers], opt_level)
    for i, (buffer, array) in enumerate(zip(given, inputs, strict=True)):
        if buffer.array.tobytes() != np.ascontiguousarray(array).tobytes():
            raise PycError(ReasonCode.WRONG_RESULT, f"{name}: the program wrote to input {i}")
    if not all(b.is_intact for b in buffers):
        raise PycError(ReasonCode.WRONG_RESULT, f"{name}: the program wrote past a buffer")
    return [b.array for b in buffers if b.role == RESULT]


def _call(
    module: ir.Module, name: str, descriptors: Sequence[ctypes.Structure], opt_level: int
) -> None:
    """Compile an LLVM module and call a function of it."""
    engine = execution_engine.ExecutionEngine(module, opt_level)
    try:
        engine.lookup(name)
    except RuntimeError as error:
        raise PycError(
            ReasonCode.UNSUPPORTED_DTYPE,
            f"{name}: expected code that links in this process, got: {error}; conversions of "
            "16-bit floats need a compiler's runtime library that is not here",
        ) from error
    engine.invoke(name, *(ctypes.pointer(ctypes.pointer(d)) for d in descriptors))


def _arguments(entry: ir.Operation) -> Iterator[tuple[ir.MemRefType, str]]:
    """Type and role of each argument: '' for an input."""
    values = entry.regions[0].blocks[0].arguments
    known = [ir.DictAttr.get({})] * len(values)
    if "arg_attrs" in entry.attributes:
        known = [ir.DictAttr(a) for a in ir.ArrayAttr(entry.attributes["arg_attrs"])]
    for value, attributes in zip(values, known, strict=True):
        if not isinstance(value.type, ir.MemRefType) or not value.type.has_static_shape:
            raise PycError(
                ReasonCode.UNSUPPORTED_OP,
                f"{entry.location}: expected static memrefs as arguments, got {value.type}; run "
                "pyc-bufferize-arena first",
            )
        yield value.type, next((r for r in (RESULT, ARENA) if r in attributes), "")


def _fill(buffer: _Buffer, array: np.ndarray, what: str) -> None:
    if array.dtype != buffer.array.dtype:
        raise PycError(
            ReasonCode.ARGUMENT_DTYPE,
            f"{what}: expected {buffer.array.dtype}, got {array.dtype}",
        )
    if array.shape != buffer.array.shape:
        raise PycError(
            ReasonCode.ARGUMENT_SHAPE, f"{what}: expected {buffer.array.shape}, got {array.shape}"
        )
    buffer.array[...] = array


def to_llvm(module: ir.Module, function: str) -> ir.Module:
    """Return a copy of `module` in the LLVM dialect, `function` with a C interface.

    Raises PycError.
    """
    code = BytesIO()
    module.operation.write_bytecode(code)
    with module.context, ir.Location.unknown():
        lowered = ir.Module.parse(code.getvalue())
        entry = entry_function(lowered, function)
        entry.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        for op in _copies(lowered.operation):
            _as_linalg(op)
        try:
            passmanager.PassManager.parse(TO_LLVM).run(lowered.operation)
        except ir.MLIRError as error:
            raise PycError(ReasonCode.PASS_FAILED, f"lowering to LLVM: {error}") from error
    return lowered


def _copies(module: ir.Operation) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "memref.copy":
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return found


def _as_linalg(op: ir.Operation) -> None:
    """Write a copy as loops: with strides it would call a runtime library that wheels lack."""
    element = ir.MemRefType(op.operands[0].type).element_type
    with ir.InsertionPoint(op), op.location as location:
        made = ir.Operation.create(
            "linalg.copy",
            operands=list(op.operands),
            attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1])},
            regions=1,
        )
        body = made.regions[0].blocks.append(element, element, arg_locs=[location, location])
        with ir.InsertionPoint(body):
            ir.Operation.create("linalg.yield", operands=[body.arguments[0]])
    op.erase()


def _descriptor(array: np.ndarray) -> ctypes.Structure:
    """Return MLIR's memref descriptor of an array: two pointers, an offset, sizes and strides."""
    fields = [("base", ctypes.c_void_p), ("aligned", ctypes.c_void_p), ("offset", ctypes.c_int64)]
    if array.ndim:
        numbers = ctypes.c_int64 * array.ndim
        fields += [("sizes", numbers), ("strides", numbers)]
    kind = type("MemRef", (ctypes.Structure,), {"_fields_": fields})
    strides = [s // array.itemsize for s in array.strides]
    parts = [numbers(*array.shape), numbers(*strides)] if array.ndim else []
    return kind(array.ctypes.data, array.ctypes.data, 0, *parts)
