"""Signatures of pyc modules: names, element types and dimensions of what `main` takes and gives.

Front ends leave `pyc.name` and `pyc.dims` on arguments and results; sizes come from the types,
which passes refine. Declared ranges of dynamic dimensions stand on the function, as `pyc.ranges`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import RANGES, RESULTS, Described, Ranges, Signature, decode
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.dialects.util.index_ranges import INDICES, IndexRange, ranges_of
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION

# On a function: by dimension, the smallest and the largest size.


def signature_of(function: ir.Operation) -> Signature:
    """Read names, element types and dimensions of a function's arguments and results.

    Raises PycError (BAD_ARGUMENT) for ranges of other dimensions, and for what is no range.
    """
    return _read(function, _ranges(function))


def _read(function: ir.Operation, ranges: Mapping[str, Any]) -> Signature:
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    results = ""
    if RESULTS in function.attributes:
        results = ir.StringAttr(function.attributes[RESULTS]).value
        _check_results(results, len(type_.results))
    return Signature.of(
        _arguments(function, "arg_attrs", type_.inputs, "arg"),
        _arguments(function, "res_attrs", type_.results, "result"),
        ranges,
        results,
        _indices(function, [len(ir.ShapedType(t).shape) for t in type_.inputs]),
    )


def _indices(function: ir.Operation, ranks: Sequence[int]) -> tuple[IndexRange, ...]:
    if INDICES not in function.attributes:
        return ()
    return ranges_of(ir.StringAttr(function.attributes[INDICES]).value, ranks)


def _check_results(text: str, count: int) -> None:
    """Raise PycError (INVALID_IR) for a structure that is not one of `count` results."""
    try:
        decode(text, count)
    except ValueError as error:
        raise PycError(ReasonCode.INVALID_IR, f"`{RESULTS}`: {error}") from None


def _ranges(function: ir.Operation) -> dict[str, tuple[int, ...]]:
    if RANGES not in function.attributes:
        return {}
    found = ir.DictAttr(function.attributes[RANGES])
    return {a.name: tuple(ir.DenseI64ArrayAttr(a.attr)) for a in found}


def declare_ranges(function: ir.Operation, ranges: Ranges) -> None:
    """Write ranges of dimensions on a function, beside those that it has.

    Raises PycError (BAD_ARGUMENT) for names that its arguments lack, and for what is no range.
    """
    if ranges:
        _write(function, signature_of(function).with_ranges(ranges).ranges)


def drop_settled_ranges(function: ir.Operation) -> None:
    """Forget the ranges of dimensions that have become static."""
    names = {n for a in _read(function, {}).inputs for n in a.dynamic.values()}
    _write(function, {n: ends for n, ends in _ranges(function).items() if n in names})


def settle(
    module: ir.Module, function: ir.Operation, sizes: Mapping[str, int], context: PassContext
) -> None:
    """Give dynamic dimensions of the arguments their sizes; those that `sizes` lacks stay open.

    Raises PycError (BAD_ARGUMENT) for names that the arguments lack.
    """
    if not sizes:
        return
    signature = signature_of(function)
    names = {n for a in signature.inputs for n in a.dynamic.values()}
    if unknown := sorted(set(sizes) - names):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where="plans",
            expected=f"dynamic dimensions of the inputs ({', '.join(sorted(names))})",
            got=repr(unknown[0]),
        )
    shapes = [a.shape for a in signature.settled(sizes).inputs]
    run_pipeline(module, f"pyc-infer-shapes{{shapes={shapes_text(shapes)}}}", context)
    drop_settled_ranges(function)


def _write(function: ir.Operation, ranges: Mapping[str, Sequence[int]]) -> None:
    if RANGES in function.attributes:
        del function.attributes[RANGES]
    if ranges:
        found = {name: ir.DenseI64ArrayAttr.get(list(ends)) for name, ends in ranges.items()}
        function.attributes[RANGES] = ir.DictAttr.get(found)


def _arguments(
    function: ir.Operation, attribute: str, types: Sequence[ir.Type], prefix: str
) -> list[Described]:
    count = len(types)
    described: list[Any] = [None] * count
    if attribute in function.attributes:
        described = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes[attribute])]
    return [
        _argument(from_mlir(t, f"{prefix}{i}"), described[i], f"{prefix}{i}")
        for i, t in enumerate(types)
    ]


def _argument(type_: TensorType, described: Any, default: str) -> Described:
    """Return one argument with the names that the front end gave it."""
    name, dims = default, [""] * type_.rank
    if described is not None and "pyc.name" in described:
        name = ir.StringAttr(described["pyc.name"]).value
    if described is not None and "pyc.dims" in described:
        dims = [ir.StringAttr(a).value for a in ir.ArrayAttr(described["pyc.dims"])]
    shape = tuple((n or None) if d is None else d for d, n in zip(type_.shape, dims, strict=True))
    return name, type_.dtype, shape


def shapes_text(inputs: Sequence[Any]) -> str:
    """Write shapes or arrays as the option of pyc-infer-shapes. Raises PycError for others."""
    return ",".join(_shape_text(i) for i in inputs)


def _shape_text(given: Any) -> str:
    shape = getattr(given, "dims", None) or getattr(given, "shape", given)
    entries = tuple(shape) if isinstance(shape, (tuple, list)) else None
    legal = entries is not None and all(
        d is None or isinstance(d, str) or (isinstance(d, (int, np.integer)) and d >= 0)
        for d in entries
    )
    if entries is None or not legal:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"inputs: expected shapes (tuples of sizes or None), specs or arrays, got {given!r}",
        )
    sizes = ["?" if d is None or isinstance(d, str) else str(int(d)) for d in entries]
    return "x".join(sizes) or "scalar"


def predicted_sizes(signature: Signature) -> dict[str, int]:
    """Return the size of each dynamic dimension: the nominal one, moved into its range."""
    found = {}
    for name in sorted({name for a in signature.inputs for name in a.dynamic.values()}):
        low, high = signature.ranges.get(name, (0, NOMINAL_DIMENSION))
        found[name] = min(max(NOMINAL_DIMENSION, low), high)
    return found


def sizes_within(signature: Signature) -> list[dict[str, int]]:
    """Return sizes of the dynamic dimensions: in the middle of the ranges, and at their ends.

    One without a range counts as up to the nominal size: from 1 if it leads, as a batch does, else
    from a quarter of it.
    """
    names = {name for a in signature.inputs for name in a.dynamic.values()}
    leading = {a.dynamic.get(0) for a in signature.inputs}
    ends = {
        name: signature.ranges.get(
            name, (1 if name in leading else NOMINAL_DIMENSION // 4, NOMINAL_DIMENSION)
        )
        for name in sorted(names)
    }
    low = {name: max(1, least) for name, (least, _) in ends.items()}
    high = {name: max(low[name], most) for name, (_, most) in ends.items()}
    middle = {name: round(math.sqrt(low[name] * high[name])) for name in ends}
    return [middle, low, high]


def shapes_at(signature: Signature, sizes: Mapping[str, int]) -> list[tuple[int | str | None, ...]]:
    """Return the shapes of the inputs where dynamic dimensions have these sizes, by name."""
    return [
        tuple(sizes[a.dynamic[i]] if i in a.dynamic else d for i, d in enumerate(a.shape))
        for a in signature.inputs
    ]


def refine(module: ir.Module, inputs: Sequence[Any] | None, context: PassContext) -> None:
    """Give the arguments the shapes of `inputs`. Raises PycError unless there is one for each."""
    if inputs is None:
        return
    count = len(entry_function(module).regions[0].blocks[0].arguments)
    if len(inputs) != count:
        raise PycError(
            ReasonCode.ARGUMENT_COUNT,
            f"inputs: expected {count} shapes or arrays, one for each argument, got {len(inputs)}",
        )
    if inputs:
        run_pipeline(module, f"pyc-infer-shapes{{shapes={shapes_text(inputs)}}}", context)
        drop_settled_ranges(entry_function(module))
