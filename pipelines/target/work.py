"""A group of ops as plain data, `Work`, and its identity: what evidence about a kernel is keyed by.

    work_text(work)     the work as canonical text
    work_id(work)       "w1-" and 64 hex digits: SHA-256 of that text
    parse_work(text)    a work that has that text again

An id covers the ops with their parameters and result types, how they feed each other, the types of
the inputs and which of them are constants, and the kinds of ops that read the result. It does not
cover contents of constants, names, the order of independent ops and of operands of commutative
ops, or what computes the inputs: equal layers of one model, and those of a retrained one, have
equal ids. Whoever finds evidence by an id compares the text as well. A work can be measured from
its text, where the program that had it is not at hand."""

import ast
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

import pyc_mlir.dialects.ops  # noqa: F401  (defines the ops that texts name)
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.opdef import OPS, OpDef, Param, Trait, has
from pyc_mlir.dialects.types import DTYPES, Shape, TensorType, dtype_name, parse_type
from pyc_mlir.dialects.util.canonical import Vertex, canonical_text
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION

F32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Input:
    """A value that the group reads; `array` gives its contents where it is a constant.

    `maker` is the pyc op that makes it, without the dialect; "" for arguments and other ops.
    """

    type: TensorType
    array: Callable[[], np.ndarray] | None = field(default=None, compare=False)
    maker: str = ""

    @cached_property
    def magnitude(self) -> float:
        """The largest size among a constant's numbers; infinity or NaN where one is no number."""
        assert self.array is not None
        return float(np.abs(self.array()).max(initial=0.0))


@dataclass(frozen=True)
class WorkOp:
    """A pyc op: its name without the dialect, the numbers of its operands, its parameters."""

    name: str
    operands: tuple[int, ...]
    params: Mapping[str, Any]
    type: TensorType


@dataclass(frozen=True)
class Work:
    """Ops that are fused: values are numbered, first the inputs, then what each op makes.

    The last op's value is the group's result; values of the others are used inside only. `readers`
    are the pyc ops that read the result.
    """

    inputs: tuple[Input, ...]
    nodes: tuple[WorkOp, ...]
    readers: tuple[str, ...] = ()

    @property
    def is_static(self) -> bool:
        """True where all sizes are known."""
        return all(x.type.is_static for x in (*self.inputs, *self.nodes))

    def type(self, value: int) -> TensorType:
        """Return the type of a value."""
        count = len(self.inputs)
        return self.inputs[value].type if value < count else self.nodes[value - count].type

    def is_constant(self, value: int) -> bool:
        """Return whether a value is known at compile time."""
        return value < len(self.inputs) and self.inputs[value].array is not None

    def number_of(self, node: int) -> int:
        """Return the number of the value that an op makes."""
        return len(self.inputs) + node

    def closed(self, covers: int) -> bool:
        """Return whether later ops use, of the first `covers` ops, only the last one's value."""
        inner = range(len(self.inputs), self.number_of(covers - 1))
        return not any(o in inner for node in self.nodes[covers:] for o in node.operands)


def sizes(shape: Shape) -> int | None:
    """Return the product of sizes; None where one is dynamic."""
    return None if None in shape else prod(d for d in shape if d is not None)


def nominal(shape: Shape) -> int:
    """Return the product of sizes, dynamic ones taken for the nominal dimension."""
    return prod(NOMINAL_DIMENSION if d is None else d for d in shape)


def float_type(work: Work, values: Sequence[int]) -> str:
    """Return the element type that all values have, f32, f16 or bf16; "" for any other."""
    found = {work.type(v).dtype for v in values}
    names = [name for name in ("f32", "f16", "bf16") if found == {DTYPES[name]}]
    return names[0] if names else ""


def is_f32(work: Work, values: Sequence[int]) -> bool:
    """Return whether all these values are of f32."""
    return all(work.type(v).dtype == F32 for v in values)


# Counts up when the text of any work changes, so that old evidence is not taken for new.
NORMALIZER = 1
PREFIX = f"w{NORMALIZER}-"


def work_id(work: Work) -> str:
    """Return the id of a work."""
    return PREFIX + hashlib.sha256(work_text(work).encode()).hexdigest()


def work_text(work: Work) -> str:
    """Return the work as text: one line a value, and a last one for its readers."""
    kinds = ("input" if value.array is None else "constant" for value in work.inputs)
    inputs = [Vertex(f"{k} {v.type}") for k, v in zip(kinds, work.inputs, strict=True)]
    nodes = [
        Vertex(
            f"{node.name}{params_text(node.params)} : {node.type}",
            tuple((operand, 0) for operand in node.operands),
            has(node.name, Trait.COMMUTATIVE),
        )
        for node in work.nodes
    ]
    result = len(inputs) + len(nodes) - 1
    read_by = Vertex(f"read by {' '.join(sorted(work.readers))}", ((result, 0),))
    return f"work {NORMALIZER}\n{canonical_text([*inputs, *nodes, read_by])}"


