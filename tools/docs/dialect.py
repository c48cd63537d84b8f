"""docs/dialect.md: the reference of the pyc dialect, from the op definitions alone."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from pyc_mlir.dialects import ops
from pyc_mlir.dialects.ir.pyc import GroupOp, Pyc, YieldOp
from pyc_mlir.dialects.opdef import OPS, OpDef, Param
from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.pipelines.linalg import convert_to_linalg  # noqa: F401  (registers the rules)
from pyc_mlir.pipelines.linalg.lowering import RULES
from pyc_mlir.tools.docs.examples import accepted_dtypes, example_text, group_text
from pyc_mlir.tools.docs.templates import filled

_ATTRIBUTES: dict[Any, str] = {
    bool: "i1",
    int: "i64",
    float: "f64",
    str: "string",
    np.dtype: "element type",
    np.ndarray: "elements",
    tuple[int, ...]: "array<i64>",
    tuple[float, ...]: "array<f64>",
}


def page() -> str:
    """Write the whole page."""
    introduction = filled(
        "dialect",
        what=inspect.getdoc(Pyc),
        operations=len(OPS),
        families=len(ops.__all__),
        types=", ".join(f"`{name}`" for name in DTYPES),
    )
    sections = [introduction, _contents()]
    for family in ops.__all__:
        sections.append(_family(family))
    return "\n".join([*sections, _groups()])


def _contents() -> str:
    lines = []
    for family in ops.__all__:
        links = ", ".join(f"[{op.name}](#pyc{op.name})" for op in _ops_of(family))
        lines.append(f"- [{family}](#{family}): {links}")
    return "\n".join([*lines, "- [groups](#groups)", ""])


def _ops_of(family: str) -> list[type[OpDef]]:
    return [op for op in OPS.values() if op.family == family]


def _family(family: str) -> str:
    module = sys.modules[f"{ops.__name__}.{family}"]
    head = [f"## {family}", "", inspect.getdoc(module) or "", ""]
    return "\n".join([*head, *("\n".join(_op(op)) for op in _ops_of(family))])


def _op(op: type[OpDef]) -> Iterator[str]:
    yield from (f"### pyc.{op.name}", "", f"`{_signature(op)}`", "", inspect.getdoc(op) or "", "")
    if op.params:
        yield from ("| parameter | attribute | default |", "|---|---|---|")
        yield from (_parameter(p) for p in op.params)
        yield ""
    yield f"- Result: {_line(op.infer)}"
    dtypes = accepted_dtypes(op)
    if dtypes:
        first = op.operands[0] if op.operands else op.optional
        yield f"- Element types of `{first}`: {', '.join(f'`{d}`' for d in dtypes)}."
    if traits := [f"`{t.name}`" for t in op.traits]:
        yield f"- Traits: {', '.join(traits)}."
    yield f"- {_kind(op)}"
    yield from ("", "```mlir", example_text(op), "```", "")


def _signature(op: type[OpDef]) -> str:
    """Write the op as a method of a builder: optional operands in brackets, parameters by name."""
    operands = [*op.operands, *([f"[{op.optional}]"] if op.optional else [])]
    params = [p.name if p.is_required else f"{p.name}={_default(p)}" for p in op.params]
    return f"{op.name}({', '.join([*operands, *(['*', *params] if params else [])])})"


def _parameter(param: Param) -> str:
    default = "required" if param.is_required else f"`{_default(param)}`"
    return f"| `{param.name}` | {_ATTRIBUTES[param.kind]} | {default} |"


def _default(param: Param) -> str:
    return dtype_name(param.default) if param.kind is np.dtype else repr(param.default)


def _kind(op: type[OpDef]) -> str:
    if op.decompose is None:
        return "Primitive."
    how = _line(op.decompose)
    return f"Primitive in some forms: {how}" if op.name in RULES else f"Composite: {how}"


def _line(function: Any) -> str:
    """Write a docstring on one line."""
    text = (
        " ".join((inspect.getdoc(function) or "").split())
        .removeprefix("Return ")
        .removeprefix("Build ")
    )
    return text[0].upper() + text[1:] if text.startswith(("the ", "one ", "a ", "each ")) else text


def _groups() -> str:
    return "\n".join(
        [
            "## groups",
            "",
            f"`pyc.group`: {_line(GroupOp)}",
            "",
            f"`pyc.yield`: {_line(YieldOp)}",
            "",
            "`pyc-fuse` makes groups; `kind` says what the first operation is.",
            "",
            "```mlir",
            group_text(),
            "```",
            "",
        ]
    )
