"""Reading a work's canonical text back: `parse_work(work_text(work))` has that text again.

Evidence is kept under texts (`work_id.py`), so that a work can be measured where the program that
had it is not at hand. Contents of constants and what made the inputs are in no text.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

import pyc_mlir.dialects.ops  # noqa: F401  (defines the ops that texts name)
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.opdef import OPS, OpDef, Param
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.pipelines.target.work_id import NORMALIZER

_LINE = re.compile(r"\((?P<operands>[^()]*)\) (?P<label>.*)")
_INPUT = re.compile(r"(?P<kind>constant|input) (?P<type>tensor<\S*>)")
_NODE = re.compile(r"(?P<name>\w+)(\{(?P<params>.*)\})? : (?P<type>tensor<\S*>)")
_READERS = "read by"
_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)(\w+)>")
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
            inputs.append(_input(found))
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


def _input(found: re.Match[str]) -> Input:
    type_ = parse_type(found["type"])
    return Input(type_, _no_contents if found["kind"] == "constant" else None)


def _no_contents() -> np.ndarray:
    raise PycError(
        ReasonCode.BAD_ARGUMENT,
        "work: expected contents of a constant, got the text of a work, which has none",
    )


def parse_type(text: str) -> TensorType:
    """``tensor<2x?xf32>`` as data. Raises ValueError or KeyError for anything else."""
    found = _TENSOR.fullmatch(text)
    if found is None:
        raise ValueError(f"a tensor type, got {text!r:.60}")
    dims = (word for word in found[1].split("x") if word)
    return TensorType(tuple(None if d == "?" else int(d) for d in dims), DTYPES[found[2]])


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
