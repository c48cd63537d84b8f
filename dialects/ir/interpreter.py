"""The oracle: what a pyc program means, computed by the ops' numpy references.

Input: a module whose function holds pyc ops; output: the arrays that it returns. With
`flush_denormals` the results are flushed as IREE's CPU drivers do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import OPS, OpDef, evaluate
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.types import is_float, require_plain
from pyc_mlir.dialects.util.suggestions import did_you_mean

Value = TypeVar("Value")


def entry_function(module: ir.Module, name: str = "main") -> ir.Operation:
    """Return the function `name`, or the only one. Raises PycError as `choose_entry`."""
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    found = public_functions(functions) or {f.attributes["sym_name"].value: f for f in functions}
    return choose_entry(found, default=name)


def public_functions(operations: Iterable[Any]) -> dict[str, Any]:
    """Return the public functions that have a body, by name; of PyC's bindings or of IREE's."""
    return {
        op.attributes["sym_name"].value: op
        for op in operations
        if op.name in ("func.func", "util.func") and len(op.regions[0].blocks)
        if "sym_visibility" not in op.attributes
        or op.attributes["sym_visibility"].value == "public"
    }


def choose_entry(
    public: Mapping[str, Any], function: str = "", where: str = "module", default: str = "main"
) -> Any:
    """Return the entry among public functions: `function`, else `default` or the only one.

    Where `function` is given, the others become private.
    Raises PycError: BAD_ARGUMENT for a `function` that is none of them, INVALID_IR for no choice.
    """
    name = next(iter(public)) if len(public) == 1 and not function else function or default
    if name not in public:
        listed = ", ".join(map(one_line, sorted(public))) or "none"
        text = f"a public function `{name}`, or a single one, got {listed}; name the entry "
        text += f"`{name}`, or by `--function` (`function=...`)"
        if function:
            text = f"one of its functions ({listed}), got {name!r}{did_you_mean(name, public)}"
        code = ReasonCode.BAD_ARGUMENT if function else ReasonCode.INVALID_IR
        raise PycError(code, f"{where}: expected {text}")
    for other in public.keys() - {name} if function else ():
        label = public[other].attributes["sym_name"]
        public[other].attributes["sym_visibility"] = type(label).get("private", label.context)
    return public[name]


def interpret(
    module: ir.Module,
    inputs: Sequence[np.ndarray],
    *,
    function: str = "main",
    flush_denormals: bool = False,
) -> list[np.ndarray]:
    """Run a pyc function on arrays.

    Raises PycError for ops that are not of the pyc dialect, and for masked arrays (BAD_ARGUMENT).
    """

    def step(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray:
        definition = op_definition(op)
        out = evaluate(definition, operands, **params_of(definition, op))
        declared = from_mlir(op.result.type)
        fits = all(d is None or d == s for d, s in zip(declared.shape, out.shape, strict=True))
        if not fits:
            raise PycError(
                ReasonCode.DIMENSION_MISMATCH,
                f"{op.location}: {op.name}: expected a result of type {declared}, got {out.shape}",
            )
        check_unstretched(op, [a.shape for a in operands], out.shape)
        return flush_subnormals(out) if flush_denormals else out

    for number, array in enumerate(inputs):
        require_plain(array, f"{function}: input {number}")
    return walk(module, list(map(np.asarray, inputs)), step, function)


def walk(
    module: ir.Module,
    inputs: Sequence[Value],
    step: Callable[[ir.Operation, list[Value]], Value],
    function: str = "main",
) -> list[Value]:
    """Return what a pyc function returns if `step` computes each op from its operands, in order.

    Raises PycError (ARGUMENT_COUNT), and what `step` raises.
    """
    block = entry_function(module, function).regions[0].blocks[0]
    if len(inputs) != len(block.arguments):
        raise PycError(
            ReasonCode.ARGUMENT_COUNT,
            f"{function}: expected {len(block.arguments)} arrays, got {len(inputs)}",
        )
    return _run_block(block, dict(zip(block.arguments, inputs, strict=True)), step)


def _run_block(
    block: ir.Block,
    values: dict[ir.Value, Value],
    step: Callable[[ir.Operation, list[Value]], Value],
) -> list[Value]:
    """Evaluate a block's ops in order; return the operands of its terminator.

    Values are forgotten after their last use.
    """
    ends = _last_uses(block)
    for op in block.operations:
        operation = op.operation
        name = operation.name
        if name in ("func.return", "pyc.yield"):
            return [values[v] for v in operation.operands]
        if name == "pyc.group":
            (result,) = _run_block(operation.regions[0].blocks[0], values, step)
        elif name == "tensor.cast":
            result = values[operation.operands[0]]
        else:
            result = step(operation, [values[v] for v in operation.operands])
        values[operation.result] = result
        for value in ends.get(operation, ()):
            del values[value]
    raise AssertionError("a verified block ends in a terminator")


def _last_uses(block: ir.Block) -> dict[ir.Operation, list[ir.Value]]:
    """Return the values of a block that are read last by each of its ops, or inside of it."""
    own, last = set(block.arguments), {}
    for op in block.operations:
        for value in _read(op.operation):
            if value in own:
                last[value] = op.operation
        own.update(op.operation.results)
    ends: dict[ir.Operation, list[ir.Value]] = {}
    for value, operation in last.items():
        ends.setdefault(operation, []).append(value)
    return ends


def _read(operation: ir.Operation) -> Iterator[ir.Value]:
    yield from operation.operands
    for region in operation.regions:
        for op in region.blocks[0].operations:
            yield from _read(op.operation)


def op_definition(op: ir.Operation) -> type[OpDef]:
    """Return the definition of a pyc op. Raises PycError (UNSUPPORTED_OP) for another one."""
    definition = OPS.get(op.name.removeprefix("pyc."))
    if definition is None or not op.name.startswith("pyc."):
        raise PycError(
            ReasonCode.UNSUPPORTED_OP,
            f"{op.location}: expected an op of the pyc dialect, got {op.name}",
        )
    return definition


def check_unstretched(
    op: ir.Operation, operands: Sequence[tuple[int, ...]], out: tuple[int, ...]
) -> None:
    """Raise PycError (DIMENSION_MISMATCH) where an elementwise op stretches a dynamic dimension.

    Only a static 1 broadcasts: a program may take a dynamic dimension for as long as its partner.
    """
    if op_definition(op).family != "elementwise":
        return
    for operand, shape in zip(op.operands, operands, strict=True):
        declared = from_mlir(operand.type).shape
        offset = len(out) - len(shape)
        for axis, size in enumerate(shape):
            if size != out[offset + axis] and declared[axis] is None:
                raise PycError(
                    ReasonCode.DIMENSION_MISMATCH,
                    f"{op.location}: {op.name}: expected {out[offset + axis]} for a dynamic "
                    f"dimension, as its partner has, got {size}",
                )


def flush_subnormals(array: np.ndarray) -> np.ndarray:
    """Replace subnormal f32 and f64 values by zero of their sign, as IREE's CPU drivers compute."""
    if not is_float(array.dtype) or array.dtype.itemsize < 4:
        return array
    tiny = np.finfo(array.dtype).tiny
    return np.where(np.abs(array) < tiny, np.copysign(np.zeros((), array.dtype), array), array)
