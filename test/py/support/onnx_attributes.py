"""Attributes of every ONNX operator at extreme values, and what the import says of each.

    python onnx_attributes.py FROM TO

imports the cases of these numbers in order, in a process that a case may end, and prints for each a
line of JSON: its number when it begins, then "" or what is wrong. The cases come from onnx's own
definitions: integers, texts and lists of both of every operator, newest version.
"""

import json
import resource
import signal
import sys
from collections.abc import Iterator
from functools import cache

import onnx
from onnx import helper

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.frontends.onnx.importer import import_onnx

Kind = onnx.defs.OpSchema.AttrType
SECONDS, MEMORY_BYTES = 20, 2 << 30
OPSET = 23
WHOLE = (0, -1, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 62), (1 << 63) - 1, -(1 << 63))
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
        if not onnx.defs.has(name, OPSET, ""):
            continue
        for attribute in onnx.defs.get_schema(name, OPSET, "").attributes.values():
            for value in _values(attribute.type):
                yield from ((name, attribute.name, value, shape) for shape in RANKS)


def _values(kind: Kind) -> Iterator[object]:
    if kind == Kind.INT:
        yield from WHOLE
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
    schema = onnx.defs.get_schema(name, OPSET, "")
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
        whole = kind in (Kind.INTS, Kind.STRINGS) and given == []
        type_ = onnx.AttributeProto.INTS if kind == Kind.INTS else onnx.AttributeProto.STRINGS
        node.attribute.append(helper.make_attribute(key, given, attr_type=type_ if whole else None))
    made = [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, shape) for x in inputs]
    out = [helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None) for y in outputs]
    graph = helper.make_graph([node], "g", made, out)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)]
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
