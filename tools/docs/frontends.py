"""docs/frontends.md: what can be traced and imported, from the front ends' tables of handlers."""

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyc_mlir import nn
from pyc_mlir.frontends.onnx import importer as onnx_import
from pyc_mlir.frontends.onnx.islands import TESTED
from pyc_mlir.frontends.onnx.model import NEWEST, OLDEST
from pyc_mlir.frontends.onnx.ops.node import HANDLERS
from pyc_mlir.frontends.python import trace
from pyc_mlir.frontends.python.numpy_protocol import FUNCTIONS, NEAREST, UFUNCS
from pyc_mlir.frontends.stablehlo.operations import HANDLERS as STABLEHLO
from pyc_mlir.frontends.stablehlo.operations import REGIONED
from pyc_mlir.frontends.torch import ops as torch_ops  # noqa: F401  (enters every handler)
from pyc_mlir.frontends.torch.ops.handler import HANDLERS as TORCH
from pyc_mlir.frontends.torch.ops.handler import RANDOM
from pyc_mlir.measure.records import Report
from pyc_mlir.tools.docs.templates import filled

# What the importer of StableHLO handles besides its table of handlers.
_CONTROL = ("case", "composite", "constant", "custom_call", "get_dimension_size", "if", "while")

_NODES = Path(__file__).resolve().parents[2] / "docs" / "results" / "onnx-nodes.json"


def _refusals() -> dict[str, Any]:
    """Write the counts of the stored run of all node cases, and a row for each refusal's reason."""
    records = Report.load(_NODES).records
    counts = {(r["workload"], r["metric"]): r["value"] for r in records}
    kinds = ("equal", "refused", "not tensors", "read as onnxruntime does")
    plain = {kind: counts["as they are", kind] for kind in kinds}
    peer = {r["workload"]: r for r in records if r["candidate"] == "plain IREE"}
    rows = []
    for row in records:
        if row["candidate"] == "pyc" and "cases" in row:
            code, _, why = row["workload"].partition(": ")
            right = peer.get(row["workload"])
            shown = "" if right is None else len(right["equal"])
            rows.append(f"| `{code}` | {why} | {row['value']} | {shown} |")
    return {
        "total": sum(plain.values()),
        "equal": plain["equal"],
        "refused": plain["refused"],
        "others": plain["not tensors"],
        "peer": plain["read as onnxruntime does"],
        "dynamic": counts["with dynamic sizes", "equal"],
        "refusals": "\n".join(rows),
    }


def page() -> str:
    """Write the whole page."""
    functions = {_numpy_name(f) for f in FUNCTIONS if f.__module__.startswith("numpy")}
    handlers = [f"| {name} | {_first(HANDLERS[name])} |" for name in sorted(HANDLERS)]
    return filled(
        "frontends",
        trace=_paragraph(trace),
        ufuncs=_listed(f"np.{u.__name__}" for u in UFUNCS),
        functions=_listed(functions),
        nearest="\n".join(f"| `{name}` | {what} |" for name, what in sorted(NEAREST.items())),
        nn="\n".join(f"| `{_call(name, f)}` | {_first(f)} |" for name, f in _nn_functions()),
        onnx=_paragraph(onnx_import),
        **_refusals(),
        first=OLDEST,
        last=NEWEST,
        handlers="\n".join(handlers),
        islands=", ".join(map(_island, sorted(TESTED))),
        stablehlo=_listed(sorted({*STABLEHLO, *REGIONED, *_CONTROL})),
        torch="\n".join(_torch_rows()),
        random=_listed(name.removeprefix("aten.") for name in RANDOM),
    )


def _island(op: str) -> str:
    """Name an operator of the list, with the attributes that it must not have."""
    unset = ", ".join(f"`{name}`" for name in sorted(TESTED[op]))
    return f"`{op}`" + (f" without {unset}" if unset else "")


def _torch_rows() -> list[str]:
    """Write a row for each handler, with the overloads that it imports."""
    overloads: dict[Callable[..., Any], list[str]] = {}
    for name, handler in TORCH.items():
        overloads.setdefault(handler, []).append(name.removeprefix("aten."))
    rows = [(", ".join(f"`{n}`" for n in sorted(v)), _first(h)) for h, v in overloads.items()]
    return [f"| {names} | {meaning} |" for names, meaning in sorted(rows)]


def _nn_functions() -> list[tuple[str, Callable[..., Any]]]:
    found = inspect.getmembers(nn, inspect.isfunction)
    return [(n, f) for n, f in found if not n.startswith("_") and f.__module__ == nn.__name__]


def _call(name: str, function: Callable[..., Any]) -> str:
    """Write the call with its defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return name + str(inspect.Signature(bare))


def _numpy_name(function: Callable[..., Any]) -> str:
    module = "np.linalg" if function.__module__.startswith("numpy.linalg") else "np"
    return f"{module}.{function.__name__}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _first(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a handler's docstring as a table's cell: what it builds."""
    text = (inspect.getdoc(function) or "").partition("\n\n")[0]
    text = re.sub(r"^(?:Build|Return) (.)", lambda m: m[1].upper(), text)
    return " ".join(text.split()).replace("|", "\\|")


def _paragraph(module: Any) -> str:
    """Return a module's docstring without its example blocks."""
    parts = (inspect.getdoc(module) or "").split("\n\n")
    return "\n\n".join(p for p in parts if not p.startswith("    "))
