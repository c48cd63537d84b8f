"""The identity of a `Work`: what evidence about a kernel is keyed by.

    work_text(work)     the work as canonical text
    work_id(work)       "w1-" and 64 hex digits: SHA-256 of that text

An id covers the ops with their parameters and result types, how they feed each other, the types of
the inputs and which of them are constants, and the kinds of ops that read the result. It does not
cover contents of constants, names, the order of independent ops and of operands of commutative
ops, or what computes the inputs: equal layers of one model, and those of a retrained one, have
equal ids. Whoever finds evidence by an id compares the text as well.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import Trait, has
from pyc_mlir.dialects.types import TensorType, dtype_name
from pyc_mlir.dialects.util.canonical import Vertex, canonical_text
from pyc_mlir.pipelines.target.work import Input, Work

# Counts up when the text of any work changes, so that old evidence is not taken for new.
NORMALIZER = 1
PREFIX = f"w{NORMALIZER}-"


def work_id(work: Work) -> str:
    """Return the id of a work."""
    return PREFIX + hashlib.sha256(work_text(work).encode()).hexdigest()


def work_text(work: Work) -> str:
    """Return the work as text: one line a value, and a last one for its readers."""
    inputs = [Vertex(_input_label(value)) for value in work.inputs]
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


def _input_label(value: Input) -> str:
    return f"{'constant' if value.array is not None else 'input'} {value.type}"


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
