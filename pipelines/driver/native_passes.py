"""Facts about the wheel's native passes: anchors, options, defaults, reasons for a refusal.

Parsing a pass and printing it back spells its options out; what that omits is in `registry`.
"""

import re
from dataclasses import dataclass

from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.pipelines.driver.pipeline_text import ANY, MODULE, PassNode, parse_pipeline
from pyc_mlir.pipelines.driver.registry import MODULE_PIPELINES, UNPRINTED_OPTIONS

_RESTRICTED = re.compile(r"restricted to '([\w.]+)'")
_UNSCHEDULABLE = "unable to schedule pass"
_FUNCTION = "func.func"
_NO_OPTION = re.compile(r"no such option (\S+)")


@dataclass(frozen=True)
class NativePass:
    """A pass of the wheel: the op that it runs on (``any`` for all) and its options.

    `options` maps each name to the text of its default; lists default to ''.
    """

    name: str
    anchor: str
    options: dict[str, str]


@dataclass(frozen=True)
class Refusal:
    """The wheel's reason to refuse a pass: its words, and what could be read from them."""

    text: str
    anchor: str | None = None
    option: str | None = None


def refusal(text: str, context: ir.Context) -> Refusal | None:
    """Return what the wheel has against the pipeline `text`; None when it accepts it.

    The wheel may also write a line to the process's standard error.
    """
    try:
        passmanager.PassManager.parse(text, context)
    except ValueError as error:
        words = " ".join(str(error).split("\nfailed to add")[0].split())
        anchor = _RESTRICTED.search(words)
        option = _NO_OPTION.search(words)
        return Refusal(words, anchor and anchor[1], option and option[1])
    # Passes that need an interface say so when they are about to run. Nothing runs: the module
    # around is empty.
    manager = passmanager.PassManager.parse(f"{MODULE}({text})", context)
    with ir.Location.unknown(context):
        empty = ir.Module.create()
    try:
        manager.run(empty.operation)
    except ir.MLIRError as error:
        words = error.error_diagnostics[0].message if error.error_diagnostics else error.message
        elsewhere = _UNSCHEDULABLE in words and not text.startswith(_FUNCTION)
        return Refusal(words, _FUNCTION if elsewhere else None)
    return None


def describe(name: str, context: ir.Context) -> NativePass | None:
    """Return what the wheel says about the pass `name`; None when it has no such pass."""
    anchor = MODULE if name in MODULE_PIPELINES else ANY
    for tried in (MODULE, _FUNCTION)[: 1 if anchor == MODULE else 2]:
        problem = refusal(f"{tried}({name})", context)
        if problem is not None and problem.anchor is not None:
            anchor = problem.anchor
        elif problem is not None and tried == MODULE:
            return None
    printed = str(passmanager.PassManager.parse(f"{anchor}({name})", context))
    options = dict.fromkeys(UNPRINTED_OPTIONS.get(name, ()), "")
    match parse_pipeline(printed, root=anchor).root.children:
        case (PassNode(name=only) as node,) if only == name:
            options |= {o.name: o.value or "" for o in node.options}
    return NativePass(name, anchor, dict(sorted(options.items())))