def params_text(params: Mapping[str, Any]) -> str:
    """Write the parameters of an op, sorted by name: ``{axis=1}``; empty without any."""
    listed = ", ".join(f"{name}={_value_text(params[name])}" for name in sorted(params))
    return f"{{{listed}}}" if listed else ""


def _value_text(value: Any) -> str:
    match value:
        case np.dtype():
            return dtype_name(value)
        case TensorType():
            return str(value)
        case tuple() | list():
            return f"[{', '.join(map(_value_text, value))}]"
        case np.generic():
            return repr(value.item())
        case np.ndarray():
            return f"{TensorType(value.shape, value.dtype)}"
    assert isinstance(value, bool | int | float | str | None), f"no text for {value!r:.80}"
    return repr(value)


_LINE = re.compile(r"\((?P<operands>[^()]*)\) (?P<label>.*)")
_INPUT = re.compile(r"(?P<kind>constant|input) (?P<type>tensor<\S*>)")
_NODE = re.compile(r"(?P<name>\w+)(\{(?P<params>.*)\})? : (?P<type>tensor<\S*>)")
_READERS = "read by"
# One parameter: its name, and a list, a quoted text or a word.
_PARAM = re.compile(r"(\w+)=(\[[^\]]*\]|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^,]*)(?:, |$)")


def parse_work(text: str) -> Work:
    """Parse the text of a work. Constants have no contents: their `array` raises when asked.

    Raises PycError (BAD_ARGUMENT) for what is no text of this version, or has a parameter whose
    contents are in no text.
    """
    try:
        head, *lines = text.splitlines()
        if head != f"work {NORMALIZER}":
            raise ValueError(f"`work {NORMALIZER}` in the first line, got {head!r:.40}")
        return _work(lines)
    except (ValueError, KeyError, IndexError, SyntaxError) as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"text of a work: expected {error}; export it again"
        ) from None


def _work(lines: list[str]) -> Work:
    inputs: list[Input] = []
    nodes: list[tuple[str, tuple[int, ...], dict[str, Any], TensorType]] = []
    # By line the place among inputs, or among nodes.
    places: list[tuple[bool, int]] = []
    readers: tuple[str, ...] = ()
    for line in lines:
        match = _matched(_LINE, line)
        operands = tuple(int(word[1:]) for word in match["operands"].split(", ") if word)
        label = match["label"].replace("\\n", "\n").replace("\\\\", "\\")
        if label.startswith(_READERS):
            readers = tuple(label.removeprefix(f"{_READERS} ").split(" "))
        elif found := _INPUT.fullmatch(label):
            places.append((True, len(inputs)))
            contents = _no_contents if found["kind"] == "constant" else None
            inputs.append(Input(parse_type(found["type"]), contents))
        else:
            found = _matched(_NODE, label)
            places.append((False, len(nodes)))
            definition = OPS[found["name"]]
            params = dict(_params(definition, found["params"] or ""))
            nodes.append((definition.name, operands, params, parse_type(found["type"])))
    numbers = [place if is_input else len(inputs) + place for is_input, place in places]
    made = [WorkOp(n, tuple(numbers[o] for o in read), p, t) for n, read, p, t in nodes]
    return Work(tuple(inputs), tuple(made), readers)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"an input, an op or the readers, got {text!r:.80}")
    return found


def _no_contents() -> np.ndarray:
    raise PycError(
        ReasonCode.BAD_ARGUMENT,
        "work: expected contents of a constant, got the text of a work, which has none",
    )


def _params(definition: type[OpDef], text: str) -> Iterator[tuple[str, Any]]:
    kinds = {param.name: param for param in definition.params}
    at = 0
    while at < len(text):
        match = _PARAM.match(text, at)
        if match is None:
            raise ValueError(f"parameters of {definition.name}, got {text[at:]!r:.60}")
        yield match[1], _value(kinds[match[1]], match[2])
        at = match.end()


def _value(param: Param, text: str) -> Any:
    if param.kind is np.dtype:
        return DTYPES[text]
    if param.kind is np.ndarray:
        raise ValueError(f"contents of `{param.name}`, got {text}")
    if param.kind is float:
        return float(text)
    if param.kind == tuple[float, ...]:
        return tuple(float(word) for word in text.strip("[]").split(", ") if word)
    value = ast.literal_eval(text)
    return tuple(value) if isinstance(value, list) else value
