"""Extreme attributes of every ONNX operator: imported, or an error with a code, in bounds.

The cases come from onnx's own definitions: numbers, texts and lists of both of every operator.
Those of onnxruntime's domain come from its test cases: one of each operator, with every attribute
that any of them has.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import ort_cases
import ort_microsoft
import pytest
from conftest import FULL, sample
from mutation import limit_memory, reported, wrong_cases
from onnx import helper

from pyc_mlir.frontends.onnx.importer import import_onnx

BATCHES, SAMPLED = 40 if FULL else 2, 200
Kind = onnx.defs.OpSchema.AttrType
SECONDS, MEMORY_BYTES = 20, 2 << 30
OPSET, NEWEST = 23, 28
WHOLE = (0, -1, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 62), (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -1.0, 1e38, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "......", "a" * 4000, "...," * 900, "\x00", "ij" * 1500 + "->", "%s\n\x1b[2J")
RANKS = ((2, 3, 4, 4), (4,), ())
Case = tuple[str, str, object, tuple[int, ...]]


@cache
def cases() -> tuple[Case, ...]:
    """Operator, attribute, value and the shape of all inputs."""
    return tuple(_cases())


def _cases() -> Iterator[Case]:
    names = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""})
    for name in names:
        if not onnx.defs.has(name, _opset(name), ""):
            continue
        for attribute in onnx.defs.get_schema(name, _opset(name), "").attributes.values():
            for value in _values(attribute.type):
                yield from ((name, attribute.name, value, shape) for shape in RANKS)
    for op, case in _bases().items():
        for attribute, given in case.attributes.items():
            kind = helper.make_attribute(attribute, given).type
            values = _values(getattr(Kind, onnx.AttributeProto.AttributeType.Name(kind)))
            yield from ((f"{case.domain}.{op}", attribute, value, ()) for value in values)


def _opset(name: str) -> int:
    return OPSET if onnx.defs.has(name, OPSET, "") else NEWEST


@cache
def _bases() -> dict[str, ort_cases.Case]:
    """A case of each operator of onnxruntime's domain, with every attribute that any case has."""
    found: dict[str, ort_cases.Case] = {}
    for case in ort_microsoft.cases():
        if case.domain:
            known = found.setdefault(case.op, case)
            every = {**case.attributes, **known.attributes}
            found[case.op] = replace(known, attributes=every)
    return found


def _values(kind: Kind) -> Iterator[object]:
    if kind == Kind.INT:
        yield from WHOLE
    elif kind == Kind.FLOAT:
        yield from FLOATS
    elif kind == Kind.FLOATS:
        yield from ([v] * n for v in FLOATS for n in (1, 4))
        yield []
    elif kind == Kind.STRING:
        yield from TEXTS
    elif kind == Kind.INTS:
        yield from ([w] * n for w in WHOLE for n in (1, 4))
        yield from ([], [1] * 100_000, [(1 << 63) - 1, -(1 << 63)])
    elif kind == Kind.STRINGS:
        yield from ([t] for t in TEXTS)
        yield ["x"] * 100_000


def model(case: Case) -> bytes:
    """One node, whose required attributes but one are small."""
    name, attribute, value, shape = case
    domain, _, op = name.rpartition(".")
    if domain:
        base = _bases()[op]
        kind = helper.make_attribute(attribute, base.attributes[attribute]).type
        changed = replace(base, attributes={**base.attributes, attribute: value})
        made = [np.zeros((1, 1, 1), np.float32)] * base.outputs
        return ort_cases.model(changed, wanted=made, empty=kind).SerializeToString()
    schema = onnx.defs.get_schema(name, _opset(name), "")
    small = {Kind.INT: 1, Kind.INTS: [1, 1], Kind.STRING: "a", Kind.FLOAT: 1.0, Kind.FLOATS: [1.0]}
    attributes = {
        a.name: small[a.type] for a in schema.attributes.values() if a.required and a.type in small
    }
    attributes[attribute] = value
    most = min(max(schema.min_input, 1), 8)
    inputs = [f"x{i}" for i in range(most if schema.max_input else 0)]
    outputs = [f"y{i}" for i in range(max(schema.min_output, 1))]
    node = helper.make_node(name, inputs, outputs)
    for key, given in attributes.items():
        kind: Any = schema.attributes[key].type
        type_ = getattr(onnx.AttributeProto, kind.name) if given == [] else None
        node.attribute.append(helper.make_attribute(key, given, attr_type=type_))
    made = [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, shape) for x in inputs]
    out = [helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None) for y in outputs]
    graph = helper.make_graph([node], "g", made, out)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _opset(name))]
    ).SerializeToString()


def warm_up() -> None:
    outcome(0)  # what is loaded late is loaded now
    limit_memory(MEMORY_BYTES)


def outcome(number: int) -> str:
    proto = model(cases()[number])
    return reported(lambda: import_onnx(proto))


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.full
def test_extreme_attributes(batch: int, tmp_path: Path, record_property) -> None:
    numbers = sample(range(len(cases())), SAMPLED)[batch::BATCHES]
    wrong = wrong_cases(outcome, numbers, tmp_path, (SECONDS, SECONDS))
    assert not [(*cases()[int(n)][:2], str(cases()[int(n)][2])[:60], w) for n, w in wrong.items()]
    record_property("extreme ONNX attributes", {"imported or refused": len(numbers)})
