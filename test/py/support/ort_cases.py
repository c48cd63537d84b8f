"""Single ONNX nodes with inputs, that PyC and onnxruntime both compute.

A `Case` is a node; `outcome` imports it, once with static sizes and once with every size dynamic,
interprets the pyc program and compares it with onnxruntime's answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.onnx.importer import import_onnx

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Case:
    """One node.

    inputs: arrays, None for one that is left out; those of `known` are constants of the model.
    outputs: how many are compared. within: the largest error, absolute and relative; None is exact
        but for floats, which have a default. until: of each output, the part that is compared.
    """

    op: str
    inputs: Sequence[np.ndarray | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    known: frozenset[int] = frozenset()
    outputs: int = 1
    domain: str = ""
    opset: int = 21
    within: float | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """The op, its types and shapes."""
        kinds = ",".join("-" if x is None else f"{x.dtype}{list(x.shape)}" for x in self.inputs)
        return f"{self.op}({kinds}){dict(self.attributes)}{self.note}"


def model(
    case: Case,
    dynamic: bool = False,
    wanted: Sequence[np.ndarray] = (),
    empty: int = onnx.AttributeProto.INTS,
) -> onnx.ModelProto:
    """The node as a model; with `dynamic`, its batch and length axes are, equal sizes as one.

    wanted: results, whose element types the model states. empty: the type of an attribute that is
    an empty list.
    """
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(case.inputs)]
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, domain=case.domain)
    for name, value in case.attributes.items():
        kind = empty if value == [] else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    infos, weights = [], []
    for i, x in enumerate(case.inputs):
        if x is None:
            continue
        if i in case.known:
            weights.append(onnx.numpy_helper.from_array(x, names[i]))
            continue
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        free = _free(i, x) if dynamic else ()
        shape = [f"n{s}" if a in free and s != 1 else s for a, s in enumerate(x.shape)]
        infos.append(helper.make_tensor_value_info(names[i], kind, shape))
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    if wanted:
        made = []
        for name, value in zip(outputs, map(np.asarray, wanted), strict=True):
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            made.append(helper.make_tensor_value_info(name, kind, [None] * value.ndim))
    graph = helper.make_graph([node], "case", infos, made, weights)
    opsets = [helper.make_opsetid("", case.opset)]
    if case.domain:
        opsets.append(helper.make_opsetid(case.domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _free(index: int, x: np.ndarray) -> tuple[int, ...]:
    """The axes that exporters make dynamic: the batch, the length, the height of an image."""
    if x.ndim == 3 and x.dtype == np.int32:
        return (0, 1, 2)
    if x.ndim == 2:
        ids = x.dtype.kind in "iu" and x.dtype.itemsize >= 4
        return (0, 1) if ids else (() if index else (0,))
    return {1: (0,) if x.dtype.kind in "iu" else (), 3: (0, 1), 4: (0, 2), 5: (0, 1)}.get(
        x.ndim, ()
    )


def by_onnxruntime(case: Case) -> Sequence[Any] | None:
    """What onnxruntime's CPU provider computes; None where it takes no such node."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    given = {f"x{i}": x for i, x in enumerate(case.inputs) if x is not None and i not in case.known}
    try:
        session = onnxruntime.InferenceSession(
            model(case).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, given)
    except Exception:  # noqa: BLE001  (onnxruntime's errors have no common base)
        return None


def close(found: np.ndarray, wanted: np.ndarray, within: float | None) -> bool:
    """Whether two results agree: the same type and shape, values within a bound."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if wanted.dtype.kind not in "fV" and within is None:
        return bool((found == wanted).all())
    default = {"float16": 4e-3, "float64": 1e-9}.get(wanted.dtype.name, 2e-5)
    bound = default if within is None else within
    wide = (found.astype(np.float64), wanted.astype(np.float64))
    return bool(np.allclose(*wide, rtol=bound, atol=bound, equal_nan=True))


def outcome(case: Case, wanted: Sequence[np.ndarray], context: Any, dynamic: bool) -> str:
    """`equal`, `refused: ...`, or `wrong: ...`."""
    try:
        module = import_onnx(model(case, dynamic, wanted), context=context)
    except PycError as error:
        return f"refused: {error}"
    given = [x for i, x in enumerate(case.inputs) if x is not None and i not in case.known]
    try:
        found = interpret(module, given)
    except PycError as error:
        return f"wrong: {error}"
    for i, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        if not close(mine, np.asarray(theirs), case.within):
            return f"wrong: output {i}: {mine!r:.300} for {theirs!r:.300}"
    return "equal"
