"""Dispatches that fork and join: threads work on the workgroups of one while the caller does.

IREE's own workers (``local-task``) are woken for each dispatch, which takes longer than most
dispatches do. Here each dispatch function becomes a job for threads that spin, so that the program
runs on ``local-sync`` and the parts of a dispatch on several cores; a cut pays from about a
microsecond of work on. Without such threads a dispatch is what it was, under `iree-run-module` too.
The code, and how it keeps order, is in `fork_join.mlir`; the threads are in `runtime/pool.py`.

Comes in: a module at the end of the phase `stream`, for `add_attach`; and at the end of code
generation, for `fork_and_join`. For x86-64; the code makes system calls of Linux once it is told of
threads.
"""

from collections.abc import Mapping
from functools import cache
from pkgutil import get_data
from platform import machine
from typing import Any

from pyc_mlir.pipelines.streams.ir import find, ir, name_of, operations
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.pool import ATTACH

# The parts of `fork_join.mlir` of which each dispatch has its own.
_DISPATCH, _TILE, _TIMES = "pyc_threads_dispatch", "pyc_threads_any", "pyc_threads_times"
_AFFINITY = "stream.affinity.default"


def add_attach(module: Any, target: Target) -> None:
    """Add the function ATTACH to a module (of IREE's bindings) at the end of the phase `stream`.

    Where the module has dispatches, and the target's can have threads.
    """
    triples = [f for f in target.flags if f.startswith("--iree-llvmcpu-target-triple=")]
    is_x86 = "x86_64" in (triples[-1] if triples else machine())
    is_code = "--iree-hal-local-target-device-backends=llvm-cpu" in target.flags
    found = (_AFFINITY in module.attributes, bool(find(module, "stream.executable")))
    if not all((is_x86, is_code, *found)):
        return
    with module.context, ir.Location.unknown():
        text = _code("attach.mlir").replace("AFFINITY", str(module.attributes[_AFFINITY]))
        # Behind the device, which its initializer needs.
        source = ir.Module.parse(text)
        for op in operations(source.body):
            op.detach_from_parent()
            module.regions[0].blocks[0].append(op)


def fork_and_join(module: Any) -> int:
    """Make the dispatches of `module`, at the end of code generation, jobs; return how many."""
    count = 0
    with module.context, ir.Location.unknown():
        code = ir.Module.parse(_code("fork_join.mlir"))
        parts = {name_of(op): op for op in operations(code.body)}
        for variant in find(module, "hal.executable.variant"):
            if "x86_64" not in str(variant.attributes["target"]):
                continue
            (inner,) = [
                op for op in operations(variant.regions[0].blocks[0]) if op.name == "builtin.module"
            ]
            exports = [name_of(export) for export in find(variant, "hal.executable.export")]
            count += _make_jobs(inner.regions[0].blocks[0], exports, parts)
    return count


def _make_jobs(block: Any, exports: list[str], parts: dict[str, Any]) -> int:
    """Do so in one executable: the code, and a dispatch for each export."""
    functions = {name_of(op): op for op in operations(block) if op.name == "llvm.func"}
    for name, part in parts.items():
        if name not in (ATTACH, _DISPATCH, _TILE, _TIMES):
            copy = part.clone(ir.InsertionPoint.at_block_begin(block))
            copy.attributes["sym_visibility"] = ir.StringAttr.get("private")
    jobs = 0
    for export in exports:
        function = functions[export]
        name = ir.StringAttr.get(export)
        if ATTACH in export:
            function.erase()
            parts[ATTACH].clone(ir.InsertionPoint(block)).attributes["sym_name"] = name
            continue
        tile = f"{export}_tile"
        function.attributes["sym_name"] = ir.StringAttr.get(tile)
        function.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        function.attributes["no_inline"] = ir.UnitAttr.get()
        times = parts[_TIMES].clone(ir.InsertionPoint.at_block_begin(block))
        times.attributes["sym_name"] = ir.StringAttr.get(f"{export}_times")
        times.attributes["sym_visibility"] = ir.StringAttr.get("private")
        dispatch = parts[_DISPATCH].clone(ir.InsertionPoint(block))
        dispatch.attributes["sym_name"] = name
        _rename(dispatch, {_TILE: tile, _TIMES: f"{export}_times"})
        jobs += 1
    return jobs


def _rename(dispatch: Any, names: Mapping[str, str]) -> None:
    """Let a copy of the dispatch refer to parts of its own."""
    for op in (op for block in dispatch.regions[0].blocks for op in operations(block)):
        for key in {"callee", "global_name"}.intersection(op.attributes):
            name = ir.FlatSymbolRefAttr(op.attributes[key]).value
            op.attributes[key] = ir.FlatSymbolRefAttr.get(names.get(name, name))


@cache
def _code(name: str) -> str:
    return (get_data("pyc_mlir.iree", name) or b"").decode()
