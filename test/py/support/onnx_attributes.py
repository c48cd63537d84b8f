"""Attributes of every ONNX operator at extreme values, and what the import says of each.

    python onnx_attributes.py FROM TO

imports the cases of these numbers in order, in a process that a case may end, and prints for each a
line of JSON: its number when it begins, then "" or what is wrong. The cases come from onnx's own
definitions: numbers, texts and lists of both of every operator. Those of onnxruntime's domain come
from its test cases: one of each operator, with every attribute that any of them has.
"""

import json
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import ort_cases
import ort_microsoft
from onnx import helper

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.frontends.onnx.importer import import_onnx

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
        kind = schema.attributes[key].type
        type_ = getattr(onnx.AttributeProto, kind.name) if given == [] else None
        node.attribute.append(helper.make_attribute(key, given, attr_type=type_))
    made = [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, shape) for x in inputs]
    out = [helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None) for y in outputs]
    graph = helper.make_graph([node], "g", made, out)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _opset(name))]
    ).SerializeToString()


def wrong(case: Case) -> str:
    """What is wrong with what the import says ('' when nothing is)."""
    try:
        import_onnx(model(case))
    except PycError as error:
        return "" if error.message else "no message"
    except Exception as error:  # noqa: BLE001  (what it must not be is what is asked)
        return f"{type(error).__name__}: {error}"[:300]
    return ""


if __name__ == "__main__":
    wrong(cases()[0])  # what is loaded late is loaded now
    with open("/proc/self/statm") as statm:
        most = int(statm.read().split()[0]) * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for number in json.loads(sys.stdin.read()):
        print(json.dumps([number, None]), flush=True)
        signal.alarm(SECONDS)
        print(json.dumps([number, wrong(cases()[number])]), flush=True)
